"""A folder of pictures as a family sees them: decoded, upright, resized; never decoded again."""

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mm_numeric.answers import Example
from mm_numeric.data.images import open_picture
from mm_numeric.families.family import Family


@dataclass(frozen=True)
class PictureCache:
    """Pictures in a folder, each under what it was made of.

    That is the picture's file, by name, time and size, or the bytes of one that is in a table, and
    how the family resizes: a picture that is changed, or seen otherwise, is another. What the
    family then does to a picture of this size is nothing, so that it sees the same pixels; where
    Qwen's two limits are so close together that it would be something, the picture is not kept.
    Several processes may share a folder; old pictures are never taken out of it, delete it for
    that.
    """

    folder: Path

    def open(self, family: Family, example: Example) -> tuple[Image.Image, tuple[int, int]]:
        """Return a picture as the family sees it, and the size of the original one, upright.

        Raises:
            UnreadablePictureError: If it cannot be read.
            ValueError: If it cannot be kept, or what was kept of it is damaged.
        """
        key = _key(family, example)
        file = self.folder / key[:2] / f"{key}.npz"
        if not file.is_file():
            picture = open_picture(example)
            try:
                seen = family.as_seen(picture)
                view = family.resize.view(*seen.size)
            except ValueError:  # it has no place in a frame: who asks for that says it
                return picture, picture.size
            if (view.width_px, view.height_px) != seen.size:
                return picture, picture.size  # it would be resized once more; see the class
            try:
                _write(file, pixels=np.asarray(seen), size=np.array(picture.size))
            except OSError as error:
                raise ValueError(
                    f"{file}: a picture cannot be kept there ({error.strerror or error}); free "
                    "some space, or give another folder as data.picture_cache."
                ) from error
            return seen, picture.size
        try:
            with np.load(file) as kept:
                width, height = (int(edge) for edge in kept["size"])
                return Image.fromarray(kept["pixels"]), (width, height)
        except Exception as error:  # zipfile and numpy raise what they meet
            raise ValueError(
                f"{file}: the picture of {example.where} that was kept is damaged ({error}); "
                "delete it."
            ) from error


def _key(family: Family, example: Example) -> str:
    picture = example.image
    assert picture is not None
    made_of: Any
    try:
        if isinstance(picture, Path):
            facts = os.stat(picture)
            made_of = (str(picture.resolve()), facts.st_mtime_ns, facts.st_size)
        else:
            made_of = hashlib.sha256(picture.read()).hexdigest()
    except Exception:  # of a table's readers, too: opening it says what is wrong
        made_of = str(picture)
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
