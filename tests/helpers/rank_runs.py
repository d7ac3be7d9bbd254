"""Runs on several ranks, and the files that they write."""

import json
import shutil
from pathlib import Path

import tiny_ranks
import torch
from processes import Job
from safetensors.torch import load_file


def run(ranks: int, files: list[str]) -> None:
    """Train configs in turn, in processes that are started once."""
    job = Job(tiny_ranks.main, files, Path(files[0]).with_suffix(".txt"), ranks=ranks)
    assert job.wait(600) == ranks * [0], job.text()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the finished run in a folder."""
    return load_file(folder / "run" / "model" / "model.safetensors")


def log(folder: Path) -> list[dict]:
    """Return the lines of the log of the run in a folder."""
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]


def cut(folder: Path, step: int) -> None:
    """Leave of the run in a folder what a kill after the checkpoint of a step would leave."""
    cut_run(folder / "run", step)


def cut_run(run_folder: Path, step: int) -> None:
    """Leave of a run what a kill after the checkpoint of a step would leave."""
    shutil.rmtree(run_folder / "model")
    (run_folder / "run.json").unlink()
    for path in run_folder.glob("checkpoint-*"):
        if path.name != f"checkpoint-{step}":
            shutil.rmtree(path)
