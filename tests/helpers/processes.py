"""Real processes that start at once: forked from a process that has imported all they need.

A Python process that imports torch and transformers anew takes five seconds to start. These are
for tests of signals, exit codes, messages, scripts and ranks. They do not pass through the start of
Python, and only ``Fork`` through its end.
"""

import atexit
import ctypes
import inspect
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from ports import free_port

TIMEOUT = 180.0
NEW_PYTHONS = "MM_NUMERIC_NEW_PYTHONS"


def context() -> ForkServerContext:
    """Return the context of processes that are forked from one that has imported `preloaded`."""
    found = multiprocessing.get_context("forkserver")
    if "MM_NUMERIC_TEST_LOSSES" not in os.environ:  # transformers is too old for families
        found.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:  # until Python 3.13 it does not get sys.path
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return found


class Job:
    """A function in one process or on several ranks; their output is in one file."""

    def __init__(
        self,
        function: Callable[[list[str]], int | None],
        arguments: Sequence[str],
        output: Path,
        *,
        ranks: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``function(arguments)``; with several ranks in an environment as torchrun sets."""
        self.output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(b"")
        variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(environment or {})}
        variables["LOCAL_SIZE"] = str(ranks)  # else DeepSpeed runs numactl for each gradient
        port = str(free_port())
        self.processes = []
        for rank in range(ranks):
            if ranks > 1:
                variables |= {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                }
            words = (function, list(arguments), dict(variables), str(output))
            self.processes.append(context().Process(target=_work, args=words))
            self.processes[-1].start()

    @property
    def running(self) -> bool:
        """Whether any process is alive."""
        return any(process.is_alive() for process in self.processes)

    def wait(self, timeout: float = TIMEOUT) -> list[int]:
        """Return the exit code of each rank; kill all and fail after a timeout."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        if self.running:
            self.kill()
            raise AssertionError(f"still running after {timeout} s:\n{self.text()}")
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        """Kill every process, and the processes that it has started."""
        for process in self.processes:
            if process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)
            process.join()

    def text(self) -> str:
        """Return what the processes have written to stdout and stderr so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")


def python(
    *arguments: object,
    cwd: Path | None = None,
    timeout: float = TIMEOUT,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Do what ``python ARGUMENTS`` does (a script, -m or -c), and return how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        words = [str(errors), str(cwd or Path.cwd()), *map(str, arguments)]
        (code,) = Job(_python, words, output, environment=environment).wait(timeout)
        return subprocess.CompletedProcess(words[2:], code, output.read_text(), errors.read_text())


def _python(words: list[str]) -> None:
    """Run a script, a module or code, with its messages in a file, in a working directory."""
    errors, cwd, kind, *arguments = words
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.chdir(cwd)
    _run([kind, *arguments])


def _run(words: Sequence[str]) -> None:
    """Do what ``python WORDS`` does, in this process."""
    kind, *arguments = words
    sys.argv = arguments if kind in ("-m", "-c") else [kind, *arguments]
    sys.path.insert(0, os.getcwd() if kind in ("-m", "-c") else str(Path(kind).parent))
    if kind == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(arguments[0], {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


class Fork(subprocess.Popen):
    """A process as subprocess.Popen starts for a command of Python, forked from this one.

    It ends as a new Python does, which a process of multiprocessing does not. With --new-pythons,
    which .ci/run gives, it is a new one.
    """

    def _execute_child(self, args, *others):
        if NEW_PYTHONS in os.environ:
            super()._execute_child(args, *others)
            return
        signature = inspect.signature(subprocess.Popen._execute_child)
        of = signature.bind(self, args, *others).arguments
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            return
        if of["start_new_session"]:
            os.setsid()
        os.environ.update(of["env"])
        if of["errwrite"] != -1:
            os.dup2(of["errwrite"], 2)
        # Nothing of what this process would do at its end.
        atexit._clear()
        weakref.finalize._registry.clear()
        weakref.finalize._registered_with_atexit = False
        try:
            _run(args[1 + (args[1] == "-u") :])
        except SystemExit as end:
            ctypes.pythonapi.Py_Exit(end.code or 0)
        except BaseException:
            traceback.print_exc()
        ctypes.pythonapi.Py_Exit(1)  # the command would have ended by SystemExit


def _work(function, arguments: list[str], variables: dict[str, str], output: str) -> None:
    """Run a function in a process of its own group, and exit with what it returns."""
    os.setsid()
    os.environ.update(variables)
    # As in a process that is started anew; otherwise data loaders would use the forkserver too.
    multiprocessing.set_start_method("fork", force=True)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    status = function(arguments)
    sys.stdout.flush()
    sys.exit(status or 0)
