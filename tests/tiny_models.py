"""Fixtures' helpers: real, tiny models and clocks, made once for a test session."""

import functools
import tempfile
from pathlib import Path

from mm_numeric.config import Config, DataSource, read_config
from mm_numeric.data import load_examples
from mm_numeric.families.qwen2_vl import Qwen2VL

_KEPT = tempfile.TemporaryDirectory(prefix="mm-numeric-tests-")
ROOT = Path(_KEPT.name)
CACHE = ROOT / "cache"


@functools.cache
def tiny_checkpoint(seed: int = 0) -> str:
    """Return the folder of a tiny Qwen2-VL."""
    folder = ROOT / f"tiny{seed}"
    Qwen2VL.make_tiny(folder, seed=seed)
    return str(folder)


@functools.cache
def tiny_family() -> Qwen2VL:
    """Return its tokenizer and image processor."""
    return Qwen2VL.load(tiny_checkpoint())


def tiny_model(seed: int = 0):
    """Return a fresh copy of its weights."""
    return tiny_family().load_model(tiny_checkpoint(seed), "main", "float32", "sdpa")


def small_config(folder: Path, *overrides: str) -> Config:
    """Return clock_tiny with little data and few steps, in a folder."""
    return read_config(
        "clock_tiny",
        [
            f"trainer.output_dir={folder / 'run'}",
            f"compare.output_dir={folder / 'compare'}",
            f"data.cache={CACHE}",
            "data.train.render=40",
            "data.test.render=12",
            "trainer.per_device_train_batch_size=4",
            "trainer.max_steps=6",
            "trainer.warmup_steps=2",
            "trainer.logging_steps=2",
            "trainer.save_steps=2",
            *overrides,
        ],
    )


def clocks(count: int, seed: int = 0):
    """Return a task and rendered examples of it."""
    task = small_config(ROOT / "unused").task
    return task, load_examples(task, DataSource(render=count, seed=seed), CACHE, training=False)
