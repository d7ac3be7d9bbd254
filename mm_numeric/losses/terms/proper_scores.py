"""Scores of a whole distribution that know the order of the values, and are proper.

Axes    k number tokens, c classes

Expected distances collapse to the median of a label that is noisy. The minimum of these is the
distribution of the label itself, as that of cross-entropy is.
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

    On digits, whose gaps are 1, it is the ranked probability score: the squared earth mover's
    distance. With gaps it is the continuous one (CRPS), in token value. From 0 to the largest gap
    between two values (9 on digits).
    """

    per: ClassVar[Literal["token"]] = "token"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = cumulative_difference(numbers, wanted)
        return difference.square() @ gaps


@dataclass(frozen=True, kw_only=True)
class SmoothedDiscrepancy:
    """``r'Kr + a r'(D - K)r`` with ``r = p - onehot(y)``: a maximum mean discrepancy, smoothed.

    ``K = exp(-d ** 2 / (2 bandwidth ** 2))`` over the distances of the values, D is diagonal with
    the row sums of K (its diagonal included), and ``a = 1 / (2 mean degree)``, 0.118 on digits, as
    in the code of arXiv 2606.27731. No unit: 0 where the prediction is perfect, and close to 3
    where it is certain and far off.

    Attributes:
        bandwidth: In token value: how near two values are still taken for similar.
    """

    per: ClassVar[Literal["token"]] = "token"
    bandwidth: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a bandwidth that divides by zero."""
        if self.bandwidth <= 0:
            raise ValueError(f"smmd: bandwidth must be > 0, not {self.bandwidth}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        values, same = numbers.values, numbers.classes.same
        kernel = (((values[:, None] - values) / self.bandwidth).square() / -2).exp()
        if same is not None:
            kernel = kernel * same
        degree = kernel.sum(dim=-1)
        # The mean is over the alphabet; the form is symmetric, for alphabets do not meet in it.
        mean = degree.mean() if same is None else (same * degree).sum(-1) / same.sum(-1)
        form = kernel + (degree.diag() - kernel) / (2 * mean)
        wanted = one_hot(spans.target, len(values))
        residual = numbers.chances - wanted
        return (residual @ form * residual).sum(dim=-1)
