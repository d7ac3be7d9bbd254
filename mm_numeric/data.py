"""Rows of JSONL and CSV files in, examples and pictures out."""

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from mm_numeric.answers import Example
from mm_numeric.config import DataSource


def load_examples(task: Any, source: DataSource, cache: Path, *, training: bool) -> list[Example]:
    """Return the examples of a data source, every picture of which exists.

    Args:
        task: What is asked; it reads the rows.
        source: A file, or how many rows to render.
        cache: Where rendered rows are kept.
        training: Whether they are trained on; see the task.

    Raises:
        ValueError: If the source is empty, a row cannot be used, an id stands twice, or a picture
            is missing.
    """
    path = Path(source.path) if source.path is not None else rendered(task, source, cache)
    folder = Path(source.images) if source.images is not None else None
    seen: dict[str, str] = {}
    examples = []
    for example in task.examples(read_rows(path), training=training):
        if example.id in seen:
            raise ValueError(
                f"{example.where}: the id {example.id!r} already stands in {seen[example.id]}; "
                "give each row its own id."
            )
        seen[example.id] = example.where
        examples.append(replace(example, image=_find_picture(example, path.parent, folder)))
    if not examples:
        raise ValueError(f"{path}: no rows; give at least one.")
    return examples


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row of a .jsonl or .csv file stands, and its fields.

    Raises:
        ValueError: If the file or a line of it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}).") from error
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text), restkey="(more)", restval=None)
        for record in _csv_records(reader, path):
            where = f"{path}, line {reader.line_num}"
            if "(more)" in record or None in record.values():
                raise ValueError(
                    f"{where}: expected {len(reader.fieldnames or [])} fields "
                    f"({', '.join(reader.fieldnames or [])}), as the first line says."
                )
            yield where, dict(record)
    elif path.suffix == ".jsonl":
        # not splitlines: it would also cut at U+2028, which JSON may hold
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where}: not JSON ({error}).") from error
            if not isinstance(row, dict):
                raise ValueError(f'{where}: expected an object {{"id": ...}}, found {row!r:.40}.')
            yield where, row
    else:
        raise ValueError(
            f"{path}: rows come as .jsonl or .csv, not {path.suffix or 'no ending'!r}."
        )


def _csv_records(reader: "csv.DictReader[str]", path: Path) -> Iterator[dict[Any, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num + 1}: not CSV ({error}).") from error


def rendered(task: Any, source: DataSource, cache: Path) -> Path:
    """Return the rows of rendered pictures, rendering them if they are not in the cache.

    Raises:
        ValueError: If the task has no renderer.
    """
    if not hasattr(task, "render"):
        raise ValueError(f"data.render: the task {type(task).__name__} cannot render; give a path.")
    name = type(task).__name__
    made_of = [type(task).__module__, name, task.version, task.render_settings]
    key = json.dumps([*made_of, source.render, source.seed], sort_keys=True)
    folder = cache / f"{name.lower()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    rows = folder / "rows.jsonl"
    if not rows.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        try:
            task.render(unfinished, source.render, source.seed)
            unfinished.rename(folder)
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not (isinstance(error, OSError) and rows.is_file()):
                raise  # else another process was first, with the same pictures
    return rows


def open_picture(example: Example) -> Image.Image:
    """Load the picture of an example as RGB, turned upright as its EXIF says.

    Raises:
        ValueError: If it cannot be read.
    """
    assert example.image is not None
    try:
        with Image.open(example.image) as picture:
            ImageOps.exif_transpose(picture, in_place=True)
            return picture.convert("RGB")
    except (
        UnidentifiedImageError,
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:
        raise ValueError(
            f"{example.where}: the picture {example.image} cannot be read ({error}); "
            "replace it or take its row out."
        ) from error


def _find_picture(example: Example, beside: Path, folder: Path | None) -> Path:
    """Find a picture in the folder that was given, else beside its file or in ``images`` there."""
    assert example.image is not None
    folders = [folder] if folder is not None else [beside, beside / "images"]
    for candidate in folders:
        if os.path.isfile(candidate / example.image):  # False also where a name is too long
            return candidate / example.image
    tried = " and ".join(str(f / example.image) for f in folders)
    raise ValueError(f"{example.where}: there is no picture {tried}.")
