"""Counts of tokens, numbers and other items, which turn sums of losses into means.

Axes    n supervised positions (those with a label), k labels that are number tokens, m numbers,
        q boxes, r clock times
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.losses.reduction import item_weights
from mm_numeric.numbers.spans import NumberSpans


class Counts(NamedTuple):
    """Counts of tokens, numbers, samples, boxes and clock times in a batch or an optimiser step.

    Loss sums are divided by them. ``supervised`` counts all tokens with a label, and
    ``tokens`` only the number tokens among them. Each count is a scalar tensor.
    """

    supervised: Tensor
    tokens: Tensor
    numbers: Tensor
    samples: Tensor
    boxes: Tensor
    times: Tensor
    shift: bool | None = None
    """``shift`` of the call that counted labels [b, t]; None if this is not known."""

    @classmethod
    def of(cls, labels: Tensor, spans: NumberSpans, weights: Tensor | None = None) -> "Counts":
        """Count the supervised tokens, number tokens, numbers, samples, boxes and times.

        With ``weights`` [n] of the supervised tokens, every count is a sum of weights.
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
"""Maps the unit of a term's losses (``Term.per``) to the field of ``Counts`` with their number."""


def mean_by_sample(losses: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Divide each loss by the number of losses in its sample, so that samples have equal weight.

    ``per`` is the item that each loss belongs to: a ``number``, a ``box``, a clock ``time``, or a
    number token. For number tokens, ``per`` is ``token`` or ``supervised``: the same here.
    """
    if per == "number":
        sample = spans.sample
    elif per in ("supervised", "token"):
        sample = spans.sample[spans.number]
    else:
        sample = spans.sample[(spans.boxes if per == "box" else spans.times)[:, 0]]
    first, last = (torch.searchsorted(sample, sample, right=right) for right in (False, True))
    return losses / (last - first)
