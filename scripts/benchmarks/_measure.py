"""Measure time, peak memory and GPU waits of one step; shared by the benchmarks.

This module is independent of losses. A contender is a function from tensors to a loss; a block is a
group of contenders that are compared with the first of them.
"""

import ctypes
import gc
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Measurement = TypeVar("Measurement")


@dataclass(frozen=True, eq=False, kw_only=True)
class Contender:
    """One implementation of a loss.

    Attributes:
        name: Name in the table.
        step: Function from ``inputs`` to the loss.
        inputs: Tensors; those that require a gradient get one.
        rival: Name of another contender of the block for a second comparison; it should be the next
            one, so that both are timed close together.
        head_gradient_bytes: Size of the head's gradient, an output that is part of the peak; 0
            without a gradient.
        compiled: Whether it runs under ``torch.compile``, and so needs a warm-up.
    """

    name: str
    step: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    rival: str = ""
    head_gradient_bytes: int = 0
    compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class Block:
    """Contenders that are compared with the first of them."""

    title: str
    contenders: Sequence[Contender]
    repeats: int
    """Number of timed rounds; 0 measures only memory."""


@dataclass(kw_only=True)
class Result:
    """Measurements of one contender; ratios are computed within a round."""

    name: str
    block: str
    compiled: bool
    rival: str
    peak_bytes: int
    """Peak of the process's (or the GPU's) memory during the step, beyond that before it."""

    head_gradient_bytes: int
    waits: int | None
    """Number of times the host waits for the device; None on a CPU."""

    milliseconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    rival_ratios: list[float] = field(default_factory=list)
    peak_ratio: float = 1.0
    """Peak divided by that of the first contender of the block."""

    @property
    def ratio(self) -> float | None:
        """Median ratio to the first contender of the block; None if nothing was timed."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def rival_ratio(self) -> float | None:
        """Median ratio to the rival; None without a rival."""
        return statistics.median(self.rival_ratios) if self.rival_ratios else None

    @property
    def median_milliseconds(self) -> float | None:
        """Median time in milliseconds; None if nothing was timed."""
        return statistics.median(self.milliseconds) if self.milliseconds else None

    def summary(self) -> dict[str, object]:
        """Return all measurements as JSON values."""
        medians = {
            "median_milliseconds": self.median_milliseconds,
            "ratio": self.ratio,
            "rival_ratio": self.rival_ratio,
        }
        return {**vars(self), **medians}


def measure(
    blocks: Sequence[Block], device: torch.device, *, backward: bool, report: Callable[[str], None]
) -> list[Result]:
    """Measure memory and waits of each contender once, then time all contenders in rounds.

    Args:
        blocks: The comparisons.
        device: Device of the inputs.
        backward: Whether to include the backward pass.
        report: Called with a line about the progress.
    """
    results: list[list[Result]] = []
    for block in blocks:
        found = []
        for contender in block.contenders:
            report(f"memory of {contender.name}")
            found.append(_measure_memory(contender, block, device, backward))
            found[-1].peak_ratio = found[-1].peak_bytes / max(1, found[0].peak_bytes)
        results.append(found)
    for turn in range(max(block.repeats for block in blocks)):
        for block, found in zip(blocks, results, strict=True):
            if turn < block.repeats:
                report(f"round {turn + 1} of {block.repeats}: {block.title}")
                _round(block, found, device, backward)
    report("")
    return [result for found in results for result in found]


def _measure_memory(
    contender: Contender, block: Block, device: torch.device, backward: bool
) -> Result:
    """Measure peak memory and waits, which are the same in every step; also warms up."""
    on_gpu = device.type == "cuda"
    if contender.compiled or on_gpu:
        _once(lambda step: step(), contender, backward)
    return Result(
        name=contender.name,
        block=block.title,
        compiled=contender.compiled,
        rival=contender.rival,
        peak_bytes=_once(peak_cuda if on_gpu else peak_cpu, contender, backward),
        head_gradient_bytes=contender.head_gradient_bytes if backward else 0,
        waits=_once(waits_cuda, contender, backward) if on_gpu else None,
    )


def _round(block: Block, results: Sequence[Result], device: torch.device, backward: bool) -> None:
    """Time each contender once, and the first of the block again after every two others.

    The speed of a machine drifts by up to 50 % within a minute, so each ratio is relative to the
    mean of the runs of the first contender immediately before and after. An untimed step of the
    same contender precedes every timed step, as in training: memory that another contender has
    freed is up to three times as slow at its first use.
    """
    measure_time = milliseconds_cuda if device.type == "cuda" else milliseconds_cpu

    def clock(contender: Contender) -> float:
        _once(milliseconds_cpu, contender, backward)
        return _once(measure_time, contender, backward)

    first, others = block.contenders[0], list(zip(block.contenders, results, strict=True))[1:]
    times = {}
    of_first = [clock(first)]
    for pair in (others[at : at + 2] for at in range(0, len(others), 2)):
        for contender, result in pair:
            times[contender.name] = clock(contender)
            result.milliseconds.append(times[contender.name])
        of_first.append(clock(first))
        for contender, result in pair:
            result.ratios.append(times[contender.name] / statistics.mean(of_first[-2:]))
    results[0].milliseconds += of_first
    results[0].ratios.append(1.0)
    for contender, result in others:
        if contender.rival in times:
            result.rival_ratios.append(times[contender.name] / times[contender.rival])


def _once(
    measure_step: Callable[[Callable[[], None]], Measurement], contender: Contender, backward: bool
) -> Measurement:
    """Measure one step that starts without gradients, and free its gradients."""

    def step() -> None:
        loss = contender.step(*contender.inputs)
        if backward:
            loss.backward()

    try:
        return measure_step(step)
    finally:
        for tensor in contender.inputs:
            tensor.grad = None


def milliseconds_cpu(step: Callable[[], None]) -> float:
    """Return the time of a step in milliseconds."""
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def milliseconds_cuda(step: Callable[[], None]) -> float:
    """Return the time of a step in milliseconds, measured by GPU events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def peak_cpu(step: Callable[[], None]) -> int:
    """Return the peak of this process's resident memory during a step, beyond that at its start.

    The operating system counts every page that is used, whoever allocated it: torch's profiler
    does not see memory of numpy or BLAS.
    """
    peak = start_process_peak()
    step()
    return peak()


def start_process_peak() -> Callable[[], int]:
    """Return a function that returns the process's peak memory, in bytes, since this call."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        raise SystemExit("the peak of the process's memory is read from /proc: measure on Linux.")
    # Memory that was freed, but not returned to the operating system, would be used again unseen.
    gc.collect()
    gc.freeze()  # what is left is not looked at again: the next collection takes no time
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)
    reset.write_text("5", encoding="utf-8")  # the peak (VmHWM) is now the current size
    before = resident_bytes("VmHWM")
    return lambda: resident_bytes("VmHWM") - before


def resident_bytes(field: str) -> int:
    """Return a size in ``/proc/self/status`` in bytes, such as ``VmRSS``."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def peak_cuda(step: Callable[[], None]) -> int:
    """Return the peak of a step on the GPU, from the statistics of torch's allocator."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def waits_cuda(step: Callable[[], None]) -> int:
    """Return the number of GPU synchronisations in a step, by torch's sync debug mode."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def compiled(block: Block) -> Block:
    """Return a block with every step under ``torch.compile``.

    Closures of the same line share a recompilation counter, so the limit is raised.
    """
    torch._dynamo.config.recompile_limit = 256
    torch._logging.set_logs(dynamo=logging.ERROR)  # ntloss breaks the graph and logs it at length
    contenders = [
        Contender(**{**vars(each), "step": torch.compile(each.step), "compiled": True})
        for each in block.contenders
    ]
    return Block(title=block.title, contenders=contenders, repeats=block.repeats)


def compile_fails() -> str:
    """Return why torch.compile fails on this machine; an empty text if it works."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2))
    except Exception as error:  # a missing compiler, header or backend
        return str(error).strip().splitlines()[0]
    return ""


def machine(device: torch.device) -> dict[str, object]:
    """Return the hardware and software on which the results depend."""
    return {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        # Load of the last minute: other processes make times unreliable.
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first column is left-aligned, all others right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip()
