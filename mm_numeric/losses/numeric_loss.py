"""The training loss: cross-entropy plus weighted losses of the number tokens.

Axes    b samples, t positions, n supervised positions (those with a label), v vocabulary,
        d hidden size, k labels that are number tokens, c number tokens in the vocabulary, f metrics
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mm_numeric.io.log import logger
from mm_numeric.losses.cross_entropy import (
    cross_entropy_with_numbers,
    full_precision,
    to_compute_dtype,
)
from mm_numeric.losses.linear_cross_entropy import head_scores, linear_cross_entropy_with_numbers
from mm_numeric.losses.normalization import (
    COUNT_OF,
    Counts,
    item_weights,
    mean_by_sample,
    term_losses,
)
from mm_numeric.losses.number_metrics import named_metrics, number_metrics
from mm_numeric.losses.presets import read_spec, with_changes
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import (
    MANY_DIGITS,
    LossSum,
    NumberClasses,
    NumberLogits,
    Term,
    make_term,
)
from mm_numeric.losses.validation import check_labels, flat_supervised
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary

_LARGEST_DIGIT = 9
_EPSILON = 1e-10  # avoids a division by zero; the value is that of NTIL's published code
_DECAY = 0.9  # decay of the running means at each optimiser step


@dataclass(frozen=True, eq=False)
class ObjectiveResult:
    """The training loss of a batch, and its components: cross-entropy and numeric losses.

    Attributes:
        loss: Scalar training loss, differentiable.
        sums: Sum and count of cross-entropy (``ce``) and of each numeric loss, without weights.
        metric_sums: [f, 2] sum and count of each of the f training metrics; None if not requested.
    """

    loss: Tensor
    sums: dict[str, LossSum]
    metric_sums: Tensor | None = None

    @property
    def components(self) -> dict[str, Tensor]:
        """Return the unweighted mean cross-entropy and numeric losses of this batch, by name."""
        return {name: component.mean for name, component in self.sums.items()}

    @property
    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics of this batch by name; empty unless computed with ``metrics=True``."""
        found = {} if self.metric_sums is None else named_metrics(self.metric_sums)
        return {name: metric.mean for name, metric in found.items()}


class Balance(nn.Module):
    """Computes the factor that multiplies the numeric losses, from the setting ``balance``.

    The factor is constant, or proportional to the ratio of cross-entropy to the sum of numeric
    losses.

    Attributes:
        means: [2] running means of cross-entropy and of the weighted sum of the numeric losses; 0
            before the first step with numbers. Part of the state dict with ``balance: running``.
    """

    means: Tensor

    def __init__(self, spec: ObjectiveSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("means", torch.zeros(2), persistent=spec.balance == "running")

    def total(self, sums: Mapping[str, LossSum], divisors: Mapping[str, Tensor]) -> Tensor:
        """Return the training loss: weighted mean cross-entropy plus weighted numeric losses.

        Each mean is the sum of a loss in ``sums``, divided by its entry in ``divisors``.
        """
        means = {name: LossSum(part.total, divisors[name]).mean for name, part in sums.items()}
        weighted = [_times(term.weight, means[term.name]) for term in self.spec.terms]
        numeric = None
        if weighted:
            is_whole = all(divisors[name] is part.items for name, part in sums.items())
            own = means if is_whole else None
            numeric = self.factor(sums, own) * sum(weighted[1:], weighted[0])
        if "ce" not in sums:
            assert numeric is not None  # without terms, there is always cross-entropy
            return numeric
        cross_entropy = _times(self.spec.ce_weight, means["ce"])
        return cross_entropy if numeric is None else cross_entropy + numeric.to(cross_entropy)

    def factor(
        self, sums: Mapping[str, LossSum], means: Mapping[str, Tensor] | None = None
    ) -> float | Tensor:
        """Return the factor that multiplies the numeric losses of a batch; it has no gradient.

        With ``balance: ratio``, the factor scales the numeric losses to ``numeric_weight`` times
        cross-entropy; with ``balance: running``, it does so for the running means of both. With
        ``fixed``, it is ``numeric_weight``. ``means`` are the means of ``sums``, if already known.
        """
        if self.spec.balance == "ratio":
            own = means or {name: part.mean for name, part in sums.items()}
            return self._ratio(*self._means_of(own))
        if self.spec.balance == "running":
            running = self.means.to(sums["ce"].total.device, torch.double, non_blocking=True)
            return torch.where(running[1] != 0, self._ratio(*running), self.spec.numeric_weight)
        return self.spec.numeric_weight

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Update the running means of cross-entropy and numeric losses after an optimiser step.

        Only ``balance: running`` uses the running means. ``sums`` are the losses of the step,
        summed over micro-batches and ranks. Steps without numbers, or with NaN or inf, are skipped.
        """
        if self.spec.balance != "running" or not self.spec.terms:
            return
        now = torch.stack(self._means_of({name: part.mean for name, part in sums.items()}))
        before = self.means.to(now)
        mixed = torch.where(before[1] != 0, _DECAY * before + (1 - _DECAY) * now, now)
        usable = (now[1] != 0) & now.isfinite().all()  # the loss scaler skips overflows in fp16
        self.means = torch.where(usable, mixed, before).to(self.means.dtype)

    def reset(self) -> None:
        """Delete the running means of the losses, for a new training run."""
        self.means = torch.zeros_like(self.means)

    def _means_of(self, means: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy and the weighted sum of the mean numeric losses."""
        names = "ce", *(term.name for term in self.spec.terms)
        cross_entropy, *terms = torch.stack([means[n].detach() for n in names]).double()
        weighted = [_times(t.weight, mean) for t, mean in zip(self.spec.terms, terms, strict=True)]
        return cross_entropy, sum(weighted[1:], weighted[0])

    def _ratio(self, cross_entropy: Tensor, numeric: Tensor) -> Tensor:
        return self.spec.numeric_weight * cross_entropy / (numeric + _EPSILON)


def _times(weight: float, mean: Tensor) -> Tensor:
    return mean if weight == 1 else weight * mean


class NumericLoss(nn.Module):
    """Training loss: cross-entropy of the supervised tokens plus losses of the number tokens.

        loss_of = NumericLoss("ntil", tokenizer)
        result = loss_of(logits, labels, shift=True)
        result.loss.backward()

    The state dict has the running means of ``balance: running``, and is empty for other settings.

    Args:
        objective: Name of a preset (``mm_numeric.losses.presets``), an ``ObjectiveSpec``, or a
            mapping as in a config: ``{"preset": "ntil", "balance": "fixed"}``.
        tokenizer: The tokenizer of the model, or a processor that has one. Its number tokens are
            found by ``NumberVocabulary.from_tokenizer``.
        vocabulary: The number tokens, if the tokenizer has number tokens that are not digits, such
            as ``<loc0012>``.
        **changes: Fields of ``ObjectiveSpec`` to change in ``objective``, such as
            ``numeric_weight=0.8``, and options that only one term of the objective has, such as
            ``squash=3``.
    """

    if TYPE_CHECKING:
        __call__: Callable[..., "ObjectiveResult"]

    def __init__(
        self,
        objective: str | ObjectiveSpec | Mapping[str, Any],
        tokenizer: Any = None,
        *,
        vocabulary: NumberVocabulary | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        spec = (
            objective if isinstance(objective, ObjectiveSpec) else read_spec(objective, "objective")
        )
        if changes:
            spec = with_changes(spec, changes, "objective")
        if vocabulary is None:
            vocabulary = NumberVocabulary.from_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
        if not isinstance(vocabulary, NumberVocabulary):
            raise ValueError(
                f"NumericLoss: vocabulary is a NumberVocabulary, not {vocabulary!r:.60}; pass a "
                "tokenizer as the second argument."
            )
        if spec.number_tokens == "digits":
            vocabulary = vocabulary.only_digits()
        self.spec = spec
        self.vocabulary = vocabulary
        self.terms: dict[str, Term] = {t.name: make_term(t.name, t.options) for t in spec.terms}
        self.balance = Balance(spec)
        # Cross-entropy with weight 0 is not computed, unless the balance depends on it.
        self._has_cross_entropy = not spec.terms or spec.ce_weight > 0 or spec.balance != "fixed"
        self._trained = {t.name for t in spec.terms if t.weight * spec.numeric_weight > 0}
        self._ids = torch.tensor([token.id for token in vocabulary.tokens])
        self._largest_id = max(token.id for token in vocabulary.tokens)
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, NumberClasses]] = {}
        self._warned_of_digits = False
        self._check_terms()
        self._warn_of_large_values()

    def __repr__(self) -> str:
        return f"<NumericLoss {self.spec}, {len(self.vocabulary)} number tokens>"

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans | None = None,
        *,
        shift: bool | None = None,
        weights: Tensor | None = None,
        counts: Counts | None = None,
        metrics: bool = False,
        num_items_in_batch: Any = None,
    ) -> ObjectiveResult:
        """Return the loss of a batch and its components.

        Only first derivatives are supported (``loss.backward()``, ``torch.autograd.grad``):
        transforms of torch.func and second derivatives raise an error.

        Args:
            logits: [b, t, v] (samples, positions, tokens), or [n, v] for n supervised positions.
            labels: [b, t] with ``IGNORE_INDEX`` at positions without a loss, or [n]. For labels [n]
                with logits [b, t, v], ``spans.supervised`` must have the positions of the labels.
            spans: The numbers of the batch and the positions of their tokens. None: the numbers are
                found in labels [b, t], on the CPU.
            shift: Required for labels [b, t]. True if labels are aligned with ``input_ids``, as in
                transformers; this method then shifts them by one. False if they are aligned with
                the logits: you have shifted them, or the model is an encoder-decoder.
            weights: Loss weights, at least 0: per token, aligned with the labels ([b, t], or [n]),
                or per sample [b]. Means become weighted means, divided by the sum of the weights.
                A number has the mean weight of its tokens.
            counts: The counts that loss sums are divided by. With gradient accumulation or several
                ranks, pass the counts of the whole optimiser step. None: use this batch's counts.
            metrics: True computes the metrics in ``ObjectiveResult.metrics``.
            num_items_in_batch: Not supported; pass ``loss_func(loss_of, shift=...)`` to Trainer.
        """
        if num_items_in_batch is not None:
            raise ValueError(
                "an objective is not a compute_loss_func, because it cannot know whether the "
                "labels are shifted: use Trainer(compute_loss_func=loss_func(loss_of, "
                "shift=True)), or shift=False for an encoder-decoder; `from mm_numeric import "
                "loss_func`."
            )
        logits, labels, spans, supervised, weights = flat_supervised(
            "logits", logits, labels, spans, self.spans, shift, weights, counts
        )
        losses, numbers, written = self._select(logits, labels, spans, supervised, metrics)
        return self._result(losses, numbers, labels, spans, counts, written, weights)

    def _check_terms(self) -> None:
        """Reject ``roles`` and ``digit_runs`` for losses on boxes and clock times."""
        for spec in self.spec.terms:
            term, where = self.terms[spec.name], f"objective.terms, {spec.name}"
            if term.per not in ("box", "time"):
                continue
            if spec.roles:
                raise ValueError(f"{where}: each of its losses has several roles; remove roles.")
            if self.spec.digit_runs:
                raise ValueError(f"{where}: digit_runs finds no boxes and times; turn it off.")

    def _warn_of_large_values(self) -> None:
        """Warn if ``scale: published`` is used with tokens of several digits.

        Weights such as 0.3 were published for single digits. Only ``balance: fixed`` is checked:
        ``ratio`` and ``running`` rescale the numeric losses anyway.
        """
        largest = max(token.value for token in self.vocabulary.tokens)
        names = [n for n in self._trained if getattr(self.terms[n], "scale", "") == "published"]
        if names and largest > _LARGEST_DIGIT and self.spec.balance == "fixed":
            logger.warning(
                "objective.terms, %s: the values of number tokens are up to %g, but the published "
                "weight is for digits, up to 9: this term can dominate cross-entropy. Set scale: "
                "range, number_tokens: digits or balance: running.",
                ", ".join(sorted(names)),
                largest,
            )

    @property
    def favours_long_numbers(self) -> bool:
        """Return True if a trained term gives numbers with more digits a larger weight."""
        return any(getattr(self.terms[n], "favours_long_numbers", False) for n in self._trained)

    def longest_number(self, spans: NumberSpans) -> Tensor:
        """Return the number of digits and the value of the longest number, [2], float64."""
        _, classes = self._table(spans.worth, self._largest_id + 1)
        digits = (spans.from_right + classes.width[spans.target]).double()
        values = spans.value[spans.number]
        digits, values = (torch.nn.functional.pad(each, (1, 0)) for each in (digits, values))
        at = digits.argmax()[None]  # a tensor: an int would make the CPU wait for the device
        return torch.stack([digits, values]).index_select(1, at).squeeze(1)

    def warn_of_long_number(self, digits: float, value: float) -> None:
        """Warn once if a number has more than ``MANY_DIGITS`` digits."""
        if digits <= MANY_DIGITS or self._warned_of_digits:
            return
        self._warned_of_digits = True
        names = [n for n in self.terms if getattr(self.terms[n], "favours_long_numbers", False)]
        logger.warning(
            "a label has a number of %d digits (%g): the weights of %s grow with each digit, so "
            "that such a number can have most of the gradient. Set normalise_places: true, which "
            "gives the digits of each number the mean weight 1.",
            digits,
            value,
            ", ".join(names),
        )

    def _select(
        self,
        logits: Tensor,
        labels: Tensor,
        spans: NumberSpans,
        supervised: Tensor | None,
        with_likely: bool,
    ) -> tuple[Tensor | None, NumberLogits, Tensor | None]:
        """Return cross-entropy [n], number-token logits, and the most likely tokens [k] or None.

        The cross-entropy is None if the training loss does not use it.
        """
        ids, classes = self._table(logits, logits.shape[-1])
        gathered = supervised is None and self._has_cross_entropy
        check_labels(
            labels, logits.shape[-1], spans, ids, uses_spans=bool(self.terms), gathered=gathered
        )
        losses: Tensor | None = None
        if self._has_cross_entropy:
            losses, scores, normaliser, likely = cross_entropy_with_numbers(
                logits, labels, spans.position, ids, supervised, with_likely
            )
        else:
            at = spans.position if supervised is None else supervised[spans.position]
            each = torch.arange(len(at), device=at.device)
            _, scores, normaliser, likely = cross_entropy_with_numbers(
                logits, labels[spans.position], each, ids, at, with_likely
            )
        return losses, NumberLogits.at(scores, normaliser, classes, spans.target), likely

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
        metrics: bool = False,
    ) -> ObjectiveResult:
        """Return the loss from the last hidden states, computing the logits in chunks.

        The output head must compute ``hidden @ weight.T + bias``, without scaling or soft-capping.

        ``hidden`` are the last hidden states: [b, t, d], or [n, d] for the n supervised positions.
        ``weight`` [v, d] and ``bias`` [v] belong to the head, ``model.get_output_embeddings()``.
        ``forward`` describes the other arguments.
        """
        if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
            raise ValueError(
                f"the weight of the head must be [v, {hidden.shape[-1]}], not "
                f"{list(weight.shape)}; gather a weight that is sharded over ranks first."
            )
        hidden, labels, spans, supervised, weights = flat_supervised(
            "hidden states", hidden, labels, spans, self.spans, shift, weights, counts
        )
        hidden = hidden if supervised is None else hidden[supervised]
        ids, classes = self._table(hidden, len(weight))
        check_labels(labels, len(weight), spans, ids, uses_spans=bool(self.terms))
        losses, scores, normaliser, written = linear_cross_entropy_with_numbers(
            hidden, weight, bias, labels, spans.position, ids
        )
        numbers = NumberLogits.at(scores, normaliser, classes, spans.target)
        return self._result(
            losses, numbers, labels, spans, counts, written if metrics else None, weights
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

        ``losses`` [n] are the differentiable cross-entropy losses of the supervised positions
        (``reduction="none"``). ``hidden`` [n, d] are the last hidden states of these positions.
        ``weight`` [v, d] and ``bias`` [v] belong to the output head. Loss sums are divided by
        ``counts``, by default the counts of this batch.
        """
        if losses.dim() != 1 or hidden.shape != (len(losses), weight.shape[-1]):
            raise ValueError(
                "from_losses takes losses [n], hidden states [n, d] and a weight [v, d], not "
                f"{list(losses.shape)}, {list(hidden.shape)} and {list(weight.shape)}."
            )
        ids, classes = self._table(hidden, len(weight))
        scores = head_scores(hidden, weight, bias, spans.position, ids)
        losses = losses.to(scores)
        # The loss is log_normaliser - z_y, and z_y is one of the number logits.
        wanted = scores.gather(1, spans.target[:, None]).squeeze(1)
        numbers = NumberLogits.at(scores, losses[spans.position] + wanted, classes, spans.target)
        return self._result(losses, numbers, losses, spans, counts)

    def spans(self, labels: Tensor, documents: Tensor | None = None) -> NumberSpans:
        """Find the numbers in labels [b, t], which must already be aligned with the logits.

        The settings ``digit_runs`` and ``thousands_separators`` define what one number is. If a row
        has several packed documents, pass the index of each label's document as ``documents``
        (``document_ids(position_ids, shift=True)``).

        Raises ValueError if a term needs coordinates or times, which token ids do not show.
        """
        if labels.dim() != 2:
            raise ValueError(f"labels must be [b, t], not {list(labels.shape)}.")
        spans = self.span_finder()(labels, documents=documents)
        if labels.device.type == "cpu" and self.favours_long_numbers:
            self.warn_of_long_number(*self.longest_number(spans).tolist())
        return spans

    def span_finder(self) -> Callable[..., NumberSpans]:
        """Return a function that finds the numbers in labels; other processes can unpickle it."""
        for term in self.spec.terms:
            if term.roles or self.terms[term.name].per in ("box", "time"):
                raise ValueError(
                    f"the term {term.name} needs roles and groups, which label ids do not have: "
                    "pass spans (NumberSpans.build)."
                )
        return partial(
            NumberSpans.from_labels,
            vocabulary=self.vocabulary,
            digit_runs=self.spec.digit_runs,
            thousands_separators=self.spec.thousands_separators,
        )

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
            if self.spec.ce_tokens == "text":
                losses = losses.index_fill(0, spans.position, 0)
            if weights is not None:
                losses = losses * weights.to(losses)
            sums["ce"] = LossSum(losses.sum(), here.supervised)
        with full_precision(labels.device):
            for term in self.spec.terms:
                sums[term.name] = self._term_sum(term, numbers, spans, here, weights)
            names = {"ce": "supervised", **{name: self._count_of(name) for name in self.terms}}
            step = here if counts is None or counts.is_batch else counts
            divisors = {name: getattr(step, count) for name, count in names.items()}
            # Terms of whole numbers are computed in float64.
            loss = self.balance.total(sums, divisors).to(numbers.logits.dtype)
            metric_sums = None
            if written is not None:
                metric_sums = number_metrics(numbers, spans, written, labels[spans.position])
        if self.spec.on_nan == "error" and not loss.isfinite():
            bad = [name for name, component in sums.items() if not component.total.isfinite()]
            raise ValueError(
                f"the loss is {loss.item()} in {', '.join(bad) or 'the sum of its components'}: "
                "the logits contain NaN or infinity; lower the learning rate or train in bf16."
            )
        sums = {name: LossSum(s.total.detach(), s.items) for name, s in sums.items()}
        return ObjectiveResult(loss, sums, metric_sums)

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

    def _table(self, like: Tensor, tokens: int) -> tuple[Tensor, NumberClasses]:
        """Return ids and values of the c number tokens, on the device of the tensor ``like``.

        ``tokens`` is the number of tokens in the output head. Raises ValueError if the id of a
        number token is not among them.
        """
        if self._largest_id >= tokens:
            raise ValueError(
                f"the number token with id {self._largest_id} is not one of the {tokens} tokens of "
                "the head: the number vocabulary was made from another model's tokenizer."
            )
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        key = (like.device, dtype)
        if key not in self._tables:
            with torch.inference_mode(False):  # autograd cannot use a tensor of inference mode
                classes = NumberClasses.of(self.vocabulary, like.device, dtype)
                self._tables[key] = (self._ids.to(like.device), classes)
        return self._tables[key]
