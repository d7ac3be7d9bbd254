"""Run functions as tasks of a Ray cluster, on several machines with shared folders.

Ray is an optional package, so it is imported inside the functions.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from mm_numeric.config.compare import Resources
from mm_numeric.io.log import escape_libraries, logger
from mm_numeric.registry import PLUGINS, import_extra

_ONE_CORE = Resources()

RETRIES = 10
"""Maximum number of restarts of a task whose node is lost or whose process is killed."""


def connect() -> Any:
    """Connect to the cluster in RAY_ADDRESS, or start one on this machine; return ``ray``.

    Raises ValueError if Ray cannot reach the cluster within about two minutes.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address:  # Ray reads this variable at its import; the default, 20 retries, takes 14 minutes
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    ray = import_extra("ray", "--engine ray", "ray")
    if not ray.is_initialized():
        if address:
            logger.info("connecting to the Ray cluster of RAY_ADDRESS, %s", address)
        own = {name: os.environ[name] for name in ("PYTHONPATH", PLUGINS) if name in os.environ}
        try:
            ray.init(runtime_env={"env_vars": own}, configure_logging=False)
        except (ConnectionError, ValueError) as error:
            raise ValueError(
                f"RAY_ADDRESS ({address or 'not set'}): no cluster ({error}); set it to the "
                "address of a running one, such as host:6379, or unset it to use this machine."
            ) from error
    return ray


def remote(asked: Resources) -> Any:
    """Return the function ``call(cwd, function, *arguments)`` as a task of Ray.

    The task reserves the resources ``asked``, and starts again on another node if its node is lost.
    Raises ValueError if no node has these resources.
    """
    parallel_tasks(asked)
    memory = {} if asked.memory_gib is None else {"memory": int(asked.memory_gib * 2**30)}
    options = {"num_cpus": asked.cpus, "num_gpus": asked.gpus, "max_retries": RETRIES, **memory}
    return connect().remote(**options)(_call)


def parallel_tasks(asked: Resources) -> int:
    """Return how many tasks the cluster can run at the same time; raise ValueError if it is 0."""
    memory = int((asked.memory_gib or 0) * 2**30)
    needed = {"CPU": asked.cpus, "GPU": asked.gpus, "memory": memory}
    count = 0
    for node in connect().nodes():
        if node["Alive"]:
            found = node["Resources"]
            count += min(int(found.get(name, 0) // n) for name, n in needed.items() if n)
    if count < 1:
        raise ValueError(f"--engine ray: no machine of the cluster has {asked} for a task.")
    return count


def _call(cwd: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in the working directory ``cwd``, because configs have relative paths."""
    os.chdir(cwd)
    escape_libraries()  # Ray copies the output of tasks to the terminal of the command
    return function(*arguments)


def map_tasks(
    function: Callable[..., Any], items: Sequence[Any], common: Any, asked: Resources = _ONE_CORE
) -> list[Any]:
    """Call ``function(item, common)`` in a task for each item, and return the results in order.

    Raises the ValueError that a task raises, and cancels the other tasks.
    """
    ray = connect()
    task, shared = remote(asked), ray.put(common)
    refs = [task.remote(os.getcwd(), function, item, shared) for item in items]
    try:
        return list(ray.get(refs))
    except BaseException as error:
        for ref in refs:
            ray.cancel(ref)  # no effect on a task that has finished
        cause = getattr(error, "cause", None)  # attribute of ray.exceptions.RayTaskError
        if isinstance(cause, ValueError):
            raise cause from error
        raise
