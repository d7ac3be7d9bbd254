"""Weight losses, and count the tokens, numbers, boxes and times by which loss sums are divided.

Axes    b samples, t positions, n supervised positions (those with a label), k labels that are
        number tokens, m numbers, q boxes, r clock times
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.spec import TermSpec
from mm_numeric.losses.term import NumberLogits, Term, sum_by_number
from mm_numeric.numbers.spans import NumberSpans, shifted


class Counts(NamedTuple):
    """Counts of tokens, numbers, samples, boxes and clock times in a batch or an optimiser step.

    A mean loss is a sum of losses divided by one of these counts. ``supervised`` counts all tokens
    with a label, and ``tokens`` only the number tokens among them. Each count is a scalar tensor.
    """

    supervised: Tensor
    tokens: Tensor
    numbers: Tensor
    samples: Tensor
    boxes: Tensor
    times: Tensor
    shift: bool | None = None
    """The argument ``shift`` with which labels [b, t] were counted; None if it is not known."""

    is_batch: bool = False
    """True if the step has a single batch, and these are the counts of this batch."""

    @classmethod
    def of(cls, labels: Tensor, spans: NumberSpans, weights: Tensor | None = None) -> "Counts":
        """Count the supervised tokens, number tokens, numbers, samples, boxes and times.

        If ``weights`` [n] of the supervised tokens are given, every count except ``samples`` is a
        sum of weights.
        """
        if weights is not None:
            tokens, numbers, boxes, times = (
                item_weights(weights, per, spans).sum()
                for per in ("token", "number", "box", "time")
            )
            return cls(weights.sum(), tokens, numbers, spans.samples, boxes, times)
        supervised, tokens, numbers, boxes, times = (
            spans.samples.new_full((), len(of))
            for of in (labels, spans.position, spans.value, spans.boxes, spans.times)
        )
        return cls(supervised, tokens, numbers, spans.samples, boxes, times)


COUNT_OF = {
    "supervised": "supervised",
    "token": "tokens",
    "number": "numbers",
    "box": "boxes",
    "time": "times",
}
"""Maps ``Term.per``, what a term has one loss for, to the field of ``Counts`` that counts it."""


def mean_by_sample(losses: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Divide each loss by the number of losses in its sample, so that samples have equal weight.

    ``per`` names what each loss belongs to: a ``number``, a ``box`` or a clock ``time``. Both
    ``token`` and ``supervised`` mean a number token.
    """
    if per == "number":
        sample = spans.sample
    elif per in ("supervised", "token"):
        sample = spans.sample[spans.number]
    else:
        sample = spans.sample[(spans.boxes if per == "box" else spans.times)[:, 0]]
    first, last = (torch.searchsorted(sample, sample, right=right) for right in (False, True))
    return losses / (last - first)


def supervised_weights(
    weights: Tensor, labels: Tensor, shift: bool | None, supervised: Tensor | None
) -> Tensor:
    """Return the loss weight of each supervised position, [n].

    Args:
        weights: [b, t] or [b] for labels [b, t]; [n] for labels [n]. At least 0.
        labels: The labels that the caller passed to the objective, before shifting.
        shift: True if the objective shifts the labels by one. Weights [b, t] are shifted, too.
        supervised: [n] index of each supervised position in the flattened labels; None for
            labels [n].
    """
    per_sample = labels.dim() == 2 and weights.shape == labels.shape[:1]
    if not weights.is_floating_point() or not (per_sample or weights.shape == labels.shape):
        raise ValueError(
            f"weights must be floats of shape {list(labels.shape)} (per token)"
            f"{f' or {list(labels.shape[:1])} (per sample)' if labels.dim() == 2 else ''}, not "
            f"{weights.dtype} {list(weights.shape)}."
        )
    valid = ((weights >= 0) & weights.isfinite()).all()
    if weights.device.type != "cpu" or torch.compiler.is_compiling():
        torch._assert_async(valid, "weights are at least 0 and finite")
    elif not valid:
        raise ValueError(f"weights must be at least 0 and finite; the smallest is {weights.min()}.")
    if labels.dim() == 1:
        return weights
    if per_sample:
        weights = weights[:, None].expand(labels.shape)
    elif shift:
        weights = shifted(weights)
    return weights.flatten() if supervised is None else weights.flatten()[supervised]


def item_weights(weights: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Return the loss weight of each number token, number, box or clock time.

    ``weights`` [n] are the weights of the supervised tokens, and ``per`` is ``Term.per``. A number
    has the mean weight of its tokens, and a box or time the mean weight of its numbers.
    """
    tokens = weights[spans.position]
    if per in ("supervised", "token"):
        return tokens
    numbers = sum_by_number(tokens, spans) / sum_by_number(torch.ones_like(tokens), spans)
    if per == "number":
        return numbers
    return numbers[spans.boxes if per == "box" else spans.times].mean(dim=1)


def term_losses(spec: TermSpec, term: Term, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
    """Return the values of one numeric loss in a batch, before they are averaged.

    There is one value per number token, number, box or clock time, depending on ``term.per``. If
    ``spec.roles`` sets weights for roles, such as x coordinate or hour, the values are multiplied
    by them.
    """
    losses = term(numbers, spans)
    sizes = {"number": spans.value, "box": spans.boxes, "time": spans.times}
    if losses.shape != sizes.get(term.per, spans.target).shape[:1]:
        raise ValueError(
            f"loss term {spec.name}: it returned a tensor of shape {list(losses.shape)}; "
            f"return one loss for each {term.per}, not their sum or mean."
        )
    if spec.roles:
        of_role = tuple(spec.roles.get(role, 1.0) for role in ROLES)
        weights = _on_device(of_role, losses.device, losses.dtype)
        role = spans.role if term.per == "number" else spans.role[spans.number]
        losses = losses * weights[role]
    return losses


_on_devices: dict[tuple[object, ...], Tensor] = {}  # torch.compile warns of functools.cache


def _on_device(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    key = values, device, dtype
    if key not in _on_devices:
        with torch.inference_mode(False):  # autograd cannot use a tensor made in inference mode
            _on_devices[key] = torch.tensor(values, device=device, dtype=dtype)
    return _on_devices[key]
