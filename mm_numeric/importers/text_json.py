"""Import scene text from the JSON files of HierText and TextOCR, one row per image.

HierText: ``train.jsonl``, decompressed, is one JSON object. Paragraphs have lines, and lines have
words. Illegible words, paragraphs without lines and lines without words are marked ``ignore``.

    {"annotations": [{"image_id": "a1", "image_width": 1600, "image_height": 1200, "paragraphs": [
      {"vertices": [[x1, y1], ...], "legible": true, "lines": [{..., "text": "A sign", "words": [
        {"vertices": [[x1, y1], ...], "text": "A", "legible": true, ...}, ...]}]}]}]}

TextOCR: words with the text ``.`` are illegible, and are marked ``ignore``.

    {"imgs": {"a1": {"id": "a1", "width": 1024, "height": 768, "file_name": "train/a1.jpg"}, ...},
     "anns": {"a1_1": {"points": [x1, y1, ...], "utf8_string": "A", ...}, ...},
     "imgToAnns": {"a1": ["a1_1", ...], ...}}

Sources: https://github.com/google-research-datasets/hiertext, README.md;
https://textvqa.org/textocr/dataset, and dataset_zoo/textocr of open-mmlab/mmocr.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    declared_size,
    image_row,
    of_shape,
    shorten,
    text_field,
    text_region,
)
from mm_numeric.io.files import read_json


@dataclass(frozen=True, kw_only=True)
class HierText(ImageImporter):
    """Importer for HierText: words as polygons, one row per image."""

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield each image of a file."""
        for number, image in enumerate(_part(read_json(path), "annotations", path)):
            error = InvalidRowError("json", f"expected an object, found {shorten(image)}.")
            where = f"{path}, annotations.{number}"
            yield where, "", image if isinstance(image, Mapping) else error

    def items(self, where: str, identity: str, raw: Any) -> Iterator[ImportedItem]:
        """Yield an error per invalid region, and the row of the image with the others."""
        name = text_field(raw, "image_id")
        edges = {"width": raw.get("image_width"), "height": raw.get("image_height")}
        fields = self.folder.fields(self.folder.find(name), declared_size(edges))
        regions = _regions(raw, ("paragraphs", "lines", "words"), "")
        yield from image_row(where, {"id": name, **fields}, regions, _hier_text_instance)


def _regions(raw: Any, levels: tuple[str, ...], where: str) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file, region) of each word, and of lines and paragraphs without words.

    The region is its content, and True if it is a word.
    """
    found = raw.get(levels[0]) or []
    if not isinstance(found, list):
        if not where:
            raise InvalidRowError("json", f"{levels[0]} is no list.")
        yield f"{where}{levels[0]}", (found, False)
        return
    for number, region in enumerate(found):
        at = f"{where}{levels[0]}.{number}"
        if levels[1:] and isinstance(region, Mapping) and region.get(levels[1]):
            yield from _regions(region, levels[1:], f"{at}, ")
        else:
            yield at, (region, not levels[1:])


def _hier_text_instance(region: tuple[Any, bool]) -> dict[str, Any]:
    raw, is_word = region
    if not isinstance(raw, Mapping):
        raise InvalidRowError("json", f"expected an object, found {shorten(raw)}.")
    ignore = not is_word or raw.get("legible") is False
    return _instance(raw.get("vertices"), raw.get("text"), ignore=ignore)


@dataclass(frozen=True, kw_only=True)
class TextOCR(ImageImporter):
    """Importer for TextOCR: words as polygons, one row per image."""

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield each image of a file, with its annotations."""
        found = read_json(path)
        words, own = _part(found, "anns", path), _part(found, "imgToAnns", path)
        for name, image in _part(found, "imgs", path).items():
            keys = own.get(name, [])
            raw: Any = InvalidRowError("json", f"no object, or imgToAnns.{name} is no list.")
            if isinstance(image, Mapping) and isinstance(keys, list):
                raw = {**image, "words": [(str(key), words.get(str(key))) for key in keys]}
            yield f"{path}, imgs.{name}", name, raw

    def items(self, where: str, identity: str, raw: Any) -> Iterator[ImportedItem]:
        """Yield an error per invalid word, and the row of the image with the others."""
        fields = self.folder.fields(self.folder.find(identity), declared_size(raw))
        yield from image_row(where, {"id": identity, **fields}, raw["words"], _text_ocr_instance)


def _text_ocr_instance(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidRowError("reference", "this word is not among the anns.")
    text = raw.get("utf8_string")
    return _instance(raw.get("points"), text, ignore=text == ".")


def _instance(points: Any, text: Any, *, ignore: bool) -> dict[str, Any]:
    instance = text_region(points, text if isinstance(text, str) else None, ignore=ignore)
    if "text" not in instance and not ignore:
        with of_shape(instance):
            why = f"the text of a word is not a text, but {shorten(text)}."
            raise InvalidRowError("text", why)
    return instance


def _part(found: Any, name: str, path: Path) -> Any:
    kind = list if name == "annotations" else dict
    if not isinstance(found, Mapping) or not isinstance(found.get(name), kind):
        raise ValueError(f'{path}: there is no "{name}"; is it a file of the other data set?')
    return found[name]
