"""The benchmark of generation, at a tiny size."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import python

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmarks" / "bench_generate.py"


@pytest.mark.slow
def test_every_contender_is_measured_or_not_installed():
    options = ["--batch", "2", "--rounds", "1", "--vocabulary", "700"]
    done = python(SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    for name in ("plain greedy", "constrained", "argmax alone"):
        assert re.search(rf"^{name} +[0-9.]+ +[0-9.]+ +-?[0-9.]+", done.stdout, re.MULTILINE)
    for name in ("xgrammar", "llguidance"):
        found = re.findall(rf"^{name} +(.+)$", done.stdout, re.MULTILINE)
        assert len(found) == 2
        assert ("not installed" in found[0]) == (find_spec(name) is None)
