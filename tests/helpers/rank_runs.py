"""Runs on several ranks, and what they leave behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tiny_ranks
import torch
from safetensors.torch import load_file

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(ranks: int, files: list[str]) -> None:
    """Train configs in turn, in processes that are started once."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(launcher if ranks > 1 else []), tiny_ranks.__file__, *files]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "run" / "model" / "model.safetensors")


def log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").open()]


def cut(folder: Path, step: int) -> None:
    """Leave of a run what a kill behind a checkpoint would have left."""
    shutil.rmtree(folder / "run" / "model")
    (folder / "run" / "run.json").unlink()
    for path in (folder / "run").glob("checkpoint-*"):
        if path.name != f"checkpoint-{step}":
            shutil.rmtree(path)
