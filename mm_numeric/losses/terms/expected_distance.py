"""Expected distance between the number token predicted and the one wanted.

Axes    k number tokens, c classes, w digits of the longest token
Units   distances are in token value: 0 to 9 when the number tokens are digits

EMD (arXiv 2505.13077, digit index) and NTL-WAS (arXiv 2411.02083, equation 4, token value) are the
same quantity on digits; their presets differ in how it is added to cross-entropy. On tokens of
several digits NTL-WAS is by value (015 for 115 is off by 100), EMD by digit (off by 1 in the first
of three digits): its sum over a number does not depend on how the digits are grouped into tokens.
The mean is over tokens in both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.place_weights import place_weights, places_from_right, refuse_places
from mm_numeric.losses.term import NumberClasses, NumberLogits, one_hot
from mm_numeric.losses.terms.soft_targets import spread_target
from mm_numeric.numbers.spans import NumberSpans

COSTS = ("absolute", "modular", "log")


@dataclass(frozen=True, kw_only=True)
class ExpectedDistance:
    """``sum_j p_j |v_j - v_y|``, the Wasserstein-1 distance to the label; p is over number tokens.

    Cross-entropy charges 9-for-8 and 1-for-8 the same; this charges 1 and 7.

    Attributes:
        cost: What a wrong token costs in place of ``|v_j - v_y|``. ``modular``: the way round a
            circle on which the largest value is as far from the smallest one as the nearest two
            values are apart (23 is next to 0 when the tokens are hours, 270 next to 0 when they are
            0, 90, 180, 270). ``log``: ``|s(v_j) - s(v_y)|``, ``s(v) = sign(v) log(1 + |v|)``.
            Or a matrix [c, c] of your own: a row for each label, a column for each prediction, in
            the order of the vocabulary; 0 on the diagonal.
        reweigh: Charge ``m d + 1.01 d_max (1 - m)``, where m is the probability of the tokens of
            the label's alphabet together: text in place of a digit then costs more than the worst
            digit. Off in the paper, on by default in the ntloss package.
        squash: How much more the farthest wrong token costs than the nearest one; at least 1. None
            charges the distance itself, which on digits is 9. With s the cost of a wrong token is
            ``1 + (d - d_min) (s - 1) / (d_max - d_min)``; 1 charges ``1 - p_y``. For vocabularies
            with large values; ``squash_factor`` in the ntloss package.
    """

    per: ClassVar[Literal["token"]] = "token"
    _table: ClassVar[Tensor]
    cost: str | Sequence[Sequence[float]] = "absolute"
    reweigh: bool = False
    squash: float | None = None

    def __post_init__(self) -> None:
        """Refuse what would reward mistakes."""
        if self.squash is not None and self.squash < 1:
            raise ValueError(f"ntl_was: squash must be >= 1, not {self.squash}.")
        if isinstance(self.cost, str):
            if self.cost not in COSTS:
                raise ValueError(
                    f"ntl_was: cost is one of {', '.join(COSTS)}, or a matrix; not {self.cost!r}."
                )
            return
        for i, row in enumerate(self.cost):
            fine = all(0 <= cost < 1e30 for cost in row)  # nan is not
            if len(row) != len(self.cost) or row[i] != 0 or not fine:
                raise ValueError(
                    "ntl_was: cost must be a square matrix of finite numbers >= 0 with 0 on the "
                    f"diagonal; its row {i} has {len(row)} of {len(self.cost)} numbers: "
                    f"{list(row)!r:.60}."
                )
        # Made once: a thousand rows of Python numbers take a tenth of a second.
        object.__setattr__(self, "_table", torch.tensor([list(row) for row in self.cost]))

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k].

        Raises:
            ValueError: If the cost matrix is for another number of classes.
        """
        values = numbers.values
        if self.cost == "absolute" and self.squash is None:
            cost = (values - values[spans.target][:, None]).abs()  # no [c, c], which may be large
            worst = numbers.classes.reach[spans.target]
        else:
            matrix = self._matrix(numbers.classes)
            cost = matrix[spans.target]
            worst = _largest(matrix, numbers.classes)[spans.target]
        expected = (numbers.chances * cost).sum(dim=-1)
        return reweighed(expected, worst, numbers) if self.reweigh else expected

    def _matrix(self, classes: NumberClasses) -> Tensor:
        """Return what each class costs where another is wanted, [c, c]."""
        values = classes.values
        if self.cost == "log":
            values = values.sign() * values.abs().log1p()
        if isinstance(self.cost, str):
            cost = (values[:, None] - values).abs()
            if self.cost == "modular":
                round_trip = classes.reach + _nearest(cost, classes)
                cost = torch.minimum(cost, (round_trip - cost).clamp(min=0))
        elif len(self.cost) == len(values):
            cost = self._table.to(values, non_blocking=True)
        else:
            raise ValueError(
                f"ntl_was: cost is a matrix of {len(self.cost)} x {len(self.cost)}, but the "
                f"vocabulary has {len(values)} number tokens."
            )
        return cost if self.squash is None else _squashed(cost, classes, self.squash)


def _largest(cost: Tensor, classes: NumberClasses) -> Tensor:
    """Return the largest cost within the alphabet of each class, [c]."""
    if classes.same is None:
        return cost.max().expand(len(cost))
    of_row = cost.masked_fill(~classes.same, -torch.inf).amax(dim=1)
    return of_row.expand_as(cost).masked_fill(~classes.same, -torch.inf).amax(dim=1)


def _apart(cost: Tensor, classes: NumberClasses) -> Tensor:
    """Return which classes of one alphabet are of different values, [c, c]."""
    return cost > 0 if classes.same is None else (cost > 0) & classes.same


def _nearest(cost: Tensor, classes: NumberClasses) -> Tensor:
    """Return the smallest cost of another value within the alphabet of each class, [c]."""
    return -_largest(-cost.masked_fill(~_apart(cost, classes), torch.inf), classes)


def _squashed(cost: Tensor, classes: NumberClasses, squash: float) -> Tensor:
    """Map the costs of different values, [c, c], linearly to 1 ... ``squash``."""
    nearest = _nearest(cost, classes)[:, None]
    span = _largest(cost, classes)[:, None] - nearest
    # Where all wrong values are equally far (as 0 and 1 alone) there is nothing to map: 1.
    slope = (squash - 1) / span.where(span > 0, 1)
    return (1 + (cost - nearest) * slope).where(_apart(cost, classes), 0)


@dataclass(frozen=True, kw_only=True)
class CumulativeDistance:
    """``sum_i |CDF_p(v_i) - CDF_q(v_i)| (v_{i+1} - v_i)`` over the sorted values: Wasserstein-1.

    Equal to ``ExpectedDistance`` where all of q is on the label; this form (arXiv 2411.02083) also
    takes a target that is spread. In token value, 0 where p is q.

    Attributes:
        sigma: Standard deviation of the target around the label, in token value: the target of
            Gaussian cross-entropy, ``q_j ~ exp(-((v_j - v_y) / sigma) ** 2 / 2)``. 0 is the label.
    """

    per: ClassVar[Literal["token"]] = "token"
    sigma: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a spread that there cannot be."""
        if self.sigma < 0:
            raise ValueError(f"ntl_was_cdf: sigma must be >= 0, not {self.sigma}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        if self.sigma:
            wanted = spread_target(numbers, spans.target, 2 * self.sigma**2)
        else:
            wanted = one_hot(spans.target, len(numbers.values))
        difference, gaps = cumulative_difference(numbers, wanted)
        return difference.abs() @ gaps


def cumulative_difference(numbers: NumberLogits, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the cumulative distributions of prediction and target differ.

    Args:
        numbers: The prediction, and what each class is worth.
        wanted: [k, c] the target distribution.

    Returns:
        [k, c - 1] predicted minus wanted behind each class but the last, 0 outside the alphabet of
        the label, and [c - 1] the gaps to the next value.
    """
    difference = (numbers.chances - wanted).cumsum(dim=-1)[:, :-1]
    if numbers.present is not None:
        # What is left of a rounded sum must not be multiplied by the gaps of other alphabets.
        inside = numbers.present[:, :-1] & numbers.present[:, 1:]
        difference = difference.where(inside, 0)
    return difference, numbers.values.diff()


def reweighed(charges: Tensor, worst: Tensor, numbers: NumberLogits) -> Tensor:
    """Mix charges [k] with 1.01 times the worst one, by how much probability is on text."""
    mass = (numbers.logits.logsumexp(dim=-1) - numbers.log_normaliser).exp()
    return mass * charges + 1.01 * worst * (1 - mass)


@dataclass(frozen=True, kw_only=True)
class PlaceWeightedDistance:
    """The expected distance of each digit, times a weight that grows from the number's right end.

    A token of several digits is charged for each of them. A token that is a number on its own
    counts as one digit, and its distance is that of the values.

    Attributes:
        places: How the weight of a digit grows with the number k of digits to its right.
            ``exponential``: ``growth ** k``. ``linear``: ``1 + (growth - 1) k``. ``powers``:
            ``10 ** k``. ``none``: 1, which is EMD.
        growth: 1 + sigma of the paper; 1.2 makes each digit weigh 20 % more than the next.
    """

    per: ClassVar[Literal["token"]] = "token"
    places: str = "exponential"
    growth: float = 1.2

    def __post_init__(self) -> None:
        """Refuse a growth that turns weights negative or off."""
        refuse_places("emd_exp", self.places, self.growth)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        digits, chances = numbers.classes.digits, numbers.chances
        from_right = places_from_right(spans)
        charges = numbers.logits.new_zeros(len(numbers.logits))
        for i in range(digits.shape[1]):
            miss = (digits[:, i] - digits[spans.target, i][:, None]).abs()
            weights = place_weights(from_right + i, self.places, self.growth)
            charges = charges + (chances * miss).sum(dim=-1) * weights.to(charges)
        return charges


@dataclass(frozen=True, kw_only=True)
class DigitDistance:
    """EMD: the expected distance of each digit, ``sum_j p_j |d_j - d_y|``; see the module."""

    per: ClassVar[Literal["token"]] = "token"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        return PlaceWeightedDistance(places="none")(numbers, spans)
