"""Runs of tests on the simulated device, in a process that does nothing else."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run_tests(files: list[str]) -> int:
    """Run the tests marked ``device`` of some files; return the exit code of pytest."""
    options = ["--simulated-device", "-m", "device", "-p", "no:cacheprovider", "--tb", "short"]
    return int(pytest.main([*options, *(str(TESTS / file) for file in files)]))
