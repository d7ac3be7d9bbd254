"""Execute the runs of a comparison as tasks of a Ray cluster, whose nodes share the folder."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mm_numeric.comparison.plan import Run, waits_for
from mm_numeric.comparison.run import execute_one, run_failed
from mm_numeric.config.compare import Resources
from mm_numeric.config.schema import Config
from mm_numeric.distributed.ray import connect, remote
from mm_numeric.io.log import progress


def execute(config: Config, folder: Path, left: Sequence[Run]) -> None:
    """Execute each unfinished run as a task, which starts after the tasks that it waits for.

    A run whose node is lost starts again on another node, and resumes from its last checkpoint. A
    run that fails does not stop the others, except those that wait for it.
    """
    asked = required_resources(config)
    ray = connect()
    task, waits, refs = remote(asked), waits_for(left), dict[str, Any]()
    for run in left:
        needed = [refs[name] for name in waits[run.name]]
        words = (os.getcwd(), execute_one, folder, run.name, asked.cpus)
        refs[run.name] = task.options(name=run.name).remote(*words, *needed)
    _wait(ray, refs)


def required_resources(config: Config) -> Resources:
    """Return the resources of each run; raise ValueError if the config does not set them."""
    if config.comparison.resources is None:
        raise ValueError(
            f"{config.title}, compare.resources: --engine ray reserves resources for each run; set "
            "them, such as {gpus: 1, cpus: 4, memory_gib: 16}."
        )
    return config.comparison.resources


def _wait(ray: Any, refs: dict[str, Any]) -> None:
    waiting, failures = {ref: name for name, ref in refs.items()}, list[tuple[str, Exception]]()
    bar = progress(desc="comparing", unit="run", total=len(refs))
    while waiting:
        (ref,), _ = ray.wait(list(waiting), num_returns=1)
        name = waiting.pop(ref)
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            failures.append((name, getattr(error, "cause", None) or error))
        bar.update()
    bar.close()
    if failures:
        raise run_failed(*failures[0])
