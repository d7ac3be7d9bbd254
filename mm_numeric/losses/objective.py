"""The training loss: one shared cross-entropy plus weighted numeric terms.

Axes    b samples, t positions, n supervised rows, v vocabulary, k number tokens, m numbers
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_numeric.choose import choose, unknown
from mm_numeric.losses import PRESETS, TERMS, ObjectiveSpec, TermSpec
from mm_numeric.losses.cross_entropy import cross_entropy_with_numbers
from mm_numeric.losses.term import LossSum, NumberLogits, Term
from mm_numeric.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.strict import read_dataclass
from mm_numeric.vocabulary import NumberVocabulary

_TINY = 1e-10  # keeps the published ratio from dividing by zero


class Counts(NamedTuple):
    """What the means are over: of one batch, or of all that one optimiser step adds up."""

    rows: Tensor
    tokens: Tensor
    numbers: Tensor
    samples: Tensor

    @classmethod
    def of(cls, labels: Tensor, spans: NumberSpans) -> "Counts":
        """Count one batch: supervised rows, number tokens, numbers, samples."""
        lengths = (len(labels), len(spans.row), len(spans.value))
        rows, tokens, numbers = (spans.samples.new_tensor(length) for length in lengths)
        return cls(rows, tokens, numbers, spans.samples)


@dataclass(frozen=True, eq=False)
class ObjectiveResult:
    """What an objective says of a batch.

    Attributes:
        loss: [] differentiable.
        sums: Each raw part, ``ce`` first, without weight and without gradient.
    """

    loss: Tensor
    sums: dict[str, LossSum]

    @property
    def parts(self) -> dict[str, Tensor]:
        """The mean of each raw part over this batch."""
        return {name: part.mean for name, part in self.sums.items()}


class Objective:
    """Cross-entropy on all supervised tokens plus numeric terms on the number tokens."""

    def __init__(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> None:
        """Put the terms of a spec together.

        Raises:
            ValueError: If a term does not exist or refuses its options.
        """
        self.spec = spec
        self.vocabulary = vocabulary
        self.terms: dict[str, Term] = {t.name: make_term(t.name, t.options) for t in spec.terms}
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        shift: bool = False,
        counts: Counts | None = None,
    ) -> ObjectiveResult:
        """Return the loss of a batch and its raw parts.

        Args:
            logits: [n, v] at the supervised rows, or [b, t, v].
            labels: [n], or [b, t] with ``IGNORE_INDEX`` where nothing is trained.
            spans: The numbers, from ``NumberSpans``. With [b, t] labels they are found here when
                None, on the CPU.
            shift: Labels stand at the token itself, as causal language models in transformers take
                them, so that row i is predicted by row i - 1. Only for [b, t] labels.
            counts: What to divide by, when the batch is one part of an optimiser step; the batch's
                own counts when None.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        rows = None
        if logits.dim() == 3 and labels.shape == logits.shape[:2]:
            if shift:
                labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
            if spans is None:
                spans = self.spans(labels)
            rows = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
            logits, labels = logits.flatten(0, 1), labels.flatten()[rows]
        elif logits.dim() != 2 or labels.shape != logits.shape[:1] or shift or spans is None:
            raise ValueError(
                "an objective takes logits [b, t, v] with labels [b, t], or logits [n, v] with "
                "labels [n], already shifted and with spans; got logits "
                f"{list(logits.shape)}, labels {list(labels.shape)}, shift={shift}, "
                f"spans={'given' if spans is not None else None}."
            )
        _check_labels(labels, logits.shape[-1])
        ids, values = self._table(logits)
        losses, number_logits, log_normaliser = cross_entropy_with_numbers(
            logits, labels, spans.row, ids, rows
        )
        here = Counts.of(labels, spans)
        numbers = NumberLogits(number_logits, log_normaliser, values.to(number_logits))
        sums = {"ce": LossSum(losses.sum(), here.rows)}
        for term in self.spec.terms:
            sums[term.name] = self._term_sum(term, numbers, spans, here)
        loss = self._add(sums, counts if counts is not None else here)
        return ObjectiveResult(
            loss, {name: LossSum(s.total.detach(), s.items) for name, s in sums.items()}
        )

    def spans(self, labels: Tensor) -> NumberSpans:
        """Find the numbers in labels [b, t] (already shifted), as this objective reads them."""
        return NumberSpans.from_labels(labels, self.vocabulary, digit_runs=self.spec.digit_runs)

    def _per(self, name: str) -> str:
        """Return the field of ``Counts`` that a term is averaged over."""
        return "samples" if self.spec.reduction == "samples" else f"{self.terms[name].per}s"

    def _term_sum(
        self, spec: TermSpec, numbers: NumberLogits, spans: NumberSpans, here: Counts
    ) -> LossSum:
        """Sum the charges of one term; without a graph if it has no weight."""
        term = self.terms[spec.name]
        trained = spec.weight * self.spec.weight > 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
            charges = term(numbers, spans)
            if self.spec.reduction == "samples":
                sample = spans.sample[spans.number] if term.per == "token" else spans.sample
                charges = charges / torch.bincount(sample)[sample]
            return LossSum(charges.sum(), getattr(here, self._per(spec.name)))

    def _add(self, sums: dict[str, LossSum], counts: Counts) -> Tensor:
        """Add the parts, each divided by the count of the whole optimiser step."""
        cross_entropy = self.spec.ce_weight * sums["ce"].total / counts.rows.clamp(min=1)
        if not self.spec.terms:
            return cross_entropy
        numeric, mean_here = torch.zeros_like(cross_entropy), torch.zeros_like(cross_entropy)
        for term in self.spec.terms:
            part = sums[term.name]
            items = getattr(counts, self._per(term.name)).clamp(min=1)
            numeric = numeric + term.weight * part.total / items
            mean_here = mean_here + term.weight * part.mean.detach()
        factor: float | Tensor = self.spec.weight
        if self.spec.balance == "ratio":
            factor = factor * sums["ce"].mean.detach() / (mean_here + _TINY)
        return cross_entropy + (factor * numeric).to(cross_entropy)

    def _table(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids [c] and values [c] of the number tokens, on the device of the logits."""
        key = (logits.device, logits.dtype)
        if key not in self._tables:
            ids = torch.tensor(self.vocabulary.token_ids, device=logits.device)
            values = torch.tensor(self.vocabulary.values, device=logits.device)
            self._tables[key] = (ids, values)
        return self._tables[key]


def _check_labels(labels: Tensor, tokens: int) -> None:
    """Refuse labels that are no token: on a CPU at once, elsewhere without waiting for the device.

    Raises:
        ValueError: If there is one, on a CPU.
    """
    fine = ((labels >= 0) & (labels < tokens)).all()
    if labels.device.type != "cpu":
        torch._assert_async(fine)
    elif not fine:
        wrong = labels[(labels < 0) | (labels >= tokens)][0].item()
        raise ValueError(
            f"the label {wrong} is none of the {tokens} tokens; rows without a label are "
            f"{IGNORE_INDEX} in labels [b, t], and are left out of labels [n]."
        )


def objective(name: str | ObjectiveSpec, vocabulary: NumberVocabulary, **changes: Any) -> Objective:
    """Make an objective from a preset.

    Args:
        name: A key of ``mm_numeric.losses.PRESETS``, or a spec of your own.
        vocabulary: The number tokens of the tokenizer.
        **changes: Fields of ``ObjectiveSpec`` to change, such as ``weight=0.8, balance="fixed"``.

    Raises:
        ValueError: If there is no such preset, or a change is refused.
    """
    spec = choose(name, PRESETS, "objective", "objective") if isinstance(name, str) else name
    known = [field.name for field in fields(ObjectiveSpec)]
    for change in changes:
        if change not in known:
            raise unknown(change, known, "setting", "objective")
    return Objective(replace(spec, **changes), vocabulary)


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
