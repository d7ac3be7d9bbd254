"""Small training runs in processes of their own."""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tiny_models import small_config


def command(config_file: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "mm_numeric", "train", str(config_file), *arguments]


def write_config(folder: Path, *overrides: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.yaml"
    file.write_text(small_config(folder, *overrides).to_yaml())
    return file


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
