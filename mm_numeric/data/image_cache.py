"""Disk cache of decoded, upright and resized images, so that no image is decoded twice."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.cache_files import cache_file, cache_writer
from mm_numeric.data.images import DECODING, open_image
from mm_numeric.families.family import Family


@dataclass(frozen=True)
class ImageCache:
    """Folder of images resized for a model family, one .npz file per image, named by a hash.

    The hash covers the image, the family's resize settings, the colour of its padding (if it has
    one) and the version of the decoder; if any of them changes, a new file is written. An image
    file is identified by its path, modification time and size, and an embedded image by its bytes.

    The image processor is later applied to the cached image. An image is cached only if the
    processor then does not change its size (``resize_image_once``): the model sees the same pixels
    as without a cache.

    Several processes may share a folder. Old files are never deleted; delete the folder to free the
    space.
    """

    folder: Path

    def open(self, family: Family, example: Example) -> tuple[Image.Image, tuple[int, int]]:
        """Return the resized image, and the (width, height) of the upright original image."""
        file = cache_file(self.folder, _key(family, example), ".npz")
        if not file.is_file():
            return _add(file, family, open_image(example))
        try:
            with np.load(file) as arrays:
                width, height = (int(edge) for edge in arrays["size"])
                return Image.fromarray(arrays["pixels"]), (width, height)
        except Exception as error:  # zipfile and numpy raise many types
            raise ValueError(
                f"{file}: the cached image of {example.where} is damaged ({error}); delete it."
            ) from error


def _add(file: Path, family: Family, image: Image.Image) -> tuple[Image.Image, tuple[int, int]]:
    """Resize an image and add it to the cache.

    Returns the resized image (the original if it cannot be cached) and the original size.
    """
    try:
        resized = family.resize_image_once(image)
    except ValueError:  # the family cannot frame this image: the caller reports it with its row
        return image, image.size
    if resized is image:
        return image, image.size  # a second resize would change it; see ImageCache
    with cache_writer(file, "an image", "data.image_cache") as opened:
        np.savez(opened, pixels=np.asarray(resized), size=np.array(image.size))
    return resized, image.size


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
    except Exception:  # also of a table reader: open_image reports what is wrong
        origin = str(image)
    processor = family.image_processor
    settings: tuple[Any, ...] = (DECODING, family.name, family.resize, processor.resample)
    if family.resize.kind == "letterbox":  # its padding has the mean colour of the checkpoint
        settings += (tuple(processor.image_mean),)
    return hashlib.sha256(repr((origin, settings)).encode()).hexdigest()
