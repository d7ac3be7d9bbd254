"""Open images and read their sizes."""

import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from mm_numeric.answers import Example, ImageSource


class UnreadableImageError(ValueError):
    """An image cannot be read; the text says which, and in which row."""


def open_image(example: Example) -> Image.Image:
    """Load the image of an example as RGB, turned upright as its EXIF says.

    Raises:
        UnreadableImageError: If it cannot be read.
    """
    assert example.image is not None
    try:
        with Image.open(_readable(example.image)) as image:
            ImageOps.exif_transpose(image, in_place=True)
            return image.convert("RGB")
    except Exception as error:  # Pillow raises nearly any kind for a file that is damaged
        raise UnreadableImageError(
            f"{example.where}: the image {example.image} cannot be read ({error}); "
            "replace it or take its row out."
        ) from error


def image_size(path: ImageSource) -> tuple[int, int]:
    """Return width and height of an image, turned upright, in pixels.

    Only the header of a JPEG is read. Of other kinds it is not enough: a PNG may say at its end how
    it is to be turned, and Pillow turns a TIFF by itself.

    Raises:
        ValueError: If it is not there, or is no image.
    """
    try:
        with Image.open(_readable(path)) as image:
            if image.format not in ("JPEG", "MPO"):
                ImageOps.exif_transpose(image, in_place=True)
                return image.size
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # of EXIF's orientations
            return image.size[::-1] if turned else image.size
    except FileNotFoundError as error:
        raise ValueError(f"there is no image {path}") from error
    except Exception as error:  # Pillow raises what it meets: struct.error, SyntaxError, bombs
        raise ValueError(f"the image {path} cannot be read ({error})") from error


def _readable(image: ImageSource) -> Any:
    return image if isinstance(image, Path) else io.BytesIO(image.read())
