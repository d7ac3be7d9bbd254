"""Losses on the error of the number as a whole (923), not digit by digit.

Axes    k labels that are number tokens, m numbers, c number tokens in the vocabulary (classes)

``relative`` and ``magnitude`` are from NTIL (arXiv 2505.13077). As published, they build the
predicted number from the most likely digits. The backward pass uses a softmax of low temperature
(straight-through Gumbel-softmax). If the model is certain of a wrong digit, this gradient vanishes.
``relative_soft`` and ``magnitude_soft`` avoid this: each digit of their predicted number is an
expected value, such as 3.7.

Errors in the first digits cost more: predicting 3.015 for 4.015 costs more than 3.015 for 3.115.
Signs are ignored. Sums are computed in float64, which does not overflow for numbers of 60 digits.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberClasses, NumberLogits, check_positive, sum_by_number
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class StraightThroughDigits:
    """Base class of losses that build the predicted number from the most likely digits.

    The gradient is straight-through: the backward pass uses a softmax instead of the argmax.

    Attributes:
        temperature: Temperature of the softmax in the backward pass, above 0; 0.1 in the published
            code.
        noise_scale: Scale of the Gumbel noise added to the logits, at least 0; 0.01 in the
            published code. The default 0 makes the loss deterministic.
    """

    per: ClassVar[Literal["number"]] = "number"
    temperature: float = 0.1
    noise_scale: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.noise_scale < 0:
            raise ValueError(
                "relative and magnitude: temperature must be > 0 and noise_scale >= 0, not "
                f"{self.temperature} and {self.noise_scale}."
            )

    def values(self, numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
        """Return the predicted and the target value of each of the m numbers, without sign, [m]."""
        if self.noise_scale:  # each term draws its own noise, so that results cannot be shared
            return self._values(numbers, spans)
        key = "most likely digits", self.temperature
        return numbers.once(key, lambda: self._values(numbers, spans))

    def _values(self, numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
        scores = numbers.logits
        if self.noise_scale:
            gumbel = -torch.empty_like(scores).exponential_().log()
            scores = scores + self.noise_scale * gumbel
        # Subtract the largest score: dividing scores near the limit of float32 would overflow.
        largest = scores.detach().amax(dim=-1, keepdim=True)
        soft = ((scores - largest) / self.temperature).softmax(dim=-1)
        # Straight-through on digit values, not on probabilities: the usual (hard - soft).detach() +
        # soft on one-hot tensors would change the value of a correct digit by rounding.
        soft_digit = soft.double() @ numbers.classes.double_values
        hard_digit = numbers.classes.double_values[soft.argmax(dim=-1)]
        digit = hard_digit + (soft_digit - soft_digit.detach())
        return _number_values(digit, numbers, spans)


@dataclass(frozen=True, kw_only=True)
class ExpectedDigits:
    """Base class of losses whose predicted number is an expected value, ``sum_i 10 ** i E_i``.

    E_i is the expected digit at place i: the mean of the digits 0 to 9, weighted by the predicted
    probabilities, such as 3.7.
    """

    per: ClassVar[Literal["number"]] = "number"

    def values(self, numbers: NumberLogits, spans: NumberSpans) -> tuple[Tensor, Tensor]:
        """Return the predicted and the target value of each of the m numbers, without sign, [m]."""

        def values() -> tuple[Tensor, Tensor]:
            digit = numbers.probs.double() @ numbers.classes.double_values
            return _number_values(digit, numbers, spans)

        return numbers.once("expected digits", values)


def digits_of_labels(numbers: NumberLogits, spans: NumberSpans) -> Tensor:
    """Return the correct digit of each number token, [k], float64."""
    return numbers.once("digits", lambda: numbers.classes.double_values[spans.target])


def _number_values(
    digit: Tensor, numbers: NumberLogits, spans: NumberSpans
) -> tuple[Tensor, Tensor]:
    """Return the predicted and the target value of each of the m numbers in a batch, [m] each.

    A value is the sum of the digits times their powers of ten: 923 is 900 + 20 + 3. ``digit`` [k]
    is the digit that the model predicts for each number token.
    """
    wanted = numbers.once(
        "target values",
        lambda: sum_by_number(digits_of_labels(numbers, spans) * spans.worth, spans),
    )
    return sum_by_number(digit * spans.worth, spans), wanted


def _absolute(value: Tensor, classes: NumberClasses) -> Tensor:
    """Return the absolute value; its gradient at 0 is 1, not 0 as with ``torch.abs``."""
    return torch.where(value < 0, -value, value) if classes.has_negative else value


def _relative(values: tuple[Tensor, Tensor], classes: NumberClasses) -> Tensor:
    """Return ``|X - Y| / (max(|X|, |Y|) + 1)`` for predicted numbers X and target numbers Y."""
    predicted, wanted = values
    # clamp has fewer kernels in the backward pass than torch.maximum. Their gradients differ only
    # where |X| equals |Y|, and there the gradient is multiplied by |X - Y| = 0.
    larger = _absolute(predicted, classes).clamp(min=_absolute(wanted, classes))
    return (predicted - wanted).abs() / (larger + 1)


def _magnitude(values: tuple[Tensor, Tensor], classes: NumberClasses) -> Tensor:
    """Return ``log((max(|X|, |Y|) + 1) / (min(|X|, |Y|) + 1))`` for predictions X and targets Y."""
    predicted, wanted = (_absolute(value, classes).log1p() for value in values)
    return (predicted - wanted).abs()


@dataclass(frozen=True, kw_only=True)
class RelativeError(StraightThroughDigits):
    """Relative error ``|X - Y| / (max(|X|, |Y|) + 1)`` of prediction X and label Y."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number, [m]."""
        return _relative(self.values(numbers, spans), numbers.classes)


@dataclass(frozen=True, kw_only=True)
class MagnitudeError(StraightThroughDigits):
    """Log ratio ``log((max(X, Y) + 1) / (min(X, Y) + 1))`` of prediction X and label Y.

    The loss is about 2.3 if X is ten times Y.
    """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number, [m]."""
        return _magnitude(self.values(numbers, spans), numbers.classes)


@dataclass(frozen=True, kw_only=True)
class SoftRelativeError(ExpectedDigits):
    """Relative error of a predicted number whose digits are expected values, such as 3.7.

    Even a model that is certain of a wrong digit gets a gradient. But probability 0.5 on 0 and 0.5
    on 8 gives a loss of 0 for the label 4. Combine this loss with one on single digits, as in the
    preset ``ntil_soft``.
    """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number, [m]."""
        return _relative(self.values(numbers, spans), numbers.classes)


@dataclass(frozen=True, kw_only=True)
class SoftMagnitudeError(ExpectedDigits):
    """Log ratio of label and predicted number, whose digits are expected values such as 3.7."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number, [m]."""
        return _magnitude(self.values(numbers, spans), numbers.classes)


@dataclass(frozen=True, kw_only=True)
class SymmetricPercentage(ExpectedDigits):
    """Relative error ``|X - Y| / (|X| + |Y|)``, 0 to 1, of the expected number X and the label Y.

    Source: number-level NTL. It equals the class NumberLevelLoss of the ntloss package to 1e-6 if
    each number token is a single digit.

    Attributes:
        epsilon: Added to the denominator, above 0. With the tiny default of the ntloss package, a
            label of 0 gives a loss close to 1 and almost no gradient. Set it to 1 to avoid this.
        reweigh: True also penalises predicting text instead of a number. The loss becomes
            ``m d + 1.01 (1 - m)``: d is the loss without this option, and m the probability of a
            number token where the number starts. False in the paper, True in the ntloss package.
    """

    epsilon: float = torch.finfo(torch.float32).eps
    reweigh: bool = False

    def __post_init__(self) -> None:
        check_positive("nl_ntl", epsilon=self.epsilon)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each number, [m]."""
        predicted, wanted = self.values(numbers, spans)
        both = (_absolute(value, numbers.classes) for value in (predicted, wanted))
        losses = (predicted - wanted).abs() / (sum(both) + self.epsilon)
        if not self.reweigh:
            return losses
        mass = (numbers.logits.logsumexp(dim=-1) - numbers.log_normaliser).exp()
        # m is the probability at the first token of each number only.
        continues = torch.nn.functional.pad(spans.number[1:] == spans.number[:-1], (1, 0))
        first = sum_by_number(mass.masked_fill(continues, 0), spans)
        return first * losses + 1.01 * (1 - first)
