"""transformers.Trainer, with the loss taken from an objective."""

from pathlib import Path

import torch
from transformers import PreTrainedModel, Trainer

from mm_numeric.doors import NumericLossMixin


class NumericTrainer(NumericLossMixin, Trainer):
    """A Trainer whose loss is an ``Objective``, on batches of ``TrainingCollator``.

    ``NumericLossMixin`` has the loss, the counts and the log; this reads checkpoints back whole.
    """

    def load_weights(self, checkpoint: str | Path) -> None:
        """Load the weights of a checkpoint, every one of them.

        transformers (5.23) saves weights under the names of the hub, reads them back under the
        names of the modules, and only warns about what it does not find: a resumed Qwen2-VL would
        go on from its first weights. ``from_pretrained`` knows both names.

        Raises:
            ValueError: If the checkpoint lacks a weight, or has one too many.
        """
        model = self.accelerator.unwrap_model(self.model)
        saved, found = type(model).from_pretrained(
            checkpoint, config=model.config, dtype=model.dtype, output_loading_info=True
        )
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if found[what]:
                names = ", ".join(sorted(map(str, found[what]))[:3])
                raise ValueError(f"{checkpoint}: {len(found[what])} {what} ({names} ...).")
        model.load_state_dict(saved.state_dict())

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        """Load the weights that a run goes on from."""
        if model is None and isinstance(self.model, PreTrainedModel) and not self.is_fsdp_enabled:
            self.load_weights(resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
