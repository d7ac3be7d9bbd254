"""Save a checkpoint and stop the run when it receives SIGTERM, SIGUSR1 or SIGINT (Ctrl-C)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from mm_numeric.distributed.ranks import Ranks
from mm_numeric.io.log import logger
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.errors import StoppedError

_NAMES = ("SIGTERM", "SIGUSR1", "SIGINT")
_SIGNALS = [s for s in signal.Signals if s.name in _NAMES]  # no SIGUSR1 on Windows


class StopOnSignal(TrainerCallback):
    """Callback that saves a checkpoint and stops the run after one of ``_SIGNALS``.

    The current step is finished first. A signal to any rank stops all ranks. Ctrl-C after an
    earlier signal raises KeyboardInterrupt at once.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.received: signal.Signals | None = None
        self.stopped: signal.Signals | None = None
        # This flag is in shared memory, because DataLoader workers read it.
        self.is_listening = torch.zeros((), dtype=torch.bool).share_memory_()

    @contextmanager
    def listening(self, stoppable: bool) -> Iterator[None]:
        """Context manager in which signals are recorded and do not end the process.

        It does nothing if ``stoppable`` is False. After the context, the previous signal handlers
        are restored; but if a signal was received, SIGTERM and SIGUSR1 are ignored.
        """
        numbers = _SIGNALS if stoppable else []
        before = {number: signal.signal(number, self._receive) for number in numbers}
        self.is_listening.fill_(stoppable)
        try:
            yield
        finally:
            self.is_listening.fill_(False)
            for number, handler in before.items():
                ignored = self.received and number != signal.SIGINT
                signal.signal(number, signal.SIG_IGN if ignored else handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Request a checkpoint and a stop if a rank received a signal, except at the last step."""
        received = self.ranks.exchange(self.received)
        if received and state.global_step < state.max_steps:
            self.stopped = received[0]
            control.should_save = control.should_training_stop = True

    def error(self, folder: Path, *, resumable: bool) -> StoppedError:
        """Return an error that names the saved checkpoint and the command to resume from it."""
        how = "resume with the same command (train: with --resume)"
        if not resumable:
            how = "the run cannot be resumed, because trainer.save_only_model saves only weights"
        assert self.stopped is not None
        message = f"stopped by {self.stopped.name}; saved {last_checkpoint(folder)}: {how}."
        return StoppedError(message, received=self.stopped, resumable=resumable)

    def _receive(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.received:
                raise KeyboardInterrupt
            with suppress(RuntimeError):  # the signal interrupted another write to stderr
                logger.warning(
                    "Ctrl-C: the run stops after this step and saves a checkpoint; press Ctrl-C "
                    "again to stop at once."
                )
        self.received = signal.Signals(number)


class IgnoreSignalsInWorker:
    """A ``worker_init_fn`` that makes DataLoader workers ignore SIGTERM, SIGUSR1 and SIGINT.

    A cluster scheduler and a terminal send the signal to all processes, but the run needs its
    workers to finish the step. Workers ignore signals only during training, while the shared flag
    ``is_listening`` is True. Later, Python can end them with SIGTERM when the run exits.
    ``init_fn`` is another ``worker_init_fn`` to call, or None.
    """

    def __init__(self, init_fn: Any, is_listening: Tensor) -> None:
        self.init_fn, self.is_listening = init_fn, is_listening

    def __call__(self, worker: int) -> None:
        """Set the signal handlers in a DataLoader worker, and call ``init_fn``."""
        for number in _SIGNALS:
            signal.signal(number, self._end_unless_listening)
        if self.init_fn is not None:
            self.init_fn(worker)

    def _end_unless_listening(self, number: int, frame: Any) -> None:
        if not self.is_listening:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
