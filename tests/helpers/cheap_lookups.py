"""What is computed over and over without need, computed once or not at all in the tests."""

import atexit
import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import accelerate.utils.imports
import accelerate.utils.memory
from transformers import PretrainedConfig

from mm_numeric.families.family import Family

KEPT = "MM_NUMERIC_TEST_MODELS"
"""Environment variable with the folder of tiny models that were made before, for processes too that
are forked from this one. Without it, models are made anew."""

_RECIPES = {
    "Florence-2": "make_tiny_florence2",
    "LLaVA-1.5": "make_tiny_llava",
    "PaliGemma": "make_tiny_paligemma",
    "Yi-VL": "make_tiny_yi_vl",
    "chat": "make_tiny_internvl",
}
"""By ``Family.name``, for families without a tiny model: the name of a function of
``tiny_families``, which takes a folder and a seed."""


def make_cheap() -> None:
    """Spare a tenth of the time of small trainings, and change no result."""
    # Asks twice in each step whether packages are installed, and parses their metadata.
    imports = accelerate.utils.imports
    imports._is_package_available = functools.cache(imports._is_package_available)
    # All settings as JSON, for messages that are written nowhere, each time a model is loaded.
    PretrainedConfig.__repr__ = object.__repr__
    # What is imported is frozen, and tests leave little else: by default it is searched for garbage
    # ninety times a second.
    gc.set_threshold(50_000, 20, 100)
    # At the end of each training; what tests leave is collected at the end of each module.
    memory = accelerate.utils.memory
    memory.clear_device_cache = functools.partial(_clear_device_cache, memory.clear_device_cache)
    _copy_tiny_models()


def _clear_device_cache(clear: Callable[[], None], garbage_collection: bool = False) -> None:
    clear()


def _copy_tiny_models() -> None:
    """Let the families that are imported copy the tiny model of a seed if it was made before."""
    if KEPT not in os.environ:
        os.environ[KEPT] = tempfile.mkdtemp(prefix="mm-numeric-tiny-")
        atexit.register(shutil.rmtree, os.environ[KEPT], ignore_errors=True)
    Family.make_tiny = classmethod(_with_recipes(Family.make_tiny.__func__))
    for name, module in list(sys.modules.items()):
        if name.startswith("mm_numeric.families."):
            for cls in vars(module).values():
                if isinstance(cls, type) and cls.__module__ == name and "make_tiny" in vars(cls):
                    cls.make_tiny = classmethod(_copying(vars(cls)["make_tiny"].__func__))


def _copying(make_tiny: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make_tiny)
    def copied(cls: Any, folder: Path, seed: int) -> None:
        if KEPT not in os.environ:
            return make_tiny(cls, folder, seed)
        kept = Path(os.environ[KEPT], f"{cls.__module__}.{cls.__qualname__}.{seed}")
        if not kept.is_dir():
            made = Path(tempfile.mkdtemp(dir=kept.parent))
            make_tiny(cls, made, seed)
            with suppress(OSError):  # another process was first
                made.rename(kept)
        shutil.copytree(kept, folder, copy_function=shutil.copy, dirs_exist_ok=True)
        return None

    return copied


def _with_recipes(own: Callable[..., None]) -> Callable[..., None]:
    def make_tiny(cls: Any, folder: Path, seed: int) -> None:
        if cls.name not in _RECIPES:
            return own(cls, folder, seed)
        return getattr(import_module("tiny_families"), _RECIPES[cls.name])(folder, seed)

    return make_tiny
