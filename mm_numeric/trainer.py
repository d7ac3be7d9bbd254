"""transformers.Trainer, with the loss taken from an objective."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer

from mm_numeric.doors import NumericLossMixin
from mm_numeric.steps import write_step
from mm_numeric.zero import whole_models


class NumericTrainer(NumericLossMixin, Trainer):
    """A Trainer whose loss is an ``Objective``, on batches of ``TrainingCollator``.

    ``NumericLossMixin`` has the loss, the counts and the log; this saves weights, and reads them
    back whole.
    """

    model: Any

    def load_weights(self, checkpoint: str | Path) -> None:
        """Load the weights of a checkpoint, every one of them.

        transformers (5.23) saves weights under the names of the hub, reads them back under the
        names of the modules, and only warns about what it does not find: a resumed Qwen2-VL would
        go on from its first weights. ``from_pretrained`` knows both names.

        Raises:
            ValueError: If the checkpoint lacks a weight, or has one too many.
        """
        model = self.accelerator.unwrap_model(self.model)
        with whole_models(self.args):
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
        """Save the weights, tied ones once.

        Under ZeRO-1 and ZeRO-2, whose models are whole, transformers saves copies, tied ones too.
        """
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        is_whole = plugin is not None and plugin.zero_stage < 3
        super()._save(output_dir, None if is_whole else state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save, with what a run goes on from, how many rows a step has."""
        super()._save_optimizer_and_scheduler(output_dir)
        args = self.args
        if args.should_save:
            rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            write_step(Path(output_dir), ranks=args.world_size, rows=rows)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        """Load the weights that a run goes on from."""
        if model is None and isinstance(self.model, PreTrainedModel) and not self.is_fsdp_enabled:
            self.load_weights(resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
