"""Write the rows of an importer to a file, with a record of counts and checksums next to it.

rows.jsonl                  one row per line, in the format that tasks read; the same input gives
                            the same bytes
rows.jsonl.prepared.json    the record, written last: format, options, counts, invalid lines, and
                            the SHA-256 of every file
"""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric import __version__
from mm_numeric.answers import Shape
from mm_numeric.geometry.coordinate_range import TOLERANCE_PX, CoordinateRange
from mm_numeric.geometry.row_shapes import clipped, read_box, read_polygon
from mm_numeric.importers.importer import (
    DeclaredClasses,
    ImportedItem,
    Importer,
    InvalidLine,
    InvalidRowError,
    SkippedLine,
    invalid_as,
    round_coordinates,
)
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.files import require_file, sha256_of, write_text
from mm_numeric.io.log import logger, progress
from mm_numeric.registry import TASK_OF_FORMAT, task_of_row

_SHAPES = {"box", "box_xywh", "polygon"}


@dataclass(frozen=True)
class Prepared:
    """The result of converting a data set: the output file, and counts and checksums."""

    out: Path
    record: dict[str, Any]
    """Content of the .prepared.json file."""

    usage: str = ""
    """How to train with another tool, if the rows were also written for it; else empty."""

    @property
    def bad(self) -> int:
        """Return the number of entries that were not converted because they are invalid."""
        return len(self.record["bad_lines"])


def record_of(out: Path) -> Path:
    """Return the file with the record of prepared rows."""
    return out.with_name(f"{out.name}.prepared.json")


def prepare(
    name: str,
    importer: Importer,
    inputs: Sequence[Path],
    out: Path,
    *,
    clip: bool = False,
    strict: bool = False,
    force: bool = False,
) -> Prepared:
    """Convert input files to rows, and write the rows to a .jsonl file.

    The arguments are those of ``mm_numeric.prepare``. Without a valid row, or if all objects are
    invalid, no file is written.
    """
    record_path = record_of(out)
    _check_out(out, record_path, force=force)
    files = importer.files(inputs)
    for path in files:
        require_file(path)
    if out.resolve() in [path.resolve() for path in files]:
        raise ValueError(f"{out} is also an input; name another file.")
    checksums = [{"path": str(path), "sha256": sha256_of(path)} for path in files]
    task = getattr(importer, "task", None) or TASK_OF_FORMAT.get(name)
    found = _Counted(task, clip=clip, strict=strict)
    counts, digest = found.counts, hashlib.sha256()
    with suppress(_NoRowsError), atomic_file(out) as file:
        for line in found.lines(progress(importer.rows(files), desc="preparing", unit="row")):
            file.write(line)
            digest.update(line)
        if not counts["rows"] or found.lost_every_object:
            counts["rows"] = 0
            raise _no_rows(inputs, found)  # existing files stay as they are
        if out.exists() and not force:
            if sha256_of(out) != digest.hexdigest():
                raise _exists(out)
            logger.info("%s has these rows already; its record, which was missing, is added.", out)
        record_path.unlink(missing_ok=True)
    record = {
        "format": name,
        "version": importer.version,
        "mm_numeric": __version__,
        "options": {**_options(importer), "clip": clip},
        "inputs": checksums,
        "output": {"path": str(out), "sha256": digest.hexdigest()},
        **found.record(),
    }
    if counts["rows"]:
        # The record is ASCII, because file names may not be valid UTF-8.
        write_text(record_path, json.dumps(record, indent=1) + "\n")
    return Prepared(out, record)


class _Counted:
    """Counts the items of an importer, and validates its rows."""

    def __init__(self, task: str | None, *, clip: bool, strict: bool) -> None:
        self._task = task  # the task of all rows; None if it depends on the row
        self._clip, self._strict = clip, strict
        self._locations: dict[str, str] = {}  # maps the id of a row to its location
        self.counts, self.labels, self.tasks, self.skipped = (Counter[str]() for _ in range(4))
        self.declared: dict[str, int] = {}
        self.category_ids: dict[str, int | str] = {}
        self.invalid: list[InvalidLine] = []
        self.coordinates = CoordinateRange()

    def lines(self, items: Iterable[ImportedItem]) -> Iterator[bytes]:
        """Yield the valid rows as lines of JSON."""
        for item in items:
            if isinstance(item, InvalidLine):
                self._add_invalid(item)
            elif isinstance(item, SkippedLine):
                self.skipped[item.what] += 1
            elif isinstance(item, DeclaredClasses):
                self.declared.update(dict.fromkeys(item.names, 0))
                self.category_ids.update(zip(item.names, item.ids, strict=True))
            else:
                try:
                    yield self._line(*item)
                except InvalidRowError as error:
                    self._add_invalid(error.at(item.where))

    def record(self) -> dict[str, Any]:
        """Return the counts and the invalid lines, for the record of the rows."""
        objects = {**self.declared, **dict(sorted(self.labels.items()))}  # declared classes first
        return {
            "task": _task_setting(self.tasks, [*objects]),
            "counts": dict(self.counts),
            "labels": objects,
            "category_ids": self.category_ids,
            "left_out": dict(sorted(self.skipped.items())),
            "note": self.coordinates.frame_note() or self.coordinates.outside_note(),
            "reasons": _reasons(self.invalid),
            "bad_lines": [line._asdict() for line in self.invalid],
        }

    @property
    def lost_every_object(self) -> bool:
        """Return True if objects are invalid and none is valid: then a setting may be wrong."""
        lost = any(line.result.startswith("object") for line in self.invalid)
        return lost and self.counts["instances"] == self.counts["ignored"]

    def _add_invalid(self, line: InvalidLine) -> None:
        if self._strict:
            raise ValueError(f"{line.where}: {line.why}")
        self.invalid.append(line)

    def _line(self, where: str, fields: dict[str, Any]) -> bytes:
        if fields["id"] in self._locations:
            used = f"the id {fields['id']!r:.60} is already used in"
            raise InvalidRowError("id", f"{used} {self._locations[fields['id']]}.")
        outside = self._count_outside(where, fields)
        try:
            line = (json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        except ValueError as error:
            raise InvalidRowError("text", f"cannot be written ({error}).") from error
        self._locations[fields["id"]] = where
        self._count_objects(fields)
        counts, instances = self.counts, fields.get("instances")
        counts["rows"] += 1
        has_size = fields.get("width") is not None
        if fields.get("image") is None and not has_size:  # the counts below are of rows with images
            return line
        has_shape = any(fields.get(name) is not None for name in _SHAPES)
        counts["instances"] += has_shape + len(instances or ())
        counts["ignored"] += sum(bool(i.get("ignore")) for i in instances or ())
        if self._task == "text_detection":
            texts = (i.get("text") and not i.get("ignore") for i in instances or ())
            counts["texts"] += sum(map(bool, texts))
        counts["rows without instances"] += instances == []
        sentences = fields.get("sentences")  # one text, or a list
        counts["sentences"] += len(sentences) if isinstance(sentences, list) else bool(sentences)
        counts["clipped" if self._clip else "outside"] += outside
        counts["rows without a size"] += not has_size
        return line

    def _count_outside(self, where: str, fields: dict[str, Any]) -> int:
        """Count the shapes of a row outside the image; leave out those that clipping removes."""
        size = fields.get("width"), fields.get("height")
        if self._clip and size[0] is None:
            raise InvalidRowError("image", "--clip needs the size of the image; give --images.")
        outside, kept = self._outside_of(fields, size), []
        for i, instance in enumerate(fields.get("instances") or ()):
            try:
                outside += self._outside_of(instance, size)
                kept.append(instance)
            except InvalidRowError as error:
                self._add_invalid(error.at(f"{where}, instances.{i}", of_object=True))
        if fields.get("instances"):
            fields["instances"] = kept
        return outside

    def _outside_of(self, holder: dict[str, Any], size: tuple[Any, Any]) -> int:
        """Count the boxes and polygons of a row or an object that extend beyond the image.

        With ``clip``, these shapes are also clipped, in place. Without it, shapes that extend
        beyond the image by at most one pixel are not counted. ``size`` is (width, height) or Nones.
        """
        outside = 0
        # In rows from a table, fields that a row does not use are null.
        names = [name for name in _SHAPES & set(holder) if holder[name] is not None]
        for name in names if size[0] is not None else ():
            xywh = name == "box_xywh"
            with invalid_as(name):  # a field that the task does not read, so did not check
                shape: Shape = (
                    read_polygon(holder[name], name)
                    if name == "polygon"
                    else read_box(holder[name], name, xywh=xywh)
                )
            self.coordinates.add(shape, size)
            edge = 0.0 if self._clip else TOLERANCE_PX
            spread = zip(*shape.points, strict=True)
            if all(
                -edge <= min(own) and max(own) <= most + edge
                for own, most in zip(spread, size, strict=True)
            ):
                continue
            outside += 1
            if self._clip:
                with invalid_as(name):
                    inside = clipped(shape, *size)
                numbers = [coordinate for point in inside.points for coordinate in point]
                if xywh:
                    numbers[2:] = numbers[2] - numbers[0], numbers[3] - numbers[1]
                holder[name] = round_coordinates(numbers)
        return outside

    def _count_objects(self, fields: Mapping[str, Any]) -> None:
        of_boxes = self._task in (None, "grounding", "detection")
        found = task_of_row(fields) if of_boxes else self._task
        self.tasks.update([found] if found else [])
        for instance in fields.get("instances", ()) if found == "detection" else ():
            if instance.get("label"):
                self.labels[instance["label"]] += not instance.get("ignore")


def _task_setting(tasks: Counter[str], classes: Sequence[str]) -> Any:
    """Return the setting ``task`` of a config for the rows; None if it cannot be determined."""
    if len(tasks) != 1:
        return None
    (task,) = tasks
    if task != "detection":
        return task
    # Objects without labels may also be words, and the task text_detection.
    return {"name": task, "classes": [*classes]} if classes else None


def _check_out(out: Path, record_path: Path, *, force: bool) -> None:
    """Raise ValueError if the output is not a .jsonl file, or is complete without ``force``.

    A killed process leaves rows without a record. They are no error here: ``prepare`` keeps them if
    the new rows are the same.
    """
    if out.suffix != ".jsonl":
        raise ValueError(f"--out {out}: the file name must end in .jsonl.")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent}: there is no such folder.")
    if out.is_dir() or record_path.is_dir() or (record_path.exists() and not force):
        raise _exists(record_path if record_path.exists() else out)


def _reasons(lines: Iterable[InvalidLine]) -> list[dict[str, Any]]:
    """Group invalid lines by reason, most frequent first: how many they are, and the first.

    Lines have the same reason if their messages differ only in quoted texts, and in words with a
    digit or a slash.
    """
    groups: dict[tuple[str, str], list[InvalidLine]] = {}
    for line in lines:
        pattern = re.sub(r"'[^']*'|\S*[\d/\\]\S*", "*", line.why)
        groups.setdefault((line.kind, pattern), []).append(line)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [{"count": len(same), **same[0]._asdict()} for same in ordered]


class _NoRowsError(Exception):
    """Raised if every line of the input is invalid, or every object."""


def _no_rows(inputs: Sequence[Path], counted: _Counted) -> Exception:
    if counted.invalid:
        return _NoRowsError()
    found = ", ".join(f"{count} {what}" for what, count in counted.skipped.items()) or "nothing"
    return ValueError(f"{', '.join(map(str, inputs))}: no rows; found {found}.")


def _exists(path: Path) -> ValueError:
    return ValueError(f"{path} exists; name another file, or replace it with --force.")


def _options(importer: Any) -> dict[str, Any]:
    raw = dataclasses.asdict(importer)
    return {name: str(v) if isinstance(v, Path) else v for name, v in raw.items()}
