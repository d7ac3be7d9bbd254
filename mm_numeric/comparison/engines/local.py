"""Execute the runs of a comparison on this machine."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mm_numeric.comparison.plan import Run, all_seeds
from mm_numeric.comparison.run import RunFailedError, execute_here
from mm_numeric.config.schema import Config
from mm_numeric.distributed.ranks import PARALLEL_RUNS
from mm_numeric.io.atomic_files import append_to, has_locks
from mm_numeric.io.log import progress
from mm_numeric.runs.folder import CONFIG, LOG


def execute(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the unfinished runs in this process, or in ``compare.jobs`` processes."""
    if config.comparison.jobs > 1:
        _in_processes(config, folder, left)
    else:
        execute_here(left)


def _in_processes(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the runs in ``compare.jobs`` processes; each takes the next run that can start."""
    if not has_locks(folder):
        raise ValueError(
            f"{config.title}, compare.jobs: the file system of {folder} has no locks, and the jobs "
            "share the runs by locks; set compare.jobs=1, or compare.output_dir to a local folder."
        )
    jobs = min(config.comparison.jobs, len(left))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
    environment[PARALLEL_RUNS] = "1"
    # Without -P, Python looks for modules in the working directory first, where another user's
    # files may be. Only a checkout of this library that is not installed has to be found there.
    safe = ["-P"] if Path.cwd() != Path(__file__).parents[3] else []
    command = [sys.executable, *safe, "-m", "mm_numeric", "compare", str(folder / CONFIG)]
    command += ["--seeds", *map(str, all_seeds(config))]
    running = dict[Path, subprocess.Popen[bytes]]()
    bar = progress(desc="comparing", unit="run", total=len(left))
    try:
        for job in range(jobs):
            log = folder / f"job{job}.log"
            with append_to(log) as file:
                own = {**environment, **one_gpu(job)}
                running[log] = subprocess.Popen(command, env=own, stderr=file)
        while running:
            time.sleep(0.5)
            shares = {run.name: share_done(run) for run in left}
            begun = [f"{name} {share:.0%}" for name, share in shares.items() if 0 < share < 1]
            bar.set_postfix_str(", ".join(begun), refresh=False)
            bar.n = round(sum(shares.values()), 2)
            bar.refresh()
            for log, process in list(running.items()):
                if process.poll() is not None:
                    del running[log]
                    _check_exit(log, process.returncode)
    finally:
        bar.close()
        for process in running.values():
            process.terminate()


def share_done(run: Run) -> float:
    """Return the share of a run that is done, 0 to 1, from the last line of its training log."""
    if run.is_finished():
        return 1.0
    log, settings = run.config.output_dir / LOG, run.config.trainer
    try:
        line = json.loads(log.read_bytes().splitlines()[-1])
        if settings.get("max_steps", -1) > 0:
            share = line["step"] / settings["max_steps"]
        else:
            share = line["epoch"] / settings.get("num_train_epochs", 3)
    except (OSError, ValueError, LookupError):  # nothing logged yet, or a line is being written
        return 0.0
    return min(0.99, float(share))  # the answers are not generated yet


def one_gpu(job: int) -> dict[str, str]:
    """Return the environment variables that limit a process to one of several GPUs.

    Process ``job`` uses GPU ``job % number_of_gpus`` of those that this process sees.
    """
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": names[job % count].strip()}


def _check_exit(log: Path, code: int) -> None:
    if not code:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    message = lines[-1].removeprefix("mm-numeric: ") if lines else "no message"
    raise RunFailedError(
        f"{log.stem} failed: {message} (see {log}); finished runs are kept, run compare again to "
        "continue.",
        code,
    )


PARENT = "MM_NUMERIC_COMPARE_PARENT"
"""Environment variable with the id of the main process, set for the processes it starts."""


def exit_with_parent() -> None:
    """Let a process that ``_in_processes`` started exit when the main process ends or is killed."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
