"""Proper scoring rules for distributions over ordered values.

Axes    k number tokens, c classes

The minimum of an expected distance is at the median of a noisy label. The minimum of a proper
scoring rule, such as cross-entropy, is at the distribution of the label.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits, one_hot
from mm_numeric.losses.terms.expected_distance import cumulative_difference
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class RankedProbability:
    """``sum_i (CDF_p(v_i) - [v_y <= v_i]) ** 2 (v_{i+1} - v_i)`` over the sorted values.

    On digits, whose gaps are 1, this is the ranked probability score (squared earth mover's
    distance); with other gaps it is the continuous one (CRPS), in units of the token value. The
    range is from 0 to the difference of the largest and the smallest value (9 on digits).
    """

    per: ClassVar[Literal["token"]] = "token"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = cumulative_difference(numbers, wanted)
        return difference.square() @ gaps


@dataclass(frozen=True, kw_only=True)
class SmoothedDiscrepancy:
    """Smoothed maximum mean discrepancy: ``r'Kr + a r'(D - K)r`` with ``r = p - onehot(y)``.

    ``K = exp(-d ** 2 / (2 bandwidth ** 2))`` with the distances d of the values, D is the diagonal
    matrix of the row sums of K (including its diagonal), and ``a = 1 / (2 mean(D))``, 0.118 on
    digits, as in the code of arXiv 2606.27731. No unit: 0 for a perfect prediction, close to 3 for
    a certain prediction that is far off.

    Attributes:
        bandwidth: Width of the kernel in units of the token value, above 0.
    """

    per: ClassVar[Literal["token"]] = "token"
    bandwidth: float = 2.0

    def __post_init__(self) -> None:
        if self.bandwidth <= 0:
            raise ValueError(f"smmd: bandwidth must be > 0, not {self.bandwidth}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        values, same = numbers.values, numbers.classes.same
        kernel = (((values[:, None] - values) / self.bandwidth).square() / -2).exp()
        if same is not None:
            kernel = kernel * same
        degree = kernel.sum(dim=-1)
        # Means are over the digit group; values of different groups have a kernel of 0.
        mean = degree.mean() if same is None else (same * degree).sum(-1) / same.sum(-1)
        form = kernel + (degree.diag() - kernel) / (2 * mean)
        wanted = one_hot(spans.target, len(values))
        residual = numbers.probs - wanted
        return (residual @ form * residual).sum(dim=-1)
