"""The base classes of generators, which make the rows and the images of toy data sets.

To add a generator, derive a frozen dataclass from ``Generator`` and write ``write``, or from
``ImageGenerator`` and write ``draw``. The fields of the dataclass are the settings that a config
sets under ``data.train.synthetic``.
"""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mm_numeric.io.log import progress
from mm_numeric.registry import GENERATORS, choose

if TYPE_CHECKING:
    from PIL.Image import Image

Drawing = tuple["Image", Mapping[str, Any]]
"""A generated image, and the fields of its row except ``id`` and ``image``."""


@dataclass(frozen=True, kw_only=True)
class Generator(ABC):
    """A generator of rows. The same settings give the same rows; a larger ``rows`` appends rows."""

    version: ClassVar[int] = 1
    """Version of the generator; increase it if the same settings generate other rows."""

    name: str
    """Name of the generator, such as ``clocks``, or an import path ``my_package.module:Class``."""

    rows: int = 1000
    """Number of rows, at least 1. Training caches them in ``data.cache``."""

    seed: int = 0
    """Random seed of the rows."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, not {self.rows}")

    @abstractmethod
    def write(self, folder: Path) -> Path:
        """Generate rows and images in an empty folder; return the path of the .jsonl file."""

    @property
    def has_noise(self) -> bool:
        """Return True if the labels of the rows have noise."""
        return False

    def with_noise_of(self, seed: int) -> Self:
        """Return this generator with other label noise; unchanged if it has no noise."""
        return self

    def without_noise(self) -> Self:
        """Return the generator of the same rows with exact labels."""
        return self

    def with_label_noise(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with label noise that depends on its id; by default, the row itself."""
        return row

    def describe(self) -> str:
        """Describe the rows in a few words, for a report, such as ``labels with noise``."""
        return ""

    @classmethod
    def class_of(cls, raw: Mapping[str, Any], where: str) -> type["Generator"]:
        """Return the generator class that settings name; ``where`` is for error messages."""
        name = raw.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{where}.name: name a generator. Known: {', '.join(GENERATORS)}.")
        found: type[Generator] = choose(name, GENERATORS, "generator", f"{where}.name")
        if not (isinstance(found, type) and issubclass(found, Generator)):
            raise ValueError(
                f"{where}.name: {name!r} is no generator; derive it from "
                "mm_numeric.synthetic.generator:Generator."
            )
        if found.__abstractmethods__:
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise ValueError(f"{where}.name: the generator {name!r} lacks {missing}; define it.")
        return found


@dataclass(frozen=True, kw_only=True)
class NoisyGenerator(Generator):
    """Base class of generators that can add noise to labels, to simulate annotation errors."""

    noise: ClassVar[tuple[str, ...]]
    """Names of the noise settings, except ``noise_seed``."""

    noise_seed: int = 0
    """Seed of the label noise. The noise of a row depends only on this seed and the row's id."""

    def with_noise_of(self, seed: int) -> Self:
        """Return this generator with ``seed`` added to ``noise_seed``, if it has noise."""
        return replace(self, noise_seed=self.noise_seed + seed) if self.has_noise else self

    def without_noise(self) -> Self:
        """Return the generator of the same rows with exact labels."""
        default: dict[str, Any] = {own.name: own.default for own in fields(self)}
        return replace(self, **{name: default[name] for name in ("noise_seed", *self.noise)})


@dataclass(frozen=True, kw_only=True)
class ImageGenerator(Generator):
    """Base class of generators with an image in each row.

    An image depends only on the settings, the seed and the index of the image.
    """

    def write(self, folder: Path) -> Path:
        """Generate rows and images in an empty folder; return the path of the .jsonl file."""
        (folder / "images").mkdir(parents=True, exist_ok=True)
        rows = []
        drawn = progress(self.drawings(), total=self.rows, desc="drawing images", unit="image")
        for i, drawing in enumerate(drawn):
            is_pair = isinstance(drawing, tuple) and len(drawing) == 2
            if not (is_pair and hasattr(drawing[0], "save") and isinstance(drawing[1], Mapping)):
                raise ValueError(
                    f"{type(self).__name__}: draw returned {type(drawing).__name__}, not an image "
                    'and the fields of its row; write `return image, {"degrees": 90}`'
                )
            image, row = drawing
            name = f"images/{i:06d}.png"
            image.save(folder / name)
            rows.append(self.with_label_noise({"id": f"{self.seed}-{i:06d}", "image": name, **row}))
        return write_rows(folder, rows)

    def drawings(self) -> Iterator[Drawing]:
        """Yield the image and the row of each index; by default, ``draw`` makes them."""
        return (self.draw(random.Random(f"{self.seed}:{i}")) for i in range(self.rows))

    def draw(self, rng: random.Random) -> Drawing:
        """Return a random image, and the fields of its row."""
        raise ValueError(f"{type(self).__name__} has neither draw nor drawings; define draw")


@dataclass(frozen=True, kw_only=True)
class NoisyImages(ImageGenerator):
    """Base class of generators that add pixel noise to images, with ``drawing.with_noise``."""

    image_noise: float = 0.02
    """Standard deviation of Gaussian pixel noise, as a fraction of 255."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.image_noise <= 1:
            raise ValueError(f"image_noise is 0 to 1, not {self.image_noise}")


@dataclass(frozen=True, kw_only=True)
class SizedImages(NoisyImages):
    """Base class of generators whose images have a width, a height and pixel noise."""

    width_px: int = 112
    """Width of the images."""

    height_px: int = 112
    """Height of the images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.width_px, self.height_px) < 48:
            raise ValueError(
                f"width_px and height_px are at least 48, not {self.width_px} and {self.height_px}"
            )

    @property
    def size_px(self) -> tuple[int, int]:
        """Return the width and the height of an image."""
        return self.width_px, self.height_px

    def sized(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row with the size of its image."""
        return {**row, "width": self.width_px, "height": self.height_px}


def write_rows(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to ``rows.jsonl`` in a folder, and return its path."""
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return file
