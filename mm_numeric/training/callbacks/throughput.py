"""Tokens per second, samples per second and peak memory, measured for the log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_numeric.training.unread import Unread

_GIB = 1 << 30


class Throughput:
    """Measures the tokens and samples per second of a training run, and its peak memory.

    Counts on the device are copied to the host only for logging. The setting
    ``include_num_input_tokens_seen`` of transformers is not used: it synchronises all ranks after
    each micro-batch, and does not count the decoder tokens of an encoder-decoder.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.begin()

    def begin(self) -> None:
        """Reset the counts and the clock; called when training starts."""
        self._began = self._since = time.perf_counter()
        self._paused, self._tokens, self._samples = 0.0, torch.tensor(0), 0

    def count(self, tokens: Tensor | int, samples: int) -> None:
        """Count tokens, without padding, and samples."""
        self._tokens, self._samples = self._tokens + tokens, self._samples + samples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager whose time, such as that of an evaluation, is not counted."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - before

    def unread(self) -> Unread:
        """Return the throughput and the memory to log, and reset the counts. Call it on all ranks.

        Tokens and samples per second are totals over all ranks; memory is the maximum over ranks.
        """
        device, tokens, now = self.accelerator.device, self._tokens, time.perf_counter()
        rest = [self._samples, now - self._since - self._paused, peak_gib(device)]
        mine = torch.tensor(rest, dtype=torch.float64)
        values = [tokens[None], mine[None]]
        if self.accelerator.num_processes > 1:  # with DeepSpeed, a single rank would gather too
            values = [self.accelerator.gather(own.to(device)) for own in values]
        began = now - self._began
        self._since, self._paused, self._tokens, self._samples = now, 0.0, torch.tensor(0), 0

        def entries(tokens: list[float], rest: list[float]) -> dict[str, float]:
            seconds = max(rest[1::3])
            return {
                "speed/tokens_per_second": sum(tokens) / seconds,
                "speed/samples_per_second": sum(rest[::3]) / seconds,
                "speed/seconds": began,
                "memory/peak_gib": max(rest[2::3]),
            }

        return Unread(values, entries)


def peak_gib(device: torch.device) -> float:
    """Return the peak memory of this process in GiB.

    On a GPU this is the memory allocated by torch, on a CPU the resident set size (NaN on Windows).
    """
    if device.type != "cpu":
        # torch.accelerator has this function only since torch 2.9.
        return float(torch.get_device_module(device).max_memory_allocated(device) / _GIB)
    status = Path("/proc/self/status")
    if status.is_file():  # after a fork, getrusage returns the peak of the parent process
        lines = status.read_text("utf-8").splitlines()
        for line in (line for line in lines if line.startswith("VmHWM")):  # not in gVisor
            return int(line.split()[1]) * 1024 / _GIB
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB
