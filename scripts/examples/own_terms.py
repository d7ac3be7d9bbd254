"""Loss terms of boxes (four coordinates) and clock times (hour and minute).

Copy this file next to your config, which names a term by its import path:

    objective:
      preset: ce
      numeric_weight: 2.0
      terms: [{name: "own_terms:BoxOverlap"}]

The weights of DETR (arXiv 2005.12872) are 2 for ``BoxOverlap`` and 20 for ``BoxDistance``: 5 for
the sum of four errors is 20 for their mean. Begin with 0.3 for ``TimeDistance``. No comparison has
measured these terms.

Axes    q boxes, r clock times

Each digit of a predicted number is an expected value, such as 3.7, under a softmax over the number
tokens. Unlike the most likely digit, it is differentiable. The task marks which numbers form a box
or a time. Other numbers have no loss.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.answers import HALF_DAY_MINUTES
from mm_numeric.losses.term import NumberLogits, check_positive
from mm_numeric.losses.terms.whole_number import ExpectedDigits
from mm_numeric.numbers.spans import NumberSpans


def _of_boxes(numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
    """Return q predicted and q ground-truth boxes as (x1, y1, x2, y2), corners sorted, [q, 4]."""
    found, label = ExpectedDigits().values(numbers, spans)
    # Digits have no sign, and a corner at -5 is not one at 5. A token of the value -5 has its own.
    sign = spans.sign.where(label >= 0, 1)
    both = ((sign * v)[spans.boxes] for v in (found, label))
    predicted, wanted = (
        torch.cat([torch.minimum(b[:, :2], b[:, 2:]), torch.maximum(b[:, :2], b[:, 2:])], dim=1)
        for b in both
    )
    return predicted, wanted


@dataclass(frozen=True, kw_only=True)
class BoxDistance:
    """L1 loss of a box: the mean of ``|x - x'| / scale`` over its four coordinates.

    x is a predicted coordinate and x' its target.

    Attributes:
        scale: Largest possible coordinate, above 0: ``max_value`` of the model's coordinates.
    """

    per: ClassVar[Literal["box"]] = "box"
    scale: float = 1000.0

    def __post_init__(self) -> None:
        check_positive("BoxDistance", scale=self.scale)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each box, [q]."""
        predicted, wanted = _of_boxes(numbers, spans)
        return (predicted - wanted).abs().mean(dim=1) / self.scale


@dataclass(frozen=True, kw_only=True)
class BoxOverlap:
    """Loss ``1 - GIoU`` of predicted and target box: 0 if equal, up to 2 if they are far apart.

    GIoU (arXiv 1902.09630) is IoU minus the fraction of the smallest enclosing box that neither box
    covers. Unlike IoU it has a gradient for boxes that do not overlap. The corners of each box are
    sorted first.
    """

    per: ClassVar[Literal["box"]] = "box"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each box, [q]."""
        predicted, wanted = _of_boxes(numbers, spans)
        low, high = (pick(predicted, wanted) for pick in (torch.maximum, torch.minimum))
        shared = _area(low[:, :2], high[:, 2:])
        covered = _area(*predicted.split(2, dim=1)) + _area(*wanted.split(2, dim=1)) - shared
        around = _area(high[:, :2], low[:, 2:])
        return 1 - shared / covered + (around - covered).clamp(min=0) / around


def _area(corner: Tensor, opposite: Tensor) -> Tensor:
    """Return the areas [q] of q boxes, given their top left and bottom right corners, [q, 2].

    The area is 0 if the corners are swapped. A small constant is added to each side, because the
    IoU of two empty boxes would be 0 / 0.
    """
    sides = opposite - corner
    return (sides + torch.finfo(sides.dtype).eps ** 0.5).clamp(min=0).prod(dim=1)


@dataclass(frozen=True, kw_only=True)
class TimeDistance:
    """Circular distance of two times on a 12-hour dial, as a fraction of six hours (0 to 1).

    12:59 and 1:00 are one minute apart, although all their digits differ.
    """

    per: ClassVar[Literal["time"]] = "time"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return one loss value for each of the r clock times, [r]."""
        predicted, wanted = (
            60 * values[spans.times[:, 0]] + values[spans.times[:, 1]]
            for values in ExpectedDigits().values(numbers, spans)
        )
        apart = (predicted - wanted).abs() % HALF_DAY_MINUTES
        return torch.minimum(apart, HALF_DAY_MINUTES - apart) / (HALF_DAY_MINUTES / 2)
