"""Small training runs in processes of their own."""

import itertools
from pathlib import Path

from processes import Job

from mm_numeric.cli import main as cli

_NUMBERS = itertools.count()


def start(config_file: Path, *arguments: str, ranks: int = 1, scan: bool = True) -> Job:
    """Start ``mm-numeric train`` in a process, or on several ranks."""
    output = config_file.with_name(f"output-{next(_NUMBERS)}.txt")
    if not scan:
        return Job(train_without_scan, [str(config_file), *arguments], output, ranks=ranks)
    return Job(cli.main, ["train", str(config_file), *arguments], output, ranks=ranks)


def run_to_error(job: Job) -> str:
    """Wait for a job that must end with exit code 2 on every rank; return its error message."""
    codes = job.wait()
    assert codes == len(codes) * [2], job.text()
    output = job.text()
    found = [line for line in output.splitlines() if line.startswith("mm-numeric: ")]
    assert len(found) == 1, output
    assert "Traceback" not in output, output
    return found[0]


def train_without_scan(arguments: list[str]) -> int:
    """Run ``mm-numeric train`` without the check of a checkpoint's files before they are loaded."""
    from mm_numeric.training import run

    run.require_tensor_files = lambda checkpoint, **options: None
    return cli.main(["train", *arguments])
