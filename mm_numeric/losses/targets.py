"""Targets that are spread over the number tokens near the label.

Axes    k number tokens, c classes
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits
from mm_numeric.spans import NumberSpans


def spread_target(values: Tensor, target: Tensor, tau: float) -> Tensor:
    """Return ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)`` over the number tokens, [k, c].

    Args:
        values: [c] what each class is worth.
        target: [k] the class of each label.
        tau: Squared token value; near 0 it leaves the label alone. Twice the square of a standard
            deviation.
    """
    return ((values[target][:, None] - values).square() / -tau).softmax(dim=-1)


@dataclass(frozen=True, kw_only=True)
class SpreadTarget:
    """``KL(q || P) = sum_j q_j log(q_j / P_j)`` with ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)``.

    P is over the whole vocabulary, so that chance on text costs too. In nats. 0 where P is q: a
    prediction that is certain of the label is charged for the neighbours that it rules out. Beside
    cross-entropy at a weight of 0.1 it is DIST2.

    Attributes:
        tau: How far the target is spread, in squared token value. 1 puts 0.564 on the label and
            0.208 on each neighbour of a digit in the middle.
    """

    per: ClassVar[Literal["token"]] = "token"
    tau: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a tau that divides by zero."""
        if self.tau <= 0:
            raise ValueError(f"dist2: tau must be > 0, not {self.tau}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        target = spread_target(numbers.values, spans.target, self.tau)
        log_chances = numbers.logits - numbers.log_normaliser[:, None]
        # xlogy: far from the label q underflows to 0, and 0 log 0 is 0.
        return (torch.special.xlogy(target, target) - target * log_chances).sum(dim=-1)
