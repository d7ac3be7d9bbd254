"""RefCOCO, RefCOCO+ and RefCOCOg: the folder with ``refs(unc).p`` and ``instances.json``.

A ref is a thing in an image of COCO train2014 and the sentences that people said of it. The split
and who made it (``unc`` for RefCOCO and RefCOCO+, ``umd`` or ``google`` for RefCOCOg) are named and
checked against the file.

The pickle is opened without ever running what it asks for: it may hold containers, text and
numbers.

Source: https://github.com/lichengunc/refer, refer.py.
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mm_numeric.importers.coco import read_instances
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
    shown,
    size_of,
    text_of,
)

SPLITS: Mapping[str, frozenset[str]] = {
    "unc": frozenset({"train", "val", "testA", "testB"}),
    "umd": frozenset({"train", "val", "test"}),
    "google": frozenset({"train", "val", "test"}),
}
"""Who made a split, and which parts it can have."""

_ENDINGS = (".p", ".pkl", ".pickle")


@dataclass(frozen=True, kw_only=True)
class RefCoco:
    """RefCOCO, RefCOCO+ and RefCOCOg: refs and instances; a row a ref, with its sentences."""

    version: ClassVar[int] = 1

    split: Annotated[str, Option("which part of the data: train, val, testA ...", name="NAME")]
    split_by: Annotated[str, Option("who made the split", choices=SPLITS)]
    images: ImagesFolder = None

    def files(self, inputs: Sequence[Path]) -> list[Path]:
        """Return the refs and the instances."""
        found: list[Path] = []
        for path in inputs:
            inside = [path / f"refs({self.split_by}).p", path / "instances.json"]
            found += inside if path.is_dir() else [path]
        found = listed(found, (".json", *_ENDINGS))
        if sorted(path.suffix == ".json" for path in found) != [False, True]:
            raise ValueError(
                "refcoco is read from one folder with refs(...).p and instances.json, or from "
                f"these two files, not from {' '.join(map(str, found)):.200}."
            )
        named = re.search(r"\((\w+)\)", found[0].name + found[1].name)
        if named and named[1] != self.split_by:
            raise ValueError(
                f"the refs were split by {named[1]}, as their name says, not by {self.split_by}."
            )
        return found

    def rows(self, files: Sequence[Path]) -> Iterator[Found]:
        """Read the refs of a split."""
        image_folder = ImageFolder(self.images)
        instances, pickled = sorted(files, key=lambda path: path.suffix != ".json")
        refs = read_pickle(pickled)
        if not isinstance(refs, list):
            raise ValueError(f"{pickled}: expected a list of refs, found {shown(refs)}.")
        raw = read_instances(instances)
        images, annotations = _by_id(raw["images"]), _by_id(raw["annotations"])
        mine: list[tuple[str, dict[str, Any]]] = []
        splits = set()
        for i, ref in enumerate(refs):
            try:
                fields = _fields(ref)
                split = text_of(fields.get("split"), "split")
            except RefusedError as refusal:
                yield refusal.at(f"{pickled}, refs.{i}")
                continue
            splits.add(split)
            if split == self.split:
                mine.append((f"{pickled}, ref {fields.get('ref_id')}", fields))
            else:
                yield LeftOut("refs of other splits")
        self._check(pickled, splits)
        for where, fields in mine:
            yield _row(where, fields, images, annotations, image_folder)

    def _check(self, path: Path, found: set[str]) -> None:
        """Refuse a split that the file does not have, or a maker whose splits are others."""
        there = ", ".join(sorted(found))
        if found - SPLITS[self.split_by]:
            raise ValueError(
                f"{path}: holds {there}; a split by {self.split_by} has "
                f"{', '.join(sorted(SPLITS[self.split_by]))}."
            )
        if self.split not in found:
            raise ValueError(f"{path}: there is no split {self.split!r}; it holds {there}.")


class _Plain(pickle.Unpickler):
    """Containers, text and numbers alone: a class or function is refused, never looked up."""

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it asks for something outside itself")

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and a pickle that does could run anything; only lists, "
            "dicts, text and numbers are read"
        )


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain values. Text that Python 2 wrote comes as bytes.

    Raises:
        ValueError: If it is no pickle, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            return _Plain(file, encoding="bytes").load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        MemoryError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:  # all of them come from files that are cut off or are no pickle
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: not a pickle of plain values ({reason}).") from error


def _fields(ref: Any) -> dict[str, Any]:
    """Return a dict with its keys and its own texts decoded."""
    if not isinstance(ref, Mapping):
        raise RefusedError("ref", f"expected a dict, found {shown(ref)}.")
    return {str(_decoded(key)): _decoded(value) for key, value in ref.items()}


def _decoded(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError("text", f"{value!r:.40} is not UTF-8 ({error.reason}).") from error


def _by_id(items: Sequence[Any]) -> dict[Any, Mapping[str, Any]]:
    dicts = (item for item in items if isinstance(item, Mapping))
    return {item["id"]: item for item in dicts if type(item.get("id")) is int}


def _row(
    where: str,
    ref: Mapping[str, Any],
    images: Mapping[Any, Mapping[str, Any]],
    annotations: Mapping[Any, Mapping[str, Any]],
    image_folder: ImageFolder,
) -> Row | BadLine:
    try:
        if type(ref.get("ref_id")) is not int:
            raise RefusedError("id", f"ref_id is not a whole number: {shown(ref.get('ref_id'))}.")
        annotation = _referred(ref, "ann_id", annotations)
        image = _referred(annotation, "image_id", images)
        if ref.get("image_id") != image["id"]:
            raise RefusedError("reference", "ref and annotation are about different images.")
        box_of(annotation.get("bbox"), xywh=True)
        sentences = ref.get("sentences")
        if not isinstance(sentences, list) or not sentences:
            raise RefusedError("text", "there are no sentences.")
        name = text_of(image.get("file_name"), "file_name")
        fields = {
            "id": str(ref["ref_id"]),
            **image_folder.facts(name, size_of(image)),
            "sentences": [text_of(_fields(s).get("sent"), "sent") for s in sentences],
            "box_xywh": annotation["bbox"],
        }
    except RefusedError as refusal:
        return refusal.at(where)
    return Row(where, fields)


def _referred(
    item: Mapping[str, Any], name: str, table: Mapping[Any, Mapping[str, Any]]
) -> Mapping[str, Any]:
    key = item.get(name)
    if type(key) is not int or key not in table:
        raise RefusedError("reference", f"{name} {shown(key)} is not in the instances.")
    return table[key]
