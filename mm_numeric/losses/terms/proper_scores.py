"""Proper scoring rules for distributions over ordered values.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)

With noisy labels, a loss such as ``ntl_was`` (the expected distance to the label) is smallest if
the model puts all probability on the median label. A proper scoring rule, such as cross-entropy, is
smallest if the model predicts the true distribution of the labels.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_positive, check_scale, one_hot
from mm_numeric.losses.terms.expected_distance import cumulative_difference
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class RankedProbability:
    """Ranked probability score: compares the cumulative distributions of prediction and label.

    The loss is ``sum_i (CDF_p(v_i) - [v_y <= v_i]) ** 2 (v_{i+1} - v_i)``. p is the prediction, v_y
    the value of the label, and the v_i are the sorted values of the number tokens. For digits it
    equals the squared earth mover's distance, for other values the continuous ranked probability
    score (CRPS). The maximum is the largest minus the smallest value.

    Attributes:
        scale: Unit of the values, ``range`` or ``published`` (as in the CRPS), as in ``ntl_was``.
    """

    per: ClassVar[Literal["token"]] = "token"
    scale: str = "range"

    def __post_init__(self) -> None:
        check_scale("rps", self.scale)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = cumulative_difference(numbers, wanted, self.scale)
        return difference.square() @ gaps


@dataclass(frozen=True, kw_only=True)
class SmoothedDiscrepancy:
    """Smoothed maximum mean discrepancy between the predicted probabilities and the label.

    The loss is 0 for a perfect prediction, and close to 3 if all probability is on a value far from
    the label. The formula is ``r'Kr + a r'(D - K)r`` with ``r = p - onehot(y)``: p is the softmax
    over the number tokens, and y the label. K is a matrix with the Gaussian kernel ``exp(-d ** 2 /
    (2 bandwidth ** 2))`` of two tokens whose values differ by d. D is a diagonal matrix with the
    row sums of K. The constant a is 0.5 divided by the mean row sum (0.118 for digits), as in the
    code of arXiv 2606.27731.

    Attributes:
        bandwidth: Standard deviation of the kernel K in units of the token value, above 0.
    """

    per: ClassVar[Literal["token"]] = "token"
    bandwidth: float = 2.0

    def __post_init__(self) -> None:
        check_positive("smmd", bandwidth=self.bandwidth)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
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
