"""Evaluation losses of a trainer: exact means over all tokens and numbers of the data set.

Axes    b rows, t positions, n supervised positions (those with a label)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mm_numeric.compat import base_dataloader
from mm_numeric.losses.number_metrics import named_metrics
from mm_numeric.losses.numeric_loss import ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.integrations import added_sums, sums_over_ranks

ROW_TOKENS = "row_tokens"
"""Entry of a padding-free batch: number of tokens of each data set row."""


@dataclass
class EvaluationSums:
    """Sums of the losses and metrics of the batches of one evaluation, on one rank."""

    sums: dict[str, LossSum] = field(default_factory=dict)
    metric_sums: Tensor | None = None
    own_names: tuple[str, ...] = ()
    """Names of the losses besides the objective."""

    def add(self, result: ObjectiveResult, own: Mapping[str, Tensor]) -> None:
        """Add a batch.

        ``own`` are the losses besides the objective: each is a mean over the batch, and is weighted
        by the number of tokens in the batch.
        """
        tokens = next(iter(result.sums.values())).items
        here = {
            name: LossSum(part.total.double(), part.items) for name, part in result.sums.items()
        }
        self.own_names = tuple(own)
        for name, loss in own.items():
            here[name] = LossSum(loss.detach().double().to(tokens.device) * tokens, tokens)
        self.sums = added_sums(self.sums, here)
        if result.metric_sums is not None:
            before = self.metric_sums
            self.metric_sums = result.metric_sums if before is None else before + result.metric_sums

    def metrics(
        self, total: Callable[[Mapping[str, LossSum]], Tensor], prefix: str, accelerator: Any
    ) -> dict[str, float]:
        """Return the loss, its components and the number metrics, over the batches of all ranks.

        ``total`` computes the loss from the sum and count of each component. The names are
        ``PREFIX_loss``, ``PREFIX_loss/NAME`` and ``PREFIX_numbers/NAME``. Returns {} if no batch
        was added.
        """
        if not self.sums:
            return {}
        sums, _ = sums_over_ranks(self.sums, accelerator)
        own = [sums[name].mean for name in self.own_names]
        objective = {name: part for name, part in sums.items() if name not in self.own_names}
        found = {f"{prefix}_loss": sum(own, total(objective)).item()}
        found |= {f"{prefix}_loss/{n}": s.mean.item() for n, s in sums.items() if s.items}
        if self.metric_sums is not None:
            pairs = accelerator.reduce(self.metric_sums, reduction="sum")
            each = named_metrics(pairs).items()
            found |= {f"{prefix}_numbers/{n}": s.mean.item() for n, s in each if s.items}
        return found


@dataclass(frozen=True)
class RowTokensCollator:
    """A data collator that adds ``row_tokens`` to the padding-free batches of ``collator``."""

    collator: Callable[[Any], Any]

    def __call__(self, examples: Sequence[Any]) -> Any:
        """Return the batch, with ``row_tokens`` if several examples are in one row."""
        batch = self.collator(examples)
        if len(examples) > 1 and len(_positions(batch)) == 1:
            alone = (self.collator([example]) for example in examples)
            batch[ROW_TOKENS] = torch.tensor([_positions(each).numel() for each in alone])
        return batch


def count_row_tokens(loader: Any) -> None:
    """Add ``row_tokens`` to the padding-free batches of an evaluation data loader."""
    base = base_dataloader(loader)
    if hasattr(base, "collate_fn") and not isinstance(base.collate_fn, RowTokensCollator):
        base.collate_fn = RowTokensCollator(base.collate_fn)


def without_repeated_rows(inputs: dict[str, Any], accelerator: Any) -> dict[str, Any]:
    """Return a batch without the labels of rows that the evaluation has already counted.

    On several ranks, accelerate fills the last batches with the first rows of the data set.
    """
    state = accelerator.gradient_state
    if accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
        return inputs
    lengths = inputs.get(ROW_TOKENS)
    mask = _positions(inputs)
    rows = len(mask) if lengths is None else len(lengths)
    if "origin" in inputs:  # without the dummy image row
        rows = len(inputs["origin"].ids)
    count = min(max(state.remainder - accelerator.process_index * rows, 0), rows)
    if count == rows:
        return inputs
    if lengths is None:
        kept = (torch.arange(len(mask), device=mask.device) < count)[:, None]
    else:
        kept = torch.arange(mask.numel(), device=mask.device)[None] < lengths[:count].sum()
    if "supervised" not in inputs:  # the spans are found again
        others = {name: value for name, value in inputs.items() if name != "spans"}
        return {**others, "labels": inputs["labels"].masked_fill(~kept, IGNORE_INDEX)}
    supervised = mask & kept
    labels = inputs["labels"][: int(supervised.sum())]
    return {
        **inputs,
        "supervised": supervised,
        "labels": labels,
        "spans": inputs["spans"].first(count, len(labels)),
        "origin": replace(inputs["origin"], tokens=0),  # unknown
    }


def _positions(batch: Mapping[str, Any]) -> Tensor:
    """Return the entry [b, t] of a batch that shows which positions have a label."""
    return batch.get("supervised", batch.get("labels"))
