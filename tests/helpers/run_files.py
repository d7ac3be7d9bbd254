"""The files of small training runs: configs, weights, logs, and what a kill leaves of them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny_models import small_config


def write_config(folder: Path, *overrides: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.yaml"
    file.write_text(small_config(folder, *overrides).to_yaml())
    return file


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").open()]


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def cut_off(run: Path, step: int) -> Path:
    """Leave of a run what a kill after the checkpoint of a step would leave; return this one."""
    for path in (run / "model", *run.glob("checkpoint-*")):
        if path.name != f"checkpoint-{step}":
            shutil.rmtree(path)
    (run / "run.json").unlink()
    return run / f"checkpoint-{step}"
