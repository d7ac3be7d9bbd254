"""Expected distance between the number token predicted and the one wanted.

Axes    k number tokens, c classes, m numbers
Units   distances are in token value: 0 to 9 when the number tokens are digits

EMD (arXiv 2505.13077, digit index) and NTL-WAS (arXiv 2411.02083, equation 4, token value) are the
same quantity on digits; their presets differ in how it is added to cross-entropy.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.targets import spread_target
from mm_numeric.losses.term import NumberLogits
from mm_numeric.spans import NumberSpans

_LARGEST_WEIGHT = 1e30  # of float32, with room for a sum; 1.2 ** 379


@dataclass(frozen=True, kw_only=True)
class ExpectedDistance:
    """``sum_j p_j |v_j - v_y|``, the Wasserstein-1 distance to the label; p is over number tokens.

    Cross-entropy charges 9-for-8 and 1-for-8 the same; this charges 1 and 7.

    Attributes:
        reweigh: Charge ``m d + 1.01 d_max (1 - m)``, where m is the probability of all number
            tokens together: text in place of a digit then costs more than the worst digit. Off in
            the paper, on by default in the ntloss package.
        squash: How much more the farthest wrong token costs than the nearest one; at least 1. None
            charges the distance itself, which on digits is 9. With s the cost of a wrong token is
            ``1 + (d - d_min) (s - 1) / (d_max - d_min)``; 1 charges ``1 - p_y``. For vocabularies
            with large values; ``squash_factor`` in the ntloss package.
    """

    per: ClassVar[Literal["token"]] = "token"
    reweigh: bool = False
    squash: float | None = None

    def __post_init__(self) -> None:
        """Refuse a squash under which a far miss would cost less than a near one."""
        if self.squash is not None and self.squash < 1:
            raise ValueError(f"ntl_was: squash must be >= 1, not {self.squash}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        values = numbers.values
        cost = (values[:, None] - values).abs()
        if self.squash is not None:
            cost = _squashed(cost, self.squash)
        expected = (numbers.logits.softmax(dim=-1) * cost[spans.target]).sum(dim=-1)
        return reweighed(expected, cost.max(), numbers) if self.reweigh else expected


def _squashed(distance: Tensor, squash: float) -> Tensor:
    """Map the distances of different values, [c, c], linearly to 1 ... ``squash``."""
    apart = distance > 0
    nearest = distance.masked_fill(~apart, torch.inf).min()
    # Where all wrong values are equally far (as 0 and 1 alone) there is nothing to map: 1.
    span = (distance.max() - nearest).clamp(min=torch.finfo(distance.dtype).tiny)
    return (1 + (distance - nearest) * ((squash - 1) / span)).where(apart, 0)


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
            wanted = spread_target(numbers.values, spans.target, 2 * self.sigma**2)
        else:
            wanted = torch.nn.functional.one_hot(spans.target, len(numbers.values))
        difference, gaps = cumulative_difference(numbers, wanted)
        return difference.abs() @ gaps


def cumulative_difference(numbers: NumberLogits, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the cumulative distributions of prediction and target differ.

    Args:
        numbers: The prediction, and what each class is worth.
        wanted: [k, c] the target distribution.

    Returns:
        [k, c - 1] predicted minus wanted behind each value but the largest, in ascending order, and
        [c - 1] the gaps to the next value.
    """
    values, order = numbers.values.sort()
    difference = numbers.logits.softmax(dim=-1) - wanted
    return difference[:, order].cumsum(dim=-1)[:, :-1], values.diff()


def reweighed(charges: Tensor, worst: Tensor, numbers: NumberLogits) -> Tensor:
    """Mix charges with 1.01 times the worst one, by how much probability is on text, [k]."""
    mass = (numbers.logits.logsumexp(dim=-1) - numbers.log_normaliser).exp()
    return mass * charges + 1.01 * worst * (1 - mass)


@dataclass(frozen=True, kw_only=True)
class PlaceWeightedDistance:
    """The expected distance times ``growth ** k`` for the k-th digit from the right end (0, 1 ...).

    Attributes:
        growth: 1 + sigma of the paper; 1.2 makes each digit weigh 20 % more than the next.
    """

    per: ClassVar[Literal["token"]] = "token"
    growth: float = 1.2

    def __post_init__(self) -> None:
        """Refuse a growth that turns weights negative or off."""
        if self.growth <= 0:
            raise ValueError(f"emd_exp: growth must be > 0, not {self.growth}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number token, [k]."""
        expected = ExpectedDistance()(numbers, spans)
        weight = self.growth ** places_from_right(spans).double()
        return expected * weight.clamp(max=_LARGEST_WEIGHT).to(expected)


def places_from_right(spans: NumberSpans) -> Tensor:
    """Return how many digits of its number stand to the right of each digit's place, [k]."""
    last = torch.zeros_like(spans.sample).scatter_reduce(
        0, spans.number, spans.place, "amin", include_self=False
    )
    return spans.place - last[spans.number]
