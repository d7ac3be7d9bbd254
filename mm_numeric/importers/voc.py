"""Import Pascal VOC: one XML file per image, as LabelImg and many other tools write it.

    <annotation><filename>1.jpg</filename><size><width>640</width><height>480</height></size>
      <object><name>dog</name><difficult>0</difficult>
        <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>640</xmax><ymax>480</ymax></bndbox>
      </object></annotation>

Pixels are counted from 1, and both corners belong to the object: the box above covers the whole
image, and becomes [0, 0, 640, 480]. Difficult objects are marked ``ignore``, as in the challenge's
evaluation.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from xml.etree.ElementTree import Element

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    image_row,
    of_shape,
    parse_box,
    parse_number,
    parse_text,
)
from mm_numeric.io.files import parse_xml


@dataclass(frozen=True, kw_only=True)
class Voc(ImageImporter):
    """Importer for Pascal VOC: XML files with boxes, one row per image."""

    endings = (".xml",)

    zero_based: Annotated[
        bool, Option("pixels are counted from 0 and xmax, ymax are edges, as some tools write them")
    ] = False

    def entries(self, path: Path) -> Iterator[tuple[str, str, Path]]:
        """Yield the file itself as the only entry, because it has one image."""
        yield str(path), path.stem, path

    def items(self, where: str, identity: str, path: Path) -> Iterator[ImportedItem]:
        """Yield an error per invalid object, and the row of the image with the others."""
        root = _root(path)
        name = parse_text(root.findtext("filename") or "", "filename").strip()
        fields = {"id": identity, **self.folder.fields(name, _size(root))}
        objects = ((f"object {i}", o) for i, o in enumerate(root.iter("object"), start=1))
        read = partial(_object, first=0 if self.zero_based else 1)
        yield from image_row(where, fields, objects, read)


def _root(path: Path) -> Element:
    try:
        root = parse_xml(path.read_bytes())
    except ValueError as error:
        raise InvalidRowError("xml", f"{error}.") from error
    if root.tag != "annotation":
        raise InvalidRowError("xml", f"expected <annotation>, found <{root.tag[:40]}>.")
    return root


def _size(root: Element) -> tuple[int, int] | None:
    """Return the declared (width, height); None if it is missing, or 0, as some tools write."""
    texts = [root.findtext(f"size/{name}") for name in ("width", "height")]
    width, height = (parse_number(text or "0") for text in texts)
    if not (width and height):
        return None
    if not (width.is_integer() and height.is_integer() and min(width, height) > 0):
        raise InvalidRowError("image", f"the size {width:g} x {height:g} is not one in pixels.")
    return int(width), int(height)


def _object(element: Element, first: int) -> dict[str, Any]:
    """Convert an object; ``first`` is the number of the first pixel."""
    name = element.findtext("name") or ""
    edges = []
    for edge in ("xmin", "ymin", "xmax", "ymax"):
        text = element.findtext(f"bndbox/{edge}")
        if text is None:
            raise InvalidRowError("box", f"the object {name!r:.40} has no bndbox with {edge}.")
        edges.append(parse_number(text))
    if min(edges[:2]) < first and first:
        raise InvalidRowError(
            "box",
            f"xmin {edges[0]:g} and ymin {edges[1]:g}, but Pascal VOC counts pixels from 1; add "
            "--zero-based if these files count from 0.",
        )
    box = parse_box([edges[0] - first, edges[1] - first, *edges[2:]])
    with of_shape({"box": box}):
        label = parse_text(name, "name").strip()
    ignore = {"ignore": True} if (element.findtext("difficult") or "").strip() == "1" else {}
    return {"box": box, "label": label, **ignore}
