"""Stop a run whose loss, gradient or weights are not finite."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import TrainingArguments

from mm_numeric.compat import local_values
from mm_numeric.losses.term import LossSum
from mm_numeric.run_folder import last_checkpoint
from mm_numeric.training.errors import EveryRankError
from mm_numeric.training.ranks import Ranks

_NAMED = 20  # rows in a sentence


_STEPS = 10  # that may pass before a GPU is asked whether they were finite


@dataclass(frozen=True)
class _Step:
    """One optimiser step, until it is looked at."""

    number: int
    names: list[str]
    finite: Tensor  # [len(names)], over all ranks
    losses: Tensor  # [micro-batches] whether each was finite, on this rank
    ids: list[Sequence[str]]  # of each of them


@dataclass(frozen=True)
class _Broken:
    """What one rank knows of the first step that was not finite."""

    step: int
    names: list[str]
    guilty: list[str]  # the rows of micro-batches whose own loss is not finite
    ids: list[str]


class FiniteCheck:
    """Stops a run whose loss, gradient or weights are not finite, before it is saved.

    To look at a number makes a GPU wait. So it is noted there, step by step, with the rows here,
    and read where the loop waits anyway, to log and to save, and every tenth step; the sentence
    names the first step that was broken.
    """

    def __init__(self, ranks: Ranks, args: TrainingArguments, *, fp16: bool) -> None:
        """Watch a run.

        Args:
            ranks: Who looks together.
            args: Of the trainer.
            fp16: Whether a gradient that is not finite is no fault: its scaler skips the step.
        """
        self.ranks, self.folder, self._fp16 = ranks, Path(str(args.output_dir)), fp16
        self._together = 1 if args.device.type == "cpu" else _STEPS
        self._steps: list[_Step] = []
        self._losses: list[Tensor] = []
        self._ids: list[Sequence[str]] = []

    def begin_step(self, ids: list[Sequence[str]]) -> None:
        """Take the rows of each micro-batch of a step."""
        self._ids, self._losses = ids, []

    def note_loss(self, loss: Tensor) -> None:
        """Take the loss of the next micro-batch."""
        self._losses.append(loss.isfinite())

    def end_step(self, number: int, sums: Mapping[str, LossSum], norm: Tensor | float) -> None:
        """Take what the step came to, over all ranks.

        Raises:
            ValueError: If enough steps were noted, and one of them was not finite.
        """
        names, values = list(sums), [part.total for part in sums.values()]
        if not self._fp16 and norm is not None:
            names.append("the gradient")
            values.append(torch.as_tensor(norm, device=self._losses[0].device))
        finite = torch.stack([value.isfinite() for value in values])
        step = _Step(number, names, finite, torch.stack(self._losses), self._ids)
        self._steps.append(step)
        if len(self._steps) >= self._together:
            self.look()

    def look(self, model: torch.nn.Module | None = None) -> None:
        """Look at the steps that were noted, and at weights that are to be saved.

        Raises:
            ValueError: If a number is not finite.
        """
        noted, self._steps = self._steps, []
        broken = next(filter(None, map(_look_at, noted)), None)
        if broken is None and model is not None and not _is_finite(model):
            ids = [row for batch in self._ids for row in batch]
            number = noted[-1].number if noted else 0
            broken = _Broken(number, ["a weight behind it"], [], ids)
        everywhere = self.ranks.exchange(broken)
        if everywhere:
            raise EveryRankError(_broken_sentence(everywhere, last_checkpoint(self.folder)))


def _look_at(step: _Step) -> _Broken | None:
    if step.finite.all():
        return None
    names = [name for name, fine in zip(step.names, step.finite.tolist(), strict=True) if not fine]
    pairs = zip(step.ids, step.losses.tolist(), strict=True)
    guilty = [row for batch, fine in pairs if not fine for row in batch]
    return _Broken(step.number, names, guilty, [row for batch in step.ids for row in batch])


def _is_finite(model: torch.nn.Module) -> bool:
    """Say whether all weights that are trained are finite; under ZeRO-3, this rank's piece."""
    pieces = (local_values(p) for p in model.parameters() if p.requires_grad)
    flags = [piece.isfinite().all() for piece in pieces]
    return bool(torch.stack(flags).all()) if flags else True


def _broken_sentence(everywhere: list[_Broken], checkpoint: Path | None) -> str:
    number = max(broken.step for broken in everywhere)
    names = list(dict.fromkeys(name for broken in everywhere for name in broken.names))
    parts = [name for name in names if not name.startswith(("the ", "a "))] or names
    rows = [row for broken in everywhere for row in broken.guilty]
    rows = rows or [row for broken in everywhere for row in broken.ids]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    kept = f"{checkpoint} is the last good one" if checkpoint else "no checkpoint was written yet"
    return (
        f"step {number}: {', '.join(parts)} {'are' if len(parts) > 1 else 'is'} not finite, in a "
        f"batch of the rows {', '.join(rows[:_NAMED])}{more}; nothing of it is saved, and {kept}: "
        "correct the rows and go on with --resume, or start again with a lower "
        "trainer.learning_rate."
    )
