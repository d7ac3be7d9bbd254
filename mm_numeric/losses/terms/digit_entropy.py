"""Cross-entropy losses of the number tokens, weighted by digit place.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.place_weights import check_place_weights, normalised, place_weights
from mm_numeric.losses.term import NumberLogits, one_hot
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


@dataclass(frozen=True, kw_only=True)
class DigitEntropy:
    """DEL (arXiv 2605.20369): binary cross-entropy of number tokens, weighted by probability.

    The formula is ``w mean_j p_j BCE(sigmoid(z_j), [j = y])``, in nats. The mean is over the number
    tokens j. z_j is the logit, and p_j the probability in a softmax over the number tokens. The
    binary label [j = y] is 1 for the correct token y and 0 for others. The weight w depends on the
    digit place. The preset ``del`` adds this loss to cross-entropy with weight 0.01.

    Attributes:
        place_weights: True uses the weights w of the published code: ``2 (i + 1)`` for the digit of
            10 ** i (2 for units, 4 for tens), and ``1.02 ** -(i + 1)`` for the i-th digit after the
            decimal point. False: w is 1.
        normalise_places: True divides w by its mean over the tokens of a number, as ``digit_ce``
            does. Else the tokens of long numbers have larger weights than those of short ones.
    """

    per: ClassVar[Literal["token"]] = "token"
    place_weights: bool = True
    normalise_places: bool = False

    @property
    def favours_long_numbers(self) -> bool:
        """Return True if the mean weight of a number grows with its digits."""
        return self.place_weights and not self.normalise_places

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        logits, count = numbers.logits, len(numbers.values)
        wanted = one_hot(spans.target, count).bool()
        # binary_cross_entropy_with_logits is NaN for a logit of -inf, as masked tokens have.
        binary = -torch.nn.functional.logsigmoid(torch.where(wanted, logits, -logits))
        binary = binary.masked_fill(binary.isinf(), 0)  # p log p is 0 for a label of logit -inf
        classes = count if numbers.present is None else numbers.present.sum(dim=-1)
        losses = (numbers.probs * binary).sum(dim=-1) / classes
        if not self.place_weights:
            return losses
        place = spans.place.to(losses)
        weights = torch.where(place < 0, 1.02 ** (place - 1), 2 * (place.clamp(min=0) + 1))
        if self.normalise_places:
            weights = normalised(weights, weights, torch.ones_like(weights), spans)
        return losses * weights
