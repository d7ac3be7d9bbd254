"""Check and flatten the inputs of the loss: logits or hidden states, labels, and loss weights.

Axes    b samples, t positions, n positions with a label (supervised), c number tokens in the
        vocabulary
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.losses.normalization import Counts, supervised_weights
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, shifted

_MORE = (
    "the model adds tokens that the labels do not have, such as virtual tokens (prompt tuning of "
    "PEFT) or image features (GIT). Select the positions of the labels."
)


class FlatBatch(NamedTuple):
    """The inputs of the loss, flattened to one axis of positions."""

    inputs: Tensor
    """Logits or hidden states, [b * t, :], or [n, :] if only the supervised positions are given."""

    labels: Tensor
    """[n] labels, without ``IGNORE_INDEX``."""

    spans: NumberSpans

    supervised: Tensor | None
    """[n] indices of the inputs that predict the labels; None: input i predicts label i."""

    weights: Tensor | None
    """[n] loss weights; None: all are 1."""


def flat_supervised(
    what: str,
    inputs: Tensor,
    labels: Tensor,
    spans: NumberSpans | None,
    find: Callable[[Tensor], NumberSpans],
    shift: bool | None,
    weights: Tensor | None,
    counts: Counts | None,
) -> FlatBatch:
    """Check and flatten logits or hidden states, and find the position that predicts each label.

    Args:
        what: Name of the inputs in error messages, such as "logits".
        inputs: [b, t, :], or [n, :] for only the n supervised positions.
        labels: Label ids, [b, t] or [n].
        spans: The tokens of each number in the labels. May be None only for labels [b, t].
        find: Function that finds ``spans`` in labels [b, t]; called if ``spans`` is None.
        shift: True first shifts labels [b, t] left by one, as decoder-only models need.
        weights: Loss weights, [b, t], [b] or [n].
        counts: Counts of the optimiser step, for checking that they used the same ``shift``.
    """
    _check_types(what, inputs, labels)
    given, labels = labels, labels.long()
    supervised = None if spans is None else spans.supervised
    is_whole = inputs.dim() == 3
    if is_whole and labels.shape == inputs.shape[:2]:
        _check_shift(shift, counts)
        labels = shifted(labels) if shift else labels
        if spans is None:
            spans = find(labels)
            supervised = spans.supervised
        if supervised is None:
            supervised = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
        labels = labels.flatten()[supervised]
    elif is_whole and labels.shape == (len(inputs), labels.shape[-1]) < inputs.shape[:2]:
        raise ValueError(
            f"the {what} have {inputs.shape[1]} positions, the labels {labels.shape[1]}: {_MORE}"
        )
    elif (
        shift
        or spans is None
        or not (
            (is_whole and supervised is not None and labels.shape == supervised.shape)
            or (inputs.dim() == 2 and labels.shape == inputs.shape[:1])
        )
    ):
        raise ValueError(
            f"an objective takes {what} [b, t, :] with labels [b, t], or {what} [n, :] with "
            f"labels [n], already shifted and with spans; got {what} "
            f"{list(inputs.shape)}, labels {list(labels.shape)}, shift={shift}, "
            f"spans={'given' if spans is not None else None}. Pass flattened ones as one sample: "
            "x[None], labels[None]."
        )
    supervised = supervised if is_whole else None
    if weights is not None:
        weights = supervised_weights(weights, given, shift, supervised)
    return FlatBatch(inputs.flatten(0, -2), labels, spans, supervised, weights)


def _check_types(what: str, inputs: object, labels: object) -> None:
    """Raise ValueError if inputs are no tensor, labels no integers, or torch.func is active."""
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        found = f"{getattr(labels, 'dtype', '')} {type(labels).__name__}".strip()
        raise ValueError(f"labels are token ids, a tensor of int64 or int32, not {found}.")
    if not isinstance(inputs, Tensor):
        raise ValueError(
            f"an objective takes {what}, a tensor, not {type(inputs).__name__}: pass "
            "outputs.logits, or loss_func(loss_of, shift=...) where transformers.Trainer takes a "
            "compute_loss_func."
        )
    # torch.compile cannot trace the private function of torch.
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise ValueError(
            "an objective does not support torch.func (grad, vmap, jacrev): call loss.backward() "
            "or torch.autograd.grad, which give first derivatives."
        )


def _check_shift(shift: bool | None, counts: Counts | None) -> None:
    """Raise ValueError if ``shift`` is missing, or differs from the one used for ``counts``."""
    if shift is None:
        raise ValueError(
            "labels [b, t] require shift=True (aligned with input_ids, as in transformers) or "
            "shift=False (aligned with the logits: already shifted, or of an encoder-decoder)."
        )
    if counts is not None and counts.shift not in (None, shift):
        raise ValueError(
            f"the counts were made with shift={counts.shift}, and the loss is called with "
            f"shift={shift}: use one of them in both."
        )


def check_labels(
    labels: Tensor,
    tokens: int,
    spans: NumberSpans,
    ids: Tensor,
    *,
    uses_spans: bool,
    gathered: bool = True,
) -> None:
    """Check that labels [n] are valid token ids, and contain the number tokens stored in ``spans``.

    ``tokens`` is the vocabulary size of the output head, and ``ids`` [c] are the ids of all number
    tokens in the vocabulary. On a GPU, the CPU does not wait for the result of the check. Spans are
    then checked only if ``uses_spans`` is True. Labels are not checked if ``gathered`` is True: the
    kernel that gathers the logits of the labels then checks them.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        if not gathered:
            known = labels.clamp(0, tokens - 1) == labels
            torch._assert_async(known.all(), "labels are tokens of the head")
        if uses_spans:
            same = labels[spans.position] == ids[spans.target]
            torch._assert_async(same.all(), "spans are of these labels")
        return
    known = labels.clamp(0, tokens - 1) == labels
    found = labels[spans.position.clamp(max=len(labels) - 1)]
    if not (known.all() & ((found == ids[spans.target]) & (spans.position < len(labels))).all()):
        if not known.all():
            raise ValueError(
                f"the label {labels[~known][0].item()} is not one of the {tokens} tokens; the "
                f"label of a position without a loss is {IGNORE_INDEX}, in labels [b, t]."
            )
        raise ValueError(
            "the spans are not those of these labels: make them from the labels as the positions "
            "predict them (already shifted), with this objective's vocabulary."
        )
