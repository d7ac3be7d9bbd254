"""Import object boxes from ``instances_val2017.json`` of COCO, or a file in the same format.

Boxes are [x, y, width, height] in pixels. With ``--shape polygon``, an object is the polygon of its
``segmentation``. If the segmentation has several polygons or run lengths (RLE), the object gets its
box and a ``mask``. A crowd region (``iscrowd``) covers an unknown number of objects. It is marked
``ignore``, so that it does not count in scores.

LVIS has ``coco_url`` instead of ``file_name``. As in detectron2 (``get_file_name``), the file name
is then the last two parts of the URL, such as ``val2017/000000397133.jpg``.

Source: https://cocodataset.org/#format-data, https://www.lvisdataset.org/dataset.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mm_numeric.geometry.masks import polygon_rle, read_mask
from mm_numeric.geometry.row_shapes import read_polygon
from mm_numeric.importers.importer import (
    DeclaredClasses,
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    Row,
    SkippedLine,
    declared_size,
    invalid_as,
    parse_box,
    parse_polygon,
    parse_text,
)
from mm_numeric.io.files import read_json

# Checked in this order, because annotations refer to images and categories.
_PARTS = {"images": "image", "categories": "category", "annotations": "annotation"}


@dataclass(frozen=True, kw_only=True)
class Coco(ImageImporter):
    """Importer for COCO instances JSON: one row per image, or one per category in an image."""

    endings = (".json",)

    per: Annotated[
        str,
        Option(
            "image: one row per image with all its boxes; category: one row per category that "
            "occurs once in an image, as a phrase with one box (default: image)",
            choices=("image", "category"),
        ),
    ] = "image"

    shape: Annotated[
        str,
        Option(
            "box: bbox of each object; polygon: its segmentation, a polygon or else a mask; used "
            "with --per image (default: box)",
            choices=("box", "polygon"),
        ),
    ] = "box"

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the errors in a file, its classes, and each valid image with its annotations."""
        errors, valid = _validate(read_instances(path), path)
        for where, error, _ in errors:
            yield where, "", error
        broken = {image for _, _, image in errors}
        names = {category["id"]: category["name"] for category in valid["categories"]}
        of_image = defaultdict[Any, list[Any]](list)
        for annotation in valid["annotations"]:
            of_image[annotation["image_id"]].append(annotation)
        if self.per == "image":
            used = {annotation["category_id"] for annotation in valid["annotations"]}
            yield str(path), "", _declared_classes(valid["categories"], used)
        for image in valid["images"]:
            key = image["id"]
            if key not in broken:
                yield f"{path}, image {key}", str(key), (image, of_image[key], names)

    def items(self, where: str, identity: str, entry: Any) -> Iterator[ImportedItem]:
        """Yield the row of an image, or the row of each category that occurs once in it."""
        image, annotations, names = entry
        image_fields = self.folder.fields(_file_name(image), declared_size(image))
        if self.per == "image":
            size = declared_size(image)
            instances = [_instance(a, names, self.shape, size) for a in annotations]
            yield Row(where, {"id": identity, **image_fields, "instances": instances})
            return
        for category in dict.fromkeys(a["category_id"] for a in annotations):
            there = [a for a in annotations if a["category_id"] == category]
            if len(there) > 1 or there[0].get("iscrowd"):
                yield SkippedLine("categories that occur more than once in an image")
                continue
            box = parse_box(there[0]["bbox"], xywh=True)
            fields = {"id": f"{identity}.{category}", **image_fields}
            yield Row(where, {**fields, "phrase": names[category], "box": box})


def _declared_classes(categories: Sequence[Any], used: Container[Any]) -> DeclaredClasses:
    """Return the names of a file's categories, without supercategories that have no objects.

    Roboflow adds such a supercategory. ``used`` are the ids of the categories with objects.
    """
    groups = {c.get("supercategory") for c in categories if c.get("supercategory") != c["name"]}
    return DeclaredClasses(
        tuple(c["name"] for c in categories if c["name"] not in groups or c["id"] in used)
    )


def _file_name(image: Mapping[str, Any]) -> str:
    if "file_name" in image or "coco_url" not in image:
        return parse_text(image.get("file_name"), "file_name")
    return "/".join(parse_text(image["coco_url"], "coco_url").split("/")[-2:])


def read_instances(path: Path) -> dict[str, list[Any]]:
    """Read the lists ``images``, ``categories`` and ``annotations`` of a COCO file."""
    raw = read_json(path)
    for part in _PARTS:
        if not isinstance(raw, Mapping) or not isinstance(raw.get(part), list):
            raise ValueError(f'{path}: not COCO instances: there is no list "{part}".')
    return {part: raw[part] for part in _PARTS}


def _validate(
    raw: Mapping[str, list[Any]], path: Path
) -> tuple[list[tuple[str, InvalidRowError, Any]], dict[str, list[Any]]]:
    """Return the errors of a COCO file, as (location, error, image id), and its valid entries."""
    errors: list[tuple[str, InvalidRowError, Any]] = []
    valid: dict[str, list[Any]] = {part: [] for part in _PARTS}
    keys: dict[str, set[Any]] = {part: set() for part in _PARTS}

    def check(part: str, item: Mapping[str, Any]) -> None:
        if part == "images":
            _file_name(item)
            declared_size(item)
            return
        if part == "categories":
            parse_text(item.get("name"), "name")
            return
        for name, target in (("image_id", "images"), ("category_id", "categories")):
            key = item.get(name)
            if type(key) not in (int, str) or key not in keys[target]:
                raise InvalidRowError("reference", f"{name} {key!r:.20} is not among the {target}.")
        parse_box(item.get("bbox"), xywh=True)
        if item.get("iscrowd", 0) not in (0, 1):
            raise InvalidRowError("crowd", f"iscrowd must be 0 or 1, not {item['iscrowd']!r:.20}.")

    for part in _PARTS:
        for i, item in enumerate(raw[part]):
            where, image = f"{path}, {part}.{i}", None
            try:
                if not isinstance(item, Mapping) or type(item.get("id")) not in (int, str):
                    raise InvalidRowError(
                        "id", f"expected an object with an id, found {item!r:.40}."
                    )
                where = f"{path}, {_PARTS[part]} {item['id']}"
                image = item.get("image_id") if part == "annotations" else item["id"]
                if item["id"] in keys[part]:
                    raise InvalidRowError("id", "this id is used twice.")
                if part != "categories":
                    # Annotations of an invalid image are not reported as further errors.
                    keys[part].add(item["id"])
                check(part, item)
                keys[part].add(item["id"])
                valid[part].append(item)
            except InvalidRowError as error:
                is_key = type(image) in (int, str) and part != "categories"
                errors.append((where, error, image if is_key else None))
    return errors, valid


def _instance(
    annotation: Mapping[str, Any],
    names: Mapping[Any, str],
    shape: str,
    size: tuple[int, int] | None,
) -> dict[str, Any]:
    instance: dict[str, Any] = {"box": parse_box(annotation["bbox"], xywh=True)}
    outlines = annotation.get("segmentation")
    if shape == "polygon" and outlines:
        if isinstance(outlines, list) and len(outlines) == 1:
            instance = {"polygon": parse_polygon(outlines[0])}
        else:
            with invalid_as("mask"):
                instance["mask"] = _mask(outlines, size)
    instance["label"] = names[annotation["category_id"]]
    if annotation.get("iscrowd"):
        instance["ignore"] = True
    return instance


def _mask(segmentation: Any, size: tuple[int, int] | None) -> dict[str, Any]:
    """Return a segmentation as run lengths; a list of polygons becomes their union."""
    if isinstance(segmentation, list):
        from pycocotools import mask

        if size is None:
            raise ValueError("a mask of several polygons needs the width and height of the image.")
        parts = [polygon_rle(read_polygon(part, "").points, size[::-1]) for part in segmentation]
        union = mask.merge(parts)
        segmentation = {"size": union["size"], "counts": union["counts"].decode()}
    read_mask(segmentation, "segmentation")
    return dict(segmentation)
