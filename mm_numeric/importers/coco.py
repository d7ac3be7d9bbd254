"""COCO instances: ``instances_val2017.json`` and files made like it.

Boxes are [x, y, width, height] in pixels. A crowd region (``iscrowd``) is to be ignored: it stands
for any number of things.

Source: https://cocodataset.org/#format-data; pycocotools puts annotations and images together.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mm_numeric.files import read_json
from mm_numeric.importers.files import ImageFolder, listed
from mm_numeric.importers.importer import (
    BadLine,
    Found,
    ImagesFolder,
    LeftOut,
    Option,
    RefusedError,
    Row,
    box_of,
    size_of,
    text_of,
)

_PARTS = {"images": "image", "categories": "category", "annotations": "annotation"}


@dataclass(frozen=True, kw_only=True)
class Coco:
    """COCO instances JSON: labelled boxes; a row an image, or a row a category in it."""

    version: ClassVar[int] = 1

    per: Annotated[
        str,
        Option(
            "a row for each image, with all its boxes; or for each category that stands once in "
            "an image, as a phrase with one box (default: image)",
            choices=("image", "category"),
        ),
    ] = "image"
    images: ImagesFolder = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the files that will be read."""
        return listed(inputs, (".json",))

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read them; an image with a bad annotation has no row."""
        image_folder = ImageFolder(self.images)
        for path in files:
            yield from self._file(path, image_folder)

    def _file(self, path: Path, image_folder: ImageFolder) -> Iterator[Found]:
        raw = read_instances(path)
        faults, good = _sorted_out(raw, path)
        yield from (bad for bad, _ in faults)
        broken = {image for _, image in faults}
        from pycocotools.coco import COCO

        coco = COCO()
        coco.dataset = good
        with contextlib.redirect_stdout(io.StringIO()):  # "creating index..."
            coco.createIndex()
        names = {key: category["name"] for key, category in coco.cats.items()}
        for key, image in coco.imgs.items():
            if key in broken:
                continue
            where = f"{path}, image {key}"
            try:
                facts = image_folder.facts(image["file_name"], size_of(image))
            except RefusedError as refusal:
                yield refusal.at(where)
                continue
            annotations = coco.imgToAnns[key]
            if self.per == "image":
                instances = [_instance(a, names) for a in annotations]
                yield Row(where, {"id": str(key), **facts, "instances": instances})
                continue
            for category in dict.fromkeys(a["category_id"] for a in annotations):
                there = [a for a in annotations if a["category_id"] == category]
                if len(there) > 1 or there[0].get("iscrowd"):
                    yield LeftOut("categories that stand more than once in an image")
                    continue
                box = box_of(there[0]["bbox"], xywh=True)
                fields = {"id": f"{key}.{category}", **facts, "phrase": names[category], "box": box}
                yield Row(where, fields)


def read_instances(path: Path) -> dict[str, list[Any]]:
    """Return the images, annotations and categories of a file, not looked into.

    Raises:
        ValueError: If the file is none of COCO's instances.
    """
    raw = read_json(path)
    for part in _PARTS:
        if not isinstance(raw, Mapping) or not isinstance(raw.get(part), list):
            raise ValueError(f'{path}: not COCO instances: there is no list "{part}".')
    return {part: raw[part] for part in _PARTS}


def _sorted_out(
    raw: Mapping[str, list[Any]], path: Path
) -> tuple[list[tuple[BadLine, Any]], dict[str, list[Any]]]:
    """Return bad lines, each with the id of the image that it costs its row; and the rest.

    pycocotools would stop at these with a KeyError, or keep the last of two in silence.
    """
    faults: list[tuple[BadLine, Any]] = []
    good: dict[str, list[Any]] = {part: [] for part in _PARTS}
    keys: dict[str, set[Any]] = {part: set() for part in _PARTS}

    def check_image(image: Mapping[str, Any]) -> None:
        text_of(image.get("file_name"), "file_name")
        size_of(image)

    def check_category(category: Mapping[str, Any]) -> None:
        text_of(category.get("name"), "name")

    def check_annotation(annotation: Mapping[str, Any]) -> None:
        for name, part in (("image_id", "images"), ("category_id", "categories")):
            key = annotation.get(name)
            if type(key) not in (int, str) or key not in keys[part]:
                raise RefusedError("reference", f"{name} {key!r:.20} is none of the {part}.")
        box_of(annotation.get("bbox"), xywh=True)
        if annotation.get("iscrowd", 0) not in (0, 1):
            raise RefusedError("crowd", f"iscrowd is 0 or 1, not {annotation['iscrowd']!r:.20}.")

    checks = {"images": check_image, "categories": check_category, "annotations": check_annotation}
    for part, check in checks.items():
        for i, item in enumerate(raw[part]):
            where, image = f"{path}, {part}.{i}", None
            try:
                if not isinstance(item, Mapping) or type(item.get("id")) not in (int, str):
                    raise RefusedError("id", f"expected an object with an id, found {item!r:.40}.")
                where = f"{path}, {_PARTS[part]} {item['id']}"
                image = item.get("image_id") if part == "annotations" else item["id"]
                if item["id"] in keys[part]:
                    raise RefusedError("id", "this id stands twice.")
                if part != "categories":  # what is about a bad image is no second fault
                    keys[part].add(item["id"])
                check(item)
                keys[part].add(item["id"])
                good[part].append(item)
            except RefusedError as refusal:
                is_key = type(image) in (int, str) and part != "categories"
                faults.append((refusal.at(where), image if is_key else None))
    return faults, good


def _instance(annotation: Mapping[str, Any], names: Mapping[Any, str]) -> dict[str, Any]:
    instance: dict[str, Any] = {
        "box": box_of(annotation["bbox"], xywh=True),
        "label": names[annotation["category_id"]],
    }
    if annotation.get("iscrowd"):
        instance["ignore"] = True
    return instance
