"""Stop a run whose loss, gradient or weights are not finite."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import TrainingArguments

from mm_numeric.compat import local_values
from mm_numeric.distributed.ranks import Ranks
from mm_numeric.losses.term import LossSum
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.errors import NotFiniteError
from mm_numeric.training.unread import Unread

_MAX_NAMED_ROWS = 20
_STEPS_PER_CHECK = 10  # on a GPU, where each check waits for the device


@dataclass(frozen=True)
class _Step:
    """The losses and the gradient norm of an optimiser step, on the GPU."""

    number: int
    ids: list[Sequence[str]]  # row ids of each micro-batch
    names: list[str]
    values: Tensor  # losses of micro-batches on this rank, and the named values


@dataclass(frozen=True)
class _NonFinite:
    """The first step at which this rank found a non-finite value, and the samples of that step."""

    step: int
    names: list[str]
    suspects: list[str]  # rows of micro-batches whose own loss is not finite
    ids: list[str]  # rows of the whole step


class FiniteCheck:
    """Raises an error at a non-finite loss, gradient or weight, before weights are saved.

    Losses and gradient norms stay on the GPU. Because the CPU waits when it reads them, they are
    read only every 10 steps, and before logging and saving, where the CPU waits anyway. The error
    names the first non-finite step and the ids of its samples.
    """

    def __init__(self, ranks: Ranks, args: TrainingArguments, *, fp16: bool) -> None:
        self.ranks, self.folder, self._fp16 = ranks, Path(str(args.output_dir)), fp16
        self._steps_per_check = 1 if args.device.type == "cpu" else _STEPS_PER_CHECK
        self._steps: list[_Step] = []
        self._losses: list[Tensor] = []
        self._ids: list[Sequence[str]] = []

    def begin_step(self, ids: list[Sequence[str]]) -> None:
        """Store the sample ids of each micro-batch of a step, to name them in error messages."""
        self._ids, self._losses = ids, []

    def add_loss(self, loss: Tensor) -> None:
        """Store the loss of a micro-batch without copying it from the GPU."""
        self._losses.append(loss.detach())

    def end_step(self, number: int, sums: Mapping[str, LossSum], norm: Tensor | float) -> None:
        """Store the losses and the gradient norm of an optimiser step.

        ``number`` is the step's number, and ``sums`` has the sum of each loss, such as ``ce``, over
        all ranks. The stored values are checked every 10 steps (every step on a CPU).
        """
        names, values = list(sums), [part.total for part in sums.values()]
        if not self._fp16 and norm is not None:  # the loss scaler of fp16 skips such a step
            names.append("the gradient")
            values.append(torch.as_tensor(norm, device=self._losses[0].device))
        stored = torch.stack([*self._losses, *values])
        self._steps.append(_Step(number, self._ids, names, stored))
        if len(self._steps) >= self._steps_per_check:
            self.check()

    def check(self, model: torch.nn.Module | None = None) -> None:
        """Raise NotFiniteError if a loss or gradient since the last check was not finite.

        If ``model`` is given, its trained weights are also checked. All ranks must call this
        method, and all raise the error if one rank has a non-finite value.
        """
        stored, unread = self._steps, self.unread()
        values = torch.cat(list(unread.values)).tolist()
        self._raise_together(self._broken(stored, values, model))

    def unread(self) -> Unread:
        """Return the stored values, to be read later; reading a non-finite value is an error."""
        stored, self._steps = self._steps, []

        def entries(values: list[float]) -> dict[str, float]:
            self._raise_together(self._broken(stored, values))
            return {}

        values = [step.values for step in stored]
        return Unread([torch.cat(values) if values else torch.zeros(0)], entries)

    def _broken(
        self, stored: list[_Step], values: list[float], model: torch.nn.Module | None = None
    ) -> _NonFinite | None:
        """Return the first step with a non-finite value, given the values of all stored steps."""
        found = map(math.isfinite, values)
        for step in stored:
            losses = list(islice(found, len(step.values) - len(step.names)))
            names = [name for name, ok in zip(step.names, found, strict=False) if not ok]
            if names:
                pairs = zip(step.ids, losses, strict=True)
                suspects = [row for batch, ok in pairs if not ok for row in batch]
                return _NonFinite(step.number, names, suspects, list(chain(*step.ids)))
        if model is None or _is_finite(model):
            return None
        number = stored[-1].number if stored else 0
        return _NonFinite(number, ["a weight after it"], [], list(chain(*self._ids)))

    def _raise_together(self, broken: _NonFinite | None) -> None:
        everywhere = self.ranks.exchange(broken)
        if everywhere:
            raise NotFiniteError(_message(everywhere, last_checkpoint(self.folder)))


def _is_finite(model: torch.nn.Module) -> bool:
    """Return True if all trained weights are finite (under ZeRO-3, those stored on this rank)."""
    shards = (local_values(p) for p in model.parameters() if p.requires_grad)
    flags = [shard.isfinite().all() for shard in shards]
    return bool(torch.stack(flags).all()) if flags else True


def _message(everywhere: list[_NonFinite], checkpoint: Path | None) -> str:
    number = max(broken.step for broken in everywhere)
    names = list(dict.fromkeys(name for broken in everywhere for name in broken.names))
    losses = [name for name in names if not name.startswith(("the ", "a "))] or names
    rows = [row for broken in everywhere for row in broken.suspects]
    rows = rows or [row for broken in everywhere for row in broken.ids]
    more = f" and {len(rows) - _MAX_NAMED_ROWS} more" if len(rows) > _MAX_NAMED_ROWS else ""
    kept = f"{checkpoint} is the last good one" if checkpoint else "no checkpoint was written yet"
    return (
        f"step {number}: {', '.join(losses)} {'are' if len(losses) > 1 else 'is'} not finite, in a "
        f"batch with the rows {', '.join(rows[:_MAX_NAMED_ROWS])}{more}; the step is not saved, "
        f"and {kept}: correct the rows and resume with --resume, or start again with a lower "
        "trainer.learning_rate."
    )
