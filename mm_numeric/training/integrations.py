"""Use an objective with transformers.Trainer, accelerate or your own training loop."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, shifted

if TYPE_CHECKING:  # what the mixin stands in front of; a loop needs no transformers
    from transformers import Trainer as _Trainer
else:
    _Trainer = object


def loss_func(objective: Objective, *, shift: bool = True) -> Callable[..., Tensor]:
    """Return a ``compute_loss_func`` for transformers.Trainer.

    The loss of a micro-batch, weighed by its share of the step's supervised tokens
    (``num_items_in_batch``). Cross-entropy is therefore exact under gradient accumulation and on
    several ranks. A numeric term is not told how many numbers the other micro-batches hold: it is
    the mean over each micro-batch, then the mean of those, weighed by supervised tokens. That is
    the mean over the step where there is one micro-batch on one rank; elsewhere a number counts for
    more in a micro-batch that has few of them. ``NumericLossMixin`` is exact. Like any
    ``compute_loss_func``, this leaves out the router loss of a mixture of experts.

    Args:
        objective: What to train on.
        shift: Each label is predicted by the row before it, as in a decoder-only model. False for
            an encoder-decoder, whose labels stand at the row that predicts them.

    Raises:
        ValueError: If the objective has to be told where a step ends, which this door cannot see.
    """
    if objective.spec.balance == "running":
        raise ValueError(
            "balance: running goes by whole steps, and a compute_loss_func does not see where one "
            "ends: use NumericLossMixin, or another balance."
        )

    def compute_loss(
        outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        labels = _aligned(labels, shift)
        loss = objective(outputs.logits, labels).loss
        if num_items_in_batch is None:
            return loss
        return loss * (labels != IGNORE_INDEX).sum() / num_items_in_batch

    return compute_loss


def step_counts(
    objective: Objective,
    labels: Iterable[Tensor],
    *,
    shift: bool = True,
    accelerator: Any = None,
) -> Counts:
    """Count what the micro-batches of one optimiser step add up to.

    Give the result to the objective with each of them (``counts=``): their losses then sum to that
    of one big batch, whatever each of them holds.

    Args:
        objective: What is trained on: it says what a number is.
        labels: [b, t] of each micro-batch, with ``IGNORE_INDEX`` where nothing is trained.
        shift: As in the call of the objective.
        accelerator: An ``accelerate.Accelerator``: count over all its ranks. It averages gradients
            over them, so multiply the loss by its ``num_processes`` (and, if it was given them, by
            its ``gradient_accumulation_steps``, which its ``backward`` divides by).

    Raises:
        ValueError: If there is no micro-batch.
    """
    if isinstance(labels, Tensor):
        raise ValueError("step_counts takes a list with the labels of each micro-batch: [labels].")
    counted = [_count(objective, _aligned(each, shift))[1] for each in labels]
    if not counted:
        raise ValueError("step_counts: an optimiser step has at least one micro-batch; got none.")
    return _total(counted, accelerator)


def end_step(
    objective: Objective, results: Iterable[ObjectiveResult], accelerator: Any = None
) -> dict[str, LossSum]:
    """Close an optimiser step in a loop of your own; ``balance: running`` goes by it.

    Args:
        objective: What is trained on.
        results: What it said of each micro-batch.
        accelerator: An ``accelerate.Accelerator``: add up over all its ranks.

    Returns:
        The sum of each part over the step, to log: ``sums["ce"].mean``.

    Raises:
        ValueError: If there is no result.
    """
    sums: dict[str, LossSum] = {}
    for result in results:
        sums = _added(sums, result.sums)
    if not sums:
        raise ValueError("end_step: an optimiser step has at least one micro-batch; got none.")
    sums = _over_ranks(sums, accelerator)
    objective.end_step(sums)
    return sums


def _aligned(labels: Tensor | None, shift: bool) -> Tensor:
    """Return labels that stand at the row that predicts them.

    Raises:
        ValueError: If there are none.
    """
    if labels is None:
        raise ValueError(
            "a batch has no labels: the data collator must return `labels` [b, t], with -100 where "
            "nothing is trained."
        )
    return shifted(labels) if shift else labels


def _count(
    objective: Objective, labels: Tensor, spans: NumberSpans | None = None
) -> tuple[NumberSpans, Tensor]:
    """Return the numbers of a micro-batch, and the fields of its ``Counts`` as one tensor."""
    if spans is None:  # read on the CPU: on the device each look at a label would be a wait
        spans = objective.spans(labels.cpu()).to(labels.device)
    if labels.dim() == 2:
        labels = labels[labels != IGNORE_INDEX] if spans.supervised is None else spans.supervised
    return spans, torch.stack(Counts.of(labels, spans))


def _total(counted: list[Tensor], accelerator: Any) -> Counts:
    """Add the counts of micro-batches up, over all ranks if there are several."""
    total = torch.stack(counted).sum(dim=0)
    if accelerator is not None and accelerator.num_processes > 1:
        total = accelerator.reduce(total.to(accelerator.device), reduction="sum")
    return Counts(*total.unbind())


def _added(one: Mapping[str, LossSum], other: Mapping[str, LossSum]) -> dict[str, LossSum]:
    """Add sums of the same parts; either may be empty. Nothing waits for the device."""
    if not one or not other:
        return dict(one or other)
    return {
        name: LossSum(part.total + other[name].total, part.items + other[name].items)
        for name, part in one.items()
    }


def _over_ranks(sums: Mapping[str, LossSum], accelerator: Any) -> dict[str, LossSum]:
    """Add each part's sum up over all ranks, in float64."""
    pairs = torch.stack([torch.stack([s.total.double(), s.items.double()]) for s in sums.values()])
    if accelerator is not None and accelerator.num_processes > 1:
        pairs = accelerator.reduce(pairs, reduction="sum")
    return {name: LossSum(*pair.unbind()) for name, pair in zip(sums, pairs, strict=True)}
