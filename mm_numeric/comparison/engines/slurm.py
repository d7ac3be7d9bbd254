"""Execute the runs of a comparison as jobs of Slurm, submitted by submitit."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mm_numeric.comparison.engines.resources import required_resources, run_failed
from mm_numeric.comparison.plan import Run, waits_for
from mm_numeric.comparison.run import execute_one
from mm_numeric.config.schema import Config
from mm_numeric.log import progress
from mm_numeric.registry import import_extra

_POLL_S = 1.0


def execute(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute the open runs of a comparison, each as a job that is submitted when it can start.

    A preempted job is submitted again, and resumes from its last checkpoint. The logs of the jobs
    are in the subfolder ``slurm``. If a run fails, those that wait for it are not submitted.
    """
    asked = required_resources(config, "slurm")
    assert config.compare is not None
    submitit = import_extra("submitit", "--engine slurm", "slurm")
    settings = {"cluster": "slurm", **config.compare.slurm}
    memory = {} if asked.memory_gib is None else {"mem_gb": asked.memory_gib}
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster=settings.pop("cluster"))
        executor.update_parameters(
            cpus_per_task=asked.cpus, gpus_per_node=asked.gpus, **memory, **settings
        )
    except (RuntimeError, TypeError, NameError, ValueError) as error:
        raise ValueError(f"{config.title}, compare.slurm: {error}") from error
    waits, jobs, finished = waits_for(left), dict[str, Any](), set[str]()
    failures: list[tuple[str, Exception]] = []
    bar = progress(desc="comparing", unit="run", total=len(left))
    while True:
        for run in left:
            if run.name not in jobs and finished.issuperset(waits[run.name]):
                executor.update_parameters(name=run.name.replace("/", "_"))
                jobs[run.name] = executor.submit(ComparedRunJob(os.getcwd(), folder, run.name))
        running = [name for name in jobs if name not in finished and name not in dict(failures)]
        if not running:
            break
        for name in running:
            if jobs[name].done():
                failure = jobs[name].exception()
                if failure is None:
                    finished.add(name)
                else:
                    failures.append((name, _short(failure)))
                bar.update()
        time.sleep(_POLL_S)
    bar.close()
    if failures:
        raise run_failed(*failures[0])


def _short(failure: Exception) -> Exception:
    """Return an error with the message at the end of the traceback that submitit reports."""
    found = re.findall(r"^[\w.]*Error: (.*)$", str(failure), flags=re.MULTILINE)
    return ValueError(found[-1]) if found else failure


class ComparedRunJob:
    """A run of a comparison as a function that submitit can call, and submit again."""

    def __init__(self, cwd: str, folder: Path, name: str) -> None:
        self.cwd, self.folder, self.name = cwd, folder, name

    def __call__(self) -> None:
        """Execute the run in the job."""
        os.chdir(self.cwd)
        execute_one(self.folder, self.name)

    def checkpoint(self) -> Any:
        """Return what submitit submits when the job is preempted: the run, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
