"""How far boxes and times are off that are made of several numbers.

Axes    q boxes, r times, m numbers

Every number is taken as the model expects it, ``sum_k 10 ** k E_p[digit]``: it has a gradient where
a digit is surely wrong, and sees no spread. Which numbers make a box or a time is known from their
roles and groups, which the task gives them; other numbers are not charged.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.answers import HALF_DAY_MINUTES
from mm_numeric.losses.term import NumberLogits
from mm_numeric.losses.terms.whole_number import ExpectedDigits
from mm_numeric.numbers.spans import NumberSpans


def _of_boxes(numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
    """Return boxes as predicted and as wanted, each [q, 4] as x1, y1, x2, y2, with x1 <= x2."""
    sign = spans.sign  # digits do not say it; a corner at -5 is not one at 5
    both = ((sign * v)[spans.boxes] for v in ExpectedDigits().values(numbers, spans))
    predicted, wanted = (
        torch.cat([torch.minimum(b[:, :2], b[:, 2:]), torch.maximum(b[:, :2], b[:, 2:])], dim=1)
        for b in both
    )
    return predicted, wanted


@dataclass(frozen=True, kw_only=True)
class BoxDistance:
    """The mean of ``|x - x'| / scale`` over the four coordinates of a box.

    Attributes:
        scale: What a coordinate is divided by: the largest one that the frame writes.
    """

    per: ClassVar[Literal["box"]] = "box"
    scale: float = 1000.0

    def __post_init__(self) -> None:
        """Refuse a scale that divides by zero."""
        if self.scale <= 0:
            raise ValueError(f"box_l1: scale must be > 0, not {self.scale}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each box, [q]."""
        predicted, wanted = _of_boxes(numbers, spans)
        return (predicted - wanted).abs().mean(dim=1) / self.scale


@dataclass(frozen=True, kw_only=True)
class BoxOverlap:
    """``1 - GIoU``: 0 where the boxes are the same, up to 2 where they are far apart.

    GIoU is IoU minus the share of the smallest box around both that neither covers (arXiv
    1902.09630); unlike IoU it has a gradient where the boxes do not meet. A predicted box whose
    corners are in the wrong order is read with them in order.
    """

    per: ClassVar[Literal["box"]] = "box"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each box, [q]."""
        predicted, wanted = _of_boxes(numbers, spans)
        low, high = (pick(predicted, wanted) for pick in (torch.maximum, torch.minimum))
        shared = _area(low[:, :2], high[:, 2:])
        covered = _area(*predicted.split(2, dim=1)) + _area(*wanted.split(2, dim=1)) - shared
        around = _area(high[:, :2], low[:, 2:])
        return 1 - shared / covered + (around - covered).clamp(min=0) / around


def _area(corner: Tensor, opposite: Tensor) -> Tensor:
    """Return the area between corners [q, 2], 0 where they are in the wrong order.

    A hair is added to each side, so that boxes that are points or lines can be told apart: theirs
    would be 0 / 0.
    """
    sides = opposite - corner
    return (sides + torch.finfo(sides.dtype).eps ** 0.5).clamp(min=0).prod(dim=1)


@dataclass(frozen=True, kw_only=True)
class TimeDistance:
    """The way round the dial between two times, over half a dial: 0 the same, 1 six hours off.

    12:59 for 1:00 is one minute off, though every digit is another.
    """

    per: ClassVar[Literal["time"]] = "time"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each time, [r]."""
        predicted, wanted = (
            60 * values[spans.times[:, 0]] + values[spans.times[:, 1]]
            for values in ExpectedDigits().values(numbers, spans)
        )
        apart = (predicted - wanted).abs() % HALF_DAY_MINUTES
        return torch.minimum(apart, HALF_DAY_MINUTES - apart) / (HALF_DAY_MINUTES / 2)
