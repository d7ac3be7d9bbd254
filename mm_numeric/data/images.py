"""Open images and read their sizes."""

import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from mm_numeric.answers import Example, Picture


class UnreadablePictureError(ValueError):
    """A picture cannot be read; the text says which, and in which row."""


def open_picture(example: Example) -> Image.Image:
    """Load the picture of an example as RGB, turned upright as its EXIF says.

    Raises:
        UnreadablePictureError: If it cannot be read.
    """
    assert example.image is not None
    try:
        with Image.open(_readable(example.image)) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            return picture.convert("RGB")
    except Exception as error:  # Pillow raises nearly any kind for a file that is damaged
        raise UnreadablePictureError(
            f"{example.where}: the picture {example.image} cannot be read ({error}); "
            "replace it or take its row out."
        ) from error


def picture_size(path: Picture) -> tuple[int, int]:
    """Return width and height of a picture, turned upright, in pixels.

    Only the header of a JPEG is read. Of other kinds it is not enough: a PNG may say at its end how
    it is to be turned, and Pillow turns a TIFF by itself.

    Raises:
        ValueError: If it is not there, or is no picture.
    """
    try:
        with Image.open(_readable(path)) as picture:
            if picture.format not in ("JPEG", "MPO"):
                ImageOps.exif_transpose(picture, in_place=True)
                return picture.size
            turned = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # of EXIF's orientations
            return picture.size[::-1] if turned else picture.size
    except FileNotFoundError as error:
        raise ValueError(f"there is no picture {path}") from error
    except Exception as error:  # Pillow raises what it meets: struct.error, SyntaxError, bombs
        raise ValueError(f"the picture {path} cannot be read ({error})") from error


def _readable(picture: Picture) -> Any:
    return picture if isinstance(picture, Path) else io.BytesIO(picture.read())
