"""Execute the runs of a comparison on this machine."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mm_numeric.comparison.plan import Run
from mm_numeric.comparison.run import RunFailedError, execute_here
from mm_numeric.config.schema import Config
from mm_numeric.log import progress
from mm_numeric.run_folder import CONFIG


def execute(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the open runs of a comparison: here, or in ``compare.jobs`` processes at a time."""
    assert config.compare is not None
    if config.compare.jobs > 1:
        _in_processes(config, folder, left)
    else:
        execute_here(left)


def _in_processes(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the runs in one process per seed, with ``compare.jobs`` processes at a time."""
    assert config.compare is not None
    folders = {run.config.output_dir.parent for run in left}
    seeds = [seed for seed in config.compare.seeds if folder / f"seed{seed}" in folders]
    threads = max(1, (os.cpu_count() or 1) // config.compare.jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), PARENT: str(os.getpid())}
    waiting, running = list(seeds), dict[int, subprocess.Popen[bytes]]()
    bar = progress(desc="comparing", unit="run", total=len(left))
    try:
        while waiting or running:
            while waiting and len(running) < config.compare.jobs:
                seed = waiting.pop(0)
                command = [sys.executable, "-m", "mm_numeric", "compare", str(folder / CONFIG)]
                command += ["--seeds", str(seed)]
                log = (folder / f"seed{seed}.log").open("ab")
                running[seed] = subprocess.Popen(command, env=environment, stderr=log)
            time.sleep(0.5)
            bar.update(sum(run.is_finished() for run in left) - bar.n)
            for seed, process in list(running.items()):
                if process.poll() is not None:
                    del running[seed]
                    _check_exit(folder, seed, process.returncode)
    finally:
        bar.close()
        for process in running.values():
            process.terminate()


def _check_exit(folder: Path, seed: int, code: int) -> None:
    """Raise RunFailedError with the last log line if the process of ``seed`` has failed."""
    if not code:
        return
    log = folder / f"seed{seed}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    message = lines[-1].removeprefix("mm-numeric: ") if lines else "no message"
    raise RunFailedError(
        f"seed {seed} failed: {message} (see {log}); finished runs are kept, run compare again to "
        "continue.",
        code,
    )


PARENT = "MM_NUMERIC_COMPARE_PARENT"
"""Environment variable with the id of the main process, set for the process of each seed."""


def exit_with_parent() -> None:
    """Start a thread that exits this process when the main process ends or is killed.

    Does nothing unless ``_in_processes`` started this process to run a seed.
    """
    parent = os.environ.get(PARENT)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
