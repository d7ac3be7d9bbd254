"""The precision in which a model is trained; its answers are computed in the same precision."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from transformers import Trainer

from mm_numeric.config.schema import Config
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.runs.folder import FINISHED

_MIXED_PRECISION = {"bf16": "bfloat16", "fp16": "float16"}
"""Maps the names of dtypes in accelerate to those in torch."""


@dataclass(frozen=True)
class Precision:
    """The entry ``precision`` of run.json."""

    weights: str
    """dtype of the weights, such as ``float32``."""

    autocast: str | None
    """dtype in which ``torch.autocast`` computes matrix products; None without autocast."""

    @classmethod
    def of_trainer(cls, trainer: Trainer) -> Self:
        """Return the precision of a trainer. DeepSpeed converts weights and uses no autocast."""
        accelerator = trainer.accelerator
        mixed = _MIXED_PRECISION.get(accelerator.mixed_precision)
        weights = str(accelerator.unwrap_model(trainer.model).dtype).removeprefix("torch.")
        if trainer.is_deepspeed_enabled:
            return cls(weights=mixed or weights, autocast=None)
        return cls(weights=weights, autocast=mixed)

    @classmethod
    def of_run(cls, run: Path) -> Self:
        """Return the precision in which a finished run was trained."""
        facts = read_json(run / FINISHED)
        with stored_content(run / FINISHED):
            return cls(**facts["precision"])

    def of_weights(self, config: Config) -> Config:
        """Return the config with ``model.dtype`` set to the dtype of the trained weights."""
        return replace(config, model=replace(config.model, dtype=self.weights))

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context manager in which a model on ``device`` computes in this precision."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, getattr(torch, self.autocast))
