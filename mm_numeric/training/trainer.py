"""transformers.Trainer, with the loss taken from an objective."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, Trainer
from transformers.training_args import OptimizerNames

from mm_numeric.compat import base_dataloader
from mm_numeric.data.length_sampler import LengthGroupedSampler, rows_per_step, sampler_seed
from mm_numeric.data.streaming import ExampleStream, stream_loader
from mm_numeric.models.adapters import (
    gathered_parameters,
    read_adapted,
    save_adapted,
    saved_parameters,
)
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.training.deepspeed import whole_models
from mm_numeric.training.errors import damaged_as_ours, full_disk_as_ours, own_sentence
from mm_numeric.training.gradient_norms import GradientNorms, is_logged
from mm_numeric.training.mixin import NumericLossMixin
from mm_numeric.training.non_finite import FiniteCheck
from mm_numeric.training.preemption import DeafWorker, StopOnSignal
from mm_numeric.training.ranks import Ranks
from mm_numeric.training.resume import write_step
from mm_numeric.training.skipped_rows import LeftOut
from mm_numeric.training.throughput import Progress

_OWN_GROUPS = {"params", "model", "optimizer_dict"}  # of optimisers that choose what they train


class NumericTrainer(NumericLossMixin, Trainer):
    """A Trainer whose loss is an ``Objective``, on batches of ``TrainingCollator``.

    ``NumericLossMixin`` has the loss, the counts and the log; this saves weights, reads them
    back whole, and gives each part of the model its learning rate.
    """

    model: Any
    optimizer_cls_and_kwargs: Any
    evaluation: Any = None
    """What ``evaluate`` runs (``on_the_way.Evaluation``); transformers' own where None."""

    lengths: Sequence[int] = ()
    """How many tokens each row has, where they are grouped by it."""

    def __init__(self, *args: Any, parts: ModelModules | None = None, **kwargs: Any) -> None:
        """Take what the trainer takes, and which part each parameter is in.

        Raises:
            ValueError: If parts have rates of their own, and DeepSpeed makes the optimiser.
        """
        super().__init__(*args, **kwargs)
        self.parts = parts
        self.ranks = Ranks(self.args)
        fp16 = self.accelerator.mixed_precision == "fp16"
        self.finite = FiniteCheck(self.ranks, self.args, fp16=fp16)
        self.left_out = LeftOut(self.ranks)
        self.stopping = StopOnSignal(self.ranks)
        self.add_callback(self.stopping)
        self.progress = Progress(self.accelerator)
        self.norms = None if parts is None else GradientNorms(parts, self.accelerator)
        plugin = self.args.deepspeed_plugin
        if parts is not None and plugin is not None and "optimizer" in plugin.deepspeed_config:
            parts.reject_learning_rates("the `optimizer` of trainer.deepspeed")

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and time it."""
        self.progress.begin()
        return super().train(*args, **kwargs)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimiser, its parameters grouped by part.

        Raises:
            ValueError: If what the optimiser needs is not installed, or parts have rates of their
                own, and it makes its own groups.
        """
        if self.parts is not None and self.optimizer is None:
            trained = self.model if model is None else model
            optim = f"trainer.optim {OptimizerNames(self.args.optim).value}"
            try:
                kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                    self.args, trained
                )
            except ImportError as error:
                raise ValueError(f"{optim}: {error}") from error
            if not isinstance(kind, type) or _OWN_GROUPS & options.keys():
                self.parts.reject_learning_rates(optim)
            else:
                decayed = set(self.get_decay_parameter_names(trained))
                groups = self.parts.groups(trained, decayed, self.args.weight_decay)
                self.optimizer_cls_and_kwargs = kind, {**options, "params": groups}
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        return optimizer

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Make the schedule of the learning rate.

        Raises:
            ValueError: If it has no such setting.
        """
        try:
            return super().create_scheduler(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f"trainer.lr_scheduler_kwargs: {error}.") from error

    def get_train_dataloader(self) -> Any:
        """Return the batches; workers leave signals to this process."""
        if isinstance(self.train_dataset, ExampleStream):
            loader = stream_loader(
                self.train_dataset, self.args, self.accelerator, self.data_collator
            )
        else:
            loader = super().get_train_dataloader()
        if self.args.dataloader_num_workers > 0:
            base = base_dataloader(loader)
            base.worker_init_fn = DeafWorker(base.worker_init_fn, self.stopping.is_listening)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the order of rows; grouped by length, transformers' own knows no lengths."""
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        return LengthGroupedSampler(
            self.lengths,
            rows_per_step(self.args),
            sampler_seed(self.args),
            epoch=lambda: int(self.state.epoch or 0),
        )

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Read the micro-batches of one optimiser step.

        Raises:
            ValueError: If a row of any rank cannot be used: then no rank waits for another.
        """
        batches, bad = [], None
        try:
            batches = list(islice(epoch_iterator, num_batches))
        except ValueError as error:
            bad = own_sentence(error)
        self.ranks.exchange(bad)
        for batch in batches:
            self.left_out.note(batch["origin"].skipped)
        self.finite.begin_step([batch["origin"].ids for batch in batches])
        samples: tuple[list[Any], Any] = super().get_batch_samples(
            iter(batches), num_batches, device
        )
        for batch in samples[0]:
            self.progress.note(batch)
        return samples

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one micro-batch, and note whether its loss is finite."""
        with self._measuring():
            loss = super().training_step(*args, **kwargs)
        self.finite.note_loss(loss)
        return loss

    def _measuring(self) -> AbstractContextManager[None]:
        """Return what a micro-batch runs in: the last of a step that is logged is measured."""
        step = self.state.global_step + 1
        flattened = self.is_fsdp_enabled and not self.accelerator.is_fsdp2
        if (
            self.norms is None
            or flattened
            or not self.accelerator.sync_gradients
            or not is_logged(step, self.args, self.state)
        ):
            return nullcontext()
        engine = self.model_wrapped if self.is_deepspeed_enabled else None
        return self.norms.measuring(self.model, step, engine)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the gradient: the last that is known of a step."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.finite.end_step(self.state.global_step + 1, self._step_sums, norm)
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what is finite, how fast it came, and how many rows were left out if any were."""
        if "loss" in logs:
            self.finite.look()
            if self.norms is not None:
                norms = self.norms.of_step(self.state.global_step)
                logs.update({f"gradient_norm/{part}": norm for part, norm in norms.items()})
            logs.update(self.progress.read())
            if count := self.left_out.count():
                logs["rows_left_out"] = count
        super().log(logs, start_time)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save a checkpoint if its numbers are finite.

        Raises:
            ValueError: If they are not, or the disk is full; on all ranks, but where they save
                together (ZeRO): the others cannot be told there, and their launcher ends them.
        """
        self.finite.look(self.model)
        self.left_out.count()
        full = None
        try:
            with full_disk_as_ours(Path(str(self.args.output_dir))), self.progress.apart():
                super()._save_checkpoint(model, trial)
        except ValueError as error:
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                raise
            full = str(error)
        self.ranks.exchange(full)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return what rows score that the model answers, or what transformers measures."""
        self.finite.look(self.model)  # the best weights are kept without a checkpoint
        with self.progress.apart():
            figures: dict[str, float] = (
                self.evaluation.run() if self.evaluation else super().evaluate(*args, **kwargs)
            )
        return figures

    def load_weights(self, checkpoint: str | Path) -> None:
        """Load the weights of a checkpoint, every one of them.

        transformers (5.23) saves weights under the names of the hub, reads them back under the
        names of the modules, and only warns about what it does not find: a resumed Qwen2-VL would
        go on from its first weights. ``from_pretrained`` knows both names.

        Raises:
            ValueError: If the checkpoint is damaged, lacks a weight, or has one too many.
        """
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, PeftModel):
            with damaged_as_ours(checkpoint):
                read_adapted(model, Path(checkpoint))
            return
        with whole_models(self.args), damaged_as_ours(checkpoint):
            saved, found = type(model).from_pretrained(
                checkpoint, config=model.config, dtype=model.dtype, output_loading_info=True
            )
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if found[what]:
                names = ", ".join(sorted(map(str, found[what]))[:3])
                raise ValueError(f"{checkpoint}: {len(found[what])} {what} ({names} ...).")
        if self.is_deepspeed_enabled:  # which loads what it goes on from by itself
            self.model = saved
        else:
            model.load_state_dict(saved.state_dict())

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, also those that DeepSpeed was not told of, for nothing was trained."""
        if self.is_deepspeed_enabled and self.deepspeed is None:
            self._save(output_dir)
        else:
            super().save_model(output_dir, _internal_call)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None
    ) -> None:
        """Save the weights, tied ones once; of a model with adapters, what was trained.

        Under ZeRO-1 and ZeRO-2, whose models are whole, transformers saves copies, tied ones too.
        """
        model = self.accelerator.unwrap_model(self.model)
        if isinstance(model, PeftModel):
            folder = Path(output_dir or self.args.output_dir)
            # DeepSpeed hands over what it gathered, unless nothing was trained and it has no model.
            idle = self.is_deepspeed_enabled and self.deepspeed is None
            with gathered_parameters(saved_parameters(model) if idle else []):
                if self.args.should_save:
                    folder.mkdir(parents=True, exist_ok=True)
                    save_adapted(model, folder, state_dict)
            return
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        is_whole = plugin is not None and plugin.zero_stage < 3
        super()._save(output_dir, None if is_whole else state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save, with what a run goes on from, how many rows a step has."""
        super()._save_optimizer_and_scheduler(output_dir)
        args = self.args
        if args.should_save:
            write_step(Path(output_dir), ranks=args.world_size, rows=rows_per_step(args))
            self.left_out.save(Path(output_dir))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        """Load the weights that a run goes on from."""
        ours = isinstance(self.model, PreTrainedModel | PeftModel)
        if model is None and ours and not self.is_fsdp_enabled:
            self.load_weights(resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load what else it goes on from."""
        with damaged_as_ours(checkpoint or ""):
            super()._load_optimizer_and_scheduler(checkpoint)
