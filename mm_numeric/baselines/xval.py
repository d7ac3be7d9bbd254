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
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from mm_numeric.baselines.baseline import TrainingNumbers
from mm_numeric.baselines.number_head import NumberHead
from mm_numeric.baselines.number_token import (
    NumberTokenBaseline,
    NumberTokenSettings,
    WithNumberToken,
)
from mm_numeric.baselines.values import Scale, read_values, value_id, value_ids, value_of
from mm_numeric.numbers.spans import TokenNumber

LARGEST = 5.0
"""The largest number in the training data is scaled to this value (section 2.1 of the paper)."""

_POSITIONS = re.compile(r"(.*\.)?(wpe|\w*position\w*)")


class WithValues(WithNumberToken):
    """Mixin for a model in which the embedding of a number is the number times that of [NUM]."""

    named_modules: Any
    baseline: NumberHead

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

    def with_values(self, embeddings: Tensor, ids: Tensor) -> Tensor:
        """Multiply the embeddings [b, t, d] of [NUM] tokens by their numbers."""
        carries, values = read_values(ids)
        found = embeddings * values[..., None].to(embeddings)
        if self.baseline.offset is None:
            return found
        return found + carries[..., None] * self.baseline.offset.to(found)

    def predicted_ids(self, numbers: Tensor) -> Tensor:
        """Return value ids [b] of the predicted scaled numbers [b]."""
        return value_ids(numbers)


class Xval(NumberTokenBaseline):
    """A model family that represents every number by the token [NUM] and its value."""

    settings_class = NumberTokenSettings
    model_mixin = WithValues
    loss_name = "mse"

    @property
    def scale(self) -> Scale:
        """Return the ``Scale`` that normalises numbers. Before ``fit`` it does not change them."""
        return Scale(**(self.fitted or {}))

    def _fit_numbers(self, numbers: TrainingNumbers) -> dict[str, Any]:
        unit = (numbers.largest or LARGEST) / LARGEST
        return asdict(Scale(unit=unit, decimals=numbers.decimals))

    def id_of(self, number: TokenNumber) -> int:
        """Return the integer whose low 32 bits are the scaled number as float32."""
        return value_id(self.scale.scaled(number.value))

    def written(self, token: int) -> str:
        """Return the number that a value id stores as text, with at most 7 digits."""
        return self.scale.text(value_of(token))

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
        return super()._with_sign(found, spans, start, value)  # of ``(-``

    def number_losses(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Return the squared errors [m] of predicted scaled numbers [m]."""
        return (numbers - read_values(ids)[1]).square()
