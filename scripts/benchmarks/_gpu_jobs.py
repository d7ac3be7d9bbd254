"""Run measurements in processes of their own, so that a crash or a time limit loses no results.

A job is a group of measurements with a name each. Every measurement ends with a record, a JSON
object whose ``status`` is one of

ok               the other entries are the result
out of memory    the device has too little memory for it
not available    it cannot run here, for the ``reason`` in the record (a package is not installed)
failed           an error, a crash or a time limit; ``reason`` is one line, the log has the rest
"""

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

import torch
from PIL import Image

OK, NO_MEMORY, UNAVAILABLE, FAILED = "ok", "out of memory", "not available", "failed"
LONGEST_REASON = 300
PRELOADED = ["_gpu_answers", "_gpu_batches", "_gpu_losses", "_gpu_training", "_gpu_works",
             "mm_numeric.training.run",
             "mm_numeric.inference.generate", "deepspeed", "trl.trainer.sft_trainer",
             "deepspeed.runtime.zero.muon.muon_optimizer"]  # torch._inductor  # fmt: skip
SECONDS_TO_END = 60  # time limit to free the device after the last report of a process

Record = dict[str, object]


class NotAvailableError(Exception):
    """A measurement that cannot run here, such as one that needs more memory than there is."""


def without_package(module: str, package: str, device: str, *, kernels: bool = False) -> str:
    """Return why a package cannot be used here; empty if it can.

    ``kernels`` is True for a package whose kernels need a GPU.
    """
    if kernels and device == "cpu":
        return f"the kernels of {package} need a GPU"
    return "" if find_spec(module) else f"{package} is not installed"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Measurements that belong into one table."""

    title: str
    names: tuple[str, ...]
    function: Callable[..., Record]
    """Called as ``function(name, **options)``; returns the entries of the record."""

    options: Mapping[str, object] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Reasons by name, of measurements that cannot run here; no process is started for them."""

    seconds: float
    """Time limit of each measurement."""

    shared_process: bool = False
    """True: all measurements run in one process, which saves the time to start the others."""

    in_order: bool = False
    """True: each measurement needs the files of those before it, so that all are run again."""


def context() -> BaseContext:
    """Return the context of processes that are forked from this one, with everything imported.

    CUDA works in them as long as this process does not use it, not even to look for a device:
    ``PYTORCH_NVML_BASED_CUDA_CHECK`` lets torch look for one without CUDA.
    """
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    Image.init()  # imports the readers of all image formats
    return multiprocessing.get_context("fork")


def run(
    job: Job,
    names: Sequence[str],
    seconds_left: Callable[[], float],
    processes: BaseContext,
    log: Path,
) -> Iterator[tuple[str, Record]]:
    """Run the measurements of a job, and yield the name and the record of each.

    Ends early, without a record for the others, once ``seconds_left()`` is not positive. If a
    process crashes, a new one runs the measurements after the one that crashed.
    """
    for name in names:
        if name in job.unavailable:
            yield name, {"status": UNAVAILABLE, "reason": job.unavailable[name]}
    left = [name for name in names if name not in job.unavailable]
    while left and seconds_left() > 0:
        group = left[:] if job.shared_process else left[:1]
        for name, record in _run_process(job, group, seconds_left, processes, log):
            left.remove(name)
            yield name, record


def _run_process(
    job: Job,
    names: Sequence[str],
    seconds_left: Callable[[], float],
    processes: BaseContext,
    log: Path,
) -> Iterator[tuple[str, Record]]:
    """Run measurements in one process; end after the first that crashes or takes too long."""
    receiver, sender = processes.Pipe(duplex=False)
    arguments = (sender, job.function, list(names), dict(job.options), str(log))
    process = processes.Process(target=_work, args=arguments)  # type: ignore[attr-defined]
    process.start()
    sender.close()
    patience = 0
    try:
        for name in names:
            limit = min(job.seconds, seconds_left())
            if limit <= 0:
                return
            if not receiver.poll(limit):
                if limit < job.seconds:
                    return  # not its fault: the time of the section is over
                yield name, {"status": FAILED, "reason": f"not finished in {limit:.0f} s"}
                return
            try:
                reported, record = receiver.recv()
            except EOFError:
                process.join()
                yield name, {"status": FAILED, "reason": _ending(process.exitcode)}
                return
            assert reported == name
            yield name, record
        patience = SECONDS_TO_END
    finally:
        _end(process, patience)


def _end(process: multiprocessing.Process, patience: float) -> None:
    """Wait for a process, then kill it and the processes that it has started."""
    process.join(patience)
    if process.is_alive() and process.pid:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def _ending(code: int | None) -> str:
    """Return how a process ended that should have reported a record."""
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def _work(
    sender: Connection,
    function: Callable[..., Record],
    names: Sequence[str],
    options: Mapping[str, object],
    log: str,
) -> None:
    """Run measurements and send their records; everything that is printed goes to the log."""
    os.setpgrp()  # to be killed with all processes that it starts
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = os.fdopen(file, "a", buffering=1)
    gc.freeze()  # accelerate runs the garbage collector in every training
    for name in names:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        record = attempt(function, name, options)
        seconds = round(time.monotonic() - start, 1)
        sender.send((name, {**record, "seconds": seconds}))
        gc.collect()
        if torch.cuda.is_initialized():
            with suppress(RuntimeError):  # after an illegal access: the next measurement reports it
                torch.cuda.empty_cache()
    os._exit(0)  # without Python's own end, which takes seconds after imports like these


def attempt(function: Callable[..., Record], name: str, options: Mapping[str, object]) -> Record:
    """Return the record of a measurement, whatever becomes of it."""
    try:
        return {"status": OK, **function(name, **options)}
    except NotAvailableError as error:
        return {"status": UNAVAILABLE, "reason": one_line(error)}
    except torch.OutOfMemoryError:
        traceback.print_exc()
        return {"status": NO_MEMORY, "reason": "the device has too little memory"}
    except (Exception, SystemExit) as error:  # whatever a rival raises is a result of the benchmark
        traceback.print_exc()
        return {"status": FAILED, "reason": one_line(error)}


def one_line(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    known = isinstance(error, NotAvailableError)
    text = text if known else f"{kind}: {text}" if text else kind
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
