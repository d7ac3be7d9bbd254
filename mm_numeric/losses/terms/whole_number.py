"""How far a whole number is off: the sequence terms of NTIL (arXiv 2505.13077), and NL-NTL.

Axes    k number tokens, m numbers, c classes

The number that the model writes is built from its most likely digit at each place, with the
gradient of a sharp softmax (straight-through Gumbel-softmax). Its place values know the decimal
point: 3.015 for 4.015 costs more than 3.015 for 3.115. Signs are not predicted by digits and are
left out. Sums are taken in float64, so that a number of 60 digits stays finite.

A softmax that sharp has almost no gradient once a wrong digit leads: for 923 with a wrong first
digit, 8e-21 at a lead of 5. The soft terms take the expected digit in place of the most likely one.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.place_weights import sum_by_number
from mm_numeric.losses.term import NumberLogits, one_hot
from mm_numeric.numbers.spans import NumberSpans

_LARGEST_PLACE = 300  # of float64, with room for a sum


@dataclass(frozen=True, kw_only=True)
class StraightThroughDigits:
    """How a number is built from digit scores.

    Attributes:
        temperature: Of the softmax whose gradient is used; 0.1 in the published code.
        noise_scale: How much Gumbel noise is added to the scores. The published code has 0.01; the
            default is 0, so that a batch costs the same however it is split or repeated.
    """

    per: ClassVar[Literal["number"]] = "number"
    temperature: float = 0.1
    noise_scale: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that divide by zero."""
        if self.temperature <= 0 or self.noise_scale < 0:
            raise ValueError(
                "relative and magnitude: temperature must be > 0 and noise_scale >= 0, not "
                f"{self.temperature} and {self.noise_scale}."
            )

    def values(self, numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
        """Return the absolute value of each number as predicted and as wanted, [m] and [m]."""
        scores = numbers.logits
        if self.noise_scale:
            gumbel = -torch.empty_like(scores).exponential_().log()
            scores = scores + self.noise_scale * gumbel
        soft = (scores / self.temperature).softmax(dim=-1)
        hard = one_hot(soft.argmax(dim=-1), soft.shape[-1])
        # The digits are summed before the detour through (hard - soft).detach(), so that a digit
        # that is right is worth exactly what the label is worth.
        soft_digit = soft.double() @ numbers.values.double()
        hard_digit = hard.double() @ numbers.values.double()
        digit = hard_digit + (soft_digit - soft_digit.detach())
        return _put_together(digit, numbers, spans)


@dataclass(frozen=True, kw_only=True)
class ExpectedDigits:
    """A number is built from the expected digit at each place, ``sum_k 10 ** k E_p[digit]``."""

    per: ClassVar[Literal["number"]] = "number"

    def values(self, numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
        """Return the absolute value of each number as predicted and as wanted, [m] and [m]."""
        digit = numbers.chances.double() @ numbers.values.double()
        return _put_together(digit, numbers, spans)


def _put_together(
    digit: Tensor, numbers: NumberLogits, spans: NumberSpans
) -> tuple[Tensor, Tensor]:
    """Sum number tokens [k] by number, and those of the label: [m] and [m]."""
    wanted = numbers.values.double()[spans.target]
    worth = 10.0 ** spans.place.double().clamp(-_LARGEST_PLACE, _LARGEST_PLACE)
    return sum_by_number(digit * worth, spans), sum_by_number(wanted * worth, spans)


def _size(value: Tensor) -> Tensor:
    """Return ``|X|``, with a gradient of 1 at 0: a number of digits can only grow from there."""
    return torch.where(value < 0, -value, value)


def _relative(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return ``|X - Y| / (max(|X|, |Y|) + 1)``."""
    return (predicted - wanted).abs() / (torch.maximum(_size(predicted), _size(wanted)) + 1)


def _magnitude(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return ``log((max(|X|, |Y|) + 1) / (min(|X|, |Y|) + 1))``."""
    predicted, wanted = _size(predicted), _size(wanted)
    larger, smaller = torch.maximum(predicted, wanted), torch.minimum(predicted, wanted)
    return (larger + 1).log() - (smaller + 1).log()


@dataclass(frozen=True, kw_only=True)
class RelativeError(StraightThroughDigits):
    """``|X - Y| / (max(X, Y) + 1)``, between 0 and 1. The 1 is the published code's."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number, [m]."""
        return _relative(*self.values(numbers, spans))


@dataclass(frozen=True, kw_only=True)
class MagnitudeError(StraightThroughDigits):
    """``log((max(X, Y) + 1) / (min(X, Y) + 1))``: 2.3 for a factor of ten between large numbers."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number, [m]."""
        return _magnitude(*self.values(numbers, spans))


@dataclass(frozen=True, kw_only=True)
class SoftRelativeError(ExpectedDigits):
    """The relative error of the expected number; it has a gradient where the digits are sure.

    It sees the expectation only: half the chance on 0 and half on 8 is a perfect 4. Use it beside a
    term that charges each digit, as ``ntil_soft`` does.
    """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number, [m]."""
        return _relative(*self.values(numbers, spans))


@dataclass(frozen=True, kw_only=True)
class SoftMagnitudeError(ExpectedDigits):
    """The magnitude error of the expected number; see ``SoftRelativeError``."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number, [m]."""
        return _magnitude(*self.values(numbers, spans))


@dataclass(frozen=True, kw_only=True)
class SymmetricPercentage(ExpectedDigits):
    """``|X - Y| / (|X| + |Y|)`` of the expected number: NL-NTL, between 0 and 1.

    Source: class NumberLevelLoss of the ntloss package, to 1e-6.

    Attributes:
        epsilon: Is added to the denominator; that of float32 in the package. With so little a label
            of 0 costs 1 whatever the model says and gives no gradient; 1 mends that.
        reweigh: Charge ``m d + 1.01 (1 - m)``, where m is the probability of the label's alphabet
            at the first token of the number. Off in the paper, on by default in the ntloss package.
    """

    epsilon: float = torch.finfo(torch.float32).eps
    reweigh: bool = False

    def __post_init__(self) -> None:
        """Refuse an epsilon that divides by zero."""
        if self.epsilon <= 0:
            raise ValueError(f"nl_ntl: epsilon must be > 0, not {self.epsilon}.")

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charge of each number, [m]."""
        predicted, wanted = self.values(numbers, spans)
        charges = (predicted - wanted).abs() / (_size(predicted) + _size(wanted) + self.epsilon)
        if not self.reweigh:
            return charges
        mass = (numbers.logits.logsumexp(dim=-1) - numbers.log_normaliser).exp()
        goes_on = torch.nn.functional.pad(spans.number[1:] == spans.number[:-1], (1, 0))
        first = sum_by_number(mass.masked_fill(goes_on, 0), spans)
        return first * charges + 1.01 * (1 - first)
