"""The training loss: one shared cross-entropy plus weighted numeric terms.

Axes    b samples, t positions, n supervised rows, v vocabulary, k number tokens, m numbers
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.balance import Balance
from mm_numeric.losses.cross_entropy import (
    calculated,
    cross_entropy_with_numbers,
    full_precision,
    most_likely,
    number_scores,
)
from mm_numeric.losses.linear_cross_entropy import head_scores, linear_cross_entropy_with_numbers
from mm_numeric.losses.normalization import COUNT_OF, Counts, mean_by_sample
from mm_numeric.losses.number_metrics import number_figures
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import RENAMED, ObjectiveSpec, TermSpec
from mm_numeric.losses.term import LossSum, NumberClasses, NumberLogits, Term
from mm_numeric.losses.term import make_term as make_term
from mm_numeric.losses.validation import check_head, check_labels, supervised_rows
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import choose, unknown


@dataclass(frozen=True, eq=False)
class ObjectiveResult:
    """What an objective says of a batch.

    Attributes:
        loss: [] differentiable.
        sums: Each raw part, ``ce`` first, without weight and without gradient.
        figures: [f, 2] sums and counts of ``losses.figures.FIGURES``, where they were asked for.
    """

    loss: Tensor
    sums: dict[str, LossSum]
    figures: Tensor | None = None

    @property
    def parts(self) -> dict[str, Tensor]:
        """The mean of each raw part over this batch."""
        return {name: part.mean for name, part in self.sums.items()}


class Objective:
    """Cross-entropy on the supervised tokens plus numeric terms on the number tokens."""

    takes_outputs: ClassVar[bool] = False
    """Whether it looks at more of what a model returns than logits (``of_outputs``)."""

    def __init__(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> None:
        """Put the terms of a spec together.

        Raises:
            ValueError: If a term does not exist, or refuses its options or roles.
        """
        if not isinstance(vocabulary, NumberVocabulary):
            raise ValueError(
                f"an objective takes a NumberVocabulary, not a {type(vocabulary).__name__}: "
                "NumberVocabulary.from_tokenizer(tokenizer) makes one."
            )
        self.spec = spec
        self.vocabulary = vocabulary
        self.terms: dict[str, Term] = {t.name: make_term(t.name, t.options) for t in spec.terms}
        self._trained = {t.name for t in spec.terms if t.weight * spec.weight > 0}
        self.balance = Balance(spec)
        self._ids = torch.tensor([token.id for token in vocabulary.tokens])
        self._largest_id = max(token.id for token in vocabulary.tokens)
        # With no weight cross-entropy is not calculated either, unless a balance goes by it.
        self._terms_alone = bool(spec.terms) and spec.ce_weight == 0 and spec.balance == "fixed"
        self._reweighs = any(getattr(term, "reweigh", False) for term in self.terms.values())
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, NumberClasses]] = {}
        for term in spec.terms:
            if self.terms[term.name].per not in ("box", "time"):
                continue
            if term.roles:
                raise ValueError(
                    f"objective.terms, {term.name}: a charge is for several numbers of different "
                    "roles, so that roles cannot weigh it; take roles out."
                )
            if spec.digit_runs:
                raise ValueError(
                    f"objective.terms, {term.name}: digit_runs reads numbers from label ids, which "
                    "know no boxes and times; turn it off."
                )

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        shift: bool = False,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Return the loss of a batch and its raw parts.

        Args:
            logits: [n, v] at the supervised rows, or [b, t, v].
            labels: [n], or [b, t] with ``IGNORE_INDEX`` where nothing is trained. With [b, t, v]
                logits [n] labels need spans that say which rows they are (``supervised``).
            spans: The numbers, from ``NumberSpans``. With [b, t] labels they are found here when
                None, on the CPU.
            shift: Labels stand at the token itself, as causal language models in transformers take
                them, so that row i is predicted by row i - 1. Only for [b, t] labels.
            counts: What to divide by, when the batch is one part of an optimiser step; the batch's
                own counts when None.
            figures: Say how many number tokens are right, and how far off the numbers are.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        logits, labels, spans, rows = supervised_rows(
            logits, labels, spans, shift, "logits", self.spans
        )
        ids, classes = self._table(logits)
        check_head(self._largest_id, logits.shape[-1])
        check_labels(labels, logits.shape[-1], spans, ids)
        losses: Tensor | None = None
        normaliser: Tensor | Callable[[], Tensor]
        at = spans.row if rows is None else rows[spans.row]
        if self._terms_alone:
            if self._reweighs:  # the normaliser is asked for, and its gradient fits in one buffer
                each = torch.arange(len(at), device=at.device)
                _, scores, normaliser = cross_entropy_with_numbers(
                    logits, labels[spans.row], each, ids, at
                )
            else:
                scores = number_scores(logits, at, ids)
                normaliser = lambda: calculated(logits[at]).logsumexp(dim=-1)  # noqa: E731
        else:
            losses, scores, normaliser = cross_entropy_with_numbers(
                logits, labels, spans.row, ids, rows
            )
        numbers = NumberLogits.at(scores, normaliser, classes, spans.target)
        written = most_likely(logits, at) if figures else None
        return self._result(losses, numbers, labels, spans, counts, written)

    def of_outputs(
        self,
        outputs: Any,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Return the same from what a model returned; labels stand at the row that predicts them.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        return self(outputs.logits, labels, spans, counts=counts, figures=figures)

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        bias: Tensor | None = None,
        shift: bool = False,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Return the same from what goes into the head, without ever holding all logits.

        The head must be linear: ``logits = hidden @ weight.T + bias``, with nothing behind it.

        Args:
            hidden: [n, d] at the supervised rows, or [b, t, d]: the last hidden states.
            weight: [v, d] of the head, ``model.get_output_embeddings().weight``.
            labels: As above.
            spans: As above.
            bias: [v] of the head, where it has one.
            shift: As above.
            counts: As above.
            figures: As above.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
            raise ValueError(
                f"the weight of the head must be [v, {hidden.shape[-1]}] for hidden states "
                f"{list(hidden.shape)}, not {list(weight.shape)}; a weight that is split over "
                "ranks has to be gathered first."
            )
        hidden, labels, spans, rows = supervised_rows(
            hidden, labels, spans, shift, "hidden states", self.spans
        )
        hidden = hidden if rows is None else hidden[rows]
        ids, classes = self._table(hidden)
        check_head(self._largest_id, len(weight))
        check_labels(labels, len(weight), spans, ids)
        losses, scores, normaliser, written = linear_cross_entropy_with_numbers(
            hidden, weight, bias, labels, spans.row, ids
        )
        numbers = NumberLogits.at(scores, normaliser, classes, spans.target)
        return self._result(losses, numbers, labels, spans, counts, written if figures else None)

    def from_losses(
        self,
        losses: Tensor,
        hidden: Tensor,
        weight: Tensor,
        spans: NumberSpans,
        *,
        bias: Tensor | None = None,
        counts: Counts | None = None,
    ) -> ObjectiveResult:
        """Return the same beside a cross-entropy that another library calculated.

        For fused kernels that never give logits: only the head's rows of the number tokens are
        multiplied, [k, d] by [d, c].

        Args:
            losses: [n] cross-entropy of each supervised row (``reduction="none"``), with its graph.
            hidden: [n, d] at the supervised rows.
            weight: [v, d] of the head.
            spans: The numbers of the batch.
            bias: [v] of the head, where it has one.
            counts: As above.

        Raises:
            ValueError: If the shapes do not belong together.
        """
        if losses.dim() != 1 or hidden.shape != (len(losses), weight.shape[-1]):
            raise ValueError(
                "from_losses takes losses [n] and hidden states [n, d] of the supervised rows, and "
                f"the weight [v, d] of the head; got {list(losses.shape)}, {list(hidden.shape)} "
                f"and {list(weight.shape)}."
            )
        check_head(self._largest_id, len(weight))
        ids, classes = self._table(hidden)
        scores = head_scores(hidden, weight, bias, spans.row, ids)
        losses = losses.to(scores)
        # -log P_y = log_normaliser - z_y, and the label's score is among the number tokens'.
        wanted = scores.gather(1, spans.target[:, None]).squeeze(1)
        numbers = NumberLogits.at(scores, losses[spans.row] + wanted, classes, spans.target)
        return self._result(losses, numbers, losses, spans, counts)

    def spans(self, labels: Tensor) -> NumberSpans:
        """Find the numbers in labels [b, t] (already shifted), as this objective reads them.

        Raises:
            ValueError: If a term asks for more than label ids tell, or the labels are not [b, t].
        """
        for term in self.spec.terms:
            if term.roles or self.terms[term.name].per in ("box", "time"):
                raise ValueError(
                    f"the term {term.name} asks what each number stands for, and label ids do not "
                    "tell: hand in spans with roles and groups (NumberSpans.build), as a task does."
                )
        if labels.dim() != 2:
            raise ValueError(f"labels must be [b, t], not {list(labels.shape)}.")
        return NumberSpans.from_labels(
            labels,
            self.vocabulary,
            digit_runs=self.spec.digit_runs,
            thousands_separators=self.spec.thousands_separators,
        )

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Say that an optimiser step is over; only ``balance: running`` needs to know.

        Args:
            sums: ``ObjectiveResult.sums``, added over the step's micro-batches and ranks.
        """
        self.balance.end_step(sums)

    def _result(
        self,
        losses: Tensor | None,
        numbers: NumberLogits,
        labels: Tensor,
        spans: NumberSpans,
        counts: Counts | None,
        written: Tensor | None = None,
    ) -> ObjectiveResult:
        """Put the parts together; without losses the terms stand alone."""
        here, sums = Counts.of(labels, spans), {}
        if losses is not None:
            if self.spec.ce_on == "text":
                losses = losses.index_fill(0, spans.row, 0)
            sums["ce"] = LossSum(losses.sum(), here.rows)
        with full_precision(labels.device):
            for term in self.spec.terms:
                sums[term.name] = self._term_sum(term, numbers, spans, here)
            loss = self._add(sums, counts if counts is not None else here)
            figures = None
            if written is not None:
                figures = number_figures(numbers, spans, written, labels[spans.row])
        if self.spec.on_nan == "error" and not loss.isfinite():
            bad = [name for name, part in sums.items() if not part.total.isfinite()]
            raise ValueError(
                f"the loss is {loss.item()} in {', '.join(bad) or 'the sum of its parts'}: the "
                "logits hold NaN or infinity; lower the learning rate or train in bf16."
            )
        sums = {name: LossSum(s.total.detach(), s.items) for name, s in sums.items()}
        return ObjectiveResult(loss, sums, figures)

    def _count_of(self, name: str) -> str:
        """Return the field of ``Counts`` that a term is averaged over."""
        return "samples" if self.spec.reduction == "samples" else COUNT_OF[self.terms[name].per]

    def _term_sum(
        self, spec: TermSpec, numbers: NumberLogits, spans: NumberSpans, here: Counts
    ) -> LossSum:
        """Sum the charges of one term; without a graph if it has no weight."""
        term = self.terms[spec.name]
        with torch.set_grad_enabled(torch.is_grad_enabled() and spec.name in self._trained):
            charges = term(numbers, spans)
            if spec.roles:
                weights = torch.tensor([spec.roles.get(role, 1.0) for role in ROLES])
                weights = weights.to(charges, non_blocking=True)
                role = spans.role if term.per == "number" else spans.role[spans.number]
                charges = charges * weights[role]
            if self.spec.reduction == "samples":
                charges = mean_by_sample(charges, term.per, spans)
            return LossSum(charges.sum(), getattr(here, self._count_of(spec.name)))

    def _add(self, sums: dict[str, LossSum], counts: Counts) -> Tensor:
        """Add the parts, each divided by the count of the whole optimiser step."""
        parts = []
        for term in self.spec.terms:
            items = getattr(counts, self._count_of(term.name)).clamp(min=1)
            parts.append(term.weight * sums[term.name].total / items)
        numeric = self.balance.factor(sums) * sum(parts) if parts else None
        if "ce" not in sums:
            assert numeric is not None  # only terms can stand alone
            return numeric.to(parts[0])
        cross_entropy = self.spec.ce_weight * sums["ce"].total / counts.rows.clamp(min=1)
        return cross_entropy if numeric is None else cross_entropy + numeric.to(cross_entropy)

    def _table(self, like: Tensor) -> tuple[Tensor, NumberClasses]:
        """Return the ids [c] of the number tokens, and their classes, on a device."""
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        key = (like.device, dtype)
        if key not in self._tables:
            with torch.inference_mode(False):  # a table of an evaluation is trained with later
                classes = NumberClasses.of(self.vocabulary, like.device, dtype)
                self._tables[key] = (self._ids.to(like.device), classes)
        return self._tables[key]


def objective(name: str | ObjectiveSpec, vocabulary: NumberVocabulary, **changes: Any) -> Objective:
    """Make an objective from a preset.

    Args:
        name: A key of ``mm_numeric.losses.presets.PRESETS``, or a spec of your own.
        vocabulary: The number tokens of the tokenizer.
        **changes: Fields of ``ObjectiveSpec`` to change, such as ``weight=0.8, balance="fixed"``.

    Raises:
        ValueError: If there is no such preset, or a change is refused.
    """
    spec = choose(name, PRESETS, "objective", "objective") if isinstance(name, str) else name
    changes = RENAMED.translate_arguments("objective", changes)
    known = [field.name for field in fields(ObjectiveSpec)]
    for change in changes:
        if change not in known:
            error = unknown(change, known, "setting", "objective")
            raise ValueError(
                f"{error} A setting of a term is one of its options: "
                f'terms=(TermSpec(name=..., options={{"{change}": ...}}),).'
            )
    return Objective(replace(spec, **changes), vocabulary)
