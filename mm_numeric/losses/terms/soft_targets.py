"""Losses with soft targets: number tokens with values near the label get some probability.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_positive
from mm_numeric.numbers.spans import NumberSpans


def spread_target(numbers: NumberLogits, target: Tensor, tau: float) -> Tensor:
    """Return Gaussian soft targets ``q_j ~ exp(-(v_j - v_y) ** 2 / tau)``, [k, c].

    Each of the k labels gets a distribution over the c number tokens: v_j is the value of token j,
    and v_y the label's value. ``target`` [k] has the index y of each label among these tokens.
    ``tau`` is twice the variance. If the label is a single digit, only single digits get a
    probability above 0, not tokens such as ``42`` or ``<loc0005>``.
    """
    values = numbers.values
    # Divide before squaring: ``tau`` itself may underflow in float32.
    heights = -((values[target][:, None] - values) / tau**0.5).square()
    if numbers.present is not None:
        heights = heights.masked_fill(~numbers.present, -torch.inf)
    return heights.softmax(dim=-1)


def log_probs(numbers: NumberLogits) -> Tensor:
    """Return the log probability of each number token, in the whole vocabulary, [k, c]."""
    return numbers.logits - numbers.log_normaliser[:, None]


@dataclass(frozen=True, kw_only=True)
class GaussianCrossEntropy:
    """Cross-entropy ``-sum_j g_j log P_j`` with a Gaussian target g, in nats.

    Source: GCE in arXiv 2411.02083, where it is a baseline for NTL. The target is
    ``g_j ~ exp(-((v_j - v_y) / sigma) ** 2 / 2)``: v_j is the value of token j and v_y the value of
    the label. P is the prediction over the whole vocabulary. This loss replaces cross-entropy at
    the number tokens: set ``ce_tokens: text``, which computes cross-entropy at other tokens only.
    A token with a logit of -inf makes the loss infinite, unless its target probability is 0.

    Attributes:
        sigma: Standard deviation of the target g, in units of the token value, above 0.
    """

    per: ClassVar[Literal["supervised"]] = "supervised"
    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_positive("gce", sigma=self.sigma)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        target = spread_target(numbers, spans.target, 2 * self.sigma**2)
        return -(target * log_probs(numbers)).where(target > 0, 0).sum(dim=-1)
