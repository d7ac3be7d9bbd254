"""FoNE (Zhou et al. 2025, arXiv 2502.09741): one token for each number, with Fourier features.

Input    every number x is the token [NUM]. The pair cos(2 pi x / T), sin(2 pi x / T) of each period
         T is added to the first elements of its embedding. The periods are powers of ten: with two
         decimals, T = 0.1, 1, 10 ... (one period for each digit, the last digit first)
Output   where the output head predicts [NUM], two elements of the last hidden state predict each
         digit: the logit of digit j is their dot product with cos(2 pi j / 10), sin(2 pi j / 10)
Loss     cross-entropy of all tokens, plus the mean of the cross-entropies of a number's digits

The paper has no negative numbers. Here a minus sign is a token of the text, and x is positive.
The paper describes two ways to fill the embedding: zeros, used here, and a linear layer. The
published code normalises the hidden state once more, which the paper's formula does not.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mm_numeric.baselines.baseline import TrainingNumbers
from mm_numeric.baselines.number_token import (
    NumberTokenBaseline,
    NumberTokenSettings,
    WithNumberToken,
)
from mm_numeric.baselines.values import FIRST_VALUE
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.model_files import BASELINE
from mm_numeric.losses.cross_entropy import full_precision
from mm_numeric.numbers.spans import TokenNumber

MOST_DIGITS = 18
"""Largest number of digits of one number; more do not fit into an integer of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class FoneSettings(NumberTokenSettings):
    """Settings of the FoNE baseline: numbers of digits, and the weight of digits in the loss.

    Every number in a question must fit into these numbers of digits. Before the first step,
    ``train`` checks the questions of ``data.test`` and ``evaluate.data``.
    """

    integer_digits: int | None = None
    """Number of digits before the decimal point; None: the largest in the training data."""

    decimals: int | None = None
    """Number of digits after the decimal point; None: the largest in the training data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.integer_digits is not None and self.integer_digits < 1:
            raise ValueError(f"integer_digits must be at least 1, not {self.integer_digits}")
        if self.decimals is not None and self.decimals < 0:
            raise ValueError(f"decimals must be at least 0, not {self.decimals}")


def fourier_features(numbers: Tensor, digits: int) -> Tensor:
    """Return features [..., 2 * digits] of integers [...]: a cosine and a sine for each digit.

    The periods are 10, 100 ... 10 ** digits. A decimal number is multiplied by a power of ten
    beforehand, which does not change its features. The remainders are exact, as integers.
    """
    periods = 10 ** torch.arange(1, digits + 1, device=numbers.device)  # int64
    angles = 2 * pi * (numbers[..., None] % periods / periods)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(-2)


def _digits_of(config: Any) -> int:
    return sum(getattr(config, BASELINE)["fitted"].values())


class DigitHead(nn.Module):
    """Output head without parameters: it reads each digit from two elements of a hidden state."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config  # of the model: the number of digits is set after loading

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states [b, t, d] to logits [b, t, digits, 10], the last digit first."""
        digits = _digits_of(self.config)
        pairs = hidden[..., : 2 * digits].float().unflatten(-1, (digits, 2))
        with full_precision(hidden.device):  # of autocast
            return pairs @ fourier_features(torch.arange(10, device=hidden.device), 1).T


class WithFourierFeatures(WithNumberToken):
    """Mixin for a model that adds Fourier features of a number to the embedding of [NUM]."""

    def make_head(self, config: Any) -> nn.Module:
        """Return the head that predicts digits."""
        return DigitHead(config)

    def with_values(self, embeddings: Tensor, ids: Tensor) -> Tensor:
        """Add the features of numbers to the first elements of their embeddings [b, t, d]."""
        carries = ids >= FIRST_VALUE
        digits = _digits_of(self.config)
        features = fourier_features((ids - FIRST_VALUE).masked_fill(~carries, 0), digits)
        padded = functional.pad(features, (0, embeddings.shape[-1] - 2 * digits))
        return embeddings + carries[..., None] * padded.to(embeddings)

    def predicted_ids(self, numbers: Tensor) -> Tensor:
        """Return value ids [b] of the most likely digits, from logits [b, digits, 10]."""
        digits = numbers.argmax(dim=-1)
        units = 10 ** torch.arange(digits.shape[-1], device=digits.device)
        return FIRST_VALUE + (digits * units).sum(dim=-1)


class Fone(NumberTokenBaseline):
    """A model family that represents every number by [NUM] and Fourier features of its digits."""

    settings_class = FoneSettings
    model_mixin = WithFourierFeatures
    loss_name = "fone"

    @property
    def digits(self) -> tuple[int, int]:
        """Return the numbers of digits before and after the decimal point."""
        assert self.fitted is not None
        return self.fitted["integer_digits"], self.fitted["decimals"]

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        places = {
            place
            for number in numbers.in_questions + numbers.in_answers
            for place in number.places().values()
        }
        whole = self.settings.integer_digits or 1 + max(places)
        decimals = -min(places) if self.settings.decimals is None else self.settings.decimals
        if whole + decimals > MOST_DIGITS:
            raise ValueError(
                f"model.baseline: numbers with {whole} digits before the point and {decimals} "
                f"after it are too long for fone, which stores {MOST_DIGITS} digits; remove the "
                "rows with the longest numbers, or use another baseline."
            )
        return {"integer_digits": whole, "decimals": decimals}

    def load_model(self, source: str, model: ModelConfig) -> Any:
        """Load the model; its hidden size must have two elements for each digit."""
        width, needed = self.load_config(source, model).hidden_size, 2 * sum(self.digits)
        if needed > width:
            raise ValueError(
                f"model.baseline: fone needs a hidden size of {needed} for numbers of "
                f"{sum(self.digits)} digits, and that of {source!r} is {width}; use a larger model."
            )
        return super().load_model(source, model)

    def id_of(self, number: TokenNumber) -> int:
        """Return the integer that stores the digits of a number, without its sign."""
        if self.fitted is None:
            return FIRST_VALUE  # tokens are only counted before the fit
        whole, decimals = self.digits
        stored = sum(
            int(self._digits.tokens[target].digits) * Fraction(10) ** (place + decimals)
            for target, place in zip(number.targets, number.places, strict=True)
        )
        if stored.denominator > 1 or stored >= 10 ** (whole + decimals):
            raise ValueError(
                f"the number {number.value:.17g} needs more than {whole} digits before the point "
                f"or {decimals} after it; set integer_digits and decimals of model.baseline before "
                "training."
            )
        return FIRST_VALUE + int(stored)

    def written(self, token: int) -> str:
        """Return the number that a value id stores as text, without trailing zeros: ``3.25``."""
        decimals = self.digits[1]
        whole, rest = divmod(token - FIRST_VALUE, 10**decimals)
        return f"{whole}.{rest:0{decimals}d}".rstrip("0").rstrip(".")

    def number_losses(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Return the mean cross-entropy [m] of the digits of each number.

        ``numbers`` [m, digits, 10] are the logits, ``ids`` [m] store the correct digits.
        """
        units = 10 ** torch.arange(numbers.shape[1], device=ids.device)
        wanted = (ids - FIRST_VALUE)[:, None] // units % 10
        # Flattened, because torch has no deterministic cross-entropy of [m, 10, digits] on CUDA.
        losses = functional.cross_entropy(numbers.flatten(0, 1), wanted.flatten(), reduction="none")
        return losses.view_as(wanted).mean(dim=1)
