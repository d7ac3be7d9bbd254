"""The library imports where the Unix modules fcntl and resource are missing, as on Windows."""

import pytest
from import_graph import graph
from processes import python

# transformers, which other rooms load, imports these modules itself where it is not on Windows.
ROOMS = ("losses", "numbers", "tasks", "evaluation.metrics", "config", "importers", "geometry")


@pytest.mark.slow
def test_losses_tasks_scorers_and_the_command_line_import_without_unix_modules():
    modules = [
        name for name in sorted(graph()) if name.startswith(tuple(f"mm_numeric.{r}" for r in ROOMS))
    ]
    modules += ["mm_numeric.cli", "mm_numeric.run_folder", "mm_numeric.training.throughput"]
    assert len(modules) > 60
    code = f"""
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] in ("mm_numeric", "fcntl", "resource"):
        del sys.modules[name]
for name in ("fcntl", "resource"):
    sys.modules[name] = None
import importlib
for name in {modules}:
    importlib.import_module(name)
from mm_numeric.cli import main
assert main(["check", "clock_tiny"]) == 0
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
