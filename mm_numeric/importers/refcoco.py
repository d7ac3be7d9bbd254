"""Import RefCOCO, RefCOCO+ and RefCOCOg from ``refs(unc).p`` and ``instances.json``.

A ref describes one object in an image of COCO train2014 with one or more sentences (referring
expressions). The option ``--split-by`` names the authors of the split: ``unc`` (RefCOCO and
RefCOCO+), ``umd`` or ``google`` (RefCOCOg). If the file has splits of other authors, an error is
raised.

The pickle file is read without executing code: it may contain only containers, text and numbers.

Source: https://github.com/lichengunc/refer, refer.py.
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mm_numeric.importers.coco import read_instances
from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    SkippedLine,
    declared_size,
    input_files,
    parse_box,
    row_or_error,
    shorten,
    text_field,
)

SPLITS: Mapping[str, frozenset[str]] = {
    "unc": frozenset({"train", "val", "testA", "testB"}),
    "umd": frozenset({"train", "val", "test"}),
    "google": frozenset({"train", "val", "test"}),
}
"""Maps each author of splits to the names of the splits."""


@dataclass(frozen=True, kw_only=True)
class RefCoco(ImageImporter):
    """Importer for RefCOCO, RefCOCO+ and RefCOCOg: one row per object and its expressions."""

    endings = (".json", ".p", ".pkl", ".pickle")

    split: Annotated[str, Option("split to read: train, val, testA, testB or test", name="NAME")]
    split_by: Annotated[str, Option("author of the split", choices=SPLITS)]

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return two files: the pickle file of the refs, and ``instances.json``."""
        found: list[Path] = []
        for path in inputs:
            inside = [path / f"refs({self.split_by}).p", path / "instances.json"]
            found += inside if path.is_dir() else [path]
        found = input_files(found, self.endings)
        if sorted(path.suffix == ".json" for path in found) != [False, True]:
            raise ValueError(
                "refcoco is read from one folder with refs(...).p and instances.json, or from "
                f"these two files, not from {' '.join(map(str, found)):.200}."
            )
        named = re.search(r"\((\w+)\)", found[0].name + found[1].name)
        if named and named[1] != self.split_by:
            raise ValueError(
                f"the refs were split by {named[1]} according to their name, not by "
                f"{self.split_by}."
            )
        return found

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per ref (an object with referring expressions) of the chosen split."""
        instances, pickled = sorted(files, key=lambda path: path.suffix != ".json")
        refs = read_pickle(pickled)
        if not isinstance(refs, list):
            raise ValueError(f"{pickled}: expected a list of refs, found {shorten(refs)}.")
        raw = read_instances(instances)
        images, annotations = _by_id(raw["images"]), _by_id(raw["annotations"])
        selected: list[tuple[str, dict[str, Any]]] = []
        splits = set()
        for i, ref in enumerate(refs):
            try:
                fields = _fields(ref)
                split = text_field(fields, "split")
            except InvalidRowError as error:
                yield error.at(f"{pickled}, refs.{i}")
                continue
            splits.add(split)
            if split == self.split:
                selected.append((f"{pickled}, ref {fields.get('ref_id')}", fields))
            else:
                yield SkippedLine("refs of other splits")
        self._check(pickled, splits)
        for where, fields in selected:
            yield row_or_error(where, self._row, fields, images, annotations)

    def _row(
        self,
        ref: Mapping[str, Any],
        images: Mapping[Any, Mapping[str, Any]],
        annotations: Mapping[Any, Mapping[str, Any]],
    ) -> dict[str, Any]:
        if type(ref.get("ref_id")) is not int:
            raise InvalidRowError("id", f"ref_id is not an integer: {shorten(ref.get('ref_id'))}.")
        annotation = _referred(ref, "ann_id", annotations)
        image = _referred(annotation, "image_id", images)
        if ref.get("image_id") != image["id"]:
            raise InvalidRowError("reference", "ref and annotation refer to different images.")
        parse_box(annotation.get("bbox"), xywh=True)
        sentences = ref.get("sentences")
        if not isinstance(sentences, list) or not sentences:
            raise InvalidRowError("text", "there are no sentences.")
        return {
            "id": str(ref["ref_id"]),
            **self.folder.fields(text_field(image, "file_name"), declared_size(image)),
            "sentences": [text_field(_fields(s), "sent") for s in sentences],
            "box_xywh": annotation["bbox"],
        }

    def _check(self, path: Path, found: set[str]) -> None:
        names = ", ".join(sorted(found))
        if found - SPLITS[self.split_by]:
            raise ValueError(
                f"{path}: contains {names}; a split by {self.split_by} has "
                f"{', '.join(sorted(SPLITS[self.split_by]))}."
            )
        if self.split not in found:
            raise ValueError(f"{path}: there is no split {self.split!r}; it contains {names}.")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for containers, text and numbers only, so that a file cannot execute code."""

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an external object")

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it imports {module}.{name}, which could execute code; only lists, dicts, text and "
            "numbers are allowed"
        )


def read_pickle(path: Path) -> Any:
    """Read a pickle file without executing code. Strings of Python 2 are returned as bytes."""
    with path.open("rb") as file:
        try:
            return _PlainUnpickler(file, encoding="bytes").load()
        except Exception as error:  # a damaged file raises almost any type
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path}: not a pickle of plain values ({reason}).") from error


def _fields(ref: Any) -> dict[str, Any]:
    """Return a copy of a pickled dict in which bytes keys and values are decoded to text."""
    if not isinstance(ref, Mapping):
        raise InvalidRowError("ref", f"expected a dict, found {shorten(ref)}.")
    return {str(_decoded(key)): _decoded(value) for key, value in ref.items()}


def _decoded(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRowError("text", f"{value!r:.40} is not UTF-8 ({error.reason}).") from error


def _by_id(items: Sequence[Any]) -> dict[Any, Mapping[str, Any]]:
    dicts = (item for item in items if isinstance(item, Mapping))
    return {item["id"]: item for item in dicts if type(item.get("id")) is int}


def _referred(
    item: Mapping[str, Any], name: str, table: Mapping[Any, Mapping[str, Any]]
) -> Mapping[str, Any]:
    key = item.get(name)
    if type(key) is not int or key not in table:
        raise InvalidRowError("reference", f"{name} {shorten(key)} is not in instances.json.")
    return table[key]
