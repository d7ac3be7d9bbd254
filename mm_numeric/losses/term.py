"""What a numeric term is: number logits and spans in, a charge for each token or number out.

Axes    k number tokens, m numbers, c classes of the vocabulary, w digits of the longest token

A term gives charges, not a mean: the objective sums them and divides once per optimiser step, by a
count that is global. That keeps the choice of mean in one place, and the charges fit for a plot.
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

_OUT = -1e30  # the logit of a class that could not stand in the place of the label; exp makes it 0


@dataclass(frozen=True, eq=False)
class NumberClasses:
    """The number tokens of a vocabulary, as tensors.

    Attributes:
        values: [c] what each is worth; ascending within an alphabet.
        digits: [c, w] its digits from the last to the first, 0 where it has fewer; the value itself
            where it is a number on its own.
        alphabet: [c] which alphabet it is of; None where there is only one.
        same: [c, c] which classes share an alphabet; None where all do.
        reach: [c] how far apart the values of its alphabet are at most.
    """

    values: Tensor
    digits: Tensor
    alphabet: Tensor | None = None
    same: Tensor | None = field(init=False, default=None)
    reach: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Calculate once what follows."""
        if self.alphabet is None:
            reach = (self.values.max() - self.values.min()).expand(len(self.values))
        else:
            same = self.alphabet[:, None] == self.alphabet
            values = self.values.expand_as(same)
            largest = values.masked_fill(~same, -torch.inf).amax(dim=1)
            reach = largest - values.masked_fill(~same, torch.inf).amin(dim=1)
            object.__setattr__(self, "same", same)
        object.__setattr__(self, "reach", reach)

    @classmethod
    def of(
        cls, vocabulary: NumberVocabulary, device: torch.device, dtype: torch.dtype
    ) -> "NumberClasses":
        """Read a vocabulary."""
        width = max(1, *(len(token.digits) for token in vocabulary.tokens))
        digits = [
            [float(digit) for digit in reversed(token.digits)] or [token.value]
            for token in vocabulary.tokens
        ]
        names = sorted({token.alphabet for token in vocabulary.tokens})
        alphabet = [names.index(token.alphabet) for token in vocabulary.tokens]
        return cls(
            values=torch.tensor([t.value for t in vocabulary.tokens], device=device, dtype=dtype),
            digits=torch.tensor(
                [row + [0.0] * (width - len(row)) for row in digits], device=device, dtype=dtype
            ),
            alphabet=torch.tensor(alphabet, device=device) if len(names) > 1 else None,
        )


@dataclass(frozen=True, eq=False)
class NumberLogits:
    """What the model says at the number tokens, in float32 (float64 for float64 logits).

    Attributes:
        logits: [k, c] the raw score of each class; -1e30 where it is of another alphabet than the
            label, so that every softmax leaves it out.
        normaliser: [k] logsumexp over the whole vocabulary, or what calculates it when a term asks.
        classes: What the classes are.
        present: [k, c] which classes are of the alphabet of the label; None where all are.
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
        """Take scores [k, c] as the model gives them, and labels [k]."""
        if classes.same is None:
            return cls(scores, normaliser, classes)
        present = classes.same[target]
        return cls(scores.masked_fill(~present, _OUT), normaliser, classes, present)

    @property
    def log_normaliser(self) -> Tensor:
        """[k] so that ``logits - log_normaliser`` is each class's log-probability of all tokens."""
        return self.normaliser() if callable(self.normaliser) else self.normaliser

    @property
    def values(self) -> Tensor:
        """[c] what each class is worth."""
        return self.classes.values

    @property
    def chances(self) -> Tensor:
        """[k, c] the softmax over the classes, differentiable."""
        return self.logits.softmax(dim=-1)


def one_hot(target: Tensor, classes: int) -> Tensor:
    """Return [k, c] 1 at the class of each label; torch's own looks at the labels and waits."""
    return (target[:, None] == torch.arange(classes, device=target.device)).long()


class Term(Protocol):
    """A numeric loss. It knows nothing of models, trainers or tasks."""

    @property
    def per(self) -> Literal["row", "token", "number", "box", "time"]:
        """What its mean is over.

        ``row`` charges number tokens and takes the mean over all supervised rows, as cross-entropy
        does.
        """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the charges, differentiable in ``logits``.

        They are [k] per token or row, [m] per number, [q] per box, [r] per time.
        """


class LossSum(NamedTuple):
    """A loss before it is averaged: divide ``total`` by ``items`` once per optimiser step."""

    total: Tensor
    items: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over these items alone; 0 when there are none."""
        return self.total / self.items.clamp(min=1)


def make_term(name: str, options: Mapping[str, Any], where: str = "objective") -> Term:
    """Make a term from its name and its options.

    Args:
        name: A key of ``TERMS``, or an import path.
        options: Its settings.
        where: The file and field that they come from, for errors.

    Raises:
        ValueError: If there is no such term, or it refuses an option.
    """
    cls = choose(name, TERMS, "loss term", f"{where}.terms")
    if isinstance(cls, type) and is_dataclass(cls):
        return read_dataclass(cls, options, f"{where}, loss term {name}")
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"{where}, loss term {name}: {error}.") from error
