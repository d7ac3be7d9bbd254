"""What a numeric term is: number logits and spans in, a charge for each token or number out.

Axes    k number tokens, m numbers, c classes of the vocabulary

A term gives charges, not a mean: the objective sums them and divides once per optimiser step, by a
count that is global. That keeps the choice of mean in one place, and the charges fit for a plot.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from mm_numeric.spans import NumberSpans


@dataclass(frozen=True, eq=False)
class NumberLogits:
    """What the model says at the number tokens, in float32 (float64 for float64 logits).

    Attributes:
        logits: [k, c] the raw score of each class.
        log_normaliser: [k] logsumexp over the whole vocabulary, so that ``logits - log_normaliser``
            is the log-probability of each class among all tokens.
        values: [c] what each class is worth.
    """

    logits: Tensor
    log_normaliser: Tensor
    values: Tensor


class Term(Protocol):
    """A numeric loss. It knows nothing of models, trainers or tasks."""

    @property
    def per(self) -> Literal["token", "number"]:
        """What there is one charge for."""

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charges, [k] per token or [m] per number, differentiable in ``logits``."""


class LossSum(NamedTuple):
    """A loss before it is averaged: divide ``total`` by ``items`` once per optimiser step."""

    total: Tensor
    items: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over these items alone; 0 when there are none."""
        return self.total / self.items.clamp(min=1)
