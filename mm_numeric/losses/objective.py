"""The training loss: cross-entropy plus weighted losses of the number tokens.

Axes    b samples, t positions, n supervised rows (positions with a label), v vocabulary,
        d hidden size, k labels that are number tokens, c number tokens in the vocabulary, f metrics
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mm_numeric.losses.balance import Balance
from mm_numeric.losses.cross_entropy import (
    cross_entropy_with_numbers,
    full_precision,
    most_likely,
    number_scores,
    to_compute_dtype,
)
from mm_numeric.losses.linear_cross_entropy import head_scores, linear_cross_entropy_with_numbers
from mm_numeric.losses.normalization import COUNT_OF, Counts, mean_by_sample
from mm_numeric.losses.number_metrics import number_metrics
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.reduction import (
    at_positions,
    at_tokens,
    item_weights,
    row_weights,
    term_losses,
)
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import LossSum, NumberClasses, NumberLogits, Term
from mm_numeric.losses.term import make_term as make_term
from mm_numeric.losses.term_settings import (
    check_terms,
    warn_of_large_distances,
    with_changes,
)
from mm_numeric.losses.validation import (
    check_head,
    check_labels,
    check_not_called_by_trainer,
    supervised_rows,
)
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import choose


@dataclass(frozen=True, eq=False)
class ObjectiveResult:
    """The training loss of a batch, and the losses that it is the weighted sum of.

    Attributes:
        loss: Scalar training loss, differentiable.
        sums: Sum and count of cross-entropy (``ce``) and of each numeric loss, without weights.
        figures: [f, 2] sum and count of each of the f training metrics; None if not requested.
    """

    loss: Tensor
    sums: dict[str, LossSum]
    figures: Tensor | None = None

    @property
    def parts(self) -> dict[str, Tensor]:
        """Return the unweighted mean cross-entropy and numeric losses of this batch, by name."""
        return {name: component.mean for name, component in self.sums.items()}


class Objective:
    """Training loss: cross-entropy of the supervised tokens plus losses of the number tokens."""

    def __init__(self, spec: ObjectiveSpec, vocabulary: NumberVocabulary) -> None:
        if not isinstance(vocabulary, NumberVocabulary):
            raise ValueError(
                f"an objective takes a NumberVocabulary, not a {type(vocabulary).__name__}: "
                "make one with NumberVocabulary.from_tokenizer(tokenizer)."
            )
        if spec.tokens == "digits":
            vocabulary = vocabulary.only_digits()
        self.spec = spec
        self.vocabulary = vocabulary
        self.terms: dict[str, Term] = {t.name: make_term(t.name, t.options) for t in spec.terms}
        self._trained = {t.name for t in spec.terms if t.weight * spec.weight > 0}
        self.balance = Balance(spec)
        self._ids = torch.tensor([token.id for token in vocabulary.tokens])
        self._largest_id = max(token.id for token in vocabulary.tokens)
        # Cross-entropy with weight 0 is not computed, unless the balance depends on it.
        self._terms_alone = bool(spec.terms) and spec.ce_weight == 0 and spec.balance == "fixed"
        self._reweighs = any(getattr(term, "reweigh", False) for term in self.terms.values())
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, NumberClasses]] = {}
        check_terms(spec, self.terms, vocabulary)
        warn_of_large_distances(spec, self.terms, vocabulary)

    def __repr__(self) -> str:
        return f"<Objective {self.spec}, {len(self.vocabulary)} number tokens>"

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        shift: bool | None = None,
        weights: Tensor | None = None,
        counts: Counts | None = None,
        figures: bool = False,
        num_items_in_batch: Any = None,
    ) -> ObjectiveResult:
        """Return the loss of a batch and its components.

        Only first derivatives are supported (``loss.backward()``, ``torch.autograd.grad``):
        transforms of torch.func and second derivatives raise an error.

        Args:
            logits: [b, t, v] (samples, positions, tokens), or [n, v] for n supervised positions.
            labels: [b, t] with ``IGNORE_INDEX`` at positions without a loss, or [n]. For labels [n]
                with logits [b, t, v], ``spans.supervised`` must have the positions of the labels.
            spans: Where the numbers of the batch are. None: find them in labels [b, t], on the CPU.
            shift: Required for labels [b, t]. True if they are aligned with ``input_ids``, as in
                transformers; this method then shifts them by one. False if they are aligned with
                the logits: you have shifted them, or the model is an encoder-decoder.
            weights: Loss weights, at least 0: per token, aligned with the labels ([b, t], or [n]),
                or per sample [b]. Means become weighted means, divided by the sum of the weights.
                A number has the mean weight of its tokens.
            counts: The counts that loss sums are divided by. With gradient accumulation or several
                ranks, pass those of the whole optimiser step. None: the counts of this batch.
            figures: True computes the metrics in ``ObjectiveResult.figures``.
            num_items_in_batch: Not supported; give Trainer ``loss_func(objective, shift=...)``.
        """
        check_not_called_by_trainer(num_items_in_batch)
        given = labels
        logits, labels, spans, rows = supervised_rows(
            logits, labels, spans, shift, "logits", self.spans, counts
        )
        if weights is not None:
            weights = row_weights(weights, given, shift, rows)
        losses, numbers, at = self._select(logits, labels, spans, rows)
        written = most_likely(logits, at) if figures else None
        return self._result(losses, numbers, labels, spans, counts, written, weights)

    def token_losses(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        shift: bool | None = None,
    ) -> dict[str, Tensor]:
        """Return the unweighted loss of each position, like ``reduction="none"`` in PyTorch.

        The result maps the name of each loss to a differentiable tensor of the shape of ``labels``.
        Position i has the loss of the token that ``logits[:, i]`` predict, for either ``shift``. It
        is 0 at positions without a label, or without a number. The loss of a number (or of a box
        or time) is distributed evenly over its tokens. The sum of a tensor is therefore
        ``sums[name].total`` of ``__call__`` (with ``reduction: items``).
        """
        shape = labels.shape
        logits, labels, spans, rows = supervised_rows(
            logits, labels, spans, shift, "logits", self.spans
        )
        losses, numbers, _ = self._select(logits, labels, spans, rows)
        if rows is None or len(shape) == 1:
            rows = torch.arange(len(labels), device=labels.device)
        found = {}
        if losses is not None:
            if self.spec.ce_on == "text":
                losses = losses.index_fill(0, spans.row, 0)
            found["ce"] = at_positions(losses, rows, shape)
        with full_precision(labels.device):
            for spec in self.spec.terms:
                term = self.terms[spec.name]
                each = at_tokens(term_losses(spec, term, numbers, spans), term.per, spans)
                found[spec.name] = at_positions(each, rows[spans.row], shape)
        return found

    def _select(
        self, logits: Tensor, labels: Tensor, spans: NumberSpans, rows: Tensor | None
    ) -> tuple[Tensor | None, NumberLogits, Tensor]:
        """Compute cross-entropy and select the logits of the number tokens.

        Returns:
            The cross-entropy of each label [n] (None if it is not computed), the logits of all c
            number tokens at the k labels that are number tokens, and the positions [k] of these.
        """
        ids, classes = self._table(logits)
        check_head(self._largest_id, logits.shape[-1])
        check_labels(labels, logits.shape[-1], spans, ids)
        losses: Tensor | None = None
        normaliser: Tensor | Callable[[], Tensor]
        at = spans.row if rows is None else rows[spans.row]
        if self._terms_alone:
            if self._reweighs:  # needs the normaliser, whose gradient shares one buffer this way
                each = torch.arange(len(at), device=at.device)
                _, scores, normaliser = cross_entropy_with_numbers(
                    logits, labels[spans.row], each, ids, at
                )
            else:
                scores = number_scores(logits, at, ids)
                normaliser = lambda: to_compute_dtype(logits[at]).logsumexp(dim=-1)  # noqa: E731
        else:
            losses, scores, normaliser = cross_entropy_with_numbers(
                logits, labels, spans.row, ids, rows
            )
        return losses, NumberLogits.at(scores, normaliser, classes, spans.target), at

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        bias: Tensor | None = None,
        shift: bool | None = None,
        weights: Tensor | None = None,
        counts: Counts | None = None,
        figures: bool = False,
    ) -> ObjectiveResult:
        """Return the loss from the last hidden states, computing the logits in chunks.

        The output head must be ``hidden @ weight.T + bias``, without scaling or soft-capping.

        ``hidden`` are the last hidden states: [b, t, d], or [n, d] for the n supervised positions.
        ``weight`` [v, d] and ``bias`` [v] belong to the head, ``model.get_output_embeddings()``.
        For the other arguments see ``__call__``.
        """
        if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
            raise ValueError(
                f"the weight of the head must be [v, {hidden.shape[-1]}], not "
                f"{list(weight.shape)}; gather a weight that is sharded over ranks first."
            )
        given = labels
        hidden, labels, spans, rows = supervised_rows(
            hidden, labels, spans, shift, "hidden states", self.spans, counts
        )
        if weights is not None:
            weights = row_weights(weights, given, shift, rows)
        hidden = hidden if rows is None else hidden[rows]
        ids, classes = self._table(hidden)
        check_head(self._largest_id, len(weight))
        check_labels(labels, len(weight), spans, ids)
        losses, scores, normaliser, written = linear_cross_entropy_with_numbers(
            hidden, weight, bias, labels, spans.row, ids
        )
        numbers = NumberLogits.at(scores, normaliser, classes, spans.target)
        return self._result(
            losses, numbers, labels, spans, counts, written if figures else None, weights
        )

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
        """Add the numeric losses to cross-entropy losses that another library computed.

        Use it with fused kernels that do not return logits. Here only the logits of the c number
        tokens are computed, at the k positions whose label is a number token.

        ``losses`` [n] are the differentiable cross-entropy losses of the supervised rows
        (``reduction="none"``), and ``hidden`` [n, d] their last hidden states. ``weight`` [v, d]
        and ``bias`` [v] belong to the output head. For ``counts`` see ``__call__``.
        """
        if losses.dim() != 1 or hidden.shape != (len(losses), weight.shape[-1]):
            raise ValueError(
                "from_losses takes losses [n], hidden states [n, d] and a weight [v, d], not "
                f"{list(losses.shape)}, {list(hidden.shape)} and {list(weight.shape)}."
            )
        check_head(self._largest_id, len(weight))
        ids, classes = self._table(hidden)
        scores = head_scores(hidden, weight, bias, spans.row, ids)
        losses = losses.to(scores)
        # The loss is log_normaliser - z_y, and z_y is one of the number logits.
        wanted = scores.gather(1, spans.target[:, None]).squeeze(1)
        numbers = NumberLogits.at(scores, losses[spans.row] + wanted, classes, spans.target)
        return self._result(losses, numbers, losses, spans, counts)

    def spans(self, labels: Tensor, documents: Tensor | None = None) -> NumberSpans:
        """Find the numbers in labels [b, t], which must already be aligned with the logits.

        The settings ``digit_runs`` and ``thousands_separators`` define what one number is. If a row
        has several packed documents, pass the index of each label's document as ``documents``
        (``document_ids(position_ids, shift=True)``).

        Raises ValueError if a term must know coordinates or times, which token ids do not show.
        """
        for term in self.spec.terms:
            if term.roles or self.terms[term.name].per in ("box", "time"):
                raise ValueError(
                    f"the term {term.name} needs roles and groups, which label ids do not have: "
                    "pass spans (NumberSpans.build)."
                )
        if labels.dim() != 2:
            raise ValueError(f"labels must be [b, t], not {list(labels.shape)}.")
        return NumberSpans.from_labels(
            labels,
            self.vocabulary,
            digit_runs=self.spec.digit_runs,
            thousands_separators=self.spec.thousands_separators,
            documents=documents,
        )

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Update the running means of cross-entropy and numeric losses after an optimiser step.

        Only the setting ``balance: running`` uses these means. The argument ``sums`` is the sum
        of ``ObjectiveResult.sums`` over all micro-batches and ranks of the step.
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
        weights: Tensor | None = None,
    ) -> ObjectiveResult:
        """Return the loss of a batch and its components: cross-entropy and the numeric losses.

        ``losses`` [n] is the cross-entropy of each label, or None if the loss has no cross-entropy.
        """
        if weights is not None and self.spec.reduction == "samples":
            raise ValueError("weights cannot be combined with reduction: samples; set items.")
        weights = None if weights is None else to_compute_dtype(weights)
        here, sums = Counts.of(labels, spans, weights), {}
        if losses is not None:
            if self.spec.ce_on == "text":
                losses = losses.index_fill(0, spans.row, 0)
            if weights is not None:
                losses = losses * weights.to(losses)
            sums["ce"] = LossSum(losses.sum(), here.rows)
        with full_precision(labels.device):
            for term in self.spec.terms:
                sums[term.name] = self._term_sum(term, numbers, spans, here, weights)
            names = {"ce": "rows", **{name: self._count_of(name) for name in self.terms}}
            divisors = {name: getattr(counts or here, count) for name, count in names.items()}
            loss = self.balance.total(sums, divisors)
            figures = None
            if written is not None:
                figures = number_metrics(numbers, spans, written, labels[spans.row])
        if self.spec.on_nan == "error" and not loss.isfinite():
            bad = [name for name, component in sums.items() if not component.total.isfinite()]
            raise ValueError(
                f"the loss is {loss.item()} in {', '.join(bad) or 'the sum of its components'}: "
                "the logits contain NaN or infinity; lower the learning rate or train in bf16."
            )
        sums = {name: LossSum(s.total.detach(), s.items) for name, s in sums.items()}
        return ObjectiveResult(loss, sums, figures)

    def _count_of(self, name: str) -> str:
        return "samples" if self.spec.reduction == "samples" else COUNT_OF[self.terms[name].per]

    def _term_sum(
        self,
        spec: TermSpec,
        numbers: NumberLogits,
        spans: NumberSpans,
        here: Counts,
        weights: Tensor | None,
    ) -> LossSum:
        """Return the sum of one numeric loss over a batch, and the count to divide it by."""
        term = self.terms[spec.name]
        with torch.set_grad_enabled(torch.is_grad_enabled() and spec.name in self._trained):
            losses = term_losses(spec, term, numbers, spans)
            if weights is not None:
                losses = losses * item_weights(weights.to(losses), term.per, spans)
            if self.spec.reduction == "samples":
                losses = mean_by_sample(losses, term.per, spans)
            return LossSum(losses.sum(), getattr(here, self._count_of(spec.name)))

    def _table(self, like: Tensor) -> tuple[Tensor, NumberClasses]:
        """Return ids and values of the c number tokens, on the device of the tensor ``like``."""
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        key = (like.device, dtype)
        if key not in self._tables:
            with torch.inference_mode(False):  # or training after an evaluation would fail
                classes = NumberClasses.of(self.vocabulary, like.device, dtype)
                self._tables[key] = (self._ids.to(like.device), classes)
        return self._tables[key]


def objective(name: str | ObjectiveSpec, vocabulary: NumberVocabulary, **changes: Any) -> Objective:
    """Create an objective from the name of a preset or from an ``ObjectiveSpec``.

    Args:
        name: A name in ``mm_numeric.losses.presets.PRESETS``, or an ``ObjectiveSpec``.
        vocabulary: The number tokens of the tokenizer.
        **changes: Fields of the ``ObjectiveSpec`` to override, for example ``weight=0.8`` or
            ``terms=[{"name": "relative", "weight": 0.2}]``. If the objective has one term, also
            options of this term, for example ``squash=3``.
    """
    spec = choose(name, PRESETS, "objective", "objective") if isinstance(name, str) else name
    return Objective(with_changes(spec, changes), vocabulary)
