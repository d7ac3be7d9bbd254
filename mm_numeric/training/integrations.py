"""Use an objective with transformers.Trainer, accelerate or your own training loop."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, shifted


def loss_func(objective: Objective, *, shift: bool = True) -> Callable[..., Tensor]:
    """Return a loss function for the ``compute_loss_func`` argument of transformers.Trainer.

    Each micro-batch is weighted by its share of the step's supervised tokens
    (``num_items_in_batch``). Cross-entropy is therefore exact under gradient accumulation and on
    several ranks. Numeric terms are not: they are means over the numbers of one micro-batch, so a
    number weighs more in a micro-batch with few numbers. ``NumericLossMixin`` has exact means. The
    router loss of a mixture of experts is not included, as with any ``compute_loss_func``.

    Args:
        objective: The objective to train on.
        shift: True for decoder-only models, which predict each label at the previous position.
            False for encoder-decoders.

    Raises:
        ValueError: If the objective has ``balance: running``, which needs the end of each step.
    """
    if objective.spec.balance == "running":
        raise ValueError(
            "balance: running is updated after each step, which a compute_loss_func cannot detect: "
            "use NumericLossMixin, or another balance."
        )

    def compute_loss(
        outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        labels = aligned_labels(labels, shift)
        loss = objective(outputs.logits, labels).loss
        if num_items_in_batch is None:
            return loss
        return loss * (labels != IGNORE_INDEX).sum() / num_items_in_batch

    return compute_loss


def step_counts(
    objective: Objective, labels: Iterable[Tensor], *, shift: bool = True, accelerator: Any = None
) -> Counts:
    """Count the tokens and numbers in all micro-batches of one optimiser step.

    Pass the result as ``counts=`` when you call the objective on each micro-batch. The losses of
    the micro-batches then add up to the loss of one large batch.

    Args:
        objective: The objective to train on, which finds the numbers in the labels.
        labels: [b, t] of each micro-batch, with ``IGNORE_INDEX`` at positions to ignore.
        shift: True for decoder-only models with unshifted labels, as in ``loss_func``.
        accelerator: An ``accelerate.Accelerator``; counts are then summed over its ranks. Multiply
            each loss by its ``num_processes``, because gradients are averaged over ranks, and by
            its ``gradient_accumulation_steps``, because its ``backward`` divides by them.
    """
    if isinstance(labels, Tensor):
        raise ValueError("step_counts expects a list with the labels of each micro-batch.")
    counted = [count_numbers(objective, aligned_labels(each, shift))[1] for each in labels]
    if not counted:
        raise ValueError("step_counts: an optimiser step has at least one micro-batch; got none.")
    return total_counts(counted, accelerator)


def end_step(
    objective: Objective, results: Iterable[ObjectiveResult], accelerator: Any = None
) -> dict[str, LossSum]:
    """Call this after each optimiser step of your own training loop, for ``balance: running``.

    It updates the running statistics with which the objective balances its loss components.

    Args:
        objective: The objective to train on.
        results: Results that the objective returned, one per micro-batch.
        accelerator: An ``accelerate.Accelerator``; results are then summed over its ranks.

    Returns:
        Sum and count of each loss component over the step; log the mean as ``sums["ce"].mean``.
    """
    sums: dict[str, LossSum] = {}
    for result in results:
        sums = added_sums(sums, result.sums)
    if not sums:
        raise ValueError("end_step: an optimiser step has at least one micro-batch; got none.")
    sums = sums_over_ranks(sums, accelerator)
    objective.end_step(sums)
    return sums


def aligned_labels(labels: Tensor | None, shift: bool) -> Tensor:
    """Shift labels by one, to the positions that predict them; without ``shift``, return them."""
    if labels is None:
        raise ValueError(
            "a batch has no labels: the data collator must return `labels` [b, t], -100 to ignore."
        )
    return shifted(labels) if shift else labels


def count_numbers(
    objective: Objective, labels: Tensor, spans: NumberSpans | None = None
) -> tuple[NumberSpans, Tensor]:
    """Return the number spans of a micro-batch, and the fields of its ``Counts`` as one tensor.

    ``spans`` are the number spans if already known; if None, they are searched in ``labels``.
    """
    if spans is None:  # found on the CPU, because reading labels on a GPU makes the host wait
        spans = objective.spans(labels.cpu()).to(labels.device)
    if labels.dim() == 2:
        labels = labels[labels != IGNORE_INDEX] if spans.supervised is None else spans.supervised
    return spans, torch.stack(Counts.of(labels, spans))


def total_counts(counted: list[Tensor], accelerator: Any) -> Counts:
    """Sum the tensors that ``count_numbers`` returned, over micro-batches and all ranks."""
    total = torch.stack(counted).sum(dim=0)
    if accelerator is not None and accelerator.num_processes > 1:
        total = accelerator.reduce(total.to(accelerator.device), reduction="sum")
    return Counts(*total.unbind())


def added_sums(one: Mapping[str, LossSum], other: Mapping[str, LossSum]) -> dict[str, LossSum]:
    """Add the sums of two results per loss component; either may be empty. Does not sync a GPU."""
    if not one or not other:
        return dict(one or other)
    return {
        name: LossSum(part.total + other[name].total, part.items + other[name].items)
        for name, part in one.items()
    }


def sums_over_ranks(sums: Mapping[str, LossSum], accelerator: Any) -> dict[str, LossSum]:
    """Add up the sum and count of each loss component over all ranks, in float64."""
    pairs = torch.stack([torch.stack([s.total.double(), s.items.double()]) for s in sums.values()])
    if accelerator is not None and accelerator.num_processes > 1:
        pairs = accelerator.reduce(pairs, reduction="sum")
    return {name: LossSum(*pair.unbind()) for name, pair in zip(sums, pairs, strict=True)}
