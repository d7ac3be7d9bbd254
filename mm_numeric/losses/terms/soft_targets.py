"""Targets that are spread over the number tokens near the label.

Axes    k number tokens, c classes
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits
from mm_numeric.numbers.spans import NumberSpans


def spread_target(numbers: NumberLogits, target: Tensor, tau: float) -> Tensor:
    """Return ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)`` over the label's alphabet, [k, c].

    Args:
        numbers: What each class is worth, and which are of the label's alphabet.
        target: [k] the class of each label.
        tau: Squared token value; near 0 it leaves the label alone. Twice the square of a standard
            deviation.
    """
    values = numbers.values
    # Divided before it is squared: the square of a small tau's root is no float32.
    heights = -((values[target][:, None] - values) / tau**0.5).square()
    if numbers.present is not None:
        heights = heights.masked_fill(~numbers.present, -torch.inf)
    return heights.softmax(dim=-1)


def log_chances(numbers: NumberLogits) -> Tensor:
    """Return the log-probability of each class among all tokens, [k, c]."""
    return numbers.logits - numbers.log_normaliser[:, None]


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
        target = spread_target(numbers, spans.target, self.tau)
        # xlogy: far from the label q underflows to 0, and 0 log 0 is 0.
        entropy = torch.special.xlogy(target, target)
        return (entropy - target * log_chances(numbers)).sum(dim=-1)


@dataclass(frozen=True, kw_only=True)
class GaussianCrossEntropy:
    """``-sum_j g_j log P_j`` with ``g_j ~ exp(-((v_j - v_y) / sigma) ** 2 / 2)``.

    Gaussian cross-entropy (the baseline GCE of arXiv 2411.02083): it stands in for cross-entropy at
    the number tokens, so use it with ``ce_on: text``. P is over the whole vocabulary. In nats.

    Attributes:
        sigma: Standard deviation of the target, in token value.
    """

    per: ClassVar[Literal["row"]] = "row"
    sigma: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a spread that divides by zero."""
        if self.sigma <= 0:
            raise ValueError(f"gce: sigma must be > 0, not {self.sigma}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        target = spread_target(numbers, spans.target, 2 * self.sigma**2)
        return -(target * log_chances(numbers)).sum(dim=-1)
