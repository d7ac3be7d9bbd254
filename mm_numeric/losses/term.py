"""The interface of a numeric loss, or term, computed from the logits of the number tokens.

Axes    k labels that are number tokens, m numbers, w digits of the longest number token,
        c classes (the number tokens of the vocabulary; class j is ``vocabulary.tokens[j]``)

A term returns one loss per number token, number, box or time. The mean of these losses, times the
weight of the term, is added to the training loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import TERMS, choose
from mm_numeric.settings import read_dataclass

PLACES = ("exponential", "linear", "powers", "none")
MANY_DIGITS = 9
"""Number of digits above which a warning is given if loss weights grow with each digit, because the
digits of one long number can then have most of the gradient."""

_LARGEST_WEIGHT = 1e30  # below the float32 maximum, so that sums stay finite; 1.2 ** 379

_Found = TypeVar("_Found")
_MASKED_LOGIT = -1e30  # for classes outside the digit group of the label: their probability is 0


@dataclass(frozen=True, eq=False)
class NumberClasses:
    """The c number tokens of a vocabulary, as tensors. Each number token is called a class.

    A digit group is a set of tokens that can replace each other, such as the ten digits. A softmax
    covers only the tokens of one group.

    Attributes:
        values: [c] numeric value of each class, ascending within a digit group.
        digits: [c, w] digits of each class, last digit first. w is the number of digits of the
            longest token, and shorter ones are padded with 0. If w is 2, the token ``12`` has
            [2, 1]. A location token counts as one large digit: ``<loc0012>`` has [12, 0].
        width: [c] number of digits of each class: 2 for ``12``, 0 for a location token.
        digit_group: [c] index of the digit group of each class; None if there is only one group.
        same: [c, c] True where two classes are in the same digit group; None if there is only one.
        reach: [c] largest minus smallest value in the digit group of each class.
        to_nine: [c] factor ``9 / reach``, or 1 for a digit group with only one value. It rescales
            the values of a digit group to a range of 9, the range of the digits 0 to 9.
        double_values: [c] ``values`` in float64.
        double_one: [] the scalar 1 in float64.
        has_negative: True if a value may be negative.
    """

    values: Tensor
    digits: Tensor
    width: Tensor
    digit_group: Tensor | None = None
    has_negative: bool = True
    same: Tensor | None = field(init=False, default=None)
    reach: Tensor = field(init=False)
    to_nine: Tensor = field(init=False)
    double_values: Tensor = field(init=False)
    double_one: Tensor = field(init=False)

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
        object.__setattr__(self, "double_values", self.values.double())
        object.__setattr__(self, "double_one", self.double_values.new_ones(()))
        object.__setattr__(self, "to_nine", (9 / reach).where(reach > 0, 1))

    @classmethod
    def of(
        cls, vocabulary: NumberVocabulary, device: torch.device, dtype: torch.dtype
    ) -> "NumberClasses":
        """Create a ``NumberClasses`` from the number tokens of a vocabulary."""
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
            width=torch.tensor([len(t.digits) for t in vocabulary.tokens], device=device),
            digit_group=torch.tensor(groups, device=device) if len(names) > 1 else None,
            has_negative=any(token.value < 0 for token in vocabulary.tokens),
        )

    def scaled_values(self, scale: str) -> Tensor:
        """Return the value of each number token, [c], times ``to_nine`` if ``scale`` is "range"."""
        return self.values * self.to_nine if scale == "range" else self.values

    def scaled_reach(self, scale: str) -> Tensor:
        """Return the range (largest minus smallest value) of each token's digit group, [c].

        For a digit, it is 9. If ``scale`` is ``range``, it is 9 for all tokens.
        """
        return self.reach * self.to_nine if scale == "range" else self.reach


SCALES = ("range", "published")


def check_scale(term: str, scale: str) -> None:
    """Validate the option ``scale`` of a numeric loss."""
    if scale not in SCALES:
        raise ValueError(f"{term}: scale is one of {', '.join(SCALES)}, not {scale!r}.")


def check_positive(term: str, **options: float) -> None:
    """Raise ValueError if an option of a numeric loss is not above 0."""
    for name, value in options.items():
        if not value > 0:
            raise ValueError(f"{term}: {name} must be > 0, not {value}.")


@dataclass(frozen=True, eq=False)
class NumberLogits:
    """The logits of the c number tokens, at the k positions where the label is a number token.

    The logits are float32, or float64 if the logits of the model are float64.

    Attributes:
        logits: [k, c] logit of each number token. If the label is a digit, only the ten digits keep
            the model's logits; all others are -1e30, so that a softmax ignores them.
        log_normaliser: [k] logsumexp of the logits of the whole vocabulary. A logit minus this
            value is a log probability.
        classes: The numeric value and the digits of each of the c number tokens, as tensors.
        present: [k, c] True for the tokens that keep the model's logits. None: all tokens do.
    """

    logits: Tensor
    log_normaliser: Tensor
    classes: NumberClasses
    present: Tensor | None = None
    _known: dict[Any, Any] = field(init=False, repr=False, default_factory=dict)

    @classmethod
    def at(
        cls, scores: Tensor, log_normaliser: Tensor, classes: NumberClasses, target: Tensor
    ) -> "NumberLogits":
        """Create ``NumberLogits`` from the model's logits of the c number tokens, scores [k, c].

        ``target`` [k] is the index of each label among the c tokens.
        """
        if classes.same is None:
            return cls(scores, log_normaliser, classes)
        present = classes.same[target]
        return cls(scores.masked_fill(~present, _MASKED_LOGIT), log_normaliser, classes, present)

    @property
    def values(self) -> Tensor:
        """Return the numeric value of each class (number token of the vocabulary), [c]."""
        return self.classes.values

    @property
    def probs(self) -> Tensor:
        """Return the probability of each number token, [k, c], in a softmax without text tokens."""
        return self.once("probs", lambda: self.logits.softmax(dim=-1))

    def once(self, key: Any, compute: Callable[[], _Found]) -> _Found:
        """Return ``compute()``. It is called once for each key, and all terms share the result.

        A result that was computed without gradients is not used where gradients are needed.
        """
        has_grad = torch.is_grad_enabled() or (key, True) in self._known
        if (key, has_grad) not in self._known:
            self._known[key, has_grad] = compute()
        found: _Found = self._known[key, has_grad]
        return found


def one_hot(target: Tensor, classes: int) -> Tensor:
    """Return one-hot vectors [k, classes] of class indices [k], without a device sync."""
    return (target[:, None] == torch.arange(classes, device=target.device)).long()


def cumulative_sum(values: Tensor) -> Tensor:
    """Return ``values.cumsum(-1)``, by deterministic operations if torch requires these.

    With ``trainer.full_determinism``, torch rejects ``cumsum`` of floats on CUDA.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return values.cumsum(dim=-1)
    step = 1
    while step < values.shape[-1]:
        values = values + torch.nn.functional.pad(values[..., :-step], (step, 0))
        step *= 2
    return values


class Term(Protocol):
    """Interface of a numeric loss."""

    @property
    def per(self) -> Literal["supervised", "token", "number", "box", "time"]:
        """Return what one loss value belongs to: a number token, number, box or clock time.

        The mean loss is the sum divided by the number of tokens, numbers, boxes or times. With
        ``supervised`` there is one loss value per number token, as with ``token``. But the sum is
        divided by the number of all supervised tokens, including text, as for cross-entropy.
        """

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return one loss for each number token, number, box or time, depending on ``per``.

        The losses are differentiable with respect to ``numbers.logits``.
        """


PER = ("token", "number", "box", "time", "supervised")
"""The values of ``Term.per``."""


class LossSum(NamedTuple):
    """A sum of losses (``total``) and the number to divide it by for a mean (``items``)."""

    total: Tensor
    items: Tensor

    @property
    def mean(self) -> Tensor:
        """Return ``total / items``, or 0 if there are no items."""
        return self.total / (self.items + (self.items == 0))


def check_place_weights(term: str, places: str, growth: float) -> None:
    """Validate the settings ``places`` and ``growth`` of the numeric loss named ``term``."""
    if places not in PLACES:
        raise ValueError(f"{term}: places is one of {', '.join(PLACES)}, not {places!r}.")
    if growth <= 0 or (places == "linear" and growth < 1):
        allowed = ">= 1 where places is linear" if places == "linear" else "> 0"
        raise ValueError(f"{term}: growth must be {allowed}, not {growth}.")


def place_weights(from_right: Tensor, places: str, growth: float) -> Tensor:
    """Return the loss weight of each of k digits, [k], float64.

    Args:
        from_right: [k] number of digits to the right, i; 0 for the last digit of a number.
        places: Formula of the weight. ``exponential``: ``growth ** i``. ``linear``:
            ``1 + (growth - 1) i``. ``powers``: ``10 ** i``. ``none``: 1.
        growth: Growth of the weight per digit; ignored by ``powers`` and ``none``.
    """
    from_right = from_right.double()
    if places == "none":
        return torch.ones_like(from_right)
    if places == "linear":
        return 1 + (growth - 1) * from_right
    base = 10.0 if places == "powers" else growth
    return (base**from_right).clamp(max=_LARGEST_WEIGHT)


def sum_by_number(values: Tensor, spans: NumberSpans) -> Tensor:
    """Return the sum of ``values`` [k] (one per number token) for each of the m numbers, [m]."""
    return values.new_zeros(len(spans.value)).index_add(0, spans.number, values)


def normalised(weights: Tensor, totals: Tensor, digits: Tensor, spans: NumberSpans) -> Tensor:
    """Scale loss weights [k] so that the digits of each number have the mean weight 1.

    Args:
        weights: [k] weight of each number token.
        totals: [k] sum of the weights of the digits of each number token, float64.
        digits: [k] number of digits of each number token, float64.
        spans: The numbers that the tokens belong to.
    """
    mean = sum_by_number(totals, spans) / sum_by_number(digits, spans)
    return weights / mean[spans.number]


def make_term(name: str, options: Mapping[str, Any], where: str = "objective") -> Term:
    """Create a numeric loss; ``name`` is a key of ``TERMS`` or an import path of a class."""
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
