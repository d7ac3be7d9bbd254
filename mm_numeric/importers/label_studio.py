"""Import Label Studio's JSON export: tasks with boxes and polygons in percent of the image.

    [{"id": 1, "data": {"image": "/data/upload/2/0ab1c2d3-1.jpg"}, "annotations": [{"result": [
      {"type": "rectanglelabels", "original_width": 640, "original_height": 480,
       "value": {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0,
                 "rectanglelabels": ["dog"]}}]}]}]

A rotated rectangle turns clockwise about its upper left corner, and becomes a polygon. Of several
annotations of a task, the first that was not cancelled is used, and the others are counted. Tasks
without an annotation and other kinds of labels, such as brushes, are counted and left out.

With <Rectangle> or <Polygon>, and <Labels>, as in the template for OCR, a region has results of
several types with one ``id``: its shape is in ``labels``, or else in ``rectangle`` or ``polygon``.

Source: https://labelstud.io/guide/export. Label Studio adds eight characters to the name of an
uploaded image. With --images, an image is found with and without them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from mm_numeric.importers.importer import (
    ImageFolder,
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    SkippedLine,
    declared_size,
    image_row,
    parse_box,
    parse_number_list,
    parse_polygon,
    parse_text,
    rotated_box,
    shorten,
)

_UPLOADED = re.compile(r"[0-9a-f]{8}-(?=.)")
_LABELS = ("rectanglelabels", "polygonlabels", "labels")
_UNLABELLED = ("rectangle", "polygon")


@dataclass(frozen=True, kw_only=True)
class LabelStudio(ImageImporter):
    """Importer for Label Studio's JSON export: boxes and polygons, one row per task."""

    endings = (".json",)
    version = 3  # 3: regions of <Labels>

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield the row of an annotated task, or instead one error per invalid label."""
        annotations = raw.get("annotations")
        if not isinstance(annotations, list):
            raise InvalidRowError(
                "annotations",
                'there is no list "annotations"; export as JSON, not as JSON-MIN or CSV.',
            )
        own = [a for a in annotations if isinstance(a, Mapping) and not a.get("was_cancelled")]
        if not own:
            yield SkippedLine("tasks without an annotation")
            return
        for _ in own[1:]:
            yield SkippedLine("further annotations of the same task")
        results = own[0].get("result")
        if not isinstance(results, list) or not all(isinstance(r, Mapping) for r in results):
            raise InvalidRowError("result", f"result is a list of objects, not {shorten(results)}.")
        name = _image_name(raw.get("data"), self.folder)
        # A choice for the whole image and a relation have no size.
        size = next((size for result in results if (size := _size(result))), None)
        fields = {"id": str(raw.get("id", identity)), **self.folder.fields(name, size)}
        named = {str(result.get("id")) for result in results if _is_labelled_region(result)}
        objects = (
            (f"result.{i}", result)
            for i, result in enumerate(results)
            if result.get("type") not in _UNLABELLED or str(result.get("id")) not in named
        )
        yield from image_row(where, fields, objects, _object)


def _is_labelled_region(result: Mapping[str, Any]) -> bool:
    """Return True for a box or polygon in a result of the type ``labels``, also used for text."""
    value = result.get("value")
    is_shape = isinstance(value, Mapping) and ("points" in value or {"width", "height"} <= {*value})
    return result.get("type") == "labels" and is_shape


def _size(result: Mapping[str, Any]) -> tuple[int, int] | None:
    names = ("width", "height")
    return declared_size({name: result.get(f"original_{name}") for name in names})


def _image_name(data: Any, image_folder: ImageFolder) -> str:
    """Return the file name of an image, given as a path or a URL."""
    given = data.get("image") if isinstance(data, Mapping) else None
    url = urlsplit(parse_text(given, "data.image"))
    local = parse_qs(url.query).get("d", [""])[0]  # /data/local-files/?d=folder/1.jpg
    name = (local or unquote(url.path)).replace("\\", "/").rpartition("/")[2]
    plain = _UPLOADED.sub("", name, count=1)
    folder = image_folder.folder
    is_renamed = folder is not None and not (folder / name).is_file() and (folder / plain).is_file()
    return plain if is_renamed else parse_text(name, "the name of data.image")


def _object(result: Mapping[str, Any]) -> dict[str, Any] | SkippedLine:
    kind, value = result.get("type"), result.get("value")
    if kind not in (*_LABELS, *_UNLABELLED) or (
        kind == "labels" and not _is_labelled_region(result)
    ):
        return SkippedLine(f"results that are neither boxes nor polygons ({shorten(kind)})")
    size = _size(result)
    if not isinstance(value, Mapping) or size is None:
        raise InvalidRowError("value", "a label needs value, original_width and original_height.")
    label = {} if kind in _UNLABELLED else {"label": _label(kind, value)}
    width, height = (edge / 100 for edge in size)  # of one percent
    if kind in ("polygon", "polygonlabels") or (kind == "labels" and "points" in value):
        points = value.get("points")
        if not isinstance(points, list):
            raise InvalidRowError("points", f"points is a list, not {shorten(points)}.")
        pairs = [parse_number_list(point) for point in points]
        pixels = [[n * (height if i else width) for i, n in enumerate(pair)] for pair in pairs]
        return {"polygon": parse_polygon(pixels), **label}
    x, y, w, h = parse_number_list([value.get(name) for name in ("x", "y", "width", "height")])
    (degrees,) = parse_number_list([value.get("rotation", 0)])
    box = parse_box([x * width, y * height, (x + w) * width, (y + h) * height])
    return {**rotated_box(box, (box[0], box[1]), degrees), **label}


def _label(kind: str, value: Mapping[str, Any]) -> str:
    names = value.get(kind)
    if not (isinstance(names, list) and len(names) == 1):
        raise InvalidRowError("label", f"{kind} has one label, not {shorten(names)}.")
    return parse_text(names[0], "a label")
