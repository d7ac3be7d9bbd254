"""Open images and read their sizes."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mm_numeric.answers import Example, ImageSource

DECODING = 3
"""Version of ``upright_rgb``. It is raised if an image may get other pixels than before, so that
``ImageCache`` decodes each image again."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
"""The image formats that are read, by their names in Pillow. Of a file with several images, such as
a GIF, the first is read."""

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262  # TIFF tags
_WHITE_IS_ZERO = 0


class UnreadableImageError(ValueError):
    """Raised if an image cannot be read; the message names the image."""


def open_image(example: Example) -> Image.Image:
    """Load the image of an example as upright RGB. See ``upright_rgb``."""
    assert example.image is not None
    return open_upright(example.image, f"{example.where}: ", "replace it or remove its row")


def open_upright(
    image: ImageSource, where: str = "", remedy: str = "use another file"
) -> Image.Image:
    """Load an image as upright RGB. ``where`` and ``remedy`` are for the error message."""
    try:
        with image_file(image) as opened:
            return upright_rgb(opened)
    except Exception as error:  # Pillow raises almost any type for a damaged file
        raise UnreadableImageError(
            f"{where}the image {image} cannot be read ({error}); {remedy}."
        ) from error


def image_file(image: ImageSource) -> Image.Image:
    """Open an image file in one of ``FORMATS``, whatever its name ends with, without decoding it.

    Pillow alone would also open EPS files, which are PostScript programs, and execute them with
    Ghostscript where it is installed.
    """
    file = image if isinstance(image, Path) else io.BytesIO(image.read())
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        names = ", ".join(FORMATS[:-1])
        raise UnidentifiedImageError(f"it is not a {names} or {FORMATS[-1]} file") from error


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return an opened image as 8-bit RGB, rotated upright according to its EXIF orientation.

    Transparent pixels are composed on white, as qwen-vl-utils does. 16-bit values are reduced to
    their upper 8 bits, as Pillow does for RGB. ``Image.convert`` alone would drop transparency and
    show the hidden colours, which are often black, and would clip 16-bit grey values to 255. Raises
    ValueError if the pixels have 32 bits, because it is unknown which value means white.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        return _from_16_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    composed = Image.new("RGB", image.size, "white")
    composed.paste(image, mask=image.getchannel("A"))
    return composed


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Scale a grey image with 16 bits per pixel (or 12, in a TIFF) to 8 bits per pixel."""
    has_16_bits = image.mode.startswith("I;16") or (
        image.mode == "I" and image.format in ("PNG", "PPM")  # Pillow opens some as 32-bit
    )
    if not has_16_bits:
        raise ValueError(
            f"its pixels are 32-bit numbers, mode {image.mode}, without a defined white; save it "
            "with 8 or 16 bits per channel"
        )
    tags = getattr(image, "tag_v2", {})
    (bits,) = tags.get(_BITS_PER_SAMPLE, (16,))
    pixels = np.asarray(image)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # Pillow inverts these with 8 bits only
        pixels = (1 << bits) - 1 - pixels
    grey = (pixels >> (bits - 8)).astype(np.uint8)
    if (transparent := image.info.get("transparency")) is not None:
        grey[pixels == transparent] = 255
    return Image.fromarray(grey)


def image_size(path: ImageSource) -> tuple[int, int]:
    """Return the width and height of an image in pixels, after rotating it upright.

    Only the header of a JPEG is read. Other formats are read in full: a PNG may store its
    orientation at the end, and Pillow rotates a TIFF while decoding it.
    """
    try:
        with image_file(path) as image:
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
