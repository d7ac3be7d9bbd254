"""What the means of an objective are over.

Axes    n supervised rows, k number tokens, m numbers, q boxes, r times
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans


class Counts(NamedTuple):
    """How many there are in one batch, or in all that one optimiser step adds up."""

    rows: Tensor
    tokens: Tensor
    numbers: Tensor
    samples: Tensor
    boxes: Tensor
    times: Tensor

    @classmethod
    def of(cls, labels: Tensor, spans: NumberSpans) -> "Counts":
        """Count one batch: supervised rows [n], number tokens, numbers, samples, boxes, times."""
        rows, tokens, numbers, boxes, times = (
            spans.samples.new_full((), len(of))
            for of in (labels, spans.row, spans.value, spans.boxes, spans.times)
        )
        return cls(rows, tokens, numbers, spans.samples, boxes, times)


COUNT_OF = {
    "row": "rows",
    "token": "tokens",
    "number": "numbers",
    "box": "boxes",
    "time": "times",
}
"""What a term is ``per``, and the count that its mean is over."""


def mean_by_sample(charges: Tensor, per: str, spans: NumberSpans) -> Tensor:
    """Divide each charge by how many its sample has, so that their sum is one of sample means."""
    if per == "number":
        sample = spans.sample
    elif per in ("row", "token"):
        sample = spans.sample[spans.number]
    else:
        sample = spans.sample[(spans.boxes if per == "box" else spans.times)[:, 0]]
    first, last = (torch.searchsorted(sample, sample, right=right) for right in (False, True))
    return charges / (last - first)
