"""Expected distance between the predicted and the target number token.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)
Units   distances are 0 to 9, as between single digits; with ``scale: published`` they are
        differences of token values

EMD (arXiv 2505.13077) and NTL-WAS (arXiv 2411.02083, equation 4) are the same loss if every token
is a single digit. They differ for longer tokens, for example if 115 is predicted for 015:
    NTL-WAS  compares the values of the tokens. The distance is 9 * 100 / 999 = 0.9, and 100 with
             ``scale: published``.
    EMD      compares digit by digit: the distance is 1. The sum of the distances in a number does
             not depend on how the tokenizer splits the number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import (
    NumberClasses,
    NumberLogits,
    check_place_weights,
    check_scale,
    cumulative_sum,
    normalised,
    one_hot,
    place_weights,
)
from mm_numeric.losses.terms.soft_targets import spread_target
from mm_numeric.numbers.spans import NumberSpans

COSTS = ("absolute", "modular", "log")


@dataclass(frozen=True, kw_only=True)
class ExpectedDistance:
    """``sum_j p_j |v_j - v_y|``: Wasserstein-1 distance between softmax p and label y.

    p is over the number tokens and v_j is the value of token j. For the label 8, this loss is 1 if
    the model predicts 9 and 7 if it predicts 1. Cross-entropy is the same for both. If each number
    token is a single digit, the loss equals the class NTLoss of the ntloss package to 1e-6.

    Attributes:
        cost: Cost d of predicting token j instead of y:
            ``absolute``: ``|v_j - v_y|``.
            ``modular``: distance on a circle, where the largest value is next to the smallest (23
            and 0 for hours; 270 and 0 for the values 0, 90, 180, 270).
            ``log``: ``|s(v_j) - s(v_y)|`` with ``s(v) = sign(v) log(1 + |v|)``.
            Or a matrix [c, c] with a row per label and a column per prediction, in the order of
            ``NumberVocabulary.tokens``, and 0 on the diagonal.
        reweigh: True also penalises the probability of text, more than that of any wrong digit. The
            loss is ``m d + 1.01 d_max (1 - m)``: d is the expected cost and d_max the largest cost.
            m is the total probability of the tokens that can replace the label, such as the ten
            digits. False in the paper arXiv 2411.02083, True in the ntloss package.
        squash: Rescales the costs of wrong tokens to the range 1 to ``squash``, for vocabularies
            with large values. At least 1; with 1 the loss is ``1 - p_y``. None does not rescale.
            The ntloss package calls it ``squash_factor``.
        scale: Unit of the costs ``absolute`` and ``modular``. ``range``: the values are rescaled so
            that the largest distance is 9 for every tokenizer: the values of 000 to 999 are
            multiplied by 9 / 999. ``published``: the values are not rescaled.
    """

    per: ClassVar[Literal["token"]] = "token"
    _known: ClassVar[dict[NumberClasses, tuple[Tensor, Tensor]]]
    cost: str | Sequence[Sequence[float]] = "absolute"
    reweigh: bool = False
    squash: float | None = None
    scale: str = "range"

    def __post_init__(self) -> None:
        check_scale("ntl_was", self.scale)
        if self.squash is not None and self.squash < 1:
            raise ValueError(f"ntl_was: squash must be >= 1, not {self.squash}.")
        object.__setattr__(self, "_known", {})
        if isinstance(self.cost, str):
            if self.cost not in COSTS:
                raise ValueError(
                    f"ntl_was: cost is one of {', '.join(COSTS)}, or a matrix; not {self.cost!r}."
                )
            return
        for i, row in enumerate(self.cost):
            fine = all(0 <= cost < 1e30 for cost in row)  # False for nan
            if len(row) != len(self.cost) or row[i] != 0 or not fine:
                raise ValueError(
                    "ntl_was: cost must be a square matrix of finite numbers >= 0 with 0 on the "
                    f"diagonal; its row {i} has {len(row)} of {len(self.cost)} numbers: "
                    f"{list(row)!r:.60}."
                )

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        if self.cost == "absolute" and self.squash is None:
            # This branch needs no matrix [c, c], which may be large.
            values = numbers.classes.scaled_values(self.scale)
            cost = (values - values[spans.target][:, None]).abs()
            worst = numbers.classes.scaled_reach(self.scale)[spans.target]
        else:
            matrix, largest = self._costs(numbers.classes)
            cost, worst = matrix[spans.target], largest[spans.target]
        expected = (numbers.probs * cost).sum(dim=-1)
        return reweighed(expected, worst, numbers) if self.reweigh else expected

    def _costs(self, classes: NumberClasses) -> tuple[Tensor, Tensor]:
        """Return the cost matrix, [c, c], and the largest cost for each label, [c]."""
        if classes not in self._known:
            with torch.inference_mode(False):  # autograd cannot use a tensor of inference mode
                matrix = self._matrix(classes)
                self._known[classes] = matrix, _largest(matrix, classes)
        return self._known[classes]

    def _matrix(self, classes: NumberClasses) -> Tensor:
        """Return the cost of predicting a number token (column) for a label (row), [c, c]."""
        # Squashing makes the unit irrelevant, except for rounding errors.
        scale = self.scale if self.squash is None else "published"
        values = classes.scaled_values(scale)
        if self.cost == "log":
            values = classes.values.sign() * classes.values.abs().log1p()
        if isinstance(self.cost, str):
            cost = (values[:, None] - values).abs()
            if self.cost == "modular":
                round_trip = classes.scaled_reach(scale) + _nearest(cost, classes)
                cost = torch.minimum(cost, (round_trip - cost).clamp(min=0))
        elif len(self.cost) == len(values):
            cost = values.new_tensor([list(row) for row in self.cost])
        else:
            raise ValueError(
                f"ntl_was: cost is a matrix of {len(self.cost)} x {len(self.cost)}, but the "
                f"vocabulary has {len(values)} number tokens."
            )
        return cost if self.squash is None else _squashed(cost, classes, self.squash)


def _largest(cost: Tensor, classes: NumberClasses) -> Tensor:
    """Return for each token the largest cost of a pair of tokens in its digit group, [c].

    ``cost`` [c, c] has the cost of each pair of tokens. Each of the ten digits, for example, gets
    the maximum over all pairs of two digits.
    """
    if classes.same is None:
        return cost.max().expand(len(cost))
    of_row = cost.masked_fill(~classes.same, -torch.inf).amax(dim=1)
    return of_row.expand_as(cost).masked_fill(~classes.same, -torch.inf).amax(dim=1)


def _apart(cost: Tensor, classes: NumberClasses) -> Tensor:
    return cost > 0 if classes.same is None else (cost > 0) & classes.same


def _nearest(cost: Tensor, classes: NumberClasses) -> Tensor:
    """Return for each token the smallest cost above 0 of a pair in its digit group, [c]."""
    return -_largest(-cost.masked_fill(~_apart(cost, classes), torch.inf), classes)


def _squashed(cost: Tensor, classes: NumberClasses, squash: float) -> Tensor:
    """Rescale the costs of wrong number tokens, [c, c], linearly to the range 1 to ``squash``."""
    nearest = _nearest(cost, classes)[:, None]
    span = _largest(cost, classes)[:, None] - nearest
    # If all wrong values have the same distance (only 0 and 1, for example), the cost is 1.
    slope = (squash - 1) / span.where(span > 0, 1)
    return (1 + (cost - nearest) * slope).where(_apart(cost, classes), 0)


@dataclass(frozen=True, kw_only=True)
class CumulativeDistance:
    """Wasserstein-1 distance between the prediction p and a soft target q (arXiv 2411.02083).

    The formula is ``sum_i |CDF_p(v_i) - CDF_q(v_i)| (v_{i+1} - v_i)``. p is the softmax over the
    number tokens, and the v_i are their values in ascending order. If q is one-hot, the loss is the
    mean of ``|v_i - v_y|`` under p, for the value v_y of the label.

    Attributes:
        sigma: Standard deviation of the Gaussian target, ``q_j ~ exp(-((v_j - v_y) / sigma) ** 2 /
            2)``, in units of the token value. 0: one-hot target.
        scale: Unit of the values, ``range`` or ``published``, as in ``ntl_was``.
    """

    per: ClassVar[Literal["token"]] = "token"
    sigma: float = 0.0
    scale: str = "range"

    def __post_init__(self) -> None:
        check_scale("ntl_was_cdf", self.scale)
        if self.sigma < 0:
            raise ValueError(f"ntl_was_cdf: sigma must be >= 0, not {self.sigma}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        if self.sigma:
            wanted = spread_target(numbers, spans.target, 2 * self.sigma**2)
        else:
            wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = _cumulative_difference(numbers, wanted, self.scale)
        return difference.abs() @ gaps


@dataclass(frozen=True, kw_only=True)
class RankedProbability:
    """Ranked probability score: compares the cumulative distributions of prediction and label.

    The loss is ``sum_i (CDF_p(v_i) - [v_y <= v_i]) ** 2 (v_{i+1} - v_i)``. p is the prediction, v_y
    the value of the label, and the v_i are the sorted values of the number tokens. For digits the
    loss equals the squared earth mover's distance. For other values it equals the continuous ranked
    probability score (CRPS). The loss is at most the largest minus the smallest value.

    With noisy labels, the expected distance (``ntl_was``) is smallest if the model puts all
    probability on the median label. A proper scoring rule, such as this one and cross-entropy, is
    smallest if the model predicts the true distribution of the labels.

    Attributes:
        scale: Unit of the values, as in ``ntl_was``: ``range``, or ``published`` (as in the CRPS).
    """

    per: ClassVar[Literal["token"]] = "token"
    scale: str = "range"

    def __post_init__(self) -> None:
        check_scale("rps", self.scale)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = _cumulative_difference(numbers, wanted, self.scale)
        return difference.square() @ gaps


def _cumulative_difference(
    numbers: NumberLogits, wanted: Tensor, scale: str
) -> tuple[Tensor, Tensor]:
    """Return ``CDF_p - CDF_q``, [k, c - 1], and the gaps between adjacent token values, [c - 1].

    p are the predicted probabilities of the c number tokens, and q their target probabilities,
    ``wanted`` [k, c]. The last token is left out, because both CDFs are 1 there. With ``scale``
    equal to ``range``, the values are rescaled to the range 0 to 9.
    """
    difference = cumulative_sum(numbers.probs - wanted)[:, :-1]
    if numbers.present is not None:
        # Rounding errors must not be multiplied by the gaps between digit groups.
        inside = numbers.present[:, :-1] & numbers.present[:, 1:]
        difference = difference.where(inside, 0)
    return difference, numbers.classes.scaled_values(scale).diff()


def reweighed(losses: Tensor, worst: Tensor, numbers: NumberLogits) -> Tensor:
    """Add a penalty for predicting text: ``m * losses + 1.01 * worst * (1 - m)``, [k].

    m is the total probability of the tokens that can replace the label: of the ten digits, if the
    label is a digit. ``worst`` [k] is the largest possible loss at each label. Because of the
    factor 1.01, text costs more than any wrong digit.
    """
    mass = (numbers.logits.logsumexp(dim=-1) - numbers.log_normaliser).exp()
    return mass * losses + 1.01 * worst * (1 - mass)


@dataclass(frozen=True, kw_only=True)
class PlaceWeightedDistance:
    """Mean distance of the predicted digit from the label; first digits have a larger weight.

    The loss of a token with several digits is the sum over the digits. A location token counts as
    one digit: the distance from ``<loc0005>`` to ``<loc0012>`` is 7.

    Attributes:
        places: Weight of a digit that has i digits to its right. ``exponential``: ``growth ** i``.
            ``linear``: ``1 + (growth - 1) i``. ``powers``: ``10 ** i``. ``none``: 1, which is EMD.
        growth: 1 + sigma of arXiv 2505.13077. With 1.2 each digit weighs 20 % more than the next.
        normalise_places: True divides the weights by their mean over the digits of a number. The
            mean weight of a digit is then 1 in long and in short numbers. False, as published: with
            growth 1.2, the weights of a number of 17 digits add up to 106, of 3 digits to 3.6.
    """

    per: ClassVar[Literal["token"]] = "token"
    places: str = "exponential"
    growth: float = 1.2
    normalise_places: bool = False

    def __post_init__(self) -> None:
        check_place_weights("emd_exp", self.places, self.growth)

    @property
    def favours_long_numbers(self) -> bool:
        """Return True if a number with more digits has a larger mean weight."""
        grows = self.places == "powers" or (self.places != "none" and self.growth > 1)
        return grows and not self.normalise_places

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        digits, probs = numbers.classes.digits, numbers.probs
        from_right = spans.from_right
        weights = [
            place_weights(from_right + i if i else from_right, self.places, self.growth)
            for i in range(digits.shape[1])
        ]
        if self.normalise_places:
            width = numbers.classes.width[spans.target].clamp(min=1)  # location tokens: 1 digit
            inside = [weight * (width > i) for i, weight in enumerate(weights)]
            total = sum(inside[1:], inside[0])
            weights = [normalised(weight, total, width.double(), spans) for weight in weights]
        losses = []
        for digit, weight in zip(digits.unbind(dim=1), weights, strict=True):
            miss = (digit - digit[spans.target][:, None]).abs()
            losses.append((probs * miss).sum(dim=-1) * weight.to(probs))
        return sum(losses[1:], losses[0])


@dataclass(frozen=True, kw_only=True)
class DigitDistance:
    """EMD (arXiv 2505.13077): the expected distance of each digit from the correct digit."""

    per: ClassVar[Literal["token"]] = "token"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number token, [k]."""
        return PlaceWeightedDistance(places="none")(numbers, spans)
