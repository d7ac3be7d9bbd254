"""Cross-entropies of the number tokens, weighted by place.

Axes    k number tokens, c classes
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.place_weights import (
    place_weights,
    places_from_right,
    refuse_places,
    sum_by_number,
)
from mm_numeric.losses.term import NumberLogits, one_hot
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class PlaceWeightedCrossEntropy:
    """``-w log P_y`` at the number tokens, with the mean of w over each number 1: ``digit_ce``.

    The trivial baseline of a numeric loss: cross-entropy that cares more for the first digits. It
    stands in for cross-entropy at the number tokens, so use it with ``ce_on: text``. In nats.

    Attributes:
        places: How w grows with the number of digits to the right of the token's last one, as in
            ``emd_exp``.
        growth: How fast.
    """

    per: ClassVar[Literal["row"]] = "row"
    places: str = "exponential"
    growth: float = 1.2

    def __post_init__(self) -> None:
        """Refuse a growth that turns weights negative or off."""
        refuse_places("digit_ce", self.places, self.growth)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        weights = place_weights(places_from_right(spans), self.places, self.growth)
        share = weights / sum_by_number(weights, spans)[spans.number]
        tokens = sum_by_number(torch.ones_like(weights), spans)[spans.number]
        wanted = numbers.logits.gather(1, spans.target[:, None]).squeeze(1)
        return (share * tokens).to(wanted) * (numbers.log_normaliser - wanted)


@dataclass(frozen=True, kw_only=True)
class DigitEntropy:
    """``w mean_j p_j BCE(sigmoid(z_j), [j = y])``: DEL, each class asked yes or no (2605.20369).

    p is over the number tokens and takes part in the gradient, z are the raw logits. Beside
    cross-entropy at a weight of 0.01. In nats.

    Attributes:
        place_weights: Multiply by w, as the published code has it: ``2 (k + 1)`` for the digit at
            10 ** k in front of the point (units 2, tens 4), and ``1.02 ** -(m + 1)`` for the m-th
            behind it. 1 otherwise.
    """

    per: ClassVar[Literal["token"]] = "token"
    place_weights: bool = True

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        logits, count = numbers.logits, len(numbers.values)
        wanted = one_hot(spans.target, count).to(logits)
        asked = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, wanted, reduction="none"
        )
        classes = count if numbers.present is None else numbers.present.sum(dim=-1)
        charges = (numbers.chances * asked).sum(dim=-1) / classes
        if not self.place_weights:
            return charges
        place = spans.place.to(charges)
        return charges * torch.where(place < 0, 1.02 ** (place - 1), 2 * (place.clamp(min=0) + 1))
