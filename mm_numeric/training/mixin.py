"""Use an objective (CE plus numeric losses) as the loss of Trainer, Seq2SeqTrainer or SFTTrainer.

Axes    b samples, t positions, n supervised positions, v vocabulary

Alternatives in ``mm_numeric.training.integrations``: ``loss_func`` for an unmodified Trainer, and
``step_counts`` with ``end_step`` for your own training loop.
"""

import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from mm_numeric.compat import packed_samples, remove_input_gradient_hooks
from mm_numeric.io.files import read_json, stored_content, write_json
from mm_numeric.io.log import logger
from mm_numeric.losses.linear_cross_entropy import CHUNKED_FROM
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.number_metrics import named_metrics
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, aligned_labels, packed_documents
from mm_numeric.registry import unknown
from mm_numeric.training.evaluation_sums import (
    ROW_TOKENS,
    EvaluationSums,
    count_row_tokens,
    without_repeated_rows,
)
from mm_numeric.training.integrations import (
    added_sums,
    check_base,
    check_label_smoothing,
    check_shift,
    count_numbers,
    has_virtual_tokens,
    sums_over_ranks,
    total_counts,
)
from mm_numeric.training.output_head import ChunkedHead, selecting
from mm_numeric.training.own_loss import (
    OwnLoss,
    aligned,
    base_model,
    model_labels,
    probe_own_loss,
    with_a_label,
)
from mm_numeric.training.unread import Unread, read

BALANCE_FILE = "objective_balance.json"  # in a checkpoint

_PACKED_SAMPLES = (
    "the objective averages over samples (reduction: samples), but packing puts several into one "
    "row: set reduction='items', or remove packing and padding_free."
)

if TYPE_CHECKING:  # the base class at runtime is that of the user
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


class NumericLossMixin(_Trainer):
    """Mixin that makes an objective (CE plus numeric losses) the loss of a trainer.

    Use it as ``class NumericSFTTrainer(NumericLossMixin, SFTTrainer)``. The new class accepts all
    arguments of the trainer, and ``objective=``: a ``NumericLoss``, or a value that ``NumericLoss``
    accepts as its first argument, such as ``"ntil"``; the tokenizer is then the
    ``processing_class``. Each loss component is an exact mean over the whole optimiser step, over
    all ranks and micro-batches.

    The trainer is Trainer, Seq2SeqTrainer, SFTTrainer, or a subclass that does not override
    ``compute_loss``. Other trainers raise ValueError, because the mixin would replace their loss:
    GKDTrainer and RLOOTrainer, for example.

    Batches need ``labels`` [b, t] with -100 at positions to ignore; padded, packed, padding-free
    and completion-only batches all work. Labels are shifted unless the model is an encoder-decoder.
    Logits are computed only at positions with a label, except for ``return_outputs=True``, and
    unless torch.compile or the model prevents it. To save memory, a micro-batch with
    ``chunked_from`` logits or more computes its loss in chunks, unless FSDP, torch.compile or the
    output head (LoRA, soft-capping) prevents it. The reason is then logged once. With activation
    checkpointing, no gradients are computed for a frozen vision tower; without this mixin, the
    trainer computes them.

    Digits of two packed documents are never read as one number if the batch has ``position_ids``
    [b, t] that restart with each document, or an ``attention_mask`` [b, t] with the document index
    of each token. If the batch has neither, as in TRL's ``packing_strategy="wrapped"``, documents
    must be separated by a token.

    The mixin finds the numbers in the labels of each batch, unless the collator has added them as
    ``spans``: wrap it in ``collate_with_spans`` to find them in the workers of the data loader. In
    batches of ``TrainingCollator``, ``labels`` [n] are already shifted and contain only the
    positions with a label, and ``supervised`` [b, t] is the mask of these positions.

    Log entries: ``loss/NAME`` is the mean of each unweighted loss component since the last log.
    ``numbers/accuracy`` and ``numbers/error/ROLE`` (such as ``x``) come from ``number_metrics``.
    ``entropy``, ``mean_token_accuracy`` and ``num_tokens`` of SFTTrainer are not logged, because
    this class replaces ``SFTTrainer.compute_loss``; set ``include_num_input_tokens_seen`` to count
    tokens.

    ``evaluate`` returns ``eval_loss``, ``eval_loss/NAME`` and ``eval_numbers/NAME``: exact means
    over all tokens and numbers of the data set, whatever the batches and ranks.
    ``metric_for_best_model="eval_loss/emd"`` chooses a checkpoint by a loss component.
    ``Seq2SeqTrainer`` with ``predict_with_generate`` reports the model's own loss instead.
    """

    chunked_from: float = CHUNKED_FROM

    def __init__(
        self,
        *args: Any,
        objective: NumericLoss | str | ObjectiveSpec | Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        if not isinstance(objective, NumericLoss | str | ObjectiveSpec | Mapping):
            raise ValueError(
                f"objective is {objective!r:.60}; pass a name such as 'ntil', or a NumericLoss."
            )
        check_base(type(self), NumericLossMixin)
        super().__init__(*args, **kwargs)
        # Otherwise Trainer divides the loss by the number of micro-batches, although the loss is
        # already divided by the counts of the whole step.
        self.model_accepts_loss_kwargs = True
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        if not isinstance(objective, NumericLoss):
            objective = NumericLoss(objective, tokenizer)
        elif hasattr(tokenizer, "convert_ids_to_tokens"):
            objective.vocabulary.require_tokenizer(tokenizer)
        self.objective = objective
        self._logged: set[str] = set()
        self._validate_settings()
        self._is_encoder_decoder = getattr(self.model.config, "is_encoder_decoder", False)
        base = base_model(self.model)
        self._has_virtual_tokens = has_virtual_tokens(self.model)
        parameters = inspect.signature(base.forward).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._takes_use_cache = takes_any or "use_cache" in parameters
        self._head: ChunkedHead | None = None
        self._own_loss = OwnLoss() if self.objective.spec.own_loss == "ignore" else None
        self._counts: Counts | None = None
        self._step_sums: dict[str, LossSum] = {}
        self._component_names: list[str] = []
        self._seen: list[Tensor] = []  # totals and counts of the components since the last log
        self._metric_sums: Tensor | None = None
        self._longest: Tensor | None = None  # digits and value of the longest number since a log
        self._evaluation: EvaluationSums | None = None  # during an evaluation
        self._needs_logits = True  # False during an evaluation that returns only the loss
        text_config = getattr(self.model.config, "get_text_config", lambda: None)()
        size = getattr(text_config, "vocab_size", None)
        self._guessing = math.log(size) if size else math.inf  # if all tokens are equally likely

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the running means of the losses and the values that were not logged, then train."""
        check_shift(self.data_collator, not self._is_encoder_decoder)
        self.objective.balance.reset()
        self._seen, self._metric_sums, self._longest = [], None, None
        self._head = None  # another model may have been loaded
        if self.objective.spec.own_loss != "ignore":
            self._own_loss = None
        return super().train(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Read the micro-batches of one optimiser step, and count the numbers in their labels."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        counted = []
        for batch in batches:
            labels = self._labels(batch)
            batch["spans"], counts = count_numbers(
                self.objective, labels, batch.get("spans"), documents=self._documents(batch)
            )
            counted.append(counts)
            if self.objective.favours_long_numbers:
                longest, before = self.objective.longest_number(batch["spans"]), self._longest
                if before is not None:
                    longest = torch.where(longest[0] > before[0], longest, before)
                self._longest = longest
        self._counts = total_counts(counted, self.accelerator) if counted else None
        if self._counts is not None and len(batches) * self.accelerator.num_processes == 1:
            self._counts = self._counts._replace(is_batch=True)
        self._step_sums = {}
        return batches, num_items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> int:
        """Return 1, which is not used: ``compute_loss`` divides by the counts of the whole step.

        If this returned None, Trainer would divide the loss by the number of micro-batches.
        """
        return 1

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a micro-batch.

        During training, the losses are averaged over the tokens and numbers of the whole optimiser
        step, on all ranks, as in one large batch.
        """
        batch, labels, spans, supervised = self._model_inputs(model, inputs)
        masks: AbstractContextManager[None] = nullcontext()
        if supervised is not None:  # a batch of TrainingCollator, which pads on the right
            has_encoder = self._is_encoder_decoder
            if has_encoder and inputs["origin"].tokens == batch["input_ids"].numel() + len(labels):
                batch["attention_mask"] = None  # there is no padding
            masks = right_padded(has_encoder=has_encoder)
            # A batch of PaddingFreeCollator, which has no padding.
            if "sample_boundaries" in batch and len(inputs["origin"].ids) > 1:
                masks = packed_samples()
        keeps = self.objective.spec.own_loss != "ignore"
        if keeps and getattr(self.model.config.get_text_config(), "output_router_logits", False):
            batch["output_router_logits"] = True  # VLMs do not read it from the config
        counts = self._counts if model.training else None
        with_logits = return_outputs and self._needs_logits
        with masks:
            outputs, result = self._forward(
                model, batch, labels, spans, supervised, counts, with_logits
            )
        loss, new, before = result.loss, result.metric_sums, self._metric_sums
        if counts is not None and new is not None:
            self._metric_sums = new if before is None else before + new
        if counts is not None and self.accelerator.num_processes > 1:
            # Data parallelism averages gradients over ranks, but the counts are totals.
            loss = loss * self.accelerator.num_processes
        sums = dict(result.sums)
        own = self._own_losses(outputs, labels, supervised)
        for name, each in own.items():
            # The mean over one micro-batch; these means are averaged over the step, as in TRL.
            steps = 1 if counts is None else self.current_gradient_accumulation_steps
            loss = loss + each.to(loss.device) / steps
            total = each.detach().to(loss)
            sums[name] = LossSum(total, torch.ones_like(total))
        if counts is not None:
            self._step_sums = added_sums(self._step_sums, sums)
        elif self._evaluation is not None:
            self._evaluation.add(result, own)
        return (loss, outputs) if return_outputs else loss

    def _own_losses(
        self, outputs: Any, labels: Tensor, supervised: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the losses that the model adds to cross-entropy, which are trained too."""
        if self.objective.spec.own_loss == "ignore":
            return {}
        own_loss = self._own_loss or OwnLoss()
        if own_loss.has_others:
            labels = with_a_label(aligned(labels, supervised))
        weight = getattr(self.args, "router_aux_loss_coef", None)  # of SFTConfig
        return own_loss.losses(outputs, base_model(self.model), labels, weight)

    def _model_inputs(
        self, model: torch.nn.Module, inputs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Tensor, NumberSpans | None, Tensor | None]:
        """Return the model's keyword arguments, the labels, their number spans and their mask.

        In batches of ``TrainingCollator``, labels are [n], and ``supervised`` [b, t] is their mask.
        In batches of other collators, labels are [b, t], the mask is None, and the spans may be
        None.
        """
        batch = dict(inputs)
        labels, spans = self._labels(batch), batch.pop("spans", None)
        documents = self._documents(batch)
        if spans is None and documents is not None:
            spans = self.objective.spans(labels, documents)
        del batch["labels"]
        batch.pop("origin", None)
        if "image_inputs" in batch:
            batch.update(batch.pop("image_inputs").arguments())
        is_flat = "position_ids" in batch and "attention_mask" not in batch
        if is_flat and self._takes_use_cache:
            # With a KV cache, transformers does not look for documents in position_ids. The text
            # model of a VLM has a cache by default.
            batch["use_cache"] = False
        if self._is_encoder_decoder and "decoder_input_ids" not in batch:
            whole = self.accelerator.unwrap_model(model)
            batch["decoder_input_ids"] = _decoder_inputs(whole, labels)
        return batch, labels, spans, batch.pop("supervised", None)

    def _forward(
        self,
        model: torch.nn.Module,
        batch: dict[str, Any],
        labels: Tensor,
        spans: NumberSpans | None,
        supervised: Tensor | None,
        counts: Counts | None,
        return_outputs: bool,
    ) -> tuple[Any, ObjectiveResult]:
        """Run the model; return its outputs, and the loss and metrics computed from them.

        With ``return_outputs`` and labels [b, t], the outputs have logits at all positions.
        """
        if self._needs_labels(model, batch, labels, supervised):
            outputs = self._with_labels(model, batch, aligned(labels, supervised))
            return outputs, self._result(outputs, labels, spans, counts)
        if self._has_virtual_tokens:
            outputs = model(**batch)
            outputs.logits = outputs.logits[:, -batch["input_ids"].shape[1] :]
            return outputs, self._result(outputs, labels, spans, counts)
        count = (labels if supervised is None else supervised).numel()
        if self._head is None:
            self._head = self._make_head(model, batch, count)
        if self._head.all_positions or (return_outputs and labels.dim() == 2):
            outputs = model(**batch)
            return outputs, self._result(outputs, labels, spans, counts)
        if spans is None:
            spans = self.objective.spans(labels)
        positions = spans.supervised
        if positions is None:
            mask = labels != IGNORE_INDEX if supervised is None else supervised
            positions = mask.flatten().nonzero().squeeze(1)
        if labels.dim() == 2:
            labels = labels.flatten()[positions]
        is_chunked = self._head.is_chunked(positions, self.objective, self.chunked_from)
        if is_chunked and not return_outputs:
            return self._head.loss_in_chunks(
                model, batch, self.objective, labels, spans, counts, positions, count
            )
        with selecting(self._head.head, positions, count, self._head.compute):
            outputs = model(**batch)
        outputs.logits = outputs.logits.flatten(0, -2)
        return outputs, self._result(outputs, labels, spans, counts)

    def _make_head(self, model: torch.nn.Module, batch: dict[str, Any], count: int) -> ChunkedHead:
        """Check the output head on a micro-batch of ``count`` positions, and return it."""
        stop_gradients_at_frozen_towers(self.model)  # activation checkpointing is enabled by now
        head = ChunkedHead(
            model,
            batch,
            self.accelerator.unwrap_model(model),
            count,
            is_compiled=self.args.torch_compile,
            is_sharded=self.is_fsdp_enabled,
        )
        self._log_once_if_whole(head)
        return head

    def _needs_labels(
        self,
        model: torch.nn.Module,
        batch: Mapping[str, Any],
        labels: Tensor,
        supervised: Tensor | None,
    ) -> bool:
        """Return True if the model needs labels for a loss that it adds; probe it once."""
        if self._own_loss is None:
            self._own_loss = probe_own_loss(
                model,
                batch,
                aligned(labels, supervised),
                shift=not self._is_encoder_decoder,
                policy=self.objective.spec.own_loss,
                accelerator=self.accelerator,
                log=self._log_once,
                is_compiled=self.args.torch_compile,
            )
        return self._own_loss is not None and self._own_loss.needs_labels

    def _with_labels(self, model: torch.nn.Module, batch: dict[str, Any], labels: Tensor) -> Any:
        labels = with_a_label(labels)
        outputs = model(**batch, labels=model_labels(labels, not self._is_encoder_decoder))
        outputs.logits = outputs.logits[:, -labels.shape[1] :]  # without virtual tokens
        return outputs

    def _log_once_if_whole(self, head: ChunkedHead) -> None:
        """Log the reason if the loss cannot be computed in chunks to save memory."""
        if head.all_positions:
            self._log_once(
                logging.INFO, f"Logits are computed at all positions: {head.all_positions}."
            )
        elif head.one_piece and self.objective.spec.ce_weight and math.isfinite(self.chunked_from):
            self._log_once(logging.INFO, f"The loss is not computed in chunks: {head.one_piece}.")

    def _result(
        self, outputs: Any, labels: Tensor, spans: NumberSpans | None, counts: Counts | None
    ) -> ObjectiveResult:
        metrics = counts is not None or self._evaluation is not None
        return self.objective(
            outputs.logits, labels, spans, shift=False, counts=counts, metrics=metrics
        )

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate a data set; losses are means over all its tokens and numbers."""
        if self.accelerator.num_processes > 1:
            count_row_tokens(dataloader)
        self._evaluation = evaluation = EvaluationSums()
        try:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        finally:
            self._evaluation = None
        output.metrics.update(
            evaluation.metrics(self._loss_of_sums, metric_key_prefix, self.accelerator)
        )
        return output

    def _loss_of_sums(self, sums: Mapping[str, LossSum]) -> Tensor:
        items = {name: part.items for name, part in sums.items()}
        return self.objective.balance.total(sums, items)

    def prediction_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Evaluate a batch, without the entries that would reach ``generate`` as arguments."""
        dropped = {ROW_TOKENS}
        if getattr(self.args, "predict_with_generate", False):
            dropped.add("spans")
        elif self._evaluation is not None and inputs.get("labels") is not None:
            inputs = without_repeated_rows(inputs, self.accelerator)
        inputs = {name: value for name, value in inputs.items() if name not in dropped}
        self._needs_logits = not prediction_loss_only
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)
        finally:
            self._needs_logits = True

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Train on one micro-batch; if it ends the step, update the running means of the losses."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self._counts is not None and not self._step_sums:
            raise ValueError(
                f"the training_step of {type(self).__name__} does not call compute_loss, so that "
                "the objective is not trained; combine NumericLossMixin with another trainer."
            )
        if self.accelerator.sync_gradients and self._counts is not None:
            self._end_step()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the values of the trainer, the unweighted loss components and the number metrics."""
        if "loss" in logs:
            logs.update(read(self.unread_losses()))
        super().log(logs, start_time)

    def unread_losses(self) -> list[Unread]:
        """Return the losses and number metrics since the last call, to be logged."""
        found, names, metric_sums = [], self._component_names, self._metric_sums
        if self._seen:

            def components(totals: list[float], items: list[float]) -> dict[str, float]:
                sums = zip(names, totals, items, strict=True)
                means = {f"loss/{name}": total / count for name, total, count in sums if count}
                self._warn_of_components(means)
                return means

            found.append(Unread(self._seen, components))
        if metric_sums is not None:

            def metrics(sums: list[float]) -> dict[str, float]:
                each = named_metrics(torch.tensor(sums).reshape(metric_sums.shape))
                return {f"numbers/{n}": s.mean.item() for n, s in each.items() if s.items}

            found.append(Unread([self.accelerator.reduce(metric_sums, reduction="sum")], metrics))
        if self._longest is not None:

            def warn(longest: list[float]) -> dict[str, float]:
                if self.is_world_process_zero():
                    pairs = zip(longest[::2], longest[1::2], strict=True)
                    self.objective.warn_of_long_number(*max(pairs))
                return {}

            found.append(Unread([self.accelerator.gather(self._longest)], warn))
        self._seen, self._metric_sums, self._longest = [], None, None
        return found

    def _warn_of_components(self, components: Mapping[str, float]) -> None:
        """Warn once if a loss is not finite or far too high, or if the labels had no number."""
        wrong = [name for name, mean in components.items() if not math.isfinite(mean)]
        message = None
        if wrong:
            message = (
                f"{wrong[0]} is {components[wrong[0]]}: the logits have NaN or infinity, and the "
                "model may be lost. Lower the learning rate, or train in bf16 instead of float16; "
                "on_nan: error ends the training at such a step."
            )
        elif components.get("loss/ce", 0.0) > 2 * self._guessing:
            message = (
                "the cross-entropy is more than twice that of guessing each token "
                f"({self._guessing:.1f}): the training diverges, or the labels are not those of "
                f"the model. Lower the learning rate (now {self.args.learning_rate:g}), or check "
                "the data."
            )
        elif self.objective.terms and components.keys().isdisjoint(
            f"loss/{name}" for name in self.objective.terms
        ):
            message = (
                "the labels since the last log have no number, so that the loss is cross-entropy "
                "alone: are the answers in the labels, and the vocabulary that of the tokenizer?"
            )
        if message is not None:
            self._log_once(logging.WARNING, message, f"step {self.state.global_step}: ")

    def _log_once(self, level: int, message: str, prefix: str = "") -> None:
        if message not in self._logged and self.is_world_process_zero():
            logger.log(level, "%s%s", prefix, message)
        self._logged.add(message)

    def _end_step(self) -> None:
        """Sum the losses of a step over all ranks, for the log and for ``balance: running``."""
        sums, here = sums_over_ranks(self._step_sums, self.accelerator)
        self.objective.balance.end_step(sums)
        self._seen = (
            [a + b for a, b in zip(self._seen, here, strict=True)] if self._seen else [*here]
        )
        self._step_sums, self._counts, self._component_names = sums, None, list(sums)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save and self.objective.spec.balance == "running":
            means = self.objective.balance.means.tolist()
            write_json(Path(output_dir, BALANCE_FILE), {"means": means})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self.objective.spec.balance != "running":
            return
        file = Path(checkpoint, BALANCE_FILE)
        if not file.is_file():
            raise ValueError(
                f"{file}: not found; resume with the balance that the checkpoint was saved with."
            )
        with stored_content(file):
            means = torch.tensor(read_json(file)["means"])
            own = self.objective.balance.means
            if means.shape != own.shape:
                raise TypeError(f"{len(means)} means, not {len(own)}")
            own.copy_(means)

    def _labels(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the labels of a batch, shifted by one position for decoder-only models.

        Batches of ``TrainingCollator`` (with an entry ``supervised``) are already shifted.
        """
        shift = not self._is_encoder_decoder and "supervised" not in batch
        return aligned_labels(batch.get("labels"), shift)

    def _documents(self, batch: Mapping[str, Any]) -> Tensor | None:
        """Return for each label [b, t] the index of its packed document; None without packing."""
        if "supervised" in batch or self._is_encoder_decoder:  # TrainingCollator does not pack
            return None
        documents = packed_documents(batch)
        if documents is not None and self.objective.spec.reduction == "samples":
            _check_one_document(self._labels(batch), documents)
        return documents

    def _validate_settings(self) -> None:
        args, loss_type = self.args, getattr(self.args, "loss_type", None)
        packed = getattr(args, "packing", False) or getattr(self, "padding_free", False)
        check_label_smoothing(args)
        others = {
            "compute_loss_func": self.compute_loss_func is not None,
            "use_liger_kernel=True": args.use_liger_kernel,
            # For chunked_nll, TRL 1.9 replaces the forward of a model that gets labels.
            f"loss_type={loss_type!r}": loss_type not in (None, "nll", "chunked_nll"),
        }
        for setting, found in others.items():
            if found:
                raise ValueError(f"{setting} requests another loss than the objective; remove it.")
        if not args.average_tokens_across_devices:
            raise ValueError(
                "average_tokens_across_devices=False cannot be combined with an objective, which "
                "counts over all ranks; remove it."
            )
        if args.n_gpu > 1:
            raise ValueError(
                f"one process sees {args.n_gpu} GPUs, but an objective requires one process per "
                "GPU: start with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES."
            )
        self._check_best_metric()
        sizes = [getattr(self, name, lambda: 1)() for name in ("get_cp_size", "get_sp_size")]
        if max(sizes) > 1:  # transformers 4.57 has neither
            raise ValueError(
                "context and sequence parallelism split sequences and the numbers in them over "
                "ranks: set cp_size and sp_size to 1."
            )
        if packed and self.objective.spec.reduction == "samples":
            raise ValueError(_PACKED_SAMPLES)
        peft: Any = getattr(self.model, "active_peft_config", None)
        if packed and getattr(peft, "is_prompt_learning", False):
            raise ValueError(
                f"PEFT ignores position_ids under {peft.peft_type.name}, so that packed documents "
                "would see each other: remove packing and padding_free."
            )

    def _check_best_metric(self) -> None:
        """Check ``metric_for_best_model`` if it is a loss component or a number metric.

        The smallest loss or error is the best. transformers minimises only metrics whose name ends
        with ``loss``, and maximises all others.
        """
        metric = self.args.metric_for_best_model or ""
        found = re.search(r"(?:^|_)(loss|numbers)/(.+)", metric)
        if found is None:
            return
        kind, name = found.groups()
        known = ("ce", *self.objective.terms, "router", "own")
        if kind == "loss" and name not in known:
            raise unknown(name, known, "loss", "metric_for_best_model")
        if name != "accuracy" and self.args.greater_is_better:
            self.args.greater_is_better = False
            self._log_once(logging.INFO, f"metric_for_best_model: the smallest {metric} is best.")


def _decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """Return the inputs of a decoder [b, t]: its start token, and all labels but the last."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return model.prepare_decoder_input_ids_from_labels(labels)
    # Whisper, NLLB, Pix2Struct and others have no such method.
    config = model.config.get_text_config()
    for name in ("decoder_start_token_id", "pad_token_id"):
        if getattr(config, name, None) is None:
            raise ValueError(
                f"the config of the model has no {name}: set it, or let the data collator add "
                "decoder_input_ids."
            )
    start = config.decoder_start_token_id
    inputs = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=start)
    return inputs.masked_fill(inputs == IGNORE_INDEX, config.pad_token_id)


def _check_one_document(labels: Tensor, documents: Tensor) -> None:
    """Raise ValueError if a row of ``labels`` [b, t] has labels of several packed documents.

    ``documents`` [b, t] is the number of each label's document, from 1; 0 is padding.
    """
    ignored = (labels == IGNORE_INDEX) | (documents == 0)
    first = documents.masked_fill(ignored, torch.iinfo(torch.long).max).amin(dim=1)
    last = documents.masked_fill(ignored, 0).amax(dim=1)
    if (last > first).any():
        raise ValueError(_PACKED_SAMPLES)


def stop_gradients_at_frozen_towers(model: torch.nn.Module) -> None:
    """Let autograd skip the vision towers whose layers are all frozen.

    With activation checkpointing, transformers makes the outputs of all embeddings require
    gradients, because reentrant checkpointing of adapted layers needs such an input. This includes
    patch embeddings: the backward pass then computes a frozen tower again, and gradients in it that
    nothing uses. This function removes the hooks of these patch embeddings; text embeddings keep
    their hooks. Call it after activation checkpointing was enabled.
    """
    for tower in model.modules():
        if not isinstance(tower, PreTrainedModel):
            continue
        try:
            embeddings = tower.get_input_embeddings()
        except NotImplementedError:
            continue  # transformers finds no embeddings in this module either
        layers = [m for m in tower.modules() if isinstance(m, GradientCheckpointingLayer)]
        is_trained = any(p.requires_grad for layer in layers or [tower] for p in layer.parameters())
        if isinstance(embeddings, torch.nn.Module) and not (
            isinstance(embeddings, torch.nn.Embedding) or is_trained
        ):
            remove_input_gradient_hooks(embeddings)


@contextmanager
def right_padded(*, has_encoder: bool) -> Iterator[None]:
    """Context manager in which masks of right-padded batches are made without waiting for the GPU.

    Without it, transformers reads each padding mask to see if there is padding. In this context,
    causal attention, also within a sliding window, gets no padding mask, because no token attends
    to the padding on its right. Other computations still get the padding mask: bidirectional
    attention among image tokens, linear attention, positions and router losses. With
    ``has_encoder``, pass a padding mask to the model only if the batch has padding, because it is
    then used without being read.
    """
    # Replace only transformers' own functions: a mask that a user registered may not be causal.
    own = create_causal_mask.__module__
    usual = {n: f for n, f in AttentionMaskInterface().items() if f.__module__ == own}
    for name, function in usual.items():
        AttentionMaskInterface.register(name, _of_right_padding(function, has_encoder))
    try:
        yield
    finally:
        for name, function in usual.items():
            AttentionMaskInterface.register(name, function)


@functools.cache  # for a new function, torch.compile would compile the model again
def _of_right_padding(usual: Callable[..., Any], has_encoder: bool) -> Callable[..., Any]:
    """Return the function that replaces ``usual``, which makes masks for one kind of attention."""

    def make_mask(**arguments: Any) -> Any:
        # True unless transformers adds something to the causal mask.
        if arguments.get("allow_is_causal_skip"):
            arguments["attention_mask"] = None
        elif arguments.get("attention_mask") is not None and has_encoder:
            arguments["allow_is_bidirectional_skip"] = False
        return usual(**arguments)

    return make_mask
