"""Load raw samples from files and data sets, convert them to examples, and find their images."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import EmbeddedImage, Example, ImageSource
from mm_numeric.config.data import DataSource, Fold, Sources, listed
from mm_numeric.config.schema import Config
from mm_numeric.data.answers_as_labels import DecodedAnswers
from mm_numeric.data.images import UnreadableImageError, open_image
from mm_numeric.io.atomic_files import atomic_folder
from mm_numeric.io.files import matching_files, rows_or_errors, write_text
from mm_numeric.io.log import logger
from mm_numeric.registry import TASKS, task_of_row
from mm_numeric.tasks.base import Task, check_answer_type


class NoRowsError(ValueError):
    """Raised if a data source has no row."""


class NoAnswersError(ValueError):
    """Raised if no decoded answer can be trained on, for example because none is parseable."""


class SourceRow(NamedTuple):
    """A raw row of a data source, before the task converts it to examples."""

    where: str
    """File and line of the row, for error messages."""

    row: dict[str, Any]
    folder: Path
    """Folder that relative image paths start from."""

    image: EmbeddedImage | None = None


def load_examples(
    task: Task, source: Sources, cache: Path, *, training: bool, seen: dict[str, str] | None = None
) -> list[Example]:
    """Return the examples of one or more data sources, after checking that every image exists.

    ``cache`` is the folder for synthetic rows and for the cache of ``datasets``. If ``training``,
    the MathVista task raises an error for test samples. ``seen`` maps the ids loaded so far to file
    and line; it is updated here.
    """
    examples = []
    for example, error in examples_and_errors(task, source, cache, training=training, seen=seen):
        if error is not None:
            raise error
        examples.append(example)
    return examples


def examples_to_answer(config: Config, source: Sources | None) -> list[Example]:
    """Return the examples of data sources (None: ``data.test``) that a model answers.

    Training rows that are skipped in training, because their image is unreadable and
    ``data.on_bad_image`` is ``skip``, are left out. Every test row is answered.
    """
    cache = Path(config.data.cache)
    examples = load_examples(config.task, source or config.data.test, cache, training=False)
    if source != config.data.train or config.data.on_bad_image != "skip":
        return examples
    problems: dict[ImageSource, str] = {}
    for image, own in {image: e for e in examples for image in e.images}.items():
        try:
            open_image(replace(own, image=image))
        except UnreadableImageError as error:
            problems[image] = str(error)
    found = [example for example in examples if not problems.keys() & {*example.images}]
    for problem in problems.values():
        logger.warning("row not answered: %s", problem)
    return found


ONLY_KNOWN = (
    "every test question is a training question, so that scores do not show how the model answers "
    "new ones; set data.test to other rows."
)


def only_known_questions(train: Iterable[Example], test: Iterable[Example]) -> bool:
    """Return True if each test example has the images and the prompt of a training example."""
    new = {(e.prompt, *map(str, e.images)) for e in test}
    if not new:
        return False
    for e in train:
        new.discard((e.prompt, *map(str, e.images)))
    return not new


def fingerprint(examples: Iterable[Example]) -> str:
    """Return a SHA-256 hash of the examples: their ids, image names, questions and answers."""
    digest = hashlib.sha256()
    for example in examples:
        image = example.image.name if example.image else None
        more = [tuple(own.name for own in example.more_images)] if example.more_images else []
        digest.update(repr((example.id, image, example.prompt, example.answer, *more)).encode())
    return digest.hexdigest()


def examples_and_errors(
    task: Task,
    sources: Sources,
    cache: Path,
    *,
    training: bool,
    seen: dict[str, str] | None = None,
    unique_ids: bool = True,
) -> Iterator[tuple[Any, ValueError | None]]:
    """Yield the examples of data sources; errors in the data are yielded instead of raised.

    Each item is one of

    (example, None)   a valid example
    (None, error)     an invalid row or source
    (example, error)  a valid example whose image file is missing

    A repeated id is an error if ``unique_ids``; the ids of a stream are not compared.
    """
    seen = {} if seen is None else seen
    for source in listed(sources):
        rows = examples = 0
        try:
            answers = DecodedAnswers.of(source) if training and source.answers else None
        except ValueError as unusable:
            yield None, unusable
            continue
        for row in source_rows(source, cache):
            rows += 1
            for example, error in examples_of_row(task, row, source, answers, training=training):
                examples += 1
                if unique_ids and example is not None and example.id in seen:
                    used = f"the id {example.id!r} is already used in {seen[example.id]}"
                    yield None, ValueError(f"{example.where}: {used}; give each row its own id.")
                    continue
                if example is not None:
                    seen[example.id] = example.where
                yield example, error
        if not examples:
            problem = f"none of its {rows} rows contains a question" if rows else "no rows"
            if rows and source.fold is not None:
                problem = f"none of its {rows} rows is in this fold"
            kind = ValueError if rows else NoRowsError
            if rows and answers is not None:
                kind = NoAnswersError
                problem = f"{answers.file} has no answer to keep for any of its {rows} rows"
            where = source.name if source.synthetic is None else generated_rows(source, cache)
            yield None, kind(f"{where}: {problem}; give at least one.")
        elif answers is not None and examples < rows:
            logger.info(
                "%d of %d rows are trained on their answers in %s; the others are left out.",
                examples,
                rows,
                answers.file,
            )


def source_rows(source: DataSource, cache: Path) -> Iterator[SourceRow | ValueError]:
    """Yield the rows of a data source in order, with a ValueError in place of an invalid row."""
    try:
        files = find_files(source, cache)
    except ValueError as error:
        yield error
        return
    for file in files:
        yield from rows_of(source, file, cache, stream=False)


def rows_of(
    source: DataSource, file: Path | None, cache: Path, *, stream: bool
) -> Iterator[SourceRow | ValueError]:
    """Yield the rows of ``file`` or, if it is None, of the Hugging Face data set of a source."""
    if file is not None:
        yield from rows_of_file(file)
        return
    # Imported here because it loads `datasets`, an optional dependency.
    from mm_numeric.data.huggingface import dataset_rows

    for found in dataset_rows(source, cache, stream=stream):
        if isinstance(found, ValueError):
            yield found
        else:
            where, row, image = found
            yield SourceRow(where, row, Path(str(source.dataset)), image)


def rows_of_file(file: Path) -> Iterator[SourceRow | ValueError]:
    """Yield the rows of a file in order, with a ValueError in place of an invalid row."""
    for row in rows_or_errors(file):
        yield row if isinstance(row, ValueError) else SourceRow(*row, folder=file.parent)


def find_files(source: DataSource, cache: Path) -> list[Path | None]:
    """Return the files of a data source, with glob patterns such as ``train/*.jsonl`` expanded.

    For synthetic rows, return the file with them (created if not in the cache); for a Hugging Face
    data set, return [None].
    """
    if source.dataset is not None:
        return [None]
    if source.synthetic is not None:
        return [generated_rows(source, cache)]
    assert source.path is not None
    files: list[Path | None] = []
    for name in [source.path] if isinstance(source.path, str) else source.path:
        matches = matching_files(name)
        if not matches:
            raise ValueError(f"{name}: no file matches this pattern.")
        files += matches
    return files


def examples_of_row(
    task: Task,
    row: SourceRow | ValueError,
    source: DataSource,
    answers: DecodedAnswers | None = None,
    *,
    training: bool,
) -> Iterator[tuple[Any, ValueError | None]]:
    """Yield (example, error) for each example that a task creates from one row.

    ``examples_and_errors`` describes the pairs. If ``answers`` is given, its answers replace the
    labels. An example without a usable answer is an error, or is left out if ``keep_answers``
    allows it.
    """
    if isinstance(row, ValueError):
        yield None, row
        return
    try:
        _check_surrogates(row.where, row.row)
        made = task.examples([(row.where, row.row)], training=training)
        examples = _of_fold(source.fold, made, row)
        for example in examples:
            if example.answer is not None:
                check_answer_type(task, example.answer, "examples")
        if answers is not None:
            examples = answers.labelled(task, examples)
    except ValueError as error:
        message = str(error)
        if not message.startswith((row.where, *([answers.file] if answers else []))):
            message = f"{row.where}: {message}"
        if "each row needs" in message:
            message += f" This row has {', '.join(row.row) or 'no fields'}."
        own = error if message == str(error) else ValueError(message)  # error has the traceback
        yield None, _other_task(task, row) or own
        return
    except Exception as error:  # the author of a custom task needs the row and the error type
        name = type(task).__name__
        failure = ValueError(f"{row.where}: the task {name} failed with {error!r}.")
        failure.__cause__ = error  # MM_NUMERIC_DEBUG shows the traceback in the task
        yield None, failure
        return
    folder = Path(source.images) if source.images is not None else None
    for example in examples:
        try:
            embedded = None if example.image is None else row.image
            if embedded is not None:
                yield replace(example, image=embedded), None
                continue
            found = [
                _find_image(example, image, row, folder, training=training)
                for image in example.images
            ]
            first = found[0] if found else None
            yield replace(example, image=first, more_images=tuple(found[1:])), None
        except ValueError as error:
            yield example, error


def _of_fold(text: str | None, made: Iterable[Example], row: SourceRow) -> list[Example]:
    """Return the examples of a fold, of all folds if ``text`` is None, with the row's group."""
    group = row.row.get("fold_group")
    examples = [*made] if group is None else [replace(own, fold_group=str(group)) for own in made]
    if text is None:
        return examples
    fold = Fold.parse(text)
    return [example for example in examples if fold.contains(_fold_name(example, row))]


def _fold_name(example: Example, row: SourceRow) -> str:
    """Return the name that decides the fold of an example: of its group, its image, or its id."""
    if example.fold_group is not None:
        return example.fold_group
    if example.image is None:
        return example.id
    return row.image.name if row.image else Path(str(example.image)).name


def _other_task(task: Task, row: SourceRow) -> ValueError | None:
    """Return an error if a row has ``instances``, and the task (of this library) ignores them."""
    shipped = {path: name for name, path in TASKS.items()}
    name = shipped.get(f"{type(task).__module__}:{type(task).__name__}")
    reads = (None, "click", "detection", "pointing", "text_detection", "text_spotting")
    if name in reads or task_of_row(row.row) != "detection":
        return None
    return ValueError(
        f'{row.where}: the row has "instances", which the task {name} does not read; set `task: '
        "detection` for objects, or `task: text_detection` for words."
    )


def _check_surrogates(where: str, row: dict[str, Any]) -> None:
    """Check that a row has no unpaired Unicode surrogate, which no tokenizer accepts."""
    try:
        # Rows of a table may hold dates and bytes, which JSON has no type for.
        json.dumps(row, ensure_ascii=False, default=repr).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(
            f"{where}: {half!r} is an unpaired surrogate; write the whole character, or rename the "
            "file."
        ) from None


def generated_rows(source: DataSource, cache: Path) -> Path:
    """Return the file with the synthetic rows of a source; create it unless it is cached."""
    generator = source.synthetic
    assert generator is not None
    exact = generator.without_noise()
    folder = cache / f"{type(generator).__name__.lower()}-{_digest(exact)}"
    rows = folder / "rows.jsonl"
    if not rows.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_folder(folder) as unfinished:
                exact.write(unfinished)
        except ValueError as error:
            raise ValueError(f"data.*.synthetic ({generator.name}): {error}") from error
        except OSError:
            if not rows.is_file():
                raise  # otherwise another process has generated the same rows first
    if not generator.has_noise:
        return rows
    noisy = folder / f"rows-{_digest(generator)}.jsonl"  # refers to the same images
    if not noisy.is_file():
        lines = rows.read_text(encoding="utf-8").splitlines()
        changed = (generator.with_label_noise(json.loads(line)) for line in lines)
        write_text(noisy, "".join(f"{json.dumps(row)}\n" for row in changed))
    return noisy


def _digest(generator: Any) -> str:
    """Hash what determines the rows of a generator, including the source of custom modules."""
    kind = type(generator)
    made_of = [kind.__module__, kind.__name__, generator.version, asdict(generator)]
    for name in sorted({own.__module__ for own in kind.__mro__ if is_dataclass(own)}):
        file = getattr(sys.modules[name], "__file__", None)
        if file and name.partition(".")[0] != "mm_numeric":  # shipped generators have versions
            made_of.append(hashlib.sha256(Path(file).read_bytes()).hexdigest())
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def _find_image(
    example: Example, image: ImageSource, row: SourceRow, folder: Path | None, *, training: bool
) -> Path:
    """Return the path of an image of an example.

    Searches ``folder`` or, if it is None, the folder of the data file and its subfolder ``images``.
    """
    folders = [folder] if folder is not None else [row.folder, row.folder / "images"]
    candidates = [parent / str(image) for parent in folders]
    for candidate in candidates:
        if os.path.isfile(candidate):  # Path.is_file raises if the name is too long
            return candidate
    tried = " or ".join(map(str, candidates))
    key = "data.train.images"
    if not training:
        key = "data.test.images (for evaluate.data: evaluate.data.images; for --data: --images)"
    raise ValueError(
        f"{example.where}: there is no image {tried}; set {key} to the folder of the images."
    )
