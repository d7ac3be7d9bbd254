"""Distance between the expected value of a number token and its label: the NTL-MSE family.

Axes    k number tokens, c classes
Units   token value for ``ntl_mae``, its square for ``ntl_mse``, both for ``ntl_huber``

Source: NTL, arXiv 2411.02083. Agrees with the class NTLossDotProduct of the ntloss package to 1e-6.
The expected value ignores the spread: probability 0.5 on 0 and 0.5 on 8 gives a loss of 0 for the
label 4. ``ntl_was`` and the terms in ``proper_scores`` do not have this problem.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits
from mm_numeric.losses.terms.expected_distance import reweighed
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class ExpectedValue:
    """Base class: a cost of the error ``sum_j p_j v_j - v_y``, with p over the digit group.

    Attributes:
        reweigh: Use ``m d + 1.01 d_max (1 - m)``, where m is the total probability of the label's
            digit group and d_max the largest cost between two of its values. False in the paper,
            True by default in the ntloss package.
    """

    per: ClassVar[Literal["token"]] = "token"
    reweigh: bool = False

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        values = numbers.values
        losses = self.cost(numbers.probs @ values - values[spans.target])
        if not self.reweigh:
            return losses
        return reweighed(losses, self.cost(numbers.classes.reach[spans.target]), numbers)

    def cost(self, error: Tensor) -> Tensor:
        """Return the cost of an error, elementwise."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SquaredError(ExpectedValue):
    """``(sum_j p_j v_j - v_y) ** 2``."""

    def cost(self, error: Tensor) -> Tensor:
        """Return the square."""
        return error.square()


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(ExpectedValue):
    """``|sum_j p_j v_j - v_y|``, at most the loss of ``ntl_was``."""

    def cost(self, error: Tensor) -> Tensor:
        """Return the absolute value."""
        return error.abs()


@dataclass(frozen=True, kw_only=True)
class HuberError(ExpectedValue):
    """``d ** 2 / 2`` up to ``|d| = delta``, and ``delta (|d| - delta / 2)`` beyond.

    Attributes:
        delta: Largest error with a quadratic cost, in units of the token value, above 0.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.delta <= 0:
            raise ValueError(f"ntl_huber: delta must be > 0, not {self.delta}.")

    def cost(self, error: Tensor) -> Tensor:
        """Return the Huber loss."""
        return torch.nn.functional.huber_loss(
            error, torch.zeros_like(error), reduction="none", delta=self.delta
        )
