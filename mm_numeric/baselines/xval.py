"""xVal (Golkar et al. 2023, arXiv 2310.02989): one token for all numbers, multiplied by the value.

Input    every number is the token [NUM]. Its embedding is multiplied by the number, which is scaled
         so that the largest number in the training data is 5
Output   where the output head predicts [NUM], the number head (two layers, GELU) predicts the value
Loss     cross-entropy of all tokens, plus the mean squared error of the scaled numbers

Another vector is added to the multiplied embedding, because layer normalisation would otherwise
undo the multiplication. In the paper, this vector is the position embedding. In models without
position embeddings (T5, LLaMA and others), it is a learned vector, the same for every number.

A token id cannot hold a value, so a number is passed as a *value id*: an integer that stores the
number (see ``values``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from mm_numeric.baselines.baseline import Baseline, TrainingNumbers
from mm_numeric.baselines.number_head import NumberHead, NumberOutput, WithNumberHead
from mm_numeric.baselines.values import (
    FIRST_VALUE,
    Scale,
    is_value,
    read_values,
    value_id,
    value_ids,
    value_of,
)
from mm_numeric.families.family import Tokens
from mm_numeric.families.model_files import BASELINE
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import NumberSpans, TokenNumber, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

LARGEST = 5.0
"""The largest number in the training data is scaled to this value (section 2.1 of the paper)."""

_POSITIONS = re.compile(r"(.*\.)?(wpe|\w*position\w*)")
_SIGN = re.compile(r"(?<![0-9])-$")


@dataclass(frozen=True, kw_only=True)
class XvalSettings:
    """Settings of the xVal baseline: the weight of the numbers in the loss."""

    weight: float = 1.0
    """Weight of the mean loss of the numbers, which is added to cross-entropy."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be > 0 and finite, not {self.weight}")


class WithValues(WithNumberHead):
    """Mixin for a model in which a number x has the embedding of [NUM], multiplied by x."""

    baseline: NumberHead
    get_input_embeddings: Any
    named_modules: Any

    def make_head(self, config: Any) -> NumberHead:
        """Return the number head; without position embeddings, it also has the learned vector."""
        has_positions = any(
            isinstance(module, nn.Embedding) and _POSITIONS.fullmatch(name)
            for name, module in self.named_modules()
        )
        # T5 has no initializer_range; its embeddings have a standard deviation of 1.
        offset = None if has_positions else getattr(config, "initializer_range", 1.0)
        return NumberHead(config.hidden_size, 4 * config.hidden_size, offset=offset)

    def embedded(self, ids: Tensor) -> Tensor:
        """Return embeddings [b, t, d] of text tokens and of numbers, from ids [b, t]."""
        tokens = ids.masked_fill(ids >= FIRST_VALUE, getattr(self.config, BASELINE)["first_id"])
        embeddings = self.get_input_embeddings()(tokens)
        carries, values = read_values(ids)
        found: Tensor = embeddings * values[..., None].to(embeddings)
        if self.baseline.offset is None:
            return found
        return found + carries[..., None] * self.baseline.offset.to(found)

    def forward(self, *, input_ids: Tensor | None = None, **inputs: Any) -> NumberOutput:
        """Return logits and predicted numbers, from token ids and value ids."""
        assert input_ids is not None
        inputs["inputs_embeds"] = self.embedded(input_ids)
        if "decoder_input_ids" in inputs:
            inputs["decoder_inputs_embeds"] = self.embedded(inputs.pop("decoder_input_ids"))
        return super().forward(**inputs)

    def next_ids(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the most likely tokens [b], with a value id in place of each [NUM]."""
        is_number = tokens == getattr(self.config, BASELINE)["first_id"]
        return tokens.where(~is_number, value_ids(numbers))


class Xval(Baseline):
    """A model family that represents every number by the token [NUM] and its value."""

    own_loss = True
    single_digits = True
    new_modules = ("embeddings", "head")
    new_tokens = 1
    settings_class = XvalSettings
    model_mixin = WithValues

    @property
    def scale(self) -> Scale:
        """Return the ``Scale`` that normalises numbers. Before ``fit`` it does not change them."""
        return Scale(**(self.fitted or {}))

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        return asdict(Scale(unit=(numbers.largest or LARGEST) / LARGEST, decimals=numbers.decimals))

    def written(self, token: int) -> str:
        """Convert a value id to the text of its number, with at most 7 digits: ``-3.25``."""
        return self.scale.text(value_of(token))

    @cached_property
    def _tokens(self) -> dict[str, int]:
        """Return the tokenizer's vocabulary. It is cached, because ``get_vocab`` is slow."""
        return self.tokenizer.get_vocab()

    @cached_property
    def _characters(self) -> dict[str, int]:
        """Map each character of numbers (digits, minus, point) to its token id."""
        for character in "-.":
            if character not in self._tokens:
                raise ValueError(
                    f"model.baseline: {self.choice.name} writes numbers with {character!r}, and "
                    f"the tokenizer of {self.tokenizer.name_or_path!r} has no such token; use "
                    "another checkpoint."
                )
        return {character: self._tokens[character] for character in "-.0123456789"}

    def _with_values(
        self, ids: Sequence[int], offsets: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Replace the tokens of each number by one value id; return the new ids and offsets.

        ``offsets`` are the start and end character of each token in the text.
        """
        found, spans, done = list[int](), list[tuple[int, int]](), 0
        for number in numbers_in_labels(ids, self._digits):
            first, last, value = number.positions[0], number.positions[-1], number.value
            found += ids[done:first]
            spans += offsets[done:first]
            start = offsets[first][0]
            if number.sign < 0:
                start, value = self._with_sign(found, spans, start, value)
            found.append(value_id(self.scale.scaled(value)))
            spans.append((start, offsets[last][1]))
            done = last + 1
        return [*found, *ids[done:]], [*spans, *offsets[done:]]

    def _with_sign(
        self, found: list[int], spans: list[tuple[int, int]], start: int, value: float
    ) -> tuple[int, float]:
        """Merge a minus sign into the number after it; return the number's start and value.

        ``found`` has the token ids before the number; the last token contains the minus sign. The
        token ``-`` is removed, and ``Ġ-`` becomes ``Ġ``; the value is then negative. Another token,
        such as ``(-``, is kept, and the value is positive.
        """
        token = self.tokenizer.convert_ids_to_tokens(found[-1])
        if token == "-":
            found.pop()
            return spans.pop()[0], value
        before = self._tokens.get(token[:-1])  # ``Ġ`` of ``Ġ-``, ``▁`` of ``▁-``
        if self._digits.spelling.get(found[-1]) == " -" and before is not None:
            found[-1] = before
            return start, value
        return start, -value  # after a token such as ``(-``

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Tokenise a question, with one value id for each number."""
        ids = super().tokenize_question(text, with_image)  # type: ignore[safe-super]
        return self._with_values(ids, [(0, 0)] * len(ids))[0]

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer and its end token, with one value id for each number."""
        tokens = super().answer(text)
        return Tokens(*self._with_values(tokens.ids, tokens.offsets))

    def numbers(
        self, text: str, marks: Any, answer: Tokens, vocabulary: NumberVocabulary
    ) -> list[TokenNumber]:
        """Return each number in a tokenised answer, and the position of its token."""
        target = (vocabulary.classes[self.first_id],)
        found = []
        for position, (token, (start, _)) in enumerate(
            zip(answer.ids, answer.offsets, strict=True)
        ):
            if is_value(token):
                value = float(self.written(token))
                sign = -1 if value < 0 or _SIGN.search(text[:start]) else 1
                found.append(TokenNumber(sign * abs(value), sign, (position,), target, (0,)))
        return found

    def vocabulary(self) -> NumberVocabulary:
        """Return the tokenizer's digit tokens plus [NUM]."""
        digits = super().vocabulary()
        number = NumberToken(self.first_id, 0.0, "[NUM]")
        return NumberVocabulary((*digits.tokens, number), digits.spelling)

    def text(self, ids: Sequence[int]) -> str:
        """Decode generated ids to text. A value id becomes a decimal number.

        If a number directly follows another number, return an error text instead, because the two
        would be read as one number.
        """
        written, wanted = list[int](), set[tuple[int, int, int]]()
        for token in self.before_end(ids):
            if not is_value(token):
                written.append(token)
                continue
            number = self.written(token)
            if not number.strip("-.0123456789"):
                sign = -1 if number.startswith("-") else 1
                first = len(written) + (sign < 0)
                written += (self._characters[character] for character in number)
                wanted.add((first, len(written) - 1, sign))
        for found in numbers_in_labels(written, self._digits):
            first, last = found.positions[0], found.positions[-1]
            wanted -= {(first, last, found.sign), (first, last, 1)}  # a minus before it may be text
        if wanted:
            return "[malformed number: it runs into another]"
        return super().text(written)

    def loss(
        self,
        objective: NumericLoss,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans,
        counts: Counts | None,
    ) -> ObjectiveResult:
        """Return cross-entropy plus the weighted mean squared error of the scaled numbers."""
        assert spans.supervised is not None
        tokens = labels.masked_fill(labels >= FIRST_VALUE, self.first_id)
        result = objective(outputs.logits, tokens, spans, counts=counts)
        numbers = outputs.numbers.flatten(0, 1)[spans.supervised[spans.position]]
        total = (numbers - read_values(labels[spans.position])[1]).square().sum()
        here = Counts.of(labels, spans)
        loss = result.loss + self.settings.weight * total / (counts or here).numbers.clamp(min=1)
        sums = {**result.sums, "mse": LossSum(total.detach(), here.numbers)}
        return replace(result, loss=loss, sums=sums)

    def mean_loss(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Return mean cross-entropy plus the weighted mean squared error of the numbers."""
        return sums["ce"].mean + self.settings.weight * sums["mse"].mean
