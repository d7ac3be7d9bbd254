"""Cross-entropy of the number tokens, weighted by digit place.

Axes    k labels that are number tokens
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_place_weights, normalised, place_weights
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class PlaceWeightedCrossEntropy:
    """Cross-entropy of the number tokens, weighted by digit place: ``-w log P_y``, in nats.

    Named ``digit_ce`` in configs. The weight w is larger for the first digits of a number, and
    its mean over the tokens of a number is 1. P_y is the probability of the label y in the whole
    vocabulary. Use it with ``ce_tokens: text``, which turns off cross-entropy at the number tokens.

    Attributes:
        places: How w grows from the last to the first digit of a number: ``exponential``,
            ``linear``, ``powers`` or ``none`` (formulas in ``place_weights``).
        growth: Growth of w per digit, above 0.
    """

    per: ClassVar[Literal["supervised"]] = "supervised"
    places: str = "exponential"
    growth: float = 1.2

    def __post_init__(self) -> None:
        check_place_weights("digit_ce", self.places, self.growth)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        weights = place_weights(spans.from_right, self.places, self.growth)
        weights = normalised(weights, weights, torch.ones_like(weights), spans)
        wanted = numbers.logits.gather(1, spans.target[:, None]).squeeze(1)
        return weights.to(wanted) * (numbers.log_normaliser - wanted)
