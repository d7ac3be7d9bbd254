"""Disk caches of resized images and of the features that a frozen vision tower computes."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.data.images import DECODING, open_sized
from mm_numeric.families.family import Family, Prompts
from mm_numeric.io.atomic_files import atomic_file

GRID = "image_grid_thw"
"""Image input that determines positions (M-RoPE). The model also needs it with cached features."""


@dataclass(frozen=True)
class ImageCache:
    """Folder of images resized for a model family, one .npz file per image, named by a hash.

    The hash covers the image, the family's resize settings, its padding colour (if it pads images)
    and the version of the decoder; if any of them changes, a new file is written. An image file is
    identified by its path, modification time and size, and an embedded image by its bytes.

    The image processor is later applied to the cached image. An image is cached only if the
    processor then does not change its size (``resize_image_once``): the model sees the same pixels
    as without a cache.

    Several processes may share a folder. Old files are never deleted.
    """

    folder: Path

    def open(self, family: Family, example: Example) -> tuple[Image.Image, tuple[int, int]]:
        """Return the resized image, and the (width, height) of the upright original image."""
        file = _cache_file(self.folder, _key(family, example), ".npz")
        if not file.is_file():
            return _add(file, family, *open_sized(example))
        try:
            with np.load(file) as arrays:
                width, height = (int(edge) for edge in arrays["size"])
                return Image.fromarray(arrays["pixels"]), (width, height)
        except Exception as error:  # zipfile and numpy raise many types
            raise ValueError(
                f"{file}: the cached image of {example.where} is damaged ({error}); delete it."
            ) from error


def _add(
    file: Path, family: Family, image: Image.Image, size: tuple[int, int]
) -> tuple[Image.Image, tuple[int, int]]:
    """Resize an image, and add it to the cache; ``size`` is the size of the original.

    Returns the resized image (the original if it cannot be cached) and the original size.
    """
    try:
        resized = family.resize_image_once(image, size)
    except ValueError:  # the family cannot frame this image: the caller reports it with its row
        return image, size
    if resized is image or resized.size == size != image.size:
        return resized, size  # a second resize would change it; see ImageCache
    with _cache_writer(file, "an image", "data.image_cache") as opened:
        np.savez(opened, pixels=np.asarray(resized), size=np.array(size))
    return resized, size


def _key(family: Family, example: Example) -> str:
    image = example.image
    assert image is not None
    origin: Any
    try:
        if isinstance(image, Path):
            status = os.stat(image)
            origin = (str(image.resolve()), status.st_mtime_ns, status.st_size)
        else:
            origin = hashlib.sha256(image.read()).hexdigest()
    except Exception:  # open_image reports it; table readers raise many types
        origin = str(image)
    processor = family.image_processor
    settings: tuple[Any, ...] = (DECODING, family.name, family.resize, processor.resample)
    if family.resize.kind == "letterbox":  # its padding has the mean colour of the checkpoint
        settings += (tuple(processor.image_mean),)
    return hashlib.sha256(repr((origin, settings)).encode()).hexdigest()


@dataclass(frozen=True)
class VisionCache:
    """Folder of image features, one .pt file for the images of a row, named by a hash.

    The hash covers the inputs of the vision tower, that is, the image after resizing and
    normalisation, and ``settings``. Several processes may share a folder. Old files are never
    deleted.
    """

    folder: Path

    settings: str
    """Hash of everything else that features depend on: weights, dtype and versions."""

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
        with _cache_writer(self._file(key), "image features", "data.vision_cache") as opened:
            torch.save(features, opened)

    def _file(self, key: str) -> Path:
        return _cache_file(self.folder, key, ".pt")


def joined(prompts: Sequence[Prompts], cache: VisionCache) -> tuple[Prompts, dict[str, Any]]:
    """Join questions that were prepared one by one, and add the cached features of their images.

    Returns the questions, whose ``images`` keeps only what the language model needs, and a dict
    with the batch entry ``vision_rows``, the results of ``VisionCache.row``. Without images, the
    dict is empty.
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


def _cache_file(folder: Path, key: str, ending: str) -> Path:
    """Return the path of a cache file, in a folder named by the first two characters of the key."""
    return folder / key[:2] / f"{key}{ending}"


@contextmanager
def _cache_writer(file: Path, what: str, setting: str) -> Iterator[Any]:
    """Yield an open file that appears under its name when it is complete.

    Several processes may write the same file. For the error message, ``what`` names the content,
    and ``setting`` the config key of the folder.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as opened:
            yield opened
    except OSError as error:
        raise ValueError(
            f"{file}: {what} cannot be written to the cache ({error.strerror or error}); free some "
            f"space, or set {setting} to another folder."
        ) from error
