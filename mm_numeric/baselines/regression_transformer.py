"""Regression Transformer (Born & Manica 2023, arXiv 2202.01338): a token is a digit and its place.

Tokens    123.4 is ``_1_2_ _2_1_ _3_0_ . _4_-1_``; sign and point are the tokenizer's own tokens
Reading   to the learned embedding of a digit v at place p its number encoding is added, which is
          never trained: NE(v, p, j) = (-1)^j v 10^p / (j + 1), j from 0. As in the published code
          it is scaled so that the largest number is 10 (``largest: null``: that trained on)
Writing   the tokens must agree with where they stand: ``_1_2_ _2_2_`` or ``_1_2_ _2_0_`` are no
          numbers, and such an answer cannot be read
Loss      any objective: digits of one place compete with each other, so that NTL works on them

The published code has (1, -1, 1/3, -1/3, ...) for the factors of the encoding; the paper's formula,
(1, -1/2, 1/3, -1/4, ...), is what stands here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mm_numeric.baselines.baseline import Baseline, Seen
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.loading import BASELINE
from mm_numeric.families.prompting import Tokens
from mm_numeric.numbers.spans import numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary


@dataclass(frozen=True, kw_only=True)
class RegressionTransformerSettings:
    """What the Regression Transformer may be told."""

    highest_place: int = 9
    """The power of ten of the largest digit that has tokens."""

    lowest_place: int = -6
    """That of the smallest."""

    largest: float | None = None
    """The number whose encoding begins with 10; null for the largest of the rows trained on."""

    def __post_init__(self) -> None:
        """Refuse tokens of no place."""
        if self.lowest_place > self.highest_place:
            raise ValueError(
                f"lowest_place ({self.lowest_place}) is above highest_place ({self.highest_place})"
            )
        if self.largest is not None and not 0 < self.largest < float("inf"):
            raise ValueError(f"largest must be > 0 and finite, not {self.largest}")


def number_encoding(digits: Tensor, places: Tensor, width: int) -> Tensor:
    """Return NE of the paper, [..., width]: (-1)^j v 10^p / (j + 1).

    Args:
        digits: [...] v, 0 to 9.
        places: [...] p, the power of ten.
        width: Of the embedding.
    """
    j = torch.arange(width, device=digits.device)
    factors = (1 - 2 * (j % 2)) / (j + 1)
    values = digits * torch.pow(10.0, places.float())
    return values[..., None] * factors


class WithNumberEncodings:
    """Stands in front of a language model and adds number encodings to its embeddings."""

    config: Any
    modules: Any
    get_input_embeddings: Any

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model, and watch its embeddings."""
        own: Any = super()
        found = own.from_pretrained(*args, **kwargs)
        (found[0] if isinstance(found, tuple) else found).watch()
        return found

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Give the model more tokens; its embeddings are other modules then."""
        own: Any = super()
        found: nn.Module = own.resize_token_embeddings(*args, **kwargs)
        self.watch()
        return found

    def watch(self) -> None:
        """Add encodings to what every module gives that holds the embeddings of tokens."""
        table = self.get_input_embeddings().weight
        for module in self.modules():
            if isinstance(module, nn.Embedding) and module.weight is table:
                module._forward_hooks.clear()  # it may have been watched before
                module.register_forward_hook(self._encoded)

    def _encoded(self, module: nn.Module, inputs: tuple[Tensor, ...], found: Tensor) -> Tensor:
        """Return embeddings [b, t, d] with the encodings of their tokens."""
        saved = getattr(self.config, BASELINE)
        lowest, highest = (saved["settings"][f"{end}_place"] for end in ("lowest", "highest"))
        index = inputs[0] - saved["first_id"]
        is_digit = (index >= 0) & (index < 10 * (highest - lowest + 1))
        index = index.masked_fill(~is_digit, 0)  # a zero
        encoding = number_encoding(index % 10, index // 10 + lowest, found.shape[-1])
        return found + (encoding * (10 / saved["fitted"]["largest"])).to(found)


class RegressionTransformer(Baseline):
    """A family that reads and writes digits with their places."""

    settings_class = RegressionTransformerSettings
    single_digits = True
    new_modules = ("embeddings", "head")
    model_mixin = WithNumberEncodings

    def __init__(self, tokenizer: Any, image_processor: Any, model: ModelConfig) -> None:
        """Wrap the tokenizer of a checkpoint; it is not changed."""
        super().__init__(tokenizer, image_processor, model)
        self._places = range(self.settings.lowest_place, self.settings.highest_place + 1)
        self.new_tokens = 10 * len(self._places)

    def _measured(self, seen: Seen) -> dict[str, Any]:
        largest = max(abs(number.value) for number in [*seen.asked, *seen.answered])
        return {"largest": self.settings.largest or largest or 1.0}

    @cached_property
    def _digits(self) -> NumberVocabulary:
        """The tokenizer's own tokens of digits."""
        return NumberVocabulary.from_tokenizer(self.tokenizer)

    @cached_property
    def _bare(self) -> list[int]:
        """The tokens of the tokenizer that are 0 to 9."""
        ids = self.tokenizer.get_vocab()
        return [ids[digit] for digit in "0123456789"]

    def _with_places(self, ids: Sequence[int]) -> list[int]:
        """Put digits with their places where digits are; those of other places stay."""
        found = list(ids)
        for position, place in self._read(ids).items():
            if place in self._places:
                digit = self._bare.index(ids[position])
                found[position] = self.first_id + 10 * (place - self._places[0]) + digit
        return found

    def _read(self, ids: Sequence[int]) -> dict[int, int]:
        """Return the place of each digit, by its position."""
        return {
            position: place
            for number in numbers_in_labels(ids, self._digits)
            for position, place in zip(number.positions, number.places, strict=True)
        }

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Return the tokens of a question."""
        ids = super().tokenize_question(text, with_image)  # type: ignore[safe-super]
        return self._with_places(ids)

    def answer(self, text: str) -> Tokens:
        """Write an answer and its end.

        Raises:
            ValueError: If it has a digit of a place that has no tokens.
        """
        tokens = super().answer(text)
        outside = [p for p in self._read(tokens.ids).values() if p not in self._places]
        if outside:
            raise ValueError(
                f"the answer {text!r:.60} has a digit at place {outside[0]}, and there are tokens "
                f"from {self._places[0]} to {self._places[-1]}; set highest_place and lowest_place "
                "of model.baseline."
            )
        return Tokens(ids=self._with_places(tokens.ids), offsets=tokens.offsets)

    def vocabulary(self) -> NumberVocabulary:
        """Return the number tokens: digits with a place, those of one place in one alphabet."""
        tokens, spelling = [], dict(self._digits.spelling)
        for i in range(self.new_tokens):
            digit, place = i % 10, self._places[i // 10]
            index = self.first_id + i
            tokens.append(NumberToken(index, float(digit), f"place {place}", str(digit)))
            spelling[index] = str(digit)
        tokens.sort(key=lambda token: (token.digit_group, token.value, token.id))
        return NumberVocabulary(tuple(tokens), spelling)

    def text(self, ids: Sequence[int]) -> str:
        """Return what was generated up to its end; without a digit where digits contradict."""
        ends = {*self.stop_ids, self.pad_id}
        length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        bare = list(ids[:length])
        said = {
            position: self._places[(token - self.first_id) // 10]
            for position, token in enumerate(bare)
            if 0 <= token - self.first_id < self.new_tokens
        }
        for position in said:
            bare[position] = self._bare[(ids[position] - self.first_id) % 10]
        read = self._read(bare)
        for position, place in said.items():
            if read.get(position) != place:
                return f"[{_why(said, position)}]"
        return super().text(bare)


def _why(said: dict[int, int], position: int) -> str:
    """Say what is wrong with a run of digits, of which the one at ``position`` is."""
    first, last = position, position
    while first - 1 in said or first - 2 in said:
        first -= 1
    while last + 1 in said or last + 2 in said:
        last += 1
    places = [said[i] for i in range(first, last + 1) if i in said]
    if len(set(places)) < len(places):
        return "malformed number: two digits of one place"
    if places != sorted(places, reverse=True):
        return "malformed number: places out of order"
    return "malformed number: a place is missing"
