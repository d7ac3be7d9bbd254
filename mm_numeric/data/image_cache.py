"""A folder of images as a family sees them: decoded, upright, resized; never decoded again."""

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.images import open_image
from mm_numeric.families.family import Family


@dataclass(frozen=True)
class ImageCache:
    """Images in a folder, each under what it was made of.

    That is the image's file, by name, time and size, or the bytes of one that is in a table, and
    how the family resizes: an image that is changed, or seen otherwise, is another. What the
    family then does to an image of this size is nothing, so that it sees the same pixels; where
    Qwen's two limits are so close together that it would be something, the image is not kept.
    Several processes may share a folder; old images are never taken out of it, delete it for
    that.
    """

    folder: Path

    def open(self, family: Family, example: Example) -> tuple[Image.Image, tuple[int, int]]:
        """Return an image as the family sees it, and the size of the original one, upright.

        Raises:
            UnreadableImageError: If it cannot be read.
            ValueError: If it cannot be kept, or what was kept of it is damaged.
        """
        key = _key(family, example)
        file = self.folder / key[:2] / f"{key}.npz"
        if not file.is_file():
            image = open_image(example)
            try:
                seen = family.resize_image(image)
                view = family.resize.view(*seen.size)
            except ValueError:  # it has no place in a frame: who asks for that says it
                return image, image.size
            if (view.width_px, view.height_px) != seen.size:
                return image, image.size  # it would be resized once more; see the class
            try:
                _write(file, pixels=np.asarray(seen), size=np.array(image.size))
            except OSError as error:
                raise ValueError(
                    f"{file}: an image cannot be kept there ({error.strerror or error}); free "
                    "some space, or give another folder as data.image_cache."
                ) from error
            return seen, image.size
        try:
            with np.load(file) as kept:
                width, height = (int(edge) for edge in kept["size"])
                return Image.fromarray(kept["pixels"]), (width, height)
        except Exception as error:  # zipfile and numpy raise what they meet
            raise ValueError(
                f"{file}: the image of {example.where} that was kept is damaged ({error}); "
                "delete it."
            ) from error


def _key(family: Family, example: Example) -> str:
    image = example.image
    assert image is not None
    made_of: Any
    try:
        if isinstance(image, Path):
            facts = os.stat(image)
            made_of = (str(image.resolve()), facts.st_mtime_ns, facts.st_size)
        else:
            made_of = hashlib.sha256(image.read()).hexdigest()
    except Exception:  # of a table's readers, too: opening it says what is wrong
        made_of = str(image)
    how = (family.name, family.resize, family.image_processor.resample)
    return hashlib.sha256(repr((made_of, how)).encode()).hexdigest()


def _write(file: Path, **arrays: Any) -> None:
    """Write a file in one piece, whoever else writes the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{uuid.uuid4().hex}.unfinished")
    try:
        with unfinished.open("wb") as opened:
            np.savez(opened, **arrays)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
