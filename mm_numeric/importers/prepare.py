"""The command ``prepare``: an importer's rows into one file, with counts and checksums beside it.

rows.jsonl                  one row a line, as tasks read them; the same files give the same bytes
rows.jsonl.prepared.json    written last: format, options, sha256 of every file, counts, bad lines
"""

import argparse
import dataclasses
import hashlib
import json
import typing
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric import __version__
from mm_numeric.answers import Shape
from mm_numeric.files import write_text
from mm_numeric.geometry.row_shapes import clipped, read_box, read_polygon
from mm_numeric.importers.importer import (
    BadLine,
    Importer,
    LeftOut,
    Option,
    RefusedError,
    Row,
    tidy,
)
from mm_numeric.registry import IMPORTERS, choose

SHOWN = 20
"""Bad lines and files that are listed on the terminal; all are in the .prepared.json."""

_SHAPES = {"box", "box_xywh", "polygon"}
_SLACK_PX = 1.0  # as in a frame: a rounded annotation may reach so far beyond its image


@dataclass(frozen=True)
class Prepared:
    """What was done."""

    out: Path
    record: dict[str, Any]
    """What stands in the .prepared.json."""

    @property
    def bad(self) -> int:
        """How many bad lines there were."""
        return len(self.record["bad_lines"])


def prepare(
    name: str,
    importer: Importer,
    inputs: Sequence[Path],
    out: Path,
    *,
    clip: bool = False,
    force: bool = False,
) -> Prepared:
    """Write the rows of some files.

    Args:
        name: Of the format.
        importer: What reads them.
        inputs: Files, or folders of them.
        out: A .jsonl file; ``OUT.prepared.json`` is written beside it.
        clip: Whether shapes are cut at the edges of their images.
        force: Whether files that are there already are replaced.

    Raises:
        ValueError: If a file cannot be read at all or holds nothing, or ``out`` may not be written.
    """
    beside = out.with_name(f"{out.name}.prepared.json")
    _refuse_out(out, beside, force=force)
    files = importer.files(inputs)
    if out.resolve() in [path.resolve() for path in files]:
        raise ValueError(f"{out} is also read; name another file.")
    checksums = [{"path": str(path), "sha256": _sha256(path)} for path in files]
    counts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    bad: list[BadLine] = []
    digest = hashlib.sha256()
    unfinished = out.with_name(f"{out.name}.{uuid.uuid4().hex}.unfinished")
    try:
        with unfinished.open("wb") as file:
            for item in _checked(importer.rows(files), counts, clip=clip):
                if isinstance(item, BadLine):
                    bad.append(item)
                elif isinstance(item, LeftOut):
                    left_out[item.what] += 1
                else:
                    file.write(item)
                    digest.update(item)
        if not counts["rows"] and not bad:
            found = ", ".join(f"{count} {what}" for what, count in left_out.items()) or "nothing"
            raise ValueError(f"{', '.join(map(str, inputs))}: no rows in it, but {found}.")
        beside.unlink(missing_ok=True)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    record = {
        "format": name,
        "version": importer.version,
        "mm_numeric": __version__,
        "options": {**_options(importer), "clip": clip},
        "inputs": checksums,
        "output": {"path": str(out), "sha256": digest.hexdigest()},
        "counts": dict(counts),
        "left_out": dict(sorted(left_out.items())),
        "bad_by_kind": dict(sorted(Counter(line.kind for line in bad).items())),
        "bad_lines": [line._asdict() for line in bad],
    }
    write_text(beside, json.dumps(record, indent=1) + "\n")  # ASCII: names may not be UTF-8
    return Prepared(out, record)


def _refuse_out(out: Path, beside: Path, *, force: bool) -> None:
    if out.suffix != ".jsonl":
        raise ValueError(f"--out {out}: rows are written as .jsonl.")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent}: there is no such folder.")
    for path in (out, beside):
        if path.is_dir() or (path.exists() and not force):
            raise ValueError(f"{path} exists; name another file, or replace it with --force.")


def _checked(
    found: Iterator[Row | BadLine | LeftOut], counts: Counter[str], *, clip: bool
) -> Iterator[bytes | BadLine | LeftOut]:
    """Yield rows as the lines of a file, counted; and what else there is."""
    places: dict[str, str] = {}
    for item in found:
        if not isinstance(item, Row):
            yield item
            continue
        where, fields = item
        try:
            if fields["id"] in places:
                first = places[fields["id"]]
                raise RefusedError("id", f"the id {fields['id']!r:.60} already stands in {first}.")
            outside = _inside(fields, clip=clip)
            line = _encoded(fields)
        except RefusedError as refusal:
            yield refusal.at(where)
            continue
        places[fields["id"]] = where
        instances = fields.get("instances")
        counts["rows"] += 1
        if "question" in fields and "image" not in fields:  # the rest is about images
            yield line
            continue
        counts["instances"] += bool(_SHAPES & set(fields)) + len(instances or ())
        counts["ignored"] += sum(bool(i.get("ignore")) for i in instances or ())
        counts["rows without instances"] += instances == []
        counts["sentences"] += len(fields.get("sentences", ()))
        counts["clipped" if clip else "outside"] += outside
        counts["rows without a size"] += "width" not in fields
        yield line


def _encoded(fields: dict[str, Any]) -> bytes:
    """Return a row as the line of a file.

    Raises:
        RefusedError: If it holds what no file can: half of a character, a number that is none.
    """
    try:
        return (json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    except ValueError as error:
        raise RefusedError("text", f"cannot be written ({error}).") from error


def _inside(fields: dict[str, Any], *, clip: bool) -> int:
    """Return how many shapes reach out of their image, by more than a pixel; cut them if asked.

    Raises:
        RefusedError: If it cannot be done.
    """
    if "width" not in fields:
        if clip:
            raise RefusedError("image", "--clip needs the size of the image; give --images.")
        return 0
    width, height = fields["width"], fields["height"]
    outside = 0
    for holder in (fields, *fields.get("instances", ())):
        for name in _SHAPES & set(holder):
            xywh = name == "box_xywh"
            shape: Shape
            if name == "polygon":
                shape = read_polygon(holder[name], name)
            else:
                shape = read_box(holder[name], name, xywh=xywh)
            slack = 0.0 if clip else _SLACK_PX
            if all(
                -slack <= x <= width + slack and -slack <= y <= height + slack
                for x, y in shape.points
            ):
                continue
            outside += 1
            if clip:
                try:
                    cut = clipped(shape, width, height)
                except ValueError as error:
                    raise RefusedError(name, f"{error}.") from error
                numbers = [coordinate for point in cut.points for coordinate in point]
                if xywh:
                    numbers[2:] = numbers[2] - numbers[0], numbers[3] - numbers[1]
                holder[name] = tidy(numbers)
    return outside


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _options(importer: Any) -> dict[str, Any]:
    raw = dataclasses.asdict(importer)
    return {name: str(v) if isinstance(v, Path) else v for name, v in raw.items()}


def report_text(prepared: Prepared) -> str:
    """Return what is shown on the terminal."""
    record = prepared.record
    counts = [f"{count} {what}" for what, count in record["counts"].items() if count]
    lines = [f"{record['format']}: {', '.join(counts) or 'no rows'}"]
    lines += [f"left out: {count} {what}" for what, count in record["left_out"].items()]
    if prepared.bad:
        kinds = ", ".join(f"{count} {kind}" for kind, count in record["bad_by_kind"].items())
        lines.append(f"bad lines: {prepared.bad} ({kinds})")
        shown = record["bad_lines"][:SHOWN]
        lines += [f"  {line['where']}: {line['why']}" for line in shown]
        if prepared.bad > SHOWN:
            lines.append(f"  and {prepared.bad - SHOWN} more in {prepared.out}.prepared.json")
    files = record["inputs"]
    lines += [f"sha256 {file['sha256']}  {file['path']}" for file in files[:SHOWN]]
    if len(files) > SHOWN:
        lines.append(f"  and {len(files) - SHOWN} more files in {prepared.out}.prepared.json")
    lines.append(f"sha256 {record['output']['sha256']}  {prepared.out}")
    # What a file name holds is not sent to the terminal as it is.
    return "\n".join(line if line.isprintable() else repr(line) for line in lines)


def run(name: str, words: Sequence[str]) -> bool:
    """Do what the command line asks, and print the report.

    Args:
        name: A format.
        words: What stands behind it.

    Returns:
        Whether there were no more bad lines than allowed.

    Raises:
        ValueError: As ``prepare``, and if there is no such format or an option is wrong.
    """
    kind = choose(name, IMPORTERS, "format", "prepare")
    arguments = _parser(name, kind).parse_args(words)
    options = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}
    prepared = prepare(
        name,
        kind(**options),
        arguments.inputs,
        arguments.out,
        clip=arguments.clip,
        force=arguments.force,
    )
    print(report_text(prepared))
    return prepared.bad <= arguments.allow_bad


def _parser(name: str, kind: type) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"mm-numeric prepare {name}", description=kind.__doc__)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="a file or folder")
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl file of the rows")
    parser.add_argument(
        "--clip", action="store_true", help="cut shapes at the edges of their images"
    )
    parser.add_argument(
        "--allow-bad",
        type=int,
        default=0,
        metavar="N",
        help="exit with 0 up to so many bad lines (default: 0); they are listed all the same",
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there already")
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, about = hints[field.name], Option("")
        if typing.get_origin(hint) is typing.Annotated:
            hint, about = typing.get_args(hint)
        flag = f"--{field.name.replace('_', '-')}"
        if hint is bool:
            parser.add_argument(flag, action="store_true", help=about.meaning)
            continue
        required = field.default is dataclasses.MISSING
        parser.add_argument(
            flag,
            type=(typing.get_args(hint) or (hint,))[0],
            required=required,
            default=None if required else field.default,
            choices=about.choices,
            metavar=about.name,
            help=about.meaning,
        )
    return parser
