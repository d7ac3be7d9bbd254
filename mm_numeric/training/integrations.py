"""Use an objective (CE plus numeric losses) with Trainer, accelerate or your own training loop."""

import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mm_numeric.io.log import logger
from mm_numeric.losses.normalization import Counts, supervised_weights
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, aligned_labels, packed_documents
from mm_numeric.training.own_loss import base_model, probe_own_loss, router_loss

_REPLACED_LOSSES = (
    "transformers.trainer.Trainer",
    "trl.trainer.sft_trainer.SFTTrainer",
    "UnslothSFTTrainer._UnslothSFTTrainer",  # TRL's class as Unsloth writes it to its cache
)
"""Classes whose ``compute_loss`` may be replaced: it is cross-entropy, as in an objective."""


def loss_func(loss_of: NumericLoss, *, shift: bool) -> Callable[..., Tensor]:
    """Return a loss function for the ``compute_loss_func`` argument of transformers.Trainer.

    Each micro-batch is weighted by its fraction of the supervised tokens in the step. Cross-entropy
    is therefore the exact mean over the step, also with gradient accumulation and several ranks.
    Numeric losses are not exact means: each is a mean over the numbers of one micro-batch, so a
    number weighs more in a micro-batch with few numbers. ``NumericLossMixin`` computes exact means.

    In a Trainer, the router losses of a mixture of experts are added as a mean over micro-batches
    and ranks, unless ``own_loss`` is ``ignore``. Other losses that a model adds need labels, which
    the model does not get here: use ``NumericLossMixin`` for them.

    Args:
        loss_of: The loss to train on.
        shift: True for decoder-only models, which predict each label at the previous position.
            False for encoder-decoders.

    Raises:
        ValueError: If the objective has ``balance: running``, because its means are updated at the
            end of each step, which this function cannot detect; if the outputs show that the model
            requires the other ``shift``; if the Trainer has a ``label_smoothing_factor``, which it
            would ignore; if the model adds tokens that the labels do not have (prompt tuning of
            PEFT, GIT); or if the model adds losses other than router losses to cross-entropy.
    """
    if loss_of.spec.balance == "running":
        raise ValueError(
            "balance: running is updated after each step, which a compute_loss_func cannot detect: "
            "use NumericLossMixin, or another balance."
        )

    router_losses = _RouterLosses(loss_of.spec.own_loss, shift)

    def compute_loss(
        outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        # Trainer does not pass itself to a compute_loss_func, but it is the caller.
        caller = sys._getframe(1).f_locals
        trainer = caller.get("self")
        check_label_smoothing(getattr(trainer, "args", None))
        _check_shift_of(outputs, shift)
        if has_virtual_tokens(getattr(trainer, "model", None)):
            raise ValueError(
                "prompt tuning (PEFT) adds virtual tokens before each row, which the labels do not "
                "have: use NumericLossMixin, which leaves them out, in place of loss_func."
            )
        labels = aligned_labels(labels, shift)
        loss = loss_of(outputs.logits, labels, shift=False).loss
        if num_items_in_batch is not None:
            loss = loss * (labels != IGNORE_INDEX).sum() / num_items_in_batch
        router = router_losses.of(outputs, labels, caller, num_items_in_batch is not None)
        return loss if router is None else loss + router.to(loss.device)

    return compute_loss


class _RouterLosses:
    """Computes a model's router losses in a Trainer; probes its own loss at the first batch."""

    def __init__(self, policy: str, shift: bool) -> None:
        self.policy, self.shift = policy, shift
        self._probed: Any = lambda: None  # a weak reference to the model
        self._logged: set[str] = set()

    def of(
        self, outputs: Any, labels: Tensor, caller: Mapping[str, Any], is_counted: bool
    ) -> Tensor | None:
        """Return the router loss to add to the loss of a micro-batch; None if there is none.

        ``labels`` [b, t] are aligned with the logits. ``caller`` has the local variables of
        ``Trainer.compute_loss``. ``is_counted`` is True if the tokens of the step are counted;
        Trainer then multiplies the loss by the number of ranks.
        """
        if self.policy == "ignore":
            return None
        trainer: Any = caller.get("self")
        model, inputs = caller.get("model"), caller.get("inputs")
        if model is None or inputs is None or not hasattr(trainer, "accelerator"):
            self._log(
                logging.INFO,
                "loss_func is not called by a Trainer, so that losses which the model adds to its "
                "own loss, such as router losses, are neither found nor trained.",
            )
            return None
        args, accelerator = trainer.args, trainer.accelerator
        whole = base_model(accelerator.unwrap_model(model))
        if self._probed() is not whole:
            own = probe_own_loss(
                model,
                {n: v for n, v in inputs.items() if n not in ("labels", "num_items_in_batch")},
                labels,
                shift=self.shift,
                policy=self.policy,
                accelerator=accelerator,
                log=self._log if accelerator.is_main_process else lambda *_: None,
                is_compiled=args.torch_compile,
            )
            if own is not None and own.needs_labels:
                raise ValueError(
                    "own_loss: the model needs labels to compute what it adds to its loss, and a "
                    "compute_loss_func cannot give it any: use NumericLossMixin, or set own_loss "
                    "to ignore, to train the objective alone."
                )
            if own is not None:
                self._probed = weakref.ref(whole)
        router = router_loss(outputs, whole, getattr(args, "router_aux_loss_coef", None))
        if router is None or not whole.training:
            return router
        ranks = 1
        if is_counted and args.average_tokens_across_devices:  # Trainer multiplies by this number
            ranks = accelerator.num_processes // getattr(trainer, "get_tp_size", lambda: 1)()
        return router / (trainer.current_gradient_accumulation_steps * ranks)

    def _log(self, level: int, message: str) -> None:
        if message not in self._logged:
            logger.log(level, message)
        self._logged.add(message)


@dataclass(frozen=True)
class SpansCollator:
    """A data collator that finds the numbers in each batch's labels; see ``collate_with_spans``."""

    collator: Callable[[Any], Mapping[str, Any]]
    find: Callable[..., NumberSpans]
    shift: bool

    def __call__(self, examples: Any) -> dict[str, Any]:
        """Return the batch of ``collator`` with the additional entry ``spans``."""
        batch = dict(self.collator(examples))
        labels = aligned_labels(batch.get("labels"), self.shift)
        documents = packed_documents(batch) if self.shift else None
        batch["spans"] = self.find(labels, documents=documents)
        return batch


def collate_with_spans(
    collator: Callable[[Any], Mapping[str, Any]], loss_of: NumericLoss, *, shift: bool = True
) -> SpansCollator:
    """Return a data collator that also finds the numbers in the labels of each batch.

    Pass it to a trainer with ``NumericLossMixin`` or to a ``DataLoader``, whose workers then find
    the numbers while the model computes. In your own loop, remove ``batch.pop("spans")`` before
    the batch goes to the model, and pass it as ``loss_of(logits, labels, spans, shift=True)``. An
    iterable data set on several ranks requires ``dispatch_batches=False`` of accelerate, which
    otherwise reads the batches of all ranks as one.

    The batches of ``collator`` need ``labels`` [b, t]. Batches of packed documents also need
    ``position_ids`` or an ``attention_mask``; see ``NumericLossMixin``. ``shift`` is False for
    encoder-decoders, whose labels are aligned with the logits.
    """
    return SpansCollator(collator, loss_of.span_finder(), shift)


def check_shift(collator: Any, shift: bool) -> None:
    """Raise ValueError if ``collator`` is a ``SpansCollator`` whose ``shift`` is not ``shift``."""
    if isinstance(collator, SpansCollator) and collator.shift != shift:
        raise ValueError(
            f"the model is {'a decoder' if shift else 'an encoder-decoder'}: its data collator is "
            f"collate_with_spans(..., shift={shift}), not shift={collator.shift}."
        )


def check_label_smoothing(args: Any) -> None:
    """Raise ValueError if the ``TrainingArguments`` of a trainer request label smoothing."""
    if factor := getattr(args, "label_smoothing_factor", 0):
        raise ValueError(
            f"label_smoothing_factor={factor} requests another loss than the objective; remove it."
        )


def has_virtual_tokens(model: Any) -> bool:
    """Return True if PEFT adds virtual tokens before each row: there are more logits than labels.

    Prefix tuning adds no tokens, only keys and values. In an encoder-decoder, the virtual tokens
    are in the encoder, so they have no logits.
    """
    peft: Any = getattr(model, "active_peft_config", None)
    if not getattr(peft, "is_prompt_learning", False) or peft.peft_type == "PREFIX_TUNING":
        return False
    return not getattr(model.config, "is_encoder_decoder", False)


def check_base(trainer: type, mixin: type) -> None:
    """Raise ValueError if ``mixin`` would replace a loss other than cross-entropy, or no loss.

    ``trainer`` is a class that combines ``NumericLossMixin`` (``mixin``) with a trainer.
    """
    after = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    owner = next((cls for cls in after if "compute_loss" in vars(cls)), object)
    if f"{owner.__module__}.{owner.__qualname__}" not in _REPLACED_LOSSES:
        raise ValueError(
            f"{trainer.__name__}: {owner.__name__} has a compute_loss of its own, which "
            f"{mixin.__name__} would replace; combine the mixin with Trainer, Seq2SeqTrainer, "
            "SFTTrainer or a subclass that does not override compute_loss."
        )
    for cls in after:
        step = inspect.unwrap(vars(cls)["training_step"]) if "training_step" in vars(cls) else None
        calls = {"compute_loss", "training_step"}  # the class's own method or its parent's
        if inspect.isfunction(step) and not calls.intersection(step.__code__.co_names):
            raise ValueError(
                f"{trainer.__name__}: the training_step of {cls.__name__} does not call "
                f"compute_loss, so that the objective would not be trained; combine "
                f"{mixin.__name__} with another trainer."
            )


def _check_shift_of(outputs: Any, shift: bool) -> None:
    """Raise ValueError if ``shift`` does not fit the type of a transformers model's outputs."""
    name = type(outputs).__name__  # CausalLMOutput..., Qwen2VLCausalLMOutput..., Seq2SeqLMOutput
    if shift and name.startswith("Seq2Seq"):
        raise ValueError(
            "the labels of an encoder-decoder are aligned with its logits: "
            "loss_func(loss_of, shift=False)."
        )
    if not shift and "CausalLMOutput" in name:
        raise ValueError(
            "the model is a decoder, whose labels are aligned with input_ids: "
            "loss_func(loss_of, shift=True). If your collator has shifted them, use "
            "`lambda outputs, labels, **_: loss_of(outputs.logits, labels, shift=False).loss`."
        )


def step_counts(
    loss_of: NumericLoss,
    labels: Iterable[Tensor],
    *,
    shift: bool,
    weights: Iterable[Tensor] | None = None,
    spans: Iterable[NumberSpans] | None = None,
    accelerator: Any = None,
) -> Counts:
    """Count the tokens and numbers in all micro-batches of one optimiser step.

    Pass the result as ``counts=`` when you call the loss on each micro-batch. The losses of the
    micro-batches then sum to the loss of one large batch.

    Args:
        loss_of: The loss to train on, which finds the numbers in the labels.
        labels: [b, t] of each micro-batch, with ``IGNORE_INDEX`` at positions to ignore.
        shift: True for decoder-only models, if the labels are not shifted yet. Call the loss
            with the same ``shift``, or it raises ValueError.
        weights: The ``weights`` of each micro-batch, [b, t] or [b], if the loss is called with
            weights. Each token or number then counts with its weight.
        spans: The ``spans`` of each micro-batch, if the loss is called with spans (for packed
            documents, boxes or times). None: find the numbers in the labels.
        accelerator: An ``accelerate.Accelerator``, to sum the counts over its ranks. Then multiply
            each loss by its ``num_processes``, because gradients are averaged over ranks, and by
            its ``gradient_accumulation_steps``, because its ``backward`` divides by them.
    """
    if isinstance(labels, Tensor):
        raise ValueError("step_counts expects a list with the labels of each micro-batch.")
    labels = list(labels)
    nothing: list[Any] = [None] * len(labels)
    of_batch = nothing if weights is None else list(weights)
    found = nothing if spans is None else list(spans)
    for what, given in (("weights", of_batch), ("spans", found)):
        if len(given) != len(labels):
            raise ValueError(
                f"step_counts: {len(labels)} micro-batches have labels, and {len(given)} {what}."
            )
    counted = [
        count_numbers(
            loss_of,
            aligned_labels(each, shift),
            its_spans,
            weights=None if w is None else supervised_weights(w, each, shift, None),
        )[1]
        for each, w, its_spans in zip(labels, of_batch, found, strict=True)
    ]
    if not counted:
        raise ValueError("step_counts: an optimiser step has at least one micro-batch; got none.")
    return total_counts(counted, accelerator)._replace(shift=shift)


def end_step(
    loss_of: NumericLoss, results: Iterable[ObjectiveResult], accelerator: Any = None
) -> dict[str, LossSum]:
    """Update the running means of cross-entropy and numeric losses of an objective.

    Call this after each optimiser step of your own training loop. With ``balance: running``, the
    objective scales the numeric losses by the ratio of these means.

    Args:
        loss_of: The loss to train on.
        results: The result of the loss for each micro-batch of the step.
        accelerator: An ``accelerate.Accelerator``; the losses are then summed over its ranks.

    Returns:
        Sum and count of each loss in the step. For example, ``sums["ce"].mean`` is the mean CE.
    """
    sums: dict[str, LossSum] = {}
    for result in results:
        sums = added_sums(sums, result.sums)
    if not sums:
        raise ValueError("end_step: an optimiser step has at least one micro-batch; got none.")
    sums, _ = sums_over_ranks(sums, accelerator)
    loss_of.balance.end_step(sums)
    return sums


def count_numbers(
    loss_of: NumericLoss,
    labels: Tensor,
    spans: NumberSpans | None = None,
    *,
    weights: Tensor | None = None,
    documents: Tensor | None = None,
) -> tuple[NumberSpans, Tensor]:
    """Find and count the numbers and tokens in the labels of a micro-batch.

    Returns the number spans (the tokens of each number), and a tensor of six counts: supervised
    tokens, number tokens, numbers, samples, boxes and clock times. Pass ``spans`` if they are
    already known. ``weights`` [b * t] are loss weights of the flattened labels: each item then
    counts with its weight instead of 1, except for samples. ``documents`` [b, t] has the index of
    the packed document that each label belongs to.
    """
    if spans is None:  # found on the CPU: one copy of both, so that the host waits only once
        both = [labels] if documents is None else [labels, documents.to(labels)]
        spans = loss_of.spans(*torch.stack(both).cpu()).to(labels.device)
    if labels.dim() == 2:
        supervised = spans.supervised
        if supervised is None:
            supervised = (labels != IGNORE_INDEX).flatten().nonzero().squeeze(1)
        labels, weights = supervised, None if weights is None else weights[supervised]
    counts = Counts.of(labels, spans, weights)
    samples = counts.samples.to(counts.supervised, non_blocking=True)  # weights may be on a GPU
    return spans, torch.stack(counts._replace(samples=samples)[:6])


def total_counts(counted: list[Tensor], accelerator: Any) -> Counts:
    """Add up the counts of tokens and numbers of all micro-batches on all ranks."""
    total = torch.stack(counted).sum(dim=0)
    if accelerator is not None and accelerator.num_processes > 1:
        total = accelerator.reduce(total.to(accelerator.device), reduction="sum")
    return Counts._make((*total.unbind(), None, False))


def added_sums(one: Mapping[str, LossSum], other: Mapping[str, LossSum]) -> dict[str, LossSum]:
    """Add the sums and counts of two sets of micro-batches, per loss; a dict may be empty."""
    if not one or not other:
        return dict(one or other)
    return {
        name: LossSum(part.total + other[name].total, part.items + other[name].items)
        for name, part in one.items()
    }


def sums_over_ranks(
    sums: Mapping[str, LossSum], accelerator: Any
) -> tuple[dict[str, LossSum], LossSum]:
    """Add up the sum and count of each loss, such as ``ce``, over all ranks, in float64.

    Returns the total of each loss by name, and all totals together as two tensors (sums, counts).
    """
    totals = torch.stack([part.total for part in sums.values()]).double()
    items = torch.stack([part.items for part in sums.values()])
    if accelerator is not None and accelerator.num_processes > 1:
        pairs = torch.stack([totals, items.to(totals)])
        totals, items = accelerator.reduce(pairs, reduction="sum")
    each = map(LossSum, totals, items)
    return dict(zip(sums, each, strict=True)), LossSum(totals, items)
