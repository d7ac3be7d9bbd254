"""Tiny models of the families for which the library has none, made by ``cls.make_tiny``."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_RECIPES = {
    "Florence-2": "tiny_florence2",
    "LLaVA-1.5": "tiny_llava",
    "PaliGemma": "tiny_paligemma",
    "Yi-VL": "tiny_llava:make_tiny_yi_vl",
    "chat": "tiny_internvl",
}
"""By ``Family.name``: the module of a function of a folder and a seed, and its name if the name of
the module does not say it."""


def with_recipes(own: Callable[..., None]) -> Callable[..., None]:
    """Return ``Family.make_tiny`` with the recipes of the tests; ``own`` makes other models."""

    def make_tiny(cls: Any, folder: Path, seed: int) -> None:
        if cls.name not in _RECIPES:
            return own(cls, folder, seed)
        module, _, function = _RECIPES[cls.name].partition(":")
        return getattr(import_module(module), function or f"make_{module}")(folder, seed)

    return make_tiny


def vision_settings(width: int, side_px: int, patch_px: int, **more: Any) -> dict[str, Any]:
    """Return settings of a small CLIP or SigLIP vision tower; ``more`` are further ones."""
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": side_px,
        "patch_size": patch_px,
        **more,
    }
