"""Check the inputs of the loss (logits, labels, number positions) and the size of the output head.

Axes    b samples, t positions, n positions with a label (supervised), c number tokens in the
        vocabulary, r flattened positions: b * t, or n if only those with a label are given
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mm_numeric.losses.normalization import Counts
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, shifted


def flat_supervised(
    inputs: Tensor,
    labels: Tensor,
    spans: NumberSpans | None,
    shift: bool | None,
    what: str,
    find: Callable[[Tensor], NumberSpans],
    counts: Counts | None = None,
) -> tuple[Tensor, Tensor, NumberSpans, Tensor | None]:
    """Flatten logits or hidden states, and find the position that predicts each label.

    Args:
        inputs: Logits or hidden states, [b, t, :] for b samples of t positions, or [n, :] for only
            the n supervised positions (those with a label).
        labels: Label ids, [b, t] or [n].
        spans: The tokens of each number in the labels. May be None only for labels [b, t].
        shift: True first shifts labels [b, t] left by one, as decoder-only models need.
        what: Name of the inputs in error messages, such as "logits".
        find: Function that finds ``spans`` in labels [b, t]; called if ``spans`` is None.
        counts: Token counts of the optimiser step. They must have been made with this ``shift``.

    Returns:
        The inputs, flattened to [b * t, :] or [n, :], the labels [n] without ``IGNORE_INDEX``, the
        spans, and the indices [n] of the inputs that predict the labels. The indices are None for
        inputs [n, :], where input i predicts label i.
    """
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        found = f"{getattr(labels, 'dtype', '')} {type(labels).__name__}".strip()
        raise ValueError(f"labels are token ids, a tensor of int64 or int32, not {found}.")
    if not isinstance(inputs, Tensor):
        raise ValueError(
            f"an objective takes {what}, a tensor, not {type(inputs).__name__}: pass "
            "outputs.logits, or loss_func(loss_of, shift=...) where transformers.Trainer takes a "
            "compute_loss_func."
        )
    check_no_functorch()
    labels = labels.long()
    if inputs.dim() == 3 and labels.shape == inputs.shape[:2]:
        check_shift(shift, counts)
        if shift:
            labels = shifted(labels)
        if spans is None:
            spans = find(labels)
        supervised = spans.supervised
        if supervised is None:
            supervised = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
        return inputs.flatten(0, 1), labels.flatten()[supervised], spans, supervised
    if inputs.dim() == 3 and labels.dim() == 1 and spans is not None and not shift:
        supervised = spans.supervised
        if supervised is not None and supervised.shape == labels.shape:
            return inputs.flatten(0, 1), labels, spans, supervised
    if inputs.dim() != 2 or labels.shape != inputs.shape[:1] or shift or spans is None:
        raise ValueError(
            f"an objective takes {what} [b, t, :] with labels [b, t], or {what} [n, :] with "
            f"labels [n], already shifted and with spans; got {what} "
            f"{list(inputs.shape)}, labels {list(labels.shape)}, shift={shift}, "
            f"spans={'given' if spans is not None else None}. Pass flattened ones as one sample: "
            "x[None], labels[None]."
        )
    return inputs, labels, spans, None


def check_no_functorch() -> None:
    """Check that the loss is not computed inside a transform of torch.func, such as vmap."""
    # torch.compile cannot trace the private function.
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise ValueError(
            "an objective does not support torch.func (grad, vmap, jacrev): call loss.backward() "
            "or torch.autograd.grad, which give first derivatives."
        )


def check_not_called_by_trainer(num_items_in_batch: object) -> None:
    """Check that transformers.Trainer did not call the objective as its ``compute_loss_func``."""
    if num_items_in_batch is not None:
        raise ValueError(
            "an objective is not a compute_loss_func, because it cannot know whether the labels "
            "are shifted: use Trainer(compute_loss_func=loss_func(loss_of, shift=True)), or "
            "shift=False for an encoder-decoder; `from mm_numeric import loss_func`."
        )


def check_shift(shift: bool | None, counts: Counts | None = None) -> None:
    """Raise ValueError if ``shift`` is None, or if ``counts`` were computed with another ``shift``.

    ``shift`` tells whether the labels must be shifted by one to align them with the logits. With a
    wrong value, the loss would be finite, but wrong. ``counts`` are token counts of the labels.
    """
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


def check_labels(labels: Tensor, tokens: int, spans: NumberSpans, ids: Tensor) -> None:
    """Check that labels [n] are valid token ids, and contain the number tokens stored in ``spans``.

    ``tokens`` is the vocabulary size of the output head, and ``ids`` [c] are the ids of all number
    tokens in the vocabulary. On a GPU, the CPU does not wait for the result of the check.
    """
    known = (labels >= 0) & (labels < tokens)
    found = labels[spans.position.clamp(max=len(labels) - 1)]
    fine = known.all() & ((found == ids[spans.target]) & (spans.position < len(labels))).all()
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        torch._assert_async(fine, "labels are tokens of the head, and spans are of these labels")
    elif not fine:
        if not known.all():
            raise ValueError(
                f"the label {labels[~known][0].item()} is not one of the {tokens} tokens; the "
                f"label of a position without a loss is {IGNORE_INDEX}, in labels [b, t]."
            )
        raise ValueError(
            "the spans are not those of these labels: make them from the labels as the positions "
            "predict them (already shifted), with this objective's vocabulary."
        )


def check_head(largest_id: int, tokens: int) -> None:
    """Check that the largest number token id is below ``tokens``, the output size of lm_head."""
    if largest_id >= tokens:
        raise ValueError(
            f"the number token with id {largest_id} is not one of the {tokens} tokens of "
            "the head: the number vocabulary was made from another model's tokenizer."
        )
