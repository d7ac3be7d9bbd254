"""Regression head: one number from the last state of the model, trained with squared error.

Baseline of the NTL paper (arXiv 2411.02083). A decoder's state at the end of the question, or that
of an encoder-decoder at the token that begins its answer, goes through one linear layer. The number
is written as text, so that predictions, parsers and scores are those of every other model.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mm_numeric.baselines.baseline import Baseline, Seen
from mm_numeric.baselines.number_head import WithNumberHead, asked
from mm_numeric.baselines.values import Scale, is_value, read_values, value_id, value_ids, value_of
from mm_numeric.families.prompting import Tokens
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import NumberSpans, TokenNumber
from mm_numeric.numbers.vocabulary import NumberVocabulary


@dataclass(frozen=True, kw_only=True)
class RegressionHeadSettings:
    """What a regression head may be told."""

    log: bool = False
    """Regress sign(x) log10(1 + |x|) in the place of x."""

    normalise: bool = True
    """Regress what has mean 0 and standard deviation 1 over the rows trained on."""


class WithRegressionHead(WithNumberHead):
    """A model with one linear layer on its last state."""

    one_position = True


class RegressionHead(Baseline):
    """A family whose answers are one number each, from a head of its own."""

    settings_class = RegressionHeadSettings
    own_loss = True
    ends_answers = False
    model_mixin = WithRegressionHead

    @property
    def scale(self) -> Scale:
        """What a number becomes for the head; as it is before anything was fitted."""
        return Scale(**(self.fitted or {}))

    def _measured(self, seen: Seen) -> dict[str, Any]:
        decimals = max(len(n.text.partition(".")[2]) for n in seen.answered)
        scale = Scale.of(
            [n.value for n in seen.answered],
            normalise=self.settings.normalise,
            log=self.settings.log,
            decimals=decimals,
        )
        return asdict(scale)

    def answer(self, text: str) -> Tokens:
        """Write an answer: the number in it, and no end.

        Raises:
            ValueError: If it does not hold one number.
        """
        found = find_numerals(text)
        if len(found) != 1:
            raise ValueError(
                f"the answer {text!r:.60} holds {len(found)} numbers, and a regression head gives "
                "one; use another baseline, or a task whose answers are one number."
            )
        (number,) = found
        ids = [value_id(self.scale.scaled(number.value))]
        return Tokens(ids=ids, offsets=[(number.start, number.end)])

    def numbers(
        self, text: str, marks: Any, answer: Tokens, vocabulary: NumberVocabulary
    ) -> list[TokenNumber]:
        """Return the number that the answer is; its class is none of the vocabulary's."""
        value = self.scale.number(value_of(answer.ids[0]))
        return [TokenNumber(value, -1 if value < 0 else 1, (0,), (0,), (0,))]

    def text(self, ids: Sequence[int]) -> str:
        """Return the number as text."""
        values = [self.scale.text(value_of(token)) for token in ids if is_value(token)]
        return values[0] if values else ""

    def model_inputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        answered: Tensor,
        images: dict[str, Tensor],
    ) -> dict[str, Any]:
        """Return what the model's forward takes: a number behind a question is not read."""
        carries, _ = read_values(input_ids)
        input_ids = input_ids.masked_fill(carries, self.pad_id)
        inputs: dict[str, Any] = super().model_inputs(  # type: ignore[safe-super]
            input_ids, attention_mask & ~carries, answered, images
        )
        return inputs

    def objective(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> Objective:
        """Return the mean squared error of scaled numbers."""
        return SquaredError(spec, vocabulary)

    def generate_answers(
        self, model: Any, inputs: dict[str, Any], max_new_tokens: int
    ) -> list[tuple[list[int], list[float]]]:
        """Return for each question the id that carries its number, and a probability of 1."""
        inputs = asked(model, inputs)
        if self.encoder_decoder:
            first = torch.full_like(inputs["input_ids"][:, :1], self.decoder_start_id)
            inputs = {**inputs, "decoder_input_ids": first}
        numbers = model(**inputs).numbers[:, -1]
        return [([token], [1.0]) for token in value_ids(numbers).tolist()]


class SquaredError(Objective):
    """The mean over rows of the squared error, in the place of cross-entropy."""

    takes_outputs = True

    def of_outputs(
        self,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Return the loss of a batch, whose labels [n] carry the numbers; figures are of digits."""
        assert spans is not None
        assert spans.supervised is not None
        _, wanted = read_values(labels)
        errors = outputs.numbers.flatten()[spans.supervised] - wanted
        here = Counts.of(labels, spans)
        total = errors.square().sum()
        loss = total / (counts or here).rows.clamp(min=1)
        loss = loss + 0 * outputs.logits.sum()  # a head of tokens has a gradient, as ranks ask for
        return ObjectiveResult(loss, {"mse": LossSum(total.detach(), here.rows)})
