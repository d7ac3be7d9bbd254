"""Embed images as data URLs, and outline shapes as SVG paths."""

import base64
import io
from pathlib import Path

from PIL import Image

from mm_numeric.answers import Shape
from mm_numeric.data.images import upright_rgb
from mm_numeric.geometry.row_shapes import corners

_LOSSLESS_PX = 64  # smaller images are stored as PNG, because their noise is part of the task


def open_upright(path: Path) -> Image.Image | None:
    """Load an image as upright RGB, as a model sees it, or return None if it cannot be opened."""
    try:
        with Image.open(path) as opened:
            return upright_rgb(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def data_url(image: Image.Image, side_px: int) -> str:
    """Return an image as a data URL, downscaled so that the longer edge is at most ``side_px``."""
    small = image.copy()
    small.thumbnail((side_px, side_px))
    buffer = io.BytesIO()
    kind = "PNG" if max(small.size) <= _LOSSLESS_PX else "JPEG"
    small.save(buffer, format=kind, optimize=True, quality=85)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{data}"


def outline(shape: Shape, decimals: int = 2) -> str:
    """Return the outline of a shape as the ``d`` attribute of an SVG path."""
    points = (f"{x:.{decimals}f} {y:.{decimals}f}" for x, y in corners(shape))
    return "M" + "L".join(points) + "Z"
