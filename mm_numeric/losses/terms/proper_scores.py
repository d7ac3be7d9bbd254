"""Proper scoring rules for distributions over ordered values.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)

With noisy labels, a loss such as ``ntl_was`` (the expected distance to the label) is smallest if
the model puts all probability on the median label. A proper scoring rule, such as cross-entropy, is
smallest if the model predicts the true distribution of the labels.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_scale, one_hot
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
