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
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    image_row,
    invalid_as,
    of_shape,
    parse_box,
    parse_polygon,
    parse_text,
)
from mm_numeric.io.files import read_json

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
        raw, errors = read_instances(path), list[tuple[str, InvalidRowError]]()
        images, categories = (_by_id(raw[part], part, errors) for part in _CHECKS)
        for place, error in errors:
            yield f"{path}, {place}", "", error
        names = {key: category["name"] for key, category in categories.items() if category}
        of_image = defaultdict[Any, list[Any]](list)
        for i, annotation in enumerate(raw["annotations"]):
            place = _place("annotations", i, annotation)
            try:
                of_image[_referred(annotation, "image_id", images)].append((place, annotation))
            except InvalidRowError as error:
                yield "", "", error.at(f"{path}, {place}", of_object=True)
        if self.per == "image":
            used = {_key(annotation, "category_id") for annotation in raw["annotations"]}
            yield str(path), "", _declared_classes([c for c in categories.values() if c], used)
        for key, image in images.items():
            if image is not None:
                yield f"{path}, image {key}", str(key), (image, of_image[key], names)

    def items(self, where: str, identity: str, entry: Any) -> Iterator[ImportedItem]:
        """Yield the row of an image, or the row of each category that occurs once in it."""
        image, annotations, names = entry
        size = declared_size(image)
        fields = {"id": identity, **self.folder.fields(_file_name(image), size)}
        shape = self.shape if self.per == "image" else "box"
        read = partial(_instance, names=names, shape=shape, size=size)
        if self.per == "image":
            yield from image_row(where, fields, annotations, read)
            return
        found = defaultdict[Any, list[Any]](list)  # maps categories to objects; None is invalid
        for place, annotation in annotations:
            instance = None
            try:
                instance = read(annotation)
            except InvalidRowError as error:
                error.shape = None
                yield error.at(f"{where}, {place}", of_object=True)
            found[_key(annotation, "category_id")].append(instance)
        for category, instances in found.items():
            if len(instances) > 1 or "ignore" in (instances[0] or ()):
                yield SkippedLine("categories that occur more than once in an image")
            elif instances[0]:
                own = {"id": f"{identity}.{category}", "phrase": names[category]}
                yield Row(where, {**fields, **own, "box": instances[0]["box"]})


def _declared_classes(categories: Sequence[Any], used: Container[Any]) -> DeclaredClasses:
    """Return the names of a file's categories, without supercategories that have no objects.

    Roboflow adds such a supercategory. ``used`` are the ids of the categories with objects.
    """
    groups = {c.get("supercategory") for c in categories if c.get("supercategory") != c["name"]}
    kept = [c for c in categories if c["name"] not in groups or c["id"] in used]
    return DeclaredClasses(tuple(c["name"] for c in kept), tuple(c["id"] for c in kept))


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


def _key(item: Any, name: str) -> Any:
    """Return an id in the field ``name``; None if it is neither an integer nor a text."""
    key = item.get(name) if isinstance(item, Mapping) else None
    return key if type(key) in (int, str) else None


def _place(part: str, i: int, item: Any) -> str:
    key = _key(item, "id")
    return f"{part}.{i}" if key is None else f"{_PARTS[part]} {key}"


def _referred(item: Any, name: str, found: Container[Any]) -> Any:
    """Return the id in the field ``name``, which must be in ``found``."""
    if not isinstance(item, Mapping):
        raise InvalidRowError("json", f"expected an object, found {item!r:.40}.")
    if _key(item, name) not in found:
        target = {"image_id": "images", "category_id": "categories"}[name]
        raise InvalidRowError(name, f"{name} {item.get(name)!r:.20} is not among the {target}.")
    return item[name]


def _by_id(
    items: Sequence[Any], part: str, errors: list[tuple[str, InvalidRowError]]
) -> dict[Any, Any]:
    """Map ids to images or categories, and invalid ones to None; append (place, error) of each."""
    found: dict[Any, Any] = {}
    for i, item in enumerate(items):
        try:
            if _key(item, "id") is None:
                why = f"expected an object with an id, found {item!r:.40}."
                raise InvalidRowError("id", why)
            if item["id"] in found:
                if part == "images":  # it is unknown which of them an annotation refers to
                    found[item["id"]] = None
                raise InvalidRowError("id", "this id is used twice.")
            found[item["id"]] = None
            _CHECKS[part](item)
            found[item["id"]] = item
        except InvalidRowError as error:
            errors.append((_place(part, i, item), error))
    return found


def _check_image(image: Mapping[str, Any]) -> None:
    _file_name(image)
    declared_size(image)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "images": _check_image,
    "categories": lambda category: parse_text(category.get("name"), "name"),
}


def _instance(
    annotation: Mapping[str, Any],
    names: Mapping[Any, str],
    shape: str,
    size: tuple[int, int] | None,
) -> dict[str, Any]:
    instance: dict[str, Any] = {"box": parse_box(annotation.get("bbox"), xywh=True)}
    with of_shape({**instance}):
        label = names[_referred(annotation, "category_id", names)]
        crowd = annotation.get("iscrowd", 0)
        if crowd not in (0, 1):
            raise InvalidRowError("crowd", f"iscrowd must be 0 or 1, not {crowd!r:.20}.")
        outlines = annotation.get("segmentation")
        if shape == "polygon" and outlines:
            if isinstance(outlines, list) and len(outlines) == 1:
                instance = {"polygon": parse_polygon(outlines[0])}
            else:
                with invalid_as("mask"):
                    instance["mask"] = _mask(outlines, size)
    return {**instance, "label": label, **({"ignore": True} if crowd else {})}


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
