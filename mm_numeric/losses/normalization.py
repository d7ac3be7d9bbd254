"""Counts that the components of an objective are divided by.

Axes    n supervised rows, k number tokens, m numbers, q boxes, r times
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans


class Counts(NamedTuple):
    """Counts of one batch, or of all batches of one optimiser step; scalar tensors."""

    rows: Tensor
    tokens: Tensor
    numbers: Tensor
    samples: Tensor
    boxes: Tensor
    times: Tensor

    @classmethod
    def of(cls, labels: Tensor, spans: NumberSpans) -> "Counts":
        """Return the counts of one batch from the labels [n] of its supervised rows."""
        rows, tokens, numbers, boxes, times = (
            spans.samples.new_full((), len(of))
            for of in (labels, spans.row, spans.value, spans.boxes, spans.times)
        )
        return cls(rows, tokens, numbers, spans.samples, boxes, times)


COUNT_OF = {"row": "rows", "token": "tokens", "number": "numbers", "box": "boxes", "time": "times"}
"""``Term.per`` to the field of ``Counts`` that the term is divided by."""


def mean_by_sample(losses: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Divide each loss by the number of losses in its sample: the sum is a sum of sample means."""
    if per == "number":
        sample = spans.sample
    elif per in ("row", "token"):
        sample = spans.sample[spans.number]
    else:
        sample = spans.sample[(spans.boxes if per == "box" else spans.times)[:, 0]]
    first, last = (torch.searchsorted(sample, sample, right=right) for right in (False, True))
    return losses / (last - first)
