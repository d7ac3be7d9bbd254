"""Helpers for drawings: pixel noise, colours, overlap of boxes."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

OVERSAMPLING = 4
"""Images are drawn larger by this factor and averaged down, because Pillow does not antialias."""

Colour = tuple[int, int, int]


def are_apart(a: Sequence[float], b: Sequence[float], gap: float = 2) -> bool:
    """Return True if boxes (x1, y1, x2, y2) are at least ``gap`` pixels apart in x or y."""
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def with_noise(image: Image.Image | NDArray[Any], noise: float, rng: random.Random) -> Image.Image:
    """Add Gaussian pixel noise with standard deviation 255 * ``noise`` to an image."""
    pixels = np.asarray(image)
    if noise:
        generator = np.random.default_rng(rng.getrandbits(64))
        pixels = pixels + generator.normal(0, 255 * noise, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def shrunk(
    image: Image.Image, size_px: tuple[int, int], noise: float, rng: random.Random
) -> Image.Image:
    """Downscale an image that was drawn larger, by averaging pixels, and add noise."""
    return with_noise(image.resize(size_px, Image.Resampling.BOX), noise, rng)


def random_colour(rng: random.Random, darkest: int, lightest: int) -> Colour:
    """Return a colour whose red, green and blue are from ``darkest`` to ``lightest``, 0 to 255."""
    red, green, blue = (rng.randint(darkest, lightest) for _ in range(3))
    return red, green, blue
