"""Regression head: predicts one number from the last hidden state, trained with squared error.

Baseline of the NTL paper (arXiv 2411.02083). One linear layer is applied to the hidden state at the
end of the question (decoder-only) or at the first decoder position (encoder-decoder). The number is
converted to text, so that predictions are scored like those of other models.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from mm_numeric.baselines.baseline import Baseline, TrainingNumbers
from mm_numeric.baselines.number_head import WithNumberHead
from mm_numeric.baselines.values import Scale, is_value, read_values, value_id, value_ids, value_of
from mm_numeric.families.family import Tokens
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import NumberSpans, TokenNumber
from mm_numeric.numbers.vocabulary import NumberVocabulary


@dataclass(frozen=True, kw_only=True)
class RegressionHeadSettings:
    """Settings of the regression head baseline."""

    log: bool = False
    """Predict sign(x) log10(1 + |x|) instead of the number x."""

    normalise: bool = True
    """Normalise the targets to mean 0 and standard deviation 1 over the training data."""


class WithRegressionHead(WithNumberHead):
    """Mixin that adds a linear layer on top of the last hidden states of a language model."""

    one_position = True

    def next_ids(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the value ids [b] of the predicted numbers [b]."""
        return value_ids(numbers)

    def generate(self, *args: Any, **options: Any) -> Tensor:
        """Predict one number per question; its value id is the whole answer."""
        return super().generate(*args, **{**options, "max_new_tokens": 1})


class RegressionHead(Baseline):
    """A model family in which every answer is a single number, predicted by a regression head."""

    settings_class = RegressionHeadSettings
    own_loss = True
    model_mixin = WithRegressionHead

    @property
    def scale(self) -> Scale:
        """Return the ``Scale`` that normalises numbers. Before ``fit``, it does not change them."""
        return Scale(**(self.fitted or {}))

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        values = [number.value for number in numbers.in_answers]
        return asdict(Scale.of(values, decimals=numbers.decimals, **asdict(self.settings)))

    def answer(self, text: str) -> Tokens:
        """Encode an answer, which must contain exactly one number, as one value id."""
        found = find_numerals(text)
        if len(found) != 1:
            raise ValueError(
                f"the answer {text!r:.60} holds {len(found)} numbers, and a regression head "
                "returns one; use another baseline or task."
            )
        (number,) = found
        ids = [value_id(self.scale.scaled(number.value))]
        return Tokens(ids=ids, offsets=[(number.start, number.end)])

    def numbers(
        self, text: str, marks: Any, answer: Tokens, vocabulary: NumberVocabulary
    ) -> list[TokenNumber]:
        """Return the number in an answer. Its token index is 0: an answer is a single value id."""
        value = self.scale.number(value_of(answer.ids[0]))
        return [TokenNumber(value, -1 if value < 0 else 1, (0,), (0,), (0,))]

    def text(self, ids: Sequence[int]) -> str:
        """Convert a predicted number, a value id, to text such as ``3.5``."""
        values = [self.scale.text(value_of(token)) for token in ids if is_value(token)]
        return values[0] if values else ""

    def model_inputs(
        self, input_ids: Tensor, attention_mask: Tensor, answered: Tensor, images: dict[str, Tensor]
    ) -> dict[str, Any]:
        """Return the arguments of ``forward``. Answers in ``input_ids`` are replaced by padding."""
        carries, _ = read_values(input_ids)
        input_ids = input_ids.masked_fill(carries, self.pad_id)
        return super().model_inputs(input_ids, attention_mask & ~carries, answered, images)

    def loss(
        self,
        objective: NumericLoss,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans,
        counts: Counts | None,
    ) -> ObjectiveResult:
        """Return the mean squared error of the predicted numbers; ``objective`` is not used.

        ``labels`` [n] are the value ids of the normalised true numbers, one for each sample.
        """
        assert spans.supervised is not None
        _, wanted = read_values(labels)
        errors = outputs.numbers.flatten()[spans.supervised] - wanted
        here = Counts.of(labels, spans)
        total = errors.square().sum()
        loss = total / (counts or here).supervised.clamp(min=1)
        # DDP needs a gradient for the output head too; in fp16, a sum of many logits overflows.
        loss = loss + 0 * outputs.logits.float().sum()
        return ObjectiveResult(loss, {"mse": LossSum(total.detach(), here.supervised)})
