"""Import PixMo-Points, Where2Place and RefSpatial-Bench: phrases with points or masks.

pixmo_points  rows of allenai/pixmo-points or pixmo-points-eval, saved with ``to_json`` of
              ``datasets``; rows of pixmo-points-eval also have ``masks``: for each point the pixels
              of its object, [points, height, width], as true and false
              {"image_url": "https://...", "image_sha256": "...", "label": "dogs", "count": 2,
               "points": [{"x": 35.5, "y": 40.2}, {"x": 70.0, "y": 38.9}],
               "collection_method": "pointing"}
where2place   point_questions.jsonl, with one question per line:
              {"question_id": 0, "image": "00.jpg", "text": "Locate several points on ...", ...}
              The folder of the masks has ``00.jpg`` for the first line, ``01.jpg`` for the second
refspatial    question.json of the folder Location, Placement or Unseen, which is ``--images``:
              [{"id": 0, "object": "the orange box", "prompt": "Please point out the orange box.",
                "suffix": "Your answer should be ...", "rgb_path": "image/0.png",
                "mask_path": "mask/0.png", "category": "location", "step": 1}, ...]

Masks are saved in the rows, as run lengths. Points of PixMo are in percent of width and height, so
``--images`` is required. (The dataset card says pixels, but the classes ``PixMoPoints`` and
``PixMoPointsEval`` of https://github.com/allenai/molmo, olmo/data/pixmo_datasets.py, have
``point_scale=100``.) Images are named by the SHA-256 of their URLs, as ``download_pixmo_urls`` of
olmo/data/download_urls.py saves them; a row may have another file name in ``image``. The end of a
question of Where2Place, from ``Your answer should`` on, describes the format of the answer. It is
removed, because each model family has its own format.

Sources: https://github.com/wentaoyuan/RoboPoint, robopoint/eval/summarize_vqa.py, and
wentao-yuan/where2place on the hub; BAAI/RefSpatial-Bench on the hub, README and folder Location.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mm_numeric.data.images import image_file
from mm_numeric.geometry.masks import mask_of, mask_row
from mm_numeric.importers.importer import (
    ImageFolder,
    ImageImporter,
    InvalidRowError,
    Option,
    parse_number_list,
    parse_text,
    round_coordinates,
    shorten,
    text_field,
)

_PERCENT = 100
_BEYOND = 1  # percent of the image by which a point may be outside; such points move to the edge


@dataclass(frozen=True, kw_only=True)
class PixMoPoints(ImageImporter):
    """Importer for PixMo-Points: all points of the objects with a label, one row per label."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert the points of a label; the list may be empty."""
        url, points = text_field(raw, "image_url"), raw.get("points")
        if not isinstance(points, list) or not all(isinstance(p, Mapping) for p in points):
            raise InvalidRowError(
                "points", f'points is a list of {{"x": x, "y": y}}, not {shorten(points)}.'
            )
        name = raw.get("image") or hashlib.sha256(url.encode()).hexdigest()
        image = self.folder.fields(parse_text(name, "image"))
        if "width" not in image:
            raise InvalidRowError("image", "its size is unknown; give --images.")
        edges = image["width"], image["height"]
        places = [
            round_coordinates(
                n / _PERCENT * edge for n, edge in zip(_percents(p), edges, strict=True)
            )
            for p in points
        ]
        found: dict[str, Any] = {"points": places}
        if raw.get("masks"):
            masks = _masks(raw["masks"], (len(places), image["height"], image["width"]))
            found = {
                "instances": [{"mask": m, "point": p} for m, p in zip(masks, places, strict=True)]
            }
        method = raw.get("collection_method")
        return {
            "id": identity,
            **image,
            "phrase": text_field(raw, "label"),
            **found,
            **({} if method is None else {"category": parse_text(method, "collection_method")}),
        }


def _percents(point: Mapping[str, Any]) -> list[float]:
    """Return x and y of a point in percent; move it to the edge if it is at most 1 % outside."""
    found = parse_number_list([point.get("x"), point.get("y")])
    if not all(-_BEYOND <= n <= _PERCENT + _BEYOND for n in found):
        raise InvalidRowError(
            "points",
            f"x and y are percent of width and height, from 0 to {_PERCENT}, not {shorten(found)}.",
        )
    return [min(max(n, 0), _PERCENT) for n in found]


def _masks(value: Any, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Convert masks of a row to run lengths; ``shape`` must be (points, height, width)."""
    try:
        pixels = np.asarray(value, dtype=np.bool_)
    except ValueError as error:
        raise InvalidRowError(
            "masks", f"the masks have rows of several lengths ({error})."
        ) from error
    if pixels.shape != shape or not pixels.any(axis=(1, 2)).all():
        raise InvalidRowError(
            "masks",
            f"masks are [points, height, width] = {list(shape)}, each with a pixel, not "
            f"{list(pixels.shape)}.",
        )
    return [mask_row(mask_of(own)) for own in pixels]


_FORM = "Your answer should"


@dataclass(frozen=True, kw_only=True)
class Where2Place(ImageImporter):
    """Importer for Where2Place: points in free space, one row per question."""

    masks: Annotated[Path, Option("folder of the masks", name="FOLDER")]

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question and its mask."""
        index, number = int(identity.rpartition(".")[2]) - 1, raw.get("question_id")
        name = ImageFolder(self.masks).find(f"{index:02d}")
        question = text_field(raw, "text").partition(_FORM)[0].strip()
        return {
            "id": identity if number is None else str(number),
            **_image_and_region(self.folder, text_field(raw, "image"), self.masks / name),
            "phrase": parse_text(question, "text"),
        }


@dataclass(frozen=True, kw_only=True)
class RefSpatial(ImageImporter):
    """Importer for RefSpatial-Bench: points at objects or in free space, one row per question."""

    # `field()` removes the default of the base class: the option is required here.
    images: Annotated[
        Path, Option("folder of image/ and mask/, such as Location", name="FOLDER")
    ] = field()

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question and its mask; also copy ``category`` and ``step`` to the row."""
        found = {name: raw[name] for name in ("category", "step") if raw.get(name) is not None}
        mask = self.images / text_field(raw, "mask_path")
        number = raw.get("id")
        return {
            "id": identity if number is None else f"{raw.get('category', 'question')}-{number}",
            **_image_and_region(self.folder, text_field(raw, "rgb_path"), mask),
            "phrase": text_field(raw, "object"),
            **{name: str(value) for name, value in found.items()},
        }


def _image_and_region(images: ImageFolder, name: str, mask: Path) -> dict[str, Any]:
    """Return the row fields for an image and its mask, a file that must have the image's size."""
    try:
        with image_file(mask) as image:
            region = mask_of(np.asarray(image))
    except Exception as error:  # Pillow raises almost any type for a damaged file
        raise InvalidRowError("mask", f"the mask {mask} cannot be read ({error}).") from error
    if not any(region.counts[1::2]):
        raise InvalidRowError("mask", f"the mask {mask} has no pixel above 0.")
    size = images.fields(name, region.size[::-1])
    return {**size, "instances": [{"mask": mask_row(region)}]}
