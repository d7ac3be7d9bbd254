"""What xVal and FoNE share: every number is the token [NUM], and its value is passed separately.

Token ids have no room for a value, so a number is passed as a *value id*: an integer that stores
the number (see ``values``). The method, a subclass, decides how the value is stored, embedded and
predicted.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from mm_numeric.baselines.baseline import Baseline
from mm_numeric.baselines.number_head import NumberOutput, WithNumberHead
from mm_numeric.baselines.values import FIRST_VALUE, is_value
from mm_numeric.families.family import Tokens
from mm_numeric.families.model_files import BASELINE
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import NumberSpans, TokenNumber, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

_SIGN = re.compile(r"(?<![0-9])-$")


@dataclass(frozen=True, kw_only=True)
class NumberTokenSettings:
    """Settings of a baseline with the token [NUM]: the weight of the numbers in the loss."""

    weight: float = 1.0
    """Weight of the mean loss of the numbers, which is added to cross-entropy."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be > 0 and finite, not {self.weight}")


class WithNumberToken(WithNumberHead):
    """Mixin for a model whose inputs contain value ids (integers that store a number)."""

    get_input_embeddings: Any

    @abstractmethod
    def with_values(self, embeddings: Tensor, ids: Tensor) -> Tensor:
        """Add values to embeddings [b, t, d], where every number has the embedding of [NUM].

        ``ids`` [b, t] has the value ids (b samples, t positions, d hidden size).
        """

    def embedded(self, ids: Tensor) -> Tensor:
        """Return embeddings [b, t, d] of text tokens and of numbers."""
        tokens = ids.masked_fill(ids >= FIRST_VALUE, getattr(self.config, BASELINE)["first_id"])
        return self.with_values(self.get_input_embeddings()(tokens), ids)

    def forward(self, *, input_ids: Tensor | None = None, **inputs: Any) -> NumberOutput:
        """Return logits and predicted numbers, from token ids and integers that store numbers."""
        assert input_ids is not None
        inputs["inputs_embeds"] = self.embedded(input_ids)
        if "decoder_input_ids" in inputs:
            inputs["decoder_inputs_embeds"] = self.embedded(inputs.pop("decoder_input_ids"))
        return super().forward(**inputs)

    @abstractmethod
    def predicted_ids(self, numbers: Tensor) -> Tensor:
        """Return value ids [b] of ``NumberOutput.numbers`` at one position, [b, ...]."""

    def next_ids(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the most likely tokens [b], with a value id in place of each [NUM]."""
        is_number = tokens == getattr(self.config, BASELINE)["first_id"]
        return tokens.where(~is_number, self.predicted_ids(numbers))


class NumberTokenBaseline(Baseline):
    """Base class of model families that represent every number by the token [NUM] and its value."""

    own_loss = True
    single_digits = True
    new_modules = ("embeddings", "head")
    new_tokens = 1

    loss_name: ClassVar[str]
    """Name of the loss of the numbers in logs."""

    @abstractmethod
    def id_of(self, number: TokenNumber) -> int:
        """Return the integer that stores a number."""

    @abstractmethod
    def written(self, token: int) -> str:
        """Return the number that a value id stores as text: ``-3.25``, ``7``, ``nan``."""

    @cached_property
    def _tokens(self) -> dict[str, int]:
        """Return the tokenizer's vocabulary. It is cached, because ``get_vocab`` is slow."""
        return self.tokenizer.get_vocab()

    @cached_property
    def _characters(self) -> dict[str, int]:
        """Map each character that numbers consist of (digits, minus, point) to its token id."""
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
        """Replace the tokens of each number by one value id (an integer that stores the number).

        ``offsets`` are the start and end character of each token in the text. Return the new ids
        and offsets.
        """
        found, spans, done = list[int](), list[tuple[int, int]](), 0
        for number in numbers_in_labels(ids, self._digits):
            first, last, value = number.positions[0], number.positions[-1], number.value
            found += ids[done:first]
            spans += offsets[done:first]
            start = offsets[first][0]
            if number.sign < 0:
                start, value = self._with_sign(found, spans, start, value)
            found.append(self.id_of(number._replace(value=value)))
            spans.append((start, offsets[last][1]))
            done = last + 1
        return [*found, *ids[done:]], [*spans, *offsets[done:]]

    def _with_sign(
        self, found: list[int], spans: list[tuple[int, int]], start: int, value: float
    ) -> tuple[int, float]:
        """Return the start and the value of a negative number, whose minus is the end of ``found``.

        Here the minus stays in the tokens, and the value is positive.
        """
        return start, -value

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Tokenise a question; one integer, which stores the value, stands for each number."""
        ids = super().tokenize_question(text, with_image)  # type: ignore[safe-super]
        return self._with_values(ids, [(0, 0)] * len(ids))[0]

    def answer(self, text: str) -> Tokens:
        """Tokenise an answer and its end token; one integer stands for each number."""
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
        """Decode generated ids to text. An integer that stores a number becomes a decimal number.

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
            wanted -= {(first, last, found.sign), (first, last, 1)}  # a minus may be text before it
        if wanted:
            return "[malformed number: it runs into another]"
        return super().text(written)

    @abstractmethod
    def number_losses(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Return the loss [m] of outputs of the number head [m, ...], for the value ids [m]."""

    def loss(
        self,
        objective: NumericLoss,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans,
        counts: Counts | None,
    ) -> ObjectiveResult:
        """Return cross-entropy plus the weighted mean loss of the numbers."""
        assert spans.supervised is not None
        tokens = labels.masked_fill(labels >= FIRST_VALUE, self.first_id)
        result = objective(outputs.logits, tokens, spans, counts=counts)
        numbers = outputs.numbers.flatten(0, 1)[spans.supervised[spans.position]]
        total = self.number_losses(numbers, labels[spans.position]).sum()
        here = Counts.of(labels, spans)
        loss = result.loss + self.settings.weight * total / (counts or here).numbers.clamp(min=1)
        sums = {**result.sums, self.loss_name: LossSum(total.detach(), here.numbers)}
        return replace(result, loss=loss, sums=sums)

    def mean_loss(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Return mean cross-entropy plus the weighted mean loss of the numbers."""
        return sums["ce"].mean + self.settings.weight * sums[self.loss_name].mean
