"""Rows of Hugging Face's ``datasets``: from the hub, from a folder of its own, or from parquet."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mm_numeric.answers import EmbeddedImage
from mm_numeric.compat import decoded_columns
from mm_numeric.config.data import DataSource

_OWN = ("dataset_info.json", "dataset_dict.json")  # what save_to_disk leaves in a folder
_TOGETHER = 1000  # rows of a table that are read at a time

T = TypeVar("T")

Row = tuple[str, dict[str, Any], EmbeddedImage | None]
"""Where a row stands, its fields, and its image if it holds one."""


def dataset_rows(source: DataSource, cache: Path, *, stream: bool) -> Iterator[Row]:
    """Yield the rows of a data set.

    The first column of images, whatever it is called, becomes ``image``: the number of the row
    stands for its name; other columns of images, sounds and videos are left out. Nothing is
    decoded here, and of a table no bytes are read until the image is looked at; a row of a stream
    holds them.

    Args:
        source: With a ``dataset``.
        cache: Where tables that are made of files are kept.
        stream: Read the data set while rows are asked for, and keep nothing of it.

    Raises:
        ValueError: If ``datasets`` is not installed, or the data set cannot be loaded or read on.
    """
    dataset, column = _undecoded(_load(source, cache, stream=stream))
    rows = _streamed(dataset, column) if stream else _of_table(dataset, column)
    for number, (row, read) in enumerate(_to_their_end(rows, source)):
        where = f"{source.name}, row {number}"
        if read is None:
            yield where, row, None
        else:
            name = f"{number}.png"  # of whatever kind it is
            image = EmbeddedImage(name, f"{where}, {column}", read)
            yield where, {**row, "image": name}, image


def _to_their_end(rows: Iterator[T], source: DataSource) -> Iterator[T]:
    try:
        yield from rows
    except Exception as error:  # of a file that is damaged, the network
        raise ValueError(
            f"data, dataset {source.name}: it cannot be read to its end ({_said(error)})."
        ) from error


def _streamed(dataset: Any, column: str | None) -> Iterator[tuple[dict[str, Any], Any]]:
    for row in dataset:
        stored = row.pop(column, None)
        yield row, stored and partial(_bytes, stored)


def _of_table(dataset: Any, column: str | None) -> Iterator[tuple[dict[str, Any], Any]]:
    start = 0
    images = dataset.select_columns([column]) if column else None
    for table in dataset.with_format("arrow").iter(batch_size=_TOGETHER):
        rows = (table.drop_columns([column]) if column else table).to_pylist()
        seen = table[column].is_valid().to_pylist() if column else [False] * len(rows)
        for i, (row, has_image) in enumerate(zip(rows, seen, strict=True), start=start):
            yield row, partial(_bytes_of_row, images, i, column) if has_image else None
        start += len(rows)


def _bytes_of_row(images: Any, number: int, column: str | None) -> bytes:
    return _bytes(images[number][column])


def _bytes(stored: dict[str, Any]) -> bytes:
    """Return the file of an image: it is in the table, or the table says where it is."""
    inside: bytes | None = stored["bytes"]
    return Path(stored["path"]).read_bytes() if inside is None else inside


def _undecoded(dataset: Any) -> tuple[Any, str | None]:
    """Return a data set that leaves images as they are stored, and its column of images."""
    import datasets

    features = dataset.features or {}
    found = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    column = found[0] if found else None
    if column is not None:
        dataset = dataset.cast_column(column, datasets.Image(decode=False))
    others = [name for name in decoded_columns(features) if name != column]
    return (dataset.remove_columns(others) if others else dataset), column


def _load(source: DataSource, cache: Path, *, stream: bool) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"data, dataset {source.dataset}: `datasets` is not installed; run "
            "`pip install 'mm-numeric[datasets]'`."
        ) from error
    name = str(source.dataset)
    folder = Path(name)
    try:
        if any((folder / file).is_file() for file in _OWN):
            found = datasets.load_from_disk(name)
            _refuse_other_parts(source, found)
            if isinstance(found, datasets.DatasetDict):
                found = found[source.split]
            return found.to_iterable_dataset() if stream else found
        return datasets.load_dataset(
            str(folder.resolve()) if folder.is_dir() else name,
            name=source.subset,
            split=source.split,
            revision=source.revision,
            streaming=stream,
            cache_dir=str(cache / "datasets"),
        )
    except Exception as error:  # of its builders, pyarrow, the hub, the network
        raise ValueError(
            f"data, dataset {source.name}: it cannot be loaded ({_said(error)}); "
            "give a name on the hub, a folder of save_to_disk, or one of parquet, arrow, JSON or "
            "CSV files, with subset and split where it has several."
        ) from error


def _refuse_other_parts(source: DataSource, found: Any) -> None:
    """Refuse what a folder of save_to_disk does not have: it would be passed over.

    Raises:
        ValueError: That says what it has.
    """
    asked = [name for name in ("subset", "revision") if getattr(source, name) is not None]
    has_splits = isinstance(found, dict)
    splits = list(found) if has_splits else ["train", str(found.split)]
    if source.split not in splits:
        asked.append(f"split {source.split}")
    if asked:
        has = f"the splits {', '.join(splits)}" if has_splits else "one data set"
        raise ValueError(f"save_to_disk left {has} there, and no {' or '.join(asked)}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
