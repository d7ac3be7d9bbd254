"""How fast a run is from one line of its log to the next, and what memory it takes."""

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_GIB = 1 << 30


class Progress:
    """Counts what is trained on.

    transformers' own ``include_num_input_tokens_seen`` gathers a count over all ranks behind every
    micro-batch, for which a GPU has to wait, and leaves out what an encoder-decoder writes. Here
    counts stay on the device until a line is logged.
    """

    def __init__(self, accelerator: Any) -> None:
        """Begin with nothing."""
        self.accelerator = accelerator
        self._began = self._since = time.perf_counter()
        self._apart = 0.0
        self._counts: Tensor | None = None

    def begin(self) -> None:
        """Start the clock of a training."""
        self._began = self._since = time.perf_counter()
        self._apart, self._counts = 0.0, None

    def note(self, batch: Mapping[str, Any]) -> None:
        """Count the tokens and the samples of a batch of ``TrainingCollator``.

        Tokens are those of prompts and answers, the places of an image in them included; padding
        is not. An encoder-decoder reads the ones and writes the others.
        """
        tokens = batch["attention_mask"].sum()
        if "decoder_input_ids" in batch:
            tokens = tokens + len(batch["labels"])
        counts = torch.stack([tokens, batch["spans"].samples]).double()
        self._counts = counts if self._counts is None else self._counts + counts

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave what is done inside out of the speed: to evaluate, to save."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._apart += time.perf_counter() - before

    def read(self) -> dict[str, float]:
        """Return what is logged, and begin anew; all ranks have to ask.

        The numbers of a second are those of all ranks, the memory that of the rank that takes most.
        """
        device = self.accelerator.device
        counts = torch.zeros(2) if self._counts is None else self._counts
        now = time.perf_counter()
        mine = [now - self._since - self._apart, peak_gib(device)]
        here = torch.cat([counts.to(device), torch.tensor(mine, device=device)]).double()
        every = self.accelerator.gather(here[None]).cpu()
        tokens, samples, _, _ = every.sum(dim=0).tolist()
        _, _, seconds, peak = every.amax(dim=0).tolist()
        self._since, self._apart, self._counts = now, 0.0, None
        return {
            "speed/tokens_per_second": tokens / seconds,
            "speed/samples_per_second": samples / seconds,
            "speed/seconds": now - self._began,
            "memory/peak_gib": peak,
        }


def peak_gib(device: torch.device) -> float:
    """Return the most memory that was ever taken by this process.

    It is what torch has held on a GPU, and on a CPU all that the process has (its peak RSS).
    """
    if device.type != "cpu":
        return float(torch.accelerator.max_memory_allocated(device) / _GIB)
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would give the peak of the process that started this one
        line = next(x for x in status.read_text("utf-8").splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / _GIB
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB
