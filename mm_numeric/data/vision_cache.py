"""Disk cache of the image features that a frozen vision tower computes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_numeric.data.cache_files import cache_file, cache_writer
from mm_numeric.families.family import Prompts

GRID = "image_grid_thw"
"""Image input that also determines positions (M-RoPE), so that the model needs it with features."""


@dataclass(frozen=True)
class VisionCache:
    """Folder of image features, one .pt file for the images of a row, named by a hash.

    The hash covers the inputs of the vision tower, that is, the image after resizing and
    normalisation, and ``settings``. Several processes may share a folder. Old files are never
    deleted; delete the folder to free the space.
    """

    folder: Path

    settings: str
    """Hash of all else that features depend on: weights, dtype and versions."""

    def row(self, images: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the features of a row's images or, if they are not cached, their key and inputs.

        ``images`` is the output of the image processor for the images of one row.
        """
        digest = hashlib.sha256(self.settings.encode())
        for name, tensor in sorted(images.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            # as bytes: NumPy has no bfloat16
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        key = digest.hexdigest()
        file = self._file(key)
        if not file.is_file():
            return {"key": key, "inputs": dict(images)}
        try:
            return {"features": torch.load(file, weights_only=True)}
        except Exception as error:  # torch and pickle raise many types
            raise ValueError(
                f"{file}: the cached image features are damaged; delete it."
            ) from error

    def write(self, key: str, features: Mapping[str, Any]) -> None:
        """Add the features of a row's images, which are dicts and lists of tensors."""
        with cache_writer(self._file(key), "image features", "data.vision_cache") as opened:
            torch.save(features, opened)

    def _file(self, key: str) -> Path:
        return cache_file(self.folder, key, ".pt")


def joined(prompts: Sequence[Prompts], cache: VisionCache) -> tuple[Prompts, dict[str, Any]]:
    """Join questions that were prepared one by one, with what is cached of their images.

    Returns the questions, whose ``images`` has only what the language model needs, and the batch
    entry ``vision_rows``: the results of ``VisionCache.row`` ({} without images).
    """
    ids = [ids for prompt in prompts for ids in prompt.ids]
    rows = [cache.row(prompt.images) for prompt in prompts if prompt.images]
    grids = [prompt.images[GRID] for prompt in prompts if GRID in prompt.images]
    aligned = {
        name: [prompt.aligned.get(name, [[0] * len(prompt.ids[0])])[0] for prompt in prompts]
        for name in {name: None for prompt in prompts for name in prompt.aligned}
    }
    images = {GRID: torch.cat(grids)} if grids else {}
    return Prompts(ids, images, aligned), {"vision_rows": rows} if rows else {}
