"""Distance of the expected value of the number token to the one wanted: the NTL-MSE family.

Axes    k number tokens, c classes
Units   token value for ``ntl_mae``, its square for ``ntl_mse`` and near 0 for ``ntl_huber``

Source: NTL, arXiv 2411.02083; class NTLossDotProduct of the ntloss package, to 1e-6. The
expected value hides a spread: half the chance on 0 and half on 8 is a perfect 4. ``ntl_was`` and
the terms in ``proper`` see the difference.
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
    """What the three terms share: ``sum_j p_j v_j - v_y``, with p over the number tokens.

    Attributes:
        reweigh: Charge ``m d + 1.01 d_max (1 - m)``, where m is the probability of the tokens of
            the label's alphabet together and d_max the largest charge between two of them. Off in
            the paper, on by default in the ntloss package.
    """

    per: ClassVar[Literal["token"]] = "token"
    reweigh: bool = False

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        values = numbers.values
        charges = self.charge(numbers.chances @ values - values[spans.target])
        if not self.reweigh:
            return charges
        return reweighed(charges, self.charge(numbers.classes.reach[spans.target]), numbers)

    def charge(self, miss: Tensor) -> Tensor:
        """Return what an expected value that is off by so much costs."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SquaredError(ExpectedValue):
    """``(sum_j p_j v_j - v_y) ** 2``."""

    def charge(self, miss: Tensor) -> Tensor:
        """Return the square."""
        return miss.square()


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(ExpectedValue):
    """``|sum_j p_j v_j - v_y|``; never more than ``ntl_was``."""

    def charge(self, miss: Tensor) -> Tensor:
        """Return the absolute value."""
        return miss.abs()


@dataclass(frozen=True, kw_only=True)
class HuberError(ExpectedValue):
    """``d ** 2 / 2`` up to ``|d| = delta``, and ``delta (|d| - delta / 2)`` beyond.

    Attributes:
        delta: Where the square ends, in token value; 1 in torch's ``huber_loss``.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a delta that leaves nothing to charge."""
        if self.delta <= 0:
            raise ValueError(f"ntl_huber: delta must be > 0, not {self.delta}.")

    def charge(self, miss: Tensor) -> Tensor:
        """Return the Huber loss."""
        return torch.nn.functional.huber_loss(
            miss, torch.zeros_like(miss), reduction="none", delta=self.delta
        )
