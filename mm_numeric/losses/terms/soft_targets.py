"""Soft targets: probability on the number tokens near the label.

Axes    k number tokens, c classes
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits
from mm_numeric.numbers.spans import NumberSpans


def spread_target(numbers: NumberLogits, target: Tensor, tau: float) -> Tensor:
    """Return ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)`` over the label's digit group, [k, c].

    ``target`` [k] are the classes of the labels. ``tau`` is the width in units of the squared token
    value, twice the variance; close to 0 for a one-hot target.
    """
    values = numbers.values
    # Divide before squaring: ``tau`` itself may underflow in float32.
    heights = -((values[target][:, None] - values) / tau**0.5).square()
    if numbers.present is not None:
        heights = heights.masked_fill(~numbers.present, -torch.inf)
    return heights.softmax(dim=-1)


def log_probs(numbers: NumberLogits) -> Tensor:
    """Return the log-probability of each class in the whole vocabulary, [k, c]."""
    return numbers.logits - numbers.log_normaliser[:, None]


@dataclass(frozen=True, kw_only=True)
class SpreadTarget:
    """``KL(q || P) = sum_j q_j log(q_j / P_j)`` with ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)``.

    P is over the whole vocabulary, so that probability on text has a cost. In nats; 0 if P equals
    q, so a prediction with probability 1 on the label has a loss above 0. The preset ``dist2`` adds
    it to cross-entropy with the weight 0.1.

    Attributes:
        tau: Width of the target in units of the squared token value, above 0. With 1 the target has
            0.564 on the label and 0.208 on each of its neighbours (digits 1 to 8).
    """

    per: ClassVar[Literal["token"]] = "token"
    tau: float = 1.0

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"dist2: tau must be > 0, not {self.tau}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        target = spread_target(numbers, spans.target, self.tau)
        # xlogy: far from the label q underflows to 0, and 0 log 0 is 0.
        entropy = torch.special.xlogy(target, target)
        return (entropy - target * log_probs(numbers)).sum(dim=-1)


@dataclass(frozen=True, kw_only=True)
class GaussianCrossEntropy:
    """``-sum_j g_j log P_j`` with ``g_j ~ exp(-((v_j - v_y) / sigma) ** 2 / 2)``.

    Gaussian cross-entropy (the baseline GCE of arXiv 2411.02083), in nats; P is over the whole
    vocabulary. It replaces cross-entropy at the number tokens, so use it with ``ce_on: text``.

    Attributes:
        sigma: Standard deviation of the target in units of the token value, above 0.
    """

    per: ClassVar[Literal["row"]] = "row"
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if self.sigma <= 0:
            raise ValueError(f"gce: sigma must be > 0, not {self.sigma}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        target = spread_target(numbers, spans.target, 2 * self.sigma**2)
        return -(target * log_probs(numbers)).sum(dim=-1)
