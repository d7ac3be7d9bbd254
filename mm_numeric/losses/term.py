"""The contract of a numeric term: number logits and spans in, a loss per token or number out.

Axes    k number tokens, m numbers, c classes of the vocabulary, w digits of the longest token

A term returns unreduced losses. The objective sums them and divides once per optimiser step, by a
count over all micro-batches and ranks, so that the reduction is in one place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.parsing import read_dataclass
from mm_numeric.registry import TERMS, choose

_MASKED_LOGIT = -1e30  # for classes outside the digit group of the label: their probability is 0


@dataclass(frozen=True, eq=False)
class NumberClasses:
    """The number tokens of a vocabulary, as tensors.

    Attributes:
        values: [c] numeric value, ascending within a digit group.
        digits: [c, w] digits from last to first, padded with 0; the value itself in column 0 for a
            token that is a whole number.
        digit_group: [c] index of the digit group; None if there is only one.
        same: [c, c] True where two classes are in the same digit group; None if all are.
        reach: [c] difference between the largest and the smallest value of the digit group.
    """

    values: Tensor
    digits: Tensor
    digit_group: Tensor | None = None
    same: Tensor | None = field(init=False, default=None)
    reach: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.digit_group is None:
            reach = (self.values.max() - self.values.min()).expand(len(self.values))
        else:
            same = self.digit_group[:, None] == self.digit_group
            values = self.values.expand_as(same)
            largest = values.masked_fill(~same, -torch.inf).amax(dim=1)
            reach = largest - values.masked_fill(~same, torch.inf).amin(dim=1)
            object.__setattr__(self, "same", same)
        object.__setattr__(self, "reach", reach)

    @classmethod
    def of(
        cls, vocabulary: NumberVocabulary, device: torch.device, dtype: torch.dtype
    ) -> "NumberClasses":
        """Make the tensors of a vocabulary."""
        width = max(1, *(len(token.digits) for token in vocabulary.tokens))
        digits = [
            [float(digit) for digit in reversed(token.digits)] or [token.value]
            for token in vocabulary.tokens
        ]
        names = sorted({token.digit_group for token in vocabulary.tokens})
        groups = [names.index(token.digit_group) for token in vocabulary.tokens]
        return cls(
            values=torch.tensor([t.value for t in vocabulary.tokens], device=device, dtype=dtype),
            digits=torch.tensor(
                [row + [0.0] * (width - len(row)) for row in digits], device=device, dtype=dtype
            ),
            digit_group=torch.tensor(groups, device=device) if len(names) > 1 else None,
        )


@dataclass(frozen=True, eq=False)
class NumberLogits:
    """Logits at the number tokens, in float32 (float64 for float64 logits).

    Attributes:
        logits: [k, c] logit of each class; -1e30 outside the digit group of the label, so that a
            softmax runs over the digit group only.
        normaliser: [k] logsumexp over the whole vocabulary, or a function that computes it.
        classes: The classes.
        present: [k, c] True for the classes in the digit group of the label; None if all are.
    """

    logits: Tensor
    normaliser: Tensor | Callable[[], Tensor]
    classes: NumberClasses
    present: Tensor | None = None

    @classmethod
    def at(
        cls,
        scores: Tensor,
        normaliser: Tensor | Callable[[], Tensor],
        classes: NumberClasses,
        target: Tensor,
    ) -> "NumberLogits":
        """Mask the logits [k, c] of a model, given the classes of the labels [k]."""
        if classes.same is None:
            return cls(scores, normaliser, classes)
        present = classes.same[target]
        return cls(scores.masked_fill(~present, _MASKED_LOGIT), normaliser, classes, present)

    @property
    def log_normaliser(self) -> Tensor:
        """[k] logsumexp over the vocabulary: ``logits - log_normaliser`` are log-probabilities."""
        return self.normaliser() if callable(self.normaliser) else self.normaliser

    @property
    def values(self) -> Tensor:
        """[c] numeric value of each class."""
        return self.classes.values

    @property
    def probs(self) -> Tensor:
        """[k, c] softmax over the digit group of each label, differentiable."""
        return self.logits.softmax(dim=-1)


def one_hot(target: Tensor, classes: int) -> Tensor:
    """Return one-hot labels [k, c]; ``torch.nn.functional.one_hot`` synchronises the device."""
    return (target[:, None] == torch.arange(classes, device=target.device)).long()


class Term(Protocol):
    """A numeric loss, independent of models, trainers and tasks."""

    @property
    def per(self) -> Literal["row", "token", "number", "box", "time"]:
        """Unit of the losses, and the count that their sum is divided by.

        ``row``: one loss per number token, divided by the number of all supervised rows, like
        cross-entropy.
        """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the losses, differentiable with respect to ``logits``.

        Their shape is [k] per token or row, [m] per number, [q] per box and [r] per time.
        """


PER = ("token", "number", "box", "time", "row")
"""The values of ``Term.per``."""


class LossSum(NamedTuple):
    """A summed loss and its count: divide ``total`` by ``items`` once per optimiser step."""

    total: Tensor
    items: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean over the items; 0 if there are none."""
        return self.total / self.items.clamp(min=1)


def make_term(name: str, options: Mapping[str, Any], where: str = "objective") -> Term:
    """Make a term from a key of ``TERMS`` or an import path, and the settings of its class."""
    cls = choose(name, TERMS, "loss term", f"{where}.terms")
    if getattr(cls, "per", None) not in PER or not callable(cls):
        raise ValueError(
            f"{where}, loss term {name}: a term is a class with __call__(numbers, spans), and with "
            f"`per` set to one of {', '.join(PER)}."
        )
    if isinstance(cls, type) and is_dataclass(cls):
        return read_dataclass(cls, options, f"{where}, loss term {name}")
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"{where}, loss term {name}: {error}.") from error
