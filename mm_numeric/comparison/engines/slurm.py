"""Execute the runs of a comparison as jobs of Slurm, submitted by submitit."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mm_numeric.comparison.plan import Run, waits_for
from mm_numeric.comparison.run import execute_one, required_resources, run_failed
from mm_numeric.config.compare import Resources
from mm_numeric.config.schema import Config
from mm_numeric.io.log import progress
from mm_numeric.registry import import_extra

_POLL_S = 1.0

_TIME_LIMITS = {"timeout_min", "slurm_timeout_min", "slurm_time"}

_OF_EXECUTOR = ("slurm_max_num_timeout", "slurm_python")
"""Settings that submitit takes when it makes the executor; the others are those of its jobs."""


def execute(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the open runs of a comparison, each as a job that is submitted when it can start.

    A preempted job is submitted again, and resumes from its last checkpoint. The logs of the jobs
    are in the subfolder ``slurm``. If a run fails, those that wait for it are not submitted.
    If this process fails or is interrupted, its jobs are cancelled.
    """
    asked = required_resources(config, "slurm")
    submitit = import_extra("submitit", "--engine slurm", "slurm")
    executor = _executor(config, folder, submitit, asked)
    waits, jobs, finished = waits_for(left), dict[str, Any](), set[str]()
    failures: dict[str, Exception] = {}
    bar = progress(desc="comparing", unit="run", total=len(left))
    try:
        while True:
            for run in left:
                if run.name not in jobs and finished.issuperset(waits[run.name]):
                    executor.update_parameters(name=run.name.replace("/", "_"))
                    job = ComparedRunJob(os.getcwd(), folder, run.name, asked.cpus)
                    jobs[run.name] = executor.submit(job)
            running = jobs.keys() - finished - failures.keys()
            if not running:
                break
            for name in sorted(running):
                if jobs[name].done():
                    failure = jobs[name].exception()
                    if failure is None:
                        finished.add(name)
                    else:
                        failures[name] = _short(failure)
                    bar.update()
            time.sleep(_POLL_S)
    except submitit.core.utils.FailedJobError as error:  # a job cannot be submitted
        raise ValueError(f"{config.title}, compare.slurm: {error}") from error
    finally:
        bar.close()
        for name in jobs.keys() - finished - failures.keys():
            jobs[name].cancel(check=False)
    if failures:
        raise run_failed(*next(iter(failures.items())))


def _executor(config: Config, folder: Path, submitit: Any, asked: Resources) -> Any:
    settings = {"cluster": "slurm", **config.comparison.slurm}
    if settings["cluster"] == "slurm" and settings.keys().isdisjoint(_TIME_LIMITS):
        raise ValueError(
            f"{config.title}, compare.slurm: no time limit of a run, and submitit's is 5 minutes; "
            "set it, such as {timeout_min: 600}."
        )
    memory = {} if asked.memory_gib is None else {"mem_gb": asked.memory_gib}
    own = {name: settings.pop(name) for name in _OF_EXECUTOR if name in settings}
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster=settings.pop("cluster"), **own)
        executor.update_parameters(
            cpus_per_task=asked.cpus, gpus_per_node=asked.gpus, **memory, **settings
        )
    except (AssertionError, RuntimeError, TypeError, NameError, ValueError) as error:
        raise ValueError(f"{config.title}, compare.slurm: {error}") from error
    return executor


def _short(failure: Exception) -> Exception:
    """Return an error with the message at the end of the traceback that submitit reports."""
    found = re.findall(r"^[\w.]*Error: (.*)$", str(failure), flags=re.MULTILINE)
    return ValueError(found[-1]) if found else failure


class ComparedRunJob:
    """A run of a comparison as a function that submitit can call, and submit again."""

    def __init__(self, cwd: str, folder: Path, name: str, cpus: int) -> None:
        self.cwd, self.folder, self.name, self.cpus = cwd, folder, name, cpus

    def __call__(self) -> None:
        """Execute the run in the job."""
        os.chdir(self.cwd)
        execute_one(self.folder, self.name, self.cpus)

    def checkpoint(self) -> Any:
        """Return what submitit submits when the job is preempted: the run, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
