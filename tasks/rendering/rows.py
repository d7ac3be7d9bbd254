"""Write rendered images and their rows."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mm_numeric.log import progress


def render_images(
    folder: Path,
    count: int,
    seed: int,
    unit: str,
    draw: Callable[[random.Random], tuple[Image.Image, Mapping[str, Any]]],
) -> Path:
    """Render images into a folder, and return the file of their rows.

    Args:
        folder: The folder; created if it is missing.
        count: Number of images.
        seed: An image depends only on this seed and its index.
        unit: Name of one image in the progress bar.
        draw: Returns an image and the fields of its row except id and image.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in progress(range(count), desc=f"rendering {unit}s", unit=unit):
        image, fields = draw(random.Random(f"{seed}:{i}"))
        name = f"images/{i:06d}.png"
        image.save(folder / name)
        rows.append({"id": f"{seed}-{i:06d}", "image": name, **fields})
    return write_rows(folder, rows)


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows into ``rows.jsonl`` in a folder, and return the file."""
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return file


def with_noise(pixels: NDArray[Any], noise: float, rng: random.Random) -> Image.Image:
    """Return an image with Gaussian noise, whose deviation is a fraction of the full range."""
    if noise:
        generator = np.random.default_rng(rng.getrandbits(64))
        pixels = pixels + generator.normal(0, 255 * noise, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
