"""The benchmark of generation, run as a user runs it, at a tiny size."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_generate.py"


@pytest.mark.slow
def test_every_contender_is_measured_or_not_installed():
    options = ["--batch", "2", "--rounds", "1", "--vocabulary", "700"]
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in ("plain greedy", "constrained", "argmax alone"):
        assert re.search(rf"^{name} +[0-9.]+ +[0-9.]+ +-?[0-9.]+", done.stdout, re.MULTILINE)
    for name in ("xgrammar", "llguidance"):
        found = re.findall(rf"^{name} +(.+)$", done.stdout, re.MULTILINE)
        assert len(found) == 2
        assert ("not installed" in found[0]) == (find_spec(name) is None)
