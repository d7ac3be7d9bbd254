"""What generated images share: style options, pixel noise, and the .jsonl file with their rows.

Pillow is imported only where an image is made, because tasks without images need ``write_rows``.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mm_numeric.io.log import progress
from mm_numeric.tasks.base import BaseTask

if TYPE_CHECKING:
    from PIL import Image

OVERSAMPLING = 4
"""Images are drawn larger by this factor and averaged down, because Pillow does not antialias."""

Colour = tuple[int, int, int]
Drawing = tuple["Image.Image", Mapping[str, Any]]
"""A generated image, and the fields of its row except ``id`` and ``image``."""


@dataclass(frozen=True, kw_only=True)
class ImageStyle:
    """Options that all generated images have, except square ones."""

    width_px: int = 112
    height_px: int = 112

    noise: float = 0.02
    """Standard deviation of Gaussian pixel noise, as a fraction of 255."""

    def __post_init__(self) -> None:
        if min(self.width_px, self.height_px) < 48 or not 0 <= self.noise <= 1:
            raise ValueError(
                "width_px and height_px are at least 48 and noise 0 to 1, not "
                f"{self.width_px}, {self.height_px} and {self.noise}"
            )

    @property
    def size_px(self) -> tuple[int, int]:
        """Return the width and the height of an image."""
        return self.width_px, self.height_px

    def sized(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row with the size of its image."""
        return {**row, "width": self.width_px, "height": self.height_px}


@dataclass(frozen=True, kw_only=True)
class RenderedTask(BaseTask):
    """Base class of tasks that generate images, in a style that is an option of the task."""

    drawn_by: ClassVar[tuple[str, ...]]
    """Names of the options that generated images and rows depend on; the first is the style."""

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the options that affect the generated images and rows."""
        options = asdict(self)
        return {name: options[name] for name in self.drawn_by}

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images in a folder; return the path of the .jsonl file with their rows.

        An image depends only on the options, the seed and the index of the image.
        """
        return render_images(folder, count, seed, self.draw)

    def draw(self, rng: random.Random) -> Drawing:
        """Return a random image, and the fields of its row."""
        drawing: Drawing = getattr(self, self.drawn_by[0]).draw(rng)
        return drawing


def render_images(
    folder: Path, count: int, seed: int, draw: Callable[[random.Random], Drawing]
) -> Path:
    """Generate ``count`` images in a folder; return the path of the .jsonl file with their rows.

    ``draw`` gets a random generator that depends only on the seed and the index of the image.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in progress(range(count), desc="rendering images", unit="image"):
        image, fields = draw(random.Random(f"{seed}:{i}"))
        name = f"images/{i:06d}.png"
        image.save(folder / name)
        rows.append({"id": f"{seed}-{i:06d}", "image": name, **fields})
    return write_rows(folder, rows)


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to ``rows.jsonl`` in a folder, and return its path."""
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return file


def are_apart(a: Sequence[float], b: Sequence[float], gap: float = 2) -> bool:
    """Return True if boxes (x1, y1, x2, y2) are at least ``gap`` pixels apart in x or y."""
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def with_noise(
    image: "Image.Image | NDArray[Any]", noise: float, rng: random.Random
) -> "Image.Image":
    """Add Gaussian pixel noise with standard deviation 255 * ``noise`` to an image."""
    pixels = np.asarray(image)
    if noise:
        generator = np.random.default_rng(rng.getrandbits(64))
        pixels = pixels + generator.normal(0, 255 * noise, pixels.shape)
    from PIL import Image

    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def shrunk(
    image: "Image.Image", size_px: tuple[int, int], noise: float, rng: random.Random
) -> "Image.Image":
    """Average down an image that was drawn larger, and add noise."""
    from PIL import Image

    return with_noise(image.resize(size_px, Image.Resampling.BOX), noise, rng)


def random_colour(rng: random.Random, darkest: int, lightest: int) -> Colour:
    """Return a colour whose red, green and blue are within two limits, of 0 to 255."""
    red, green, blue = (rng.randint(darkest, lightest) for _ in range(3))
    return red, green, blue
