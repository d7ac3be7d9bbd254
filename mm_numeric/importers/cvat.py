"""Import "CVAT for images 1.1": ``annotations.xml`` with boxes and polygons in pixels.

    <annotations><image id="0" name="1.jpg" width="640" height="480">
      <box label="dog" xtl="10" ytl="20" xbr="110" ybr="90" occluded="0" rotation="30"/>
      <polygon label="dog" points="1,2;3,4;5,6"/></image></annotations>

``meta`` declares the labels: <label><name>dog</name><type>rectangle</type></label>. A rotated box
becomes a polygon: its corners turn clockwise about its centre, by degrees. Other shapes, such as
polylines and masks, are counted and left out.

Source: https://docs.cvat.ai/docs/manual/advanced/xml_format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from mm_numeric.importers.importer import (
    DeclaredClasses,
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    SkippedLine,
    declared_size,
    image_row,
    parse_box,
    parse_number,
    parse_polygon,
    parse_text,
    parsed_root,
    rotated_box,
)
from mm_numeric.numbers.numerals import whole_number

_NO_SHAPES = ("tag",)  # labels of the whole image
_KINDS = ("any", "rectangle", "polygon")  # of labels that boxes and polygons may have


@dataclass(frozen=True, kw_only=True)
class Cvat(ImageImporter):
    """Importer for CVAT's XML for images: boxes and polygons, one row per image."""

    endings = (".xml",)

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the labels of a file, and then its images."""
        try:
            root = parsed_root(path, "annotations")
        except InvalidRowError as error:
            yield str(path), "", error
            return
        if root.find("track") is not None:
            why = "the file has tracks of a video; export it as CVAT for images."
            yield str(path), "", InvalidRowError("tracks", why)
            return
        labels = (x for x in root.iterfind("meta//label") if x.findtext("type", "any") in _KINDS)
        names = tuple(name for x in labels if (name := x.findtext("name")))
        yield str(path), "", DeclaredClasses(names)
        for image in root.iter("image"):
            yield f"{path}, image {image.get('id', '?'):.20}", "", image

    def items(self, where: str, identity: str, image: Element) -> Iterator[ImportedItem]:
        """Yield the row of an image, or instead one error per invalid shape."""
        name = parse_text(image.get("name"), "name")
        fields = {"id": name, **self.folder.fields(name, _size(image))}
        shapes = [shape for shape in image if shape.tag not in _NO_SHAPES]
        objects = ((f"{s.tag} {i}", s) for i, s in enumerate(shapes, start=1))
        yield from image_row(where, fields, objects, _object)


def _size(image: Element) -> tuple[int, int] | None:
    numbers = {name: image.get(name) for name in ("width", "height")}
    given = {k: v and (v if whole_number(v) is None else int(v)) for k, v in numbers.items()}
    return declared_size(given)


def _object(shape: Element) -> dict[str, Any] | SkippedLine:
    if shape.tag not in ("box", "polygon"):
        return SkippedLine(f"shapes that are neither boxes nor polygons ({shape.tag:.20})")
    label = parse_text(shape.get("label"), "label")
    if shape.tag == "polygon":
        pairs = [point.split(",") for point in (shape.get("points") or "").split(";")]
        points = [[parse_number(text) for text in pair] for pair in pairs]
        return {"polygon": parse_polygon(points), "label": label}
    edges = [parse_number(shape.get(name) or "") for name in ("xtl", "ytl", "xbr", "ybr")]
    degrees = parse_number(shape.get("rotation") or "0")
    box = parse_box(edges)
    centre = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return {**rotated_box(box, centre, degrees), "label": label}
