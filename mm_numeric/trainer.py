"""transformers.Trainer, with the loss taken from an objective."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer

from mm_numeric.collate import BATCH_KEYS
from mm_numeric.losses.counts import Counts
from mm_numeric.losses.objective import Objective
from mm_numeric.losses.term import LossSum


class NumericTrainer(Trainer):
    """A Trainer whose loss is an ``Objective``, on batches of ``TrainingCollator``.

    Cross-entropy is the same under every objective: its sum over the supervised rows, divided by
    their number over all micro-batches and ranks of the optimiser step. Numeric terms are divided
    by their own counts in the same way. The head runs at the supervised positions alone.

    Each raw part is logged as ``parts/NAME``: its mean over all that was seen since the last log.
    """

    def __init__(self, *args: Any, objective: Objective, **kwargs: Any) -> None:
        """Take what transformers.Trainer takes, and the objective."""
        super().__init__(*args, **kwargs)
        self.objective = objective
        self.loss_is_scaled_for_ga = True  # the objective divides by the counts of the whole step
        self._seen: dict[str, LossSum] = {}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """Return the loss of one micro-batch as its share of the optimiser step."""
        batch = dict(inputs)
        labels, supervised, spans = (batch.pop(key) for key in BATCH_KEYS)
        outputs = model(**batch, logits_to_keep=supervised)
        counts = None if num_items_in_batch is None else Counts(*num_items_in_batch.unbind())
        result = self.objective(outputs.logits, labels, spans, counts=counts)
        if model.training:
            self._remember(result.sums)
        # Data parallelism averages gradients over ranks; the counts are already over all ranks.
        loss = result.loss * self.accelerator.num_processes if counts is not None else result.loss
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, Any]], device: torch.device
    ) -> Tensor:
        """Count an optimiser step: supervised rows, number tokens, numbers, samples; [4]."""
        counted = [torch.stack(Counts.of(b["labels"], b["spans"])) for b in batch_samples]
        counts = torch.stack(counted).sum(dim=0).to(device)
        if self.accelerator.num_processes > 1:
            counts = self.accelerator.reduce(counts, reduction="sum")
        return counts

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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the raw parts to what is logged."""
        if "loss" in logs and self._seen:
            names = list(self._seen)
            pairs = torch.stack([torch.stack([s.total.double(), s.items.double()])
                                 for s in self._seen.values()])  # fmt: skip
            if self.accelerator.num_processes > 1:
                pairs = self.accelerator.reduce(pairs, reduction="sum")
            means = (pairs[:, 0] / pairs[:, 1].clamp(min=1)).tolist()
            logs.update({f"parts/{name}": mean for name, mean in zip(names, means, strict=True)})
            self._seen = {}
        super().log(logs, start_time)

    def _remember(self, sums: Mapping[str, LossSum]) -> None:
        """Add to what was seen since the last log, without waiting for the device."""
        for name, part in sums.items():
            before = self._seen.get(name)
            self._seen[name] = (
                LossSum(before.total + part.total, before.items + part.items) if before else part
            )
