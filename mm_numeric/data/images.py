"""Open images and read their sizes."""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mm_numeric.answers import Example, ImageSource
from mm_numeric.io.files import require_file

DECODING = 4
"""Version of ``upright_rgb``. Increase it when decoded pixels may change, so that ``ImageCache``
decodes every image again."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
"""Image formats that can be read, by their names in Pillow. If a file has several images, such as a
GIF, the first one is read."""

LARGEST_IMAGE = 128_000_000
"""Default of ``data.largest_image``, in pixels."""

_LIMIT = "MM_NUMERIC_LARGEST_IMAGE"
"""Environment variable with ``data.largest_image``, which processes that load data inherit."""

_REDUCED_ABOVE = 32_000_000  # pixels
_STRIP = 4_000_000  # pixels that are converted to RGB at a time

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262  # TIFF tags
_WHITE_IS_ZERO = 0
_ORIENTATION, _QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # EXIF tag, and values that swap the edges


class UnreadableImageError(ValueError):
    """Raised if an image cannot be read; the message names the image."""


def limit_images(pixels: int) -> None:
    """Set the maximum number of pixels of an image, in this process and its children.

    When the model family of a config is loaded, ``data.largest_image`` is set in this way.
    """
    os.environ[_LIMIT] = str(pixels)


def open_image(example: Example) -> Image.Image:
    """Load the image of an example as upright RGB. See ``open_sized``."""
    return open_sized(example)[0]


def open_sized(example: Example) -> tuple[Image.Image, tuple[int, int]]:
    """Load the image of an example as upright RGB; return it, and the size of the original.

    An image of more than 32 million pixels is reduced by 2 (or 4, 8) while it is read: an image of
    100 million pixels then takes 80 MB, not 300 MB. Coordinates in rows refer to the original.
    """
    assert example.image is not None
    named = example.where == f"the image {example.image}"  # without a row
    where = "" if named else f"{example.where}: "
    return _opened(example.image, where, "replace it or remove its row")


def open_upright(
    image: ImageSource, where: str = "", remedy: str = "use another file"
) -> Image.Image:
    """Load an image as upright RGB. ``where`` and ``remedy`` are for the error message."""
    return _opened(image, where, remedy)[0]


def _opened(image: ImageSource, where: str, remedy: str) -> tuple[Image.Image, tuple[int, int]]:
    try:
        with image_file(image) as opened:
            if opened.width * opened.height > _REDUCED_ABOVE:
                return _reduced(opened)
            upright = upright_rgb(opened)
            return upright, upright.size
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises almost any type for a damaged file
        raise UnreadableImageError(
            f"{where}the image {image} cannot be read ({error}); {remedy}."
        ) from error


def image_file(image: ImageSource) -> Image.Image:
    """Open an image file in one of ``FORMATS``, whatever its extension, without decoding it.

    Pillow alone would also open EPS files, which are PostScript programs, and execute them with
    Ghostscript where it is installed. Raises ValueError if an image has more pixels than
    ``data.largest_image``. For WebP, the limit is a third, as it takes three times the memory.
    """
    if isinstance(image, Path):
        require_file(image)
    file = image if isinstance(image, Path) else io.BytesIO(image.read())
    limit = int(os.environ.get(_LIMIT, LARGEST_IMAGE))
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow warns above this, and rejects twice this number
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limit)
    too_large = f"it has more than {limit:,} pixels; resize it, or raise data.largest_image"
    try:
        opened = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(too_large) from error
    except UnidentifiedImageError as error:
        names = ", ".join(FORMATS[:-1])
        raise UnidentifiedImageError(f"it is not a {names} or {FORMATS[-1]} file") from error
    most = limit // 3 if opened.format == "WEBP" else limit
    if opened.width * opened.height > most:
        opened.close()
        raise ValueError(too_large.replace(f"{limit:,}", f"{most:,}"))
    return opened


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return an opened image as 8-bit RGB, rotated upright according to its EXIF orientation.

    Transparent pixels are composed on white, as qwen-vl-utils does. 16-bit values are reduced to
    their upper 8 bits, as Pillow does for RGB. ``Image.convert`` alone would drop transparency and
    show the hidden colours, which are often black, and would clip 16-bit grey values to 255. Raises
    ValueError if the pixels have 32 bits, because it is unknown which value means white.
    """
    ImageOps.exif_transpose(image, in_place=True)
    return _rgb(image, image)


def _rgb(image: Image.Image, file: Image.Image) -> Image.Image:
    """Return an image, or a part of it, as RGB; ``file`` is the opened file that it is from."""
    if image.mode.startswith(("I", "F")):
        return _from_16_bits(image, file).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    composed = Image.new("RGB", image.size, "white")
    composed.paste(image, mask=image.getchannel("A"))
    return composed


def _reduced(file: Image.Image) -> tuple[Image.Image, tuple[int, int]]:
    """Return an opened file as upright RGB with fewer pixels, and the size of the original.

    Pixels are converted in strips, so that no second image of the original size is in memory.
    """
    factor = 2
    while file.width * file.height > factor**2 * _REDUCED_ABOVE:
        factor *= 2
    size = file.size
    if file.format in ("JPEG", "MPO"):
        file.draft(None, (size[0] // factor, size[1] // factor))  # decodes fewer frequencies
        turned = file.getexif().get(_ORIENTATION) in _QUARTER_TURNS
        factor = 1 if file.size != size else factor  # draft does not reduce a lossless JPEG
    else:
        file.load()  # rotates a TIFF, and finds the EXIF data at the end of a PNG
        size, turned = file.size, file.getexif().get(_ORIENTATION) in _QUARTER_TURNS
    whole = Image.new("RGB", (-(-file.width // factor), -(-file.height // factor)))
    rows = max(factor, _STRIP // file.width // factor * factor)
    for top in range(0, file.height, rows):
        part = file.crop((0, top, file.width, min(top + rows, file.height)))
        whole.paste(_rgb(part, file).reduce(factor), (0, top // factor))
    whole.getexif()[_ORIENTATION] = file.getexif().get(_ORIENTATION, 1)
    ImageOps.exif_transpose(whole, in_place=True)
    return whole, size[::-1] if turned else size


def _from_16_bits(image: Image.Image, file: Image.Image) -> Image.Image:
    """Scale a grey image with 16 bits per pixel (or 12, in a TIFF) to 8 bits per pixel."""
    has_16_bits = image.mode.startswith("I;16") or (
        image.mode == "I" and file.format in ("PNG", "PPM")  # Pillow opens some as 32-bit
    )
    if not has_16_bits:
        raise ValueError(
            f"its pixels are 32-bit numbers, mode {image.mode}, without a defined white; save it "
            "with 8 or 16 bits per channel"
        )
    tags = getattr(file, "tag_v2", {})
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
                image.load()
            is_rotated = image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
            return image.size[::-1] if is_rotated else image.size
    except FileNotFoundError as error:
        raise ValueError(f"there is no image {path}") from error
    except Exception as error:  # Pillow raises struct.error, SyntaxError, DecompressionBombError
        raise ValueError(f"the image {path} cannot be read ({error})") from error
