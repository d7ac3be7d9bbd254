"""Tokens per second, samples per second and peak memory, measured for the log."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_GIB = 1 << 30


class Throughput:
    """Measures the tokens and samples per second of a training run, and its peak memory.

    Counts stay on the device until they are logged. The setting ``include_num_input_tokens_seen``
    of transformers is not used: it synchronises all ranks after each micro-batch, and does not
    count the decoder tokens of an encoder-decoder.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self._counts: Tensor | None = None
        self.begin()

    def begin(self) -> None:
        """Reset the counts and the clock; called when training starts."""
        self._began = self._since = time.perf_counter()
        self._paused, self._counts = 0.0, None

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count the tokens and samples of a batch of ``TrainingCollator``.

        Tokens of prompts, images and answers are counted, padding is not. For an encoder-decoder,
        the tokens of the encoder and the supervised tokens of the decoder are counted.
        """
        ids, mask = batch["input_ids"], batch.get("attention_mask")  # None if padding-free
        tokens = torch.tensor(ids.numel(), device=ids.device) if mask is None else mask.sum()
        if "decoder_input_ids" in batch:
            tokens = tokens + len(batch["labels"])
        self.count(tokens, batch["spans"].samples)

    def count(self, tokens: Tensor, samples: Tensor) -> None:
        """Count tokens and samples; both are scalars."""
        counts = torch.stack([tokens, samples]).double()
        self._counts = counts if self._counts is None else self._counts + counts

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context, for example for evaluation, from the throughput."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - before

    def read(self) -> dict[str, float]:
        """Return the throughput and the memory to log, and reset the counts. Call it on all ranks.

        Tokens and samples per second are totals over all ranks. Memory is the maximum of any rank.
        """
        device = self.accelerator.device
        counts = torch.zeros(2) if self._counts is None else self._counts
        now = time.perf_counter()
        mine = [now - self._since - self._paused, peak_gib(device)]
        here = torch.cat([counts.to(device), torch.tensor(mine, device=device)]).double()
        every = self.accelerator.gather(here[None]).cpu()
        tokens, samples, _, _ = every.sum(dim=0).tolist()
        _, _, seconds, peak = every.amax(dim=0).tolist()
        self._since, self._paused, self._counts = now, 0.0, None
        return {
            "speed/tokens_per_second": tokens / seconds,
            "speed/samples_per_second": samples / seconds,
            "speed/seconds": now - self._began,
            "memory/peak_gib": peak,
        }


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
