"""Rows of files and data sets in, examples and images out."""

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import EmbeddedImage, Example
from mm_numeric.config.data import DataSource, Sources, listed
from mm_numeric.files import rows_or_errors
from mm_numeric.tasks.base import Task


class Found(NamedTuple):
    """One row of a source."""

    where: str
    row: dict[str, Any]

    beside: Path
    """The folder that its image is looked up from."""

    image: EmbeddedImage | None = None
    """Its image, where that is part of the row."""


def load_examples(
    task: Task,
    source: Sources,
    cache: Path,
    *,
    training: bool,
    seen: dict[str, str] | None = None,
) -> list[Example]:
    """Return the examples of a data source, or of several, every image of which exists.

    Args:
        task: What is asked; it reads the rows.
        source: Files, a data set, or how many rows to render.
        cache: Where rendered rows are kept.
        training: Whether they are trained on; see the task.
        seen: The ids of other sources, and where each stands; those found are added.

    Raises:
        ValueError: If a source is empty, a row cannot be used, an id stands twice, or an image
            is missing.
    """
    examples = []
    for example, error in examples_and_errors(task, source, cache, training=training, seen=seen):
        if error is not None:
            raise error
        examples.append(example)
    return examples


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 of ids, questions, answers and names of images, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        image = example.image.name if example.image else None
        digest.update(repr((example.id, image, example.prompt, example.answer)).encode())
    return digest.hexdigest()


def examples_and_errors(
    task: Task,
    sources: Sources,
    cache: Path,
    *,
    training: bool,
    seen: dict[str, str] | None = None,
) -> Iterator[tuple[Any, ValueError | None]]:
    """Yield what ``load_examples`` returns, and what it would raise where it stands.

    Beside an error stands None, or the example if it lacks nothing but its image.
    """
    seen = {} if seen is None else seen
    for source in listed(sources):
        rows = asked = 0
        for found in source_rows(task, source, cache):
            rows += 1
            for example, error in examples_of_row(task, found, source, training=training):
                asked += 1
                if example is not None and example.id in seen:
                    sentence = (
                        f"{example.where}: the id {example.id!r} already stands in "
                        f"{seen[example.id]}; give each row its own id."
                    )
                    yield None, ValueError(sentence)
                    continue
                if example is not None:
                    seen[example.id] = example.where
                yield example, error
        if not asked:
            nothing = f"no question in any of {rows} rows" if rows else "no rows"
            yield None, ValueError(f"{_place(task, source, cache)}: {nothing}; give at least one.")


def source_rows(task: Task, source: DataSource, cache: Path) -> Iterator[Found | ValueError]:
    """Yield the rows of a source in their order, and what makes one unusable where it stands."""
    if source.dataset is not None:
        from mm_numeric.data.huggingface import dataset_rows  # which loads `datasets`

        for where, row, image in dataset_rows(source, cache, stream=False):
            yield Found(where, row, Path(source.dataset), image)
        return
    try:
        files = files_of(task, source, cache)
    except ValueError as error:
        yield error
        return
    for file in files:
        yield from rows_of_file(file)


def rows_of_file(file: Path) -> Iterator[Found | ValueError]:
    """Yield the rows of a file."""
    for row in rows_or_errors(file):
        yield row if isinstance(row, ValueError) else Found(*row, beside=file.parent)


def files_of(task: Task, source: DataSource, cache: Path) -> list[Path]:
    """Return the files of a source in the order of their names, rendering them if it asks for it.

    Raises:
        ValueError: If no file has a name like that, or the task has no renderer.
    """
    if source.path is None:
        return [rendered(task, source, cache)]
    files = []
    for name in [source.path] if isinstance(source.path, str) else source.path:
        if glob.has_magic(name) and not Path(name).exists():
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                raise ValueError(f"{name}: no file has a name like that.")
            files += [Path(file) for file in found]
        else:
            files.append(Path(name))
    return files


def examples_of_row(
    task: Task, found: Found | ValueError, source: DataSource, *, training: bool
) -> Iterator[tuple[Any, ValueError | None]]:
    """Yield the examples of one row as ``examples_and_errors`` does; no id is looked at."""
    try:
        if isinstance(found, ValueError):
            raise found
        _refuse_half_characters(found.where, found.row)
        examples = list(task.examples([(found.where, found.row)], training=training))
    except ValueError as error:
        yield None, error
        return
    folder = Path(source.images) if source.images is not None else None
    for example in examples:
        try:
            inside = None if example.image is None else found.image
            yield replace(example, image=inside or _find_image(example, found, folder)), None
        except ValueError as error:
            yield example, error


def _place(task: Task, source: DataSource, cache: Path) -> str:
    """Say where rows were looked for."""
    return str(rendered(task, source, cache)) if source.render is not None else source.name


def _refuse_half_characters(where: str, row: dict[str, Any]) -> None:
    """Refuse a row that holds a surrogate without the other: no tokenizer takes it.

    Raises:
        ValueError: If it does.
    """
    try:
        json.dumps(row, ensure_ascii=False, default=repr).encode()  # a table has dates, bytes
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(
            f"{where}: {half!r} is half of a character; write the whole one, or rename the file."
        ) from None


def rendered(task: Task, source: DataSource, cache: Path) -> Path:
    """Return the rows of rendered images, rendering them if they are not in the cache.

    Raises:
        ValueError: If the task has no renderer, or none for these categories.
    """
    name = type(task).__name__
    assert source.render is not None
    if task.render_settings is None:
        raise ValueError(f"data.render: the task {name} cannot render; give a path.")
    if source.categories and not task.categories:
        raise ValueError(f"data.categories: the rows of {name} have none; take them out.")
    # Tasks without categories need not accept the argument.
    categories = [source.categories] if source.categories else []
    made_of = [type(task).__module__, name, task.version, task.render_settings, *source.categories]
    key = json.dumps([*made_of, source.render, source.seed], sort_keys=True)
    folder = cache / f"{name.lower()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    rows = folder / "rows.jsonl"
    if not rows.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        try:
            task.render(unfinished, source.render, source.seed, *categories)
            unfinished.rename(folder)
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not (isinstance(error, OSError) and rows.is_file()):
                raise  # else another process was first, with the same images
    return rows


def _find_image(example: Example, found: Found, folder: Path | None) -> Path | None:
    """Find an image in the folder that was given, else beside its file or in ``images`` there."""
    if example.image is None:
        return None
    folders = [folder] if folder is not None else [found.beside, found.beside / "images"]
    candidates = [each / str(example.image) for each in folders]
    for candidate in candidates:
        if os.path.isfile(candidate):  # False also where a name is too long
            return candidate
    tried = " and ".join(map(str, candidates))
    raise ValueError(f"{example.where}: there is no image {tried}.")
