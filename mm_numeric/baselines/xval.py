"""xVal (Golkar et al. 2023, arXiv 2310.02989): one token for all numbers, multiplied by the value.

Input    every number is the token [NUM]. Its embedding is multiplied by the number, which is scaled
         so that the largest number in the training data is 5
Output   where the output head predicts [NUM], the number head (two layers, GELU) predicts the value
Loss     cross-entropy of all tokens, plus the mean squared error of the scaled numbers

Another vector is added to the multiplied embedding, because layer normalisation would otherwise
undo the multiplication. In the paper this vector is the position embedding. In models without
position embeddings (T5, LLaMA and others), it is a learned vector, the same for every number.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mm_numeric.baselines.baseline import Baseline, TrainingNumbers
from mm_numeric.baselines.number_head import (
    NumberHead,
    NumberOutput,
    WithNumberHead,
    with_position_ids,
)
from mm_numeric.baselines.values import Scale, is_value, read_values, value_id, value_ids, value_of
from mm_numeric.families.loading import BASELINE
from mm_numeric.families.prompting import Tokens
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import NumberSpans, TokenNumber, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

LARGEST = 5.0
"""The largest number in the training data is scaled to this value (section 2.1 of the paper)."""

_POSITIONS = re.compile(r"(.*\.)?(wpe|\w*position\w*)")


@dataclass(frozen=True, kw_only=True)
class XvalSettings:
    """Settings of the xVal baseline: the weight of the squared error in the loss."""

    weight: float = 1.0
    """Weight of the mean squared error in the loss."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be > 0 and finite, not {self.weight}")


class WithValues(WithNumberHead):
    """Mixin for a model whose inputs contain value ids (integers that store a number).

    The embedding of a value id is the number times the embedding of the token [NUM].
    """

    get_input_embeddings: Any
    named_modules: Any

    def make_head(self, config: Any) -> NumberHead:
        """Create the head that predicts numbers.

        If the model has no position embeddings, the head also contains a learned vector, which is
        added to the embedding of every number.
        """
        has_positions = any(
            isinstance(module, nn.Embedding) and _POSITIONS.fullmatch(name)
            for name, module in self.named_modules()
        )
        # T5 has no initializer_range; its embeddings have a standard deviation of 1.
        offset = None if has_positions else getattr(config, "initializer_range", 1.0)
        return NumberHead(config.hidden_size, 4 * config.hidden_size, offset=offset)

    def embedded(self, ids: Tensor) -> Tensor:
        """Return embeddings [b, t, d] of text tokens, and of [NUM] tokens times their numbers."""
        carries, values = read_values(ids)
        tokens = ids.masked_fill(carries, getattr(self.config, BASELINE)["first_id"])
        found: Tensor = self.get_input_embeddings()(tokens)
        found = found * values[..., None].to(found)
        if self.baseline.offset is None:
            return found
        return found + carries[..., None] * self.baseline.offset.to(found)

    def forward(self, *, input_ids: Tensor | None = None, **inputs: Any) -> NumberOutput:
        """Return logits and predicted numbers, from token ids and integers that store numbers."""
        assert input_ids is not None
        inputs["inputs_embeds"] = self.embedded(input_ids)
        if "decoder_input_ids" in inputs:
            inputs["decoder_inputs_embeds"] = self.embedded(inputs.pop("decoder_input_ids"))
        return super().forward(**inputs)


class Xval(Baseline):
    """A model family that represents every number by the token [NUM] and its value."""

    settings_class = XvalSettings
    own_loss = True
    single_digits = True
    new_modules = ("embeddings", "head")
    new_tokens = 1
    model_mixin = WithValues

    @property
    def scale(self) -> Scale:
        """Return the ``Scale`` that normalises numbers. Before ``fit`` it does not change them."""
        return Scale(**(self.fitted or {}))

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        unit = (numbers.largest or LARGEST) / LARGEST
        return asdict(Scale(unit=unit, decimals=numbers.decimals))

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
                    f"model.baseline: xval writes numbers with {character!r}, and the tokenizer of "
                    f"{self.tokenizer.name_or_path!r} has no such token; use another checkpoint."
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
            found.append(value_id(self.scale.scaled(value)))
            spans.append((start, offsets[last][1]))
            done = last + 1
        return [*found, *ids[done:]], [*spans, *offsets[done:]]

    def _with_sign(
        self, found: list[int], spans: list[tuple[int, int]], start: int, value: float
    ) -> tuple[int, float]:
        """Merge a minus sign into the number after it; return the number's start and value.

        ``found`` contains the token ids before the number. The last of them has the minus sign. If
        it is ``-``, it is removed. If it is ``Ġ-``, it becomes ``Ġ``. The value is then negative.
        Another token, such as ``(-``, is kept, and the value is positive.
        """
        token = self.tokenizer.convert_ids_to_tokens(found[-1])
        if token == "-":
            found.pop()
            return spans.pop()[0], value
        before = self._tokens.get(token[:-1])  # of ``Ġ-`` and ``▁-``
        if self._digits.spelling.get(found[-1]) == " -" and before is not None:
            found[-1] = before
            return start, value
        return start, -value  # the token is ``(-``: the minus stays in the tokens

    def tokenize_question(self, text: str, with_image: bool) -> list[int]:
        """Tokenise a question; one integer, the bits of a float32, stands for each number."""
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
        for position, token in enumerate(answer.ids):
            if is_value(token):
                value = self.scale.number(value_of(token))
                sign = -1 if value < 0 else 1
                found.append(TokenNumber(value, sign, (position,), target, (0,)))
        return found

    def vocabulary(self) -> NumberVocabulary:
        """Return the tokenizer's digit tokens plus [NUM]."""
        digits = super().vocabulary()
        number = NumberToken(self.first_id, 0.0, "[NUM]")
        tokens = sorted([*digits.tokens, number], key=lambda t: (t.digit_group, t.value, t.id))
        return NumberVocabulary(tuple(tokens), digits.spelling)

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
            number = self.scale.text(value_of(token))
            if not number.strip("-.0123456789"):
                sign = -1 if number.startswith("-") else 1
                first = len(written) + (sign < 0)
                written += (self._characters[character] for character in number)
                wanted.add((first, len(written) - 1, sign))
        found = numbers_in_labels(written, self._digits)
        if wanted - {(n.positions[0], n.positions[-1], n.sign) for n in found}:
            return "[malformed number: it runs into another]"
        return super().text(written)

    def objective(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> Objective:
        """Return the training loss: cross-entropy plus mean squared error of the scaled numbers."""
        return CrossEntropyAndSquaredError(spec, vocabulary, self.first_id, self.settings.weight)

    def generate_answers(
        self, model: Any, inputs: dict[str, Any], max_new_tokens: int
    ) -> list[tuple[list[int], list[float]]]:
        """Generate answers greedily. An integer that stores the number replaces each [NUM]."""
        prompt, mask = inputs["input_ids"], inputs["attention_mask"]
        ids, steps = prompt.new_empty((len(prompt), 0)), []
        if self.encoder_decoder:
            ids = torch.full_like(prompt[:, :1], self.decoder_start_id)
        ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
        stops = torch.tensor(self.stop_ids, device=prompt.device)
        for _ in range(max_new_tokens):
            if self.encoder_decoder:
                step = {"input_ids": prompt, "attention_mask": mask, "decoder_input_ids": ids}
            else:
                attended = torch.cat([mask, torch.ones_like(ids)], dim=1)
                step = {"input_ids": torch.cat([prompt, ids], dim=1), "attention_mask": attended}
            outputs = model(**with_position_ids(model, step))
            probs, tokens = outputs.logits[:, -1].float().softmax(dim=-1).max(dim=-1)
            tokens = torch.where(
                tokens == self.first_id, value_ids(outputs.numbers[:, -1]), tokens
            ).masked_fill(ended, self.pad_id)
            ids = torch.cat([ids, tokens[:, None]], dim=1)
            steps.append(probs)
            ended |= torch.isin(tokens, stops)
            if ended.all():
                break
        written = ids[:, 1:] if self.encoder_decoder else ids
        return list(zip(written.tolist(), torch.stack(steps, dim=1).tolist(), strict=True))


class CrossEntropyAndSquaredError(Objective):
    """Training loss of xVal: cross-entropy of the tokens plus squared error of the numbers."""

    takes_outputs = True

    def __init__(
        self, spec: ObjectiveSpec, vocabulary: NumberVocabulary, number_id: int, weight: float
    ) -> None:
        super().__init__(spec, vocabulary)
        self.number_id, self.weight = number_id, weight

    def of_outputs(
        self,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Compute the loss from the model's logits and predicted numbers.

        ``labels`` [n] are the n answer tokens of the batch. The label of a number is an integer
        whose low 32 bits are the scaled number as float32. The argument ``figures`` is not used.
        """
        assert spans is not None
        assert spans.supervised is not None
        carries, values = read_values(labels)
        tokens = labels.masked_fill(carries, self.number_id)
        result = self(outputs.logits, tokens, spans, counts=counts)
        rows = spans.supervised[spans.row]
        total = (outputs.numbers.flatten()[rows] - values[spans.row]).square().sum()
        here = Counts.of(labels, spans)
        loss = result.loss + self.weight * total / (counts or here).numbers.clamp(min=1)
        sums = {**result.sums, "mse": LossSum(total.detach(), here.numbers)}
        return replace(result, loss=loss, sums=sums)
