"""Regression Transformer (Born & Manica 2023, arXiv 2202.01338).

Each token is a digit together with its place, the power of ten: 0 for units, -1 for tenths.

Tokens   123.4 is ``_1_2_ _2_1_ _3_0_ . _4_-1_``. Sign and point are the tokenizer's own tokens
Input    a fixed number encoding is added to the learned embedding of digit v at place p:
         NE(v, p, j) = (-1)^j v 10^p / (j + 1), where j = 0, 1, ... is the index in the
         embedding. As in the published code, the encoding is multiplied by 10 / ``largest``. By
         default, ``largest`` is the largest number in the training data
Output   an answer cannot be parsed if a place occurs twice (``_1_2_ _2_2_``), is out of order, or
         is missing (``_1_2_ _2_0_`` has no tens)
Loss     cross-entropy plus any numeric losses, such as NTL. A numeric loss uses a softmax over only
         ten tokens: the digits 0 to 9 at the place of the correct digit

The published code uses the factors (1, -1, 1/3, -1/3, ...) in the encoding. This module uses those
of the paper's formula: (1, -1/2, 1/3, -1/4, ...).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mm_numeric.baselines.baseline import Baseline, TrainingNumbers
from mm_numeric.compat import clear_forward_hooks
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Tokens
from mm_numeric.families.model_files import BASELINE
from mm_numeric.numbers.spans import numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary


@dataclass(frozen=True, kw_only=True)
class RegressionTransformerSettings:
    """Settings of the Regression Transformer: range of digit places, scale of encodings."""

    highest_place: int = 9
    """Highest power of ten for which digit tokens are added."""

    lowest_place: int = -6
    """Lowest power of ten for which digit tokens are added."""

    largest: float | None = None
    """The number whose encoding has 10 as its first element; null: the largest training number."""

    def __post_init__(self) -> None:
        if self.lowest_place > self.highest_place:
            raise ValueError(
                f"lowest_place ({self.lowest_place}) is above highest_place ({self.highest_place})"
            )
        if self.largest is not None and not 0 < self.largest < float("inf"):
            raise ValueError(f"largest must be > 0 and finite, not {self.largest}")


def number_encoding(digits: Tensor, places: Tensor, width: int) -> Tensor:
    """Return the encoding of each digit, of size ``width``; see NE in the module's docstring."""
    j = torch.arange(width, device=digits.device)
    factors = (1 - 2 * (j % 2)) / (j + 1)
    return (digits * torch.pow(10.0, places.float()))[..., None] * factors


class WithNumberEncodings:
    """Mixin that adds number encodings to the embeddings of a language model."""

    config: Any
    modules: Any
    get_input_embeddings: Any

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model, and register the hooks that add number encodings to its embeddings."""
        own: Any = super()
        found = own.from_pretrained(*args, **kwargs)
        (found[0] if isinstance(found, tuple) else found).add_encodings()
        return found

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Resize the embeddings, and again register the hooks that add number encodings."""
        own: Any = super()
        found = own.resize_token_embeddings(*args, **kwargs)
        self.add_encodings()
        return found

    def add_encodings(self) -> None:
        """Register a forward hook that adds number encodings to the output of the embeddings."""
        table = self.get_input_embeddings().weight
        for module in self.modules():
            if isinstance(module, nn.Embedding) and module.weight is table:
                clear_forward_hooks(module)  # registered by an earlier call
                module.register_forward_hook(self._encode)

    def _encode(self, module: nn.Module, inputs: tuple[Tensor, ...], found: Tensor) -> Tensor:
        """Forward hook: add number encodings to the embeddings of digit-and-place tokens."""
        saved = getattr(self.config, BASELINE)
        lowest, highest = (saved["settings"][f"{end}_place"] for end in ("lowest", "highest"))
        index = inputs[0] - saved["first_id"]
        is_digit = (index >= 0) & (index < 10 * (highest - lowest + 1))
        index = index.masked_fill(~is_digit, 0)  # digit 0, whose encoding is 0
        encoding = number_encoding(index % 10, index // 10 + lowest, found.shape[-1])
        return found + (encoding * (10 / saved["fitted"]["largest"])).to(found)


class RegressionTransformer(Baseline):
    """A model family that has ten tokens, one per digit, for each power of ten."""

    settings_class = RegressionTransformerSettings
    single_digits = True
    new_modules = ("embeddings", "head")
    model_mixin = WithNumberEncodings

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        super().__init__(tokenizer, image_processor, model)
        self._places = range(self.settings.lowest_place, self.settings.highest_place + 1)
        self.new_tokens = 10 * len(self._places)

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        return {"largest": self.settings.largest or numbers.largest or 1.0}

    @cached_property
    def _bare(self) -> list[int]:
        ids = self.tokenizer.get_vocab()
        return [ids[digit] for digit in "0123456789"]

    def _with_places(self, ids: Sequence[int]) -> list[int]:
        """Replace digit tokens by digit-and-place tokens: ``1 2`` becomes ``_1_1_ _2_0_``.

        A digit whose place is outside of ``lowest_place`` to ``highest_place`` keeps its token.
        """
        found = list(ids)
        for position, place in self._places_of_digits(ids).items():
            if place in self._places:
                digit = self._bare.index(ids[position])
                found[position] = self.first_id + 10 * (place - self._places[0]) + digit
        return found

    def _places_of_digits(self, ids: Sequence[int]) -> dict[int, int]:
        """Map the position of each digit token in ``ids`` to the digit's power of ten."""
        return {
            position: place
            for number in numbers_in_labels(ids, self._digits)
            for position, place in zip(number.positions, number.places, strict=True)
        }

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Tokenise a question with digit-and-place tokens: ``12`` becomes ``_1_1_ _2_0_``."""
        ids = super().tokenize_question(text, with_image)  # type: ignore[safe-super]
        return self._with_places(ids)

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer with digit-and-place tokens (``_1_2_``), and append the end token."""
        tokens = super().answer(text)
        outside = [p for p in self._places_of_digits(tokens.ids).values() if p not in self._places]
        if outside:
            raise ValueError(
                f"the answer {text!r:.60} has a digit at place {outside[0]}, outside lowest_place "
                f"{self._places[0]} to highest_place {self._places[-1]} of model.baseline."
            )
        return Tokens(ids=self._with_places(tokens.ids), offsets=tokens.offsets)

    def vocabulary(self) -> NumberVocabulary:
        """Return the digit-and-place tokens, grouped by place: ten for units, ten for tens, ..."""
        tokens, spelling = [], dict(self._digits.spelling)
        for i in range(self.new_tokens):
            digit, place = i % 10, self._places[i // 10]
            index = self.first_id + i
            tokens.append(NumberToken(index, float(digit), f"place {place}", str(digit)))
            spelling[index] = str(digit)
        return NumberVocabulary(tuple(tokens), spelling)

    def text(self, ids: Sequence[int]) -> str:
        """Decode generated tokens to text: ``_1_1_ _2_0_`` (digit, power of ten) becomes ``12``.

        A malformed number, such as ``_1_2_ _2_2_`` with two digits for 10^2, becomes an error text.
        """
        bare = list(self.before_end(ids))
        places = {
            position: self._places[(token - self.first_id) // 10]
            for position, token in enumerate(bare)
            if 0 <= token - self.first_id < self.new_tokens
        }
        for position in places:
            bare[position] = self._bare[(ids[position] - self.first_id) % 10]
        read = self._places_of_digits(bare)
        if any(read.get(position) != place for position, place in places.items()):
            return "[malformed number: a place is repeated, out of order or missing]"
        return super().text(bare)
