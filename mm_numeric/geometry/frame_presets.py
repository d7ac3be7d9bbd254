"""Settings with which published and saved models resize images and write coordinates.

They are needed to convert the coordinates in a model's answer to pixels. This module lists the
settings of published checkpoints by model family. A model that was trained with this library is
saved with a file ``frame.json``, which has its settings.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.io.files import read_json
from mm_numeric.registry import unknown
from mm_numeric.settings import check_choices, read_dataclass

FRAME = "frame.json"
"""File next to the weights of a trained model, with its image resizing and coordinate format."""

_QWEN2 = Resize(kind="smart", factor=28, min_pixels=3136, max_pixels=12_845_056)

FAMILY_RESIZES: Mapping[str, Resize] = {
    "paligemma": Resize(kind="squash", side=224),
    "llava": Resize(kind="letterbox", side=336),
    "yi_vl": Resize(kind="letterbox", side=448),
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen3_vl": Resize(kind="smart", factor=32, min_pixels=65_536, max_pixels=16_777_216),
    "florence2": Resize(kind="squash", side=768),
}
"""Maps each model family to how the image processors of its checkpoints resize images.

The coordinate format of a family has the same name in ``COORDINATES``. Only ``qwen2_5_vl`` writes
pixels of the resized image. The coordinates of the other families do not depend on ``side``,
``min_pixels`` and ``max_pixels``.
"""


@dataclass(frozen=True, kw_only=True)
class AreaLimits:
    """Limits that a user sets on the area of images, in pixels; None: use the published limit."""

    min_pixels: int | None = None
    """Smallest area of a resized image."""

    max_pixels: int | None = None
    """Largest area of a resized image."""

    image_max_pixels: int | None = None
    """Area to which a tool, such as LLaMA-Factory, downscales larger images before the image
    processor resizes them."""

    @property
    def given(self) -> dict[str, int]:
        """Return the limits that are set, by name."""
        return {name: area for name, area in asdict(self).items() if area is not None}

    def applied(self, resize: Resize, where: str) -> Resize:
        """Return ``resize`` with these limits; error messages call the option ``where``."""
        limits = {name: area for name, area in self.given.items() if name != "image_max_pixels"}
        if min(self.given.values(), default=1) < 1:
            raise ValueError(f"{where}: an area in pixels is at least 1.")
        if limits and resize.kind != "smart":
            raise ValueError(
                f"{where}: its images are resized to a square, without {' and '.join(limits)}; "
                "remove the option."
            )
        resize = replace(
            resize,
            min_pixels=limits.get("min_pixels", resize.min_pixels),
            max_pixels=limits.get("max_pixels", resize.max_pixels),
        )
        if resize.kind == "smart" and not resize.min_pixels <= resize.max_pixels:
            raise ValueError(
                f"{where}: min_pixels {resize.min_pixels} is more than max_pixels "
                f"{resize.max_pixels}; set both, the smaller first."
            )
        return resize


@dataclass(frozen=True, kw_only=True)
class FrameRule:
    """Settings for resizing images and writing coordinates, independent of the image size."""

    resize: Resize
    coordinates: Coordinates

    image_max_pixels: int | None = None
    """Area to which a tool, such as LLaMA-Factory, downscales larger images before ``resize``.
    None: images are not downscaled before."""

    def __post_init__(self) -> None:
        """Validate ``resize``, which may have been read from a file."""
        resize = self.resize
        check_choices(resize, kind=("squash", "letterbox", "smart", "none"))
        if resize.kind == "smart" and min(resize.factor, resize.max_pixels) < 1:
            raise ValueError(
                "resize of the kind 'smart' has a factor and max_pixels of at least 1, not "
                f"{resize.factor} and {resize.max_pixels}"
            )
        if resize.kind in ("squash", "letterbox") and resize.side < 1:
            raise ValueError(f"resize of the kind {resize.kind!r} has a side of at least 1")

    @property
    def depends_on_limits(self) -> bool:
        """Return True if coordinates depend on ``min_pixels`` and ``max_pixels``."""
        in_pixels = self.coordinates.max_value is None and self.coordinates.space == "resized"
        return self.resize.kind == "smart" and in_pixels

    def frame(self, width: int, height: int) -> Frame:
        """Return the frame of an image whose size after EXIF rotation is ``width`` x ``height``.

        Raises ValueError if an image of this size cannot be resized.
        """
        view, limit = self.resize.view(width, height), self.image_max_pixels
        if limit is not None and width * height > limit:
            factor = math.sqrt(limit / (width * height))
            shrunk = max(int(width * factor), 1), max(int(height * factor), 1)
            view = self.resize.view(*shrunk)
            scales = view.scale_x * shrunk[0] / width, view.scale_y * shrunk[1] / height
            view = replace(view, scale_x=scales[0], scale_y=scales[1])
        return Frame(width, height, view, self.coordinates)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that can be saved as JSON."""
        return asdict(self)

    @classmethod
    def of_family(cls, name: str, limits: AreaLimits = AreaLimits()) -> Self:
        """Return the resizing and coordinate settings of a family's published checkpoints.

        ``name`` is a key of ``FAMILY_RESIZES``, such as ``qwen2_5_vl``.
        """
        if name not in FAMILY_RESIZES:
            raise unknown(name, FAMILY_RESIZES, "model family with images", "--family")
        return cls(
            resize=limits.applied(FAMILY_RESIZES[name], f"--family {name}"),
            coordinates=COORDINATES[name],
            image_max_pixels=limits.image_max_pixels,
        )

    @classmethod
    def named(cls, name: str, limits: AreaLimits = AreaLimits()) -> Self:
        """Return the image resizing and coordinate format of a saved model or of a preset.

        ``name`` is the folder of a run or model, the path of its ``frame.json``, or a coordinate
        preset that belongs to no family, such as ``relative_1000``. Write ``./internvl`` for a
        folder with the name of a preset. Only ``pixels_resized`` accepts ``limits``; its images are
        resized as by Qwen2.5-VL.
        """
        given = " and ".join(f"--{limit.replace('_', '-')}" for limit in limits.given)
        path = Path(name)
        if name not in COORDINATES and (path.is_dir() or path.suffix == ".json"):
            if given:
                raise ValueError(
                    f"--frame {name}: {FRAME} of the model has the sizes of its images; remove "
                    f"{given}."
                )
            return cls._saved(path)
        if name not in COORDINATES:
            raise unknown(name, COORDINATES, "frame, or folder of a model,", "--frame")
        if name in FAMILY_RESIZES:
            raise ValueError(
                f"--frame {name}: these coordinates belong to a model family; write --family "
                f"{name}, which also sets how images are resized."
            )
        coordinates = COORDINATES[name]
        resize = Resize(kind="none")
        if coordinates.space == "resized" and coordinates.max_value is None:
            if limits.min_pixels is None and limits.max_pixels is None:
                raise ValueError(
                    f"--frame {name}: pixels of the resized image depend on how images are "
                    "resized; add --min-pixels or --max-pixels for images resized to multiples of "
                    f"28 pixels as by Qwen2.5-VL, or give --family, or the folder of the model, "
                    f"which has {FRAME}."
                )
            resize = limits.applied(_QWEN2, f"--frame {name}")
        elif given:
            raise ValueError(
                f"--frame {name}: these coordinates do not depend on the size of a resized image; "
                f"remove {given}."
            )
        return cls(resize=resize, coordinates=coordinates, image_max_pixels=limits.image_max_pixels)

    @classmethod
    def _saved(cls, path: Path) -> Self:
        if path.is_dir():
            files = [folder / FRAME for folder in (path, path / "model")]  # a model, or a run
            path = next((file for file in files if file.is_file()), files[0])
        saved = read_json(path)
        if not isinstance(saved, Mapping) or not isinstance(saved.get("coordinates"), Mapping):
            raise ValueError(f'{path}: no "coordinates" (an object); give the {FRAME} of a model.')
        return read_dataclass(cls, saved, str(path))


def published_frames() -> dict[str, FrameRule]:
    """Map each command line option that names a frame, such as --family llava, to the frame."""
    found = {f"--family {name}": FrameRule.of_family(name) for name in FAMILY_RESIZES}
    others = [name for name in COORDINATES if name not in (*FAMILY_RESIZES, "pixels_resized")]
    return found | {f"--frame {name}": FrameRule.named(name) for name in others}
