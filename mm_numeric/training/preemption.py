"""Save a checkpoint and stop at SIGTERM or SIGUSR1."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from mm_numeric.run_folder import last_checkpoint
from mm_numeric.training.ranks import Ranks

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopOnSignal(TrainerCallback):
    """Lets SIGTERM and SIGUSR1 end the step that is running, save, and stop, on all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        """Listen to nothing yet."""
        self.ranks = ranks
        self.asked: signal.Signals | None = None
        self.stopped: signal.Signals | None = None
        self.is_listening = torch.zeros((), dtype=torch.bool).share_memory_()

    @contextmanager
    def listening(self, stoppable: bool) -> Iterator[None]:
        """Take the signals inside; if one came, the process is ending, and no other may end it."""
        numbers = _SIGNALS if stoppable else ()
        before = {number: signal.signal(number, self._ask) for number in numbers}
        self.is_listening.fill_(stoppable)
        try:
            yield
        finally:
            self.is_listening.fill_(False)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.asked else handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop if any rank was asked to; a run that has ended anyway is finished."""
        asked = self.ranks.exchange(self.asked)
        if asked and state.global_step < state.max_steps:
            self.stopped = asked[0]
            control.should_save = control.should_training_stop = True

    def sentence(self, folder: Path, *, resumable: bool) -> str:
        """Say how to go on."""
        how = (
            "go on with the same command and --resume"
            if resumable
            else "trainer.save_only_model keeps weights alone, so that nothing goes on from there"
        )
        assert self.stopped is not None
        return f"stopped by {self.stopped.name}; saved in {last_checkpoint(folder)}: {how}."

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = signal.Signals(number)


class DeafWorker:
    """Starts a DataLoader's worker: a scheduler signals it too, and the run still needs it.

    Once the run listens no longer it obeys as any process does: Python itself ends the workers that
    are left over so, and waits for them.
    """

    def __init__(self, start: Any, is_listening: Tensor) -> None:
        """Wrap what starts it otherwise; ``StopOnSignal.is_listening`` is shared with it."""
        self.start, self.is_listening = start, is_listening

    def __call__(self, worker: int) -> None:
        """Leave signals to the run; a worker ends when that is gone."""
        for number in _SIGNALS:
            signal.signal(number, self._obey_unless_listening)
        if self.start is not None:
            self.start(worker)

    def _obey_unless_listening(self, number: int, frame: Any) -> None:
        if not self.is_listening:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
