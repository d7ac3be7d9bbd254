"""Open images and read their sizes."""

import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from mm_numeric.answers import Example, ImageSource


class UnreadableImageError(ValueError):
    """Raised if an image cannot be read; the message names the image and its row."""


def open_image(example: Example) -> Image.Image:
    """Load the image of an example as RGB, rotated upright according to its EXIF orientation."""
    assert example.image is not None
    try:
        with Image.open(_file_or_bytes(example.image)) as image:
            ImageOps.exif_transpose(image, in_place=True)
            return image.convert("RGB")
    except Exception as error:  # Pillow raises almost any type for a damaged file
        raise UnreadableImageError(
            f"{example.where}: the image {example.image} cannot be read ({error}); "
            "replace it or remove its row."
        ) from error


def image_size(path: ImageSource) -> tuple[int, int]:
    """Return the width and height of an image in pixels, after rotating it upright.

    Only the header of a JPEG is read. Other formats are read in full: a PNG may store its
    orientation at the end, and Pillow rotates a TIFF while decoding it.
    """
    try:
        with Image.open(_file_or_bytes(path)) as image:
            if image.format not in ("JPEG", "MPO"):
                ImageOps.exif_transpose(image, in_place=True)
                return image.size
            # Orientations 5 to 8 of EXIF tag 0x0112 swap width and height.
            is_rotated = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return image.size[::-1] if is_rotated else image.size
    except FileNotFoundError as error:
        raise ValueError(f"there is no image {path}") from error
    except Exception as error:  # Pillow raises struct.error, SyntaxError, DecompressionBombError
        raise ValueError(f"the image {path} cannot be read ({error})") from error


def _file_or_bytes(image: ImageSource) -> Any:
    """Return an argument for ``PIL.Image.open``: a path, or the bytes of an embedded image."""
    return image if isinstance(image, Path) else io.BytesIO(image.read())
