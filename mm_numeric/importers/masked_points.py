"""Import Where2Place and RefSpatial-Bench: questions, and the mask in which points are right.

where2place  point_questions.jsonl, with one question per line:
             {"question_id": 0, "image": "00.jpg", "text": "Locate several points on ...", ...}
             The folder of the masks has ``00.jpg`` for the first line, ``01.jpg`` for the second
refspatial   question.json of the folder Location, Placement or Unseen, which is ``--images``:
             [{"id": 0, "object": "the orange box", "prompt": "Please point out the orange box.",
               "suffix": "Your answer should be ...", "rgb_path": "image/0.png",
               "mask_path": "mask/0.png", "category": "location", "step": 1}, ...]

Masks are saved in the rows, as run lengths. The form of the answer that a question of Where2Place
asks for, from ``Your answer should`` on, is removed: each model family has its own.

Sources: https://github.com/wentaoyuan/RoboPoint, robopoint/eval/summarize_vqa.py, and
wentao-yuan/where2place on the hub; BAAI/RefSpatial-Bench on the hub, README and folder Location.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    parse_text,
    text_field,
)

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

    images: Annotated[Path, Option("folder of image/ and mask/, such as Location", name="FOLDER")]

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question and its mask; ``category`` and ``step`` are kept."""
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
    """Return the fields of a row for its image, and for the mask of the same size in a file."""
    try:
        with image_file(mask) as image:
            region = mask_of(np.asarray(image))
    except Exception as error:  # Pillow raises almost any type for a damaged file
        raise InvalidRowError("mask", f"the mask {mask} cannot be read ({error}).") from error
    if not any(region.counts[1::2]):
        raise InvalidRowError("mask", f"the mask {mask} has no pixel above 0.")
    size = images.fields(name, region.size[::-1])
    return {**size, "instances": [{"mask": mask_row(region)}]}
