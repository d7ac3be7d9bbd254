"""The trainer of runs, whose loss is an objective (CE plus terms)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.training_args import OptimizerNames

from mm_numeric.answers import Example
from mm_numeric.baselines.baseline import Baseline
from mm_numeric.compat import (
    base_dataloader,
    is_adapter,
    length_grouped_indices,
    postponed_rotation,
    stop_workers,
)
from mm_numeric.data.lengths import EpochSampler, rows_per_step, sampler_seed
from mm_numeric.data.streaming import EpochRows, ExampleStream, stream_loader
from mm_numeric.distributed.deepspeed import without_zero3_init
from mm_numeric.distributed.ranks import Ranks
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.models.adapters import gathered_parameters, read_adapted, save_adapted
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.runs.manifest import write_manifest
from mm_numeric.runs.resume import write_step
from mm_numeric.runs.tensor_files import tensors_only
from mm_numeric.training.callbacks.gradient_check import GradientCheck
from mm_numeric.training.callbacks.non_finite import FiniteCheck
from mm_numeric.training.callbacks.preemption import IgnoreSignalsInWorker, StopOnSignal
from mm_numeric.training.callbacks.skipped_rows import SkippedRows
from mm_numeric.training.callbacks.throughput import Throughput
from mm_numeric.training.errors import translate_disk_full, worker_error_message
from mm_numeric.training.mixin import NumericLossMixin
from mm_numeric.training.output_head import output_head
from mm_numeric.training.padding_free import padding_free_error
from mm_numeric.training.unread import Unread, read

_OWN_GROUPS = {"params", "model", "optimizer_dict"}  # options of optimisers with their own groups


class ClippedSteps:
    """Counts the optimiser steps whose gradient is clipped to ``max_norm``; 0 is no clipping."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self._steps = 0
        self._clipped: Tensor | int = 0  # on the device, because reading it makes the host wait

    def add(self, norm: Tensor | float | None) -> None:
        """Count a step; ``norm`` is its gradient norm before clipping, None if it is unknown."""
        if self.max_norm > 0 and norm is not None:
            self._steps += 1
            self._clipped = self._clipped + (norm > self.max_norm)

    def unread(self) -> list[Unread]:
        """Return the share of clipped steps since the last call, to be logged; [] without steps."""
        clipped, steps = torch.as_tensor(self._clipped), self._steps
        self._steps = self._clipped = 0
        name = "clipping/share_of_steps"
        return [Unread([clipped], lambda count: {name: count[0] / steps})] if steps else []


class NumericTrainer(NumericLossMixin, Trainer):
    """Trainer with a ``NumericLoss`` as its loss, for batches of ``TrainingCollator``.

    ``NumericLossMixin`` computes the loss and logs its components. This class saves and loads
    weights, sets the learning rate of each module (vision, projector, ...), and checks for errors
    on all ranks. ``modules`` has the settings of each module. If it is None, all modules have the
    same settings.
    """

    model: Any
    optimizer_cls_and_kwargs: Any
    evaluation: Any = None
    """``EvaluationCallback`` that ``evaluate`` runs; if None, ``evaluate`` computes the loss."""

    trust_remote_code: bool = False
    """Load checkpoints of DeepSpeed and FSDP even if their files could execute code."""

    lengths: Sequence[int] = ()
    """Number of tokens of each row, for ``train_sampling_strategy: group_by_length``."""

    checks_padding_free = False
    """True: compare the logits of the next padding-free micro-batch with those of a padded one."""

    def __init__(self, *args: Any, modules: ModelModules | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Otherwise the host waits until each batch is copied to the device.
        self.accelerator.dataloader_config.non_blocking = self.args.dataloader_pin_memory
        self.modules = modules
        self.ranks = Ranks(timedelta(seconds=self.args.ddp_timeout))
        fp16 = self.accelerator.mixed_precision == "fp16"
        self.finite = FiniteCheck(self.ranks, self.args, fp16=fp16)
        self.skipped_rows = SkippedRows(self.ranks)
        self.stopping = StopOnSignal(self.ranks)
        self.add_callback(self.stopping)
        self.throughput = Throughput(self.accelerator)
        self.clipped = ClippedSteps(self.args.max_grad_norm)
        plugin = self.args.deepspeed_plugin
        if modules is not None and plugin is not None and "optimizer" in plugin.deepspeed_config:
            modules.reject_learning_rates("the `optimizer` of trainer.deepspeed")
        examples: Any = vars(self)["train_dataset"]
        if isinstance(examples, list) and examples and isinstance(examples[0], Example):
            self.train_dataset = EpochRows(examples)
            self.add_callback(self.train_dataset)
        self.gradient_check = None if modules is None else GradientCheck(modules)
        if self.gradient_check is not None:
            self.add_callback(self.gradient_check)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Start measuring the throughput, train, and stop the workers that read the rows."""
        self.throughput.begin()
        result = super().train(*args, **kwargs)
        stop_workers(base_dataloader(self.callback_handler.train_dataloader))
        return result

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimiser: per learning rate, a group with and one without weight decay."""
        if self.modules is not None and self.optimizer is None:
            trained = self.model if model is None else model
            optim = f"trainer.optim {OptimizerNames(self.args.optim).value}"
            try:
                kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                    self.args, trained
                )
            except ImportError as error:
                raise ValueError(f"{optim}: {error}") from error
            if not isinstance(kind, type) or _OWN_GROUPS & options.keys():
                self.modules.reject_learning_rates(optim)
            else:
                decayed = set(self.get_decay_parameter_names(trained))
                groups = self.modules.groups(trained, decayed, self.args.weight_decay)
                self.optimizer_cls_and_kwargs = kind, {**options, "params": groups}
        return super().create_optimizer(model)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Create the learning rate scheduler; raises ValueError for an invalid option."""
        try:
            return super().create_scheduler(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f"trainer.lr_scheduler_kwargs: {error}.") from error

    def get_train_dataloader(self) -> Any:
        """Return the training data loader; its workers ignore signals that stop the run."""
        if isinstance(self.train_dataset, ExampleStream):
            rows = self.train_dataset
            loader = stream_loader(rows, self.args, self.accelerator, self.data_collator)
        else:
            loader = super().get_train_dataloader()
        if self.args.dataloader_num_workers > 0:
            base = base_dataloader(loader)
            base.worker_init_fn = IgnoreSignalsInWorker(
                base.worker_init_fn, self.stopping.is_listening
            )
        return loader

    def read_batches(self, epoch_iterator: Iterator[Any], num_batches: int) -> list[Any]:
        """Read the micro-batches of one step. If a row is invalid, all ranks raise an error."""
        batches, message = [], None
        try:
            batches = list(islice(epoch_iterator, num_batches))
        except ValueError as error:
            message = worker_error_message(error)
            # The traceback holds the data loader; its workers would run for 5 s more.
            clear_frames(error.__traceback__)
        self.ranks.exchange(message)
        return batches

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one micro-batch, and store its loss for ``FiniteCheck``."""
        loss = super().training_step(*args, **kwargs)
        self.finite.add_loss(loss)
        return loss

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository of ``trainer.push_to_hub``; raise ValueError if this fails."""
        try:
            super().init_hf_repo(token, private)
        except OSError as error:  # offline, no network, no token, no permission
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"trainer.push_to_hub: no repository can be created ({first}). Log in with `hf "
                "auth login` and unset HF_HUB_OFFLINE; or set push_to_hub to false, and upload the "
                "folder that `mm-numeric export` writes."
            ) from error

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Return the gradient norm; store it for ``ClippedSteps`` and ``FiniteCheck``."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if isinstance(norm, DTensor):  # under FSDP2: it cannot be read together with other tensors
            norm = norm.full_tensor()
        self.clipped.add(norm)
        self.finite.end_step(self.state.global_step + 1, self._step_sums, norm)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Check that all losses and gradients so far are finite, then log.

        The share of clipped steps, the throughput and the number of skipped rows are added.
        """
        if "loss" in logs:
            own = [self.finite.unread(), *self.clipped.unread(), self.throughput.unread()]
            logs.update(read(own + self.unread_losses()))
            if count := self.skipped_rows.count():
                logs["rows_skipped"] = count
        super().log(logs, start_time)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save a checkpoint after checking that losses and weights are finite.

        When all ranks have saved, manifest.json is written; only then are older checkpoints
        deleted. If saving fails on one rank, all ranks raise the error. Under ZeRO and FSDP, where
        the ranks save together, only the failing rank raises it, and the launcher ends the others.
        """
        self.finite.check(self.model)
        self.skipped_rows.count()
        folder = Path(str(self.args.output_dir))
        message = None
        with postponed_rotation() as delete_older:
            try:
                with translate_disk_full(folder), self.throughput.paused():
                    super()._save_checkpoint(model, trial)
            except ValueError as error:
                if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                    raise
                message = str(error)
        self.ranks.exchange(message)
        try:
            if self.args.should_save:
                with translate_disk_full(folder), self.throughput.paused():
                    write_manifest(folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
                    delete_older()
        except ValueError as error:
            message = str(error)
        self.ranks.exchange(message)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Generate and score answers, and return the metrics.

        Without an ``EvaluationCallback``, return the evaluation loss as ``Trainer`` does.
        """
        self.finite.check(self.model)  # the best weights are saved without a checkpoint
        with self.throughput.paused():
            metrics: dict[str, float] = (
                self.evaluation.run() if self.evaluation else super().evaluate(*args, **kwargs)
            )
        return metrics

    def load_weights(self, checkpoint: str | Path) -> None:
        """Load all weights of a checkpoint, and raise ValueError if a weight is missing.

        For models such as Qwen2-VL, transformers saves parameters under other names than those in
        the model. When ``Trainer`` (5.23) resumes, it does not translate the names, and only warns
        that weights are missing. This method uses ``from_pretrained``, which translates the names.
        """
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, PeftModel):
            read_adapted(model, Path(checkpoint))
            return
        with without_zero3_init(self.args):
            saved, found = type(model).from_pretrained(
                checkpoint, config=model.config, dtype=model.dtype, output_loading_info=True
            )
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if found[what]:
                names = ", ".join(sorted(map(str, found[what]))[:3])
                raise ValueError(f"{checkpoint}: {len(found[what])} {what} ({names} ...).")
        if self.is_deepspeed_enabled:  # which loads the checkpoint itself
            self.model = saved
        else:
            model.load_state_dict(saved.state_dict())

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the weights, even if DeepSpeed is not initialised yet (unlike the base class)."""
        if self.is_deepspeed_enabled and self.deepspeed is None:
            self._save(output_dir)
        else:
            super().save_model(output_dir, *args, **kwargs)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Save the weights or, for a model with adapters, only the trained weights.

        Under ZeRO-1 and ZeRO-2 the given ``state_dict`` is ignored, because it contains tied
        weights twice.
        """
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, PeftModel):
            folder = Path(output_dir or self.args.output_dir)
            # DeepSpeed passes the gathered weights, unless no step was trained and it has no model.
            idle = self.is_deepspeed_enabled and self.deepspeed is None
            named = model.named_parameters() if idle else ()
            with gathered_parameters([p for n, p in named if p.requires_grad or is_adapter(n)]):
                if self.args.should_save:
                    folder.mkdir(parents=True, exist_ok=True)
                    save_adapted(model, folder, state_dict)
            return
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        is_whole = plugin is not None and plugin.zero_stage < 3
        super()._save(output_dir, None if is_whole else state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the optimiser and the scheduler, and write step.json, which ``restore`` reads."""
        super()._save_optimizer_and_scheduler(output_dir)
        args = self.args
        if args.should_save:
            write_step(
                Path(output_dir),
                ranks=args.world_size,
                rows=rows_per_step(args),
                skipped_rows=sorted(self.skipped_rows.ids),
            )

    def restore(self, step: Mapping[str, Any]) -> None:
        """Restore the ids of the skipped rows from the step.json of a checkpoint."""
        self.skipped_rows.ids = set(step["skipped_rows"])

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> Any:
        """Prepare the model and optimiser for training, and load their state from a checkpoint.

        Only tensors and plain values are loaded, unless ``trust_remote_code`` is True.
        """
        loading: AbstractContextManager[None] = nullcontext()
        if resume_from_checkpoint:
            loading = tensors_only(resume_from_checkpoint, trust_remote_code=self.trust_remote_code)
        with loading:
            return super()._prepare_for_training(
                max_steps, train_dataloader, resume_from_checkpoint
            )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        ours = isinstance(self.model, PreTrainedModel | PeftModel)
        if model is None and ours and not self.is_fsdp_enabled:
            self.load_weights(resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if not self.lengths:
            return super()._get_train_sampler(train_dataset)
        order = partial(length_grouped_indices, self.lengths, rows_per_step(self.args))
        return EpochSampler(order, sampler_seed(self.args), lambda: int(self.state.epoch or 0))

    def _forward(
        self,
        model: torch.nn.Module,
        batch: dict[str, Any],
        labels: Tensor,
        spans: NumberSpans | None,
        supervised: Tensor | None,
        *args: Any,
    ) -> Any:
        """Run the model; first compare the first padding-free micro-batch with a padded one."""
        if self.checks_padding_free and supervised is not None:
            self.checks_padding_free = False
            head = output_head(self.accelerator.unwrap_model(model))
            low_precision = (
                self.model.dtype not in (torch.float32, torch.float64)
                or self.accelerator.mixed_precision != "no"
            )
            self.ranks.exchange(
                padding_free_error(model, head, batch, supervised, low_precision=low_precision)
            )
        return super()._forward(model, batch, labels, spans, supervised, *args)

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Read the micro-batches of one step, and record their samples."""
        batches = self.read_batches(epoch_iterator, num_batches)
        origins = [batch["origin"] for batch in batches]
        for origin in origins:
            self.skipped_rows.add(origin.skipped)
            self.throughput.count(origin.tokens, len(origin.ids))
        self.finite.begin_step([origin.ids for origin in origins])
        if self.gradient_check is not None:
            self.gradient_check.begin_step(origins)
        return super().get_batch_samples(iter(batches), num_batches, device)


class BaselineTrainer(NumericTrainer):
    """Trainer of a baseline with its own loss, which needs more model outputs than the logits."""

    def __init__(self, *args: Any, baseline: Baseline, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.baseline = baseline
        self.chunked_from = math.inf

    def _result(
        self, outputs: Any, labels: Tensor, spans: NumberSpans | None, counts: Counts | None
    ) -> ObjectiveResult:
        assert spans is not None
        return self.baseline.loss(self.objective, outputs, labels, spans, counts)

    def _loss_of_sums(self, sums: Mapping[str, LossSum]) -> Tensor:
        return self.baseline.mean_loss(sums)

    def _check_best_metric(self) -> None:
        """Do nothing: a baseline's loss components are not those of an objective."""
