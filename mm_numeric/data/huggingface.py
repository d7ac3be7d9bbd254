"""Read rows with Hugging Face's ``datasets``: from the hub, a local folder, or parquet files.

The column ``objects`` of detection data sets becomes instances. cppe-5 and many others have, for
each image, lists of the same length in this column:

    objects  {"bbox": [[302, 109, 73, 52], ...], "category": [4, ...], "id": [...], "area": [...]}

or a list with one mapping per object. ``category`` (or ``label``) has the names of classes, or
their numbers in a ``ClassLabel``. A data set does not store whether a box is [x, y, width, height]
or [x1, y1, x2, y2]: the config declares it (``boxes``).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mm_numeric.answers import EmbeddedImage
from mm_numeric.compat import decoded_columns
from mm_numeric.config.data import DataSource
from mm_numeric.geometry.row_shapes import finite_numbers

_SAVED_FILES = ("dataset_info.json", "dataset_dict.json")  # written by save_to_disk
_BATCH_SIZE = 1000  # rows of a table read at once
_OBJECTS = "objects"
_LABELS = ("category", "label", "categories", "labels", "class")

T = TypeVar("T")

DatasetRow = tuple[str, dict[str, Any], EmbeddedImage | None]
"""(location of the row for messages, fields of the row, image or None)."""


def dataset_rows(
    source: DataSource, cache: Path, *, stream: bool
) -> Iterator[DatasetRow | ValueError]:
    """Yield each sample of a Hugging Face data set: its location, its fields and its image.

    The image comes from the first image column. In the fields, this column is replaced by the field
    ``image`` with a name such as ``12.png``. Other columns of images, audio and video are removed.
    The column ``objects`` of a detection data set becomes ``instances``; if that is invalid, a
    ValueError is yielded. No image is decoded here. With ``stream``, samples are read one at a
    time, without downloading the whole data set; otherwise tables are stored in ``cache``.
    """
    dataset, column = _without_decoding(_load(source, cache, stream=stream))
    names, xywh = class_names(dataset.features), source.boxes == "xywh"
    rows = _stream_rows(dataset, column) if stream else _table_rows(dataset, column)
    for number, (raw, read) in enumerate(_report_read_errors(rows, source)):
        where = f"{source.name}, row {number}"
        try:
            row = dict(with_instances(raw, names, where, xywh=xywh))
        except ValueError as error:
            yield error
            continue
        if read is None:
            yield where, row, None
        else:
            name = f"{number}.png"  # only a name: the format is detected from the bytes
            image = EmbeddedImage(name, f"{where}, {column}", read)
            yield where, {**row, "image": name}, image


def _report_read_errors(rows: Iterator[T], source: DataSource) -> Iterator[T]:
    """Yield rows; convert any error of ``datasets`` to a ValueError that names the source."""
    try:
        yield from rows
    except Exception as error:  # damaged file, network
        raise ValueError(
            f"data, dataset {source.name}: reading stopped before the end ({_summary(error)})."
        ) from error


def _stream_rows(dataset: Any, column: str | None) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each row of a streamed data set, and a function that reads the bytes of its image.

    The row does not contain the image ``column``. The function is None for a row without an image.
    """
    for row in dataset:
        stored = row.pop(column, None)
        yield row, stored and partial(_image_bytes, stored)


def _table_rows(dataset: Any, column: str | None) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each row of a stored data set, and a function that reads the bytes of its image."""
    start = 0
    images = dataset.select_columns([column]) if column else None
    for table in dataset.with_format("arrow").iter(batch_size=_BATCH_SIZE):
        rows = (table.drop_columns([column]) if column else table).to_pylist()
        has_images = table[column].is_valid().to_pylist() if column else [False] * len(rows)
        for i, (row, has_image) in enumerate(zip(rows, has_images, strict=True), start=start):
            row = dataset.features.decode_example(row)  # parses JSON, which is stored as text
            yield row, partial(_image_bytes_of_row, images, i, column) if has_image else None
        start += len(rows)


def _image_bytes_of_row(images: Any, number: int, column: str | None) -> bytes:
    return _image_bytes(images[number][column])


def _image_bytes(stored: dict[str, Any]) -> bytes:
    """Return the bytes of an image from the table or, if they are not stored there, from its file.

    The file may be in an archive (``zip://0.png::train.zip``) or on the hub (``hf://...``).
    """
    if stored["bytes"] is not None:
        return stored["bytes"]
    path = str(stored["path"])
    if "://" not in path:
        return Path(path).read_bytes()
    import fsspec  # a dependency of `datasets`

    with fsspec.open(path, "rb") as file:
        content: bytes = file.read()
    return content


def _without_decoding(dataset: Any) -> tuple[Any, str | None]:
    """Return the data set without image decoding, and the name of its first image column."""
    import datasets

    features = dataset.features or {}
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    column = images[0] if images else None
    if column is not None:
        dataset = dataset.cast_column(column, datasets.Image(decode=False))
    others = [name for name in decoded_columns(features) if name != column]
    return (dataset.remove_columns(others) if others else dataset), column


def _load(source: DataSource, cache: Path, *, stream: bool) -> Any:
    """Load a data set from a ``save_to_disk`` folder, from a folder of data files, or the hub."""
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
        if any((folder / file).is_file() for file in _SAVED_FILES):
            saved = datasets.load_from_disk(name)
            _check_saved(source, saved)
            if isinstance(saved, datasets.DatasetDict):
                saved = saved[source.split]
            return saved.to_iterable_dataset() if stream else saved
        return datasets.load_dataset(
            str(folder.resolve()) if folder.is_dir() else name,
            name=source.subset,
            split=source.split,
            revision=source.revision,
            streaming=stream,
            cache_dir=str(cache / "datasets"),
        )
    except Exception as error:  # dataset builders, pyarrow, the hub and the network
        raise ValueError(
            f"data, dataset {source.name}: it cannot be loaded ({_summary(error)}); "
            "give a name on the hub, a folder written by save_to_disk, or a folder of parquet, "
            "arrow, JSON or CSV files, with subset and split if it has several."
        ) from error


def _check_saved(source: DataSource, saved: Any) -> None:
    """Check that a saved data set contains what ``source`` requests: split, subset, revision."""
    missing = [name for name in ("subset", "revision") if getattr(source, name) is not None]
    has_splits = isinstance(saved, dict)
    splits = list(saved) if has_splits else ["train", str(saved.split)]
    if source.split not in splits:
        missing.append(f"split {source.split}")
    if missing:
        content = f"the splits {', '.join(splits)}" if has_splits else "one data set"
        raise ValueError(f"the folder contains {content}, and no {' or '.join(missing)}")


def _summary(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def class_names(features: Any) -> tuple[str, Sequence[str]] | None:
    """Return the field of ``objects`` with class numbers, and the class names; None if missing.

    ``features`` are those of a data set; the field is a ``ClassLabel``, in a list or not.
    """
    fields = _element((features or {}).get(_OBJECTS))
    for name in _LABELS if isinstance(fields, Mapping) else ():
        names = getattr(_element(fields.get(name)), "names", None)
        if names is not None:
            return name, names
    return None


def _element(feature: Any) -> Any:
    """Return the feature of the elements of a list; any other feature is returned unchanged."""
    if isinstance(feature, list):
        return feature[0] if feature else None
    return getattr(feature, "feature", feature)


def with_instances(
    row: Mapping[str, Any], names: tuple[str, Sequence[str]] | None, where: str, *, xywh: bool
) -> Mapping[str, Any]:
    """Return a row with the field ``instances``, made of its column ``objects``.

    A row without this column, or with ``instances``, is returned unchanged. ``names`` is the result
    of ``class_names``; with ``xywh``, a box is [x, y, width, height] and not [x1, y1, x2, y2].
    """
    objects = row.get(_OBJECTS)
    if "instances" in row or not isinstance(objects, Mapping | list):
        return row
    items = objects if isinstance(objects, list) else _transposed(objects, where)
    instances = [_instance(item, names, f"{where}, objects.{i}", xywh) for i, item in
                 enumerate(items)]  # fmt: skip
    return {**{k: v for k, v in row.items() if k != _OBJECTS}, "instances": instances}


def _transposed(objects: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Convert lists of the same length to a list with one dictionary per object."""
    lists = {key: value for key, value in objects.items() if isinstance(value, list)}
    lengths = {len(value) for value in lists.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"{where}, objects: its lists have different lengths "
            f"({', '.join(f'{k} {len(v)}' for k, v in lists.items())})."
        )
    return [dict(zip(lists, own, strict=True)) for own in zip(*lists.values(), strict=True)]


def _instance(
    item: Any, names: tuple[str, Sequence[str]] | None, where: str, xywh: bool
) -> dict[str, Any]:
    if not isinstance(item, Mapping) or item.get("bbox") is None:
        raise ValueError(f'{where}: no "bbox" (a list of four numbers).')
    box = finite_numbers(item["bbox"], f"{where}, bbox")
    if xywh and len(box) == 4:
        box = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
    label = next((item[name] for name in _LABELS if item.get(name) is not None), "")
    if names is not None and type(label) is int and item.get(names[0]) is not None:
        label = item[names[0]]  # another field may have other numbers, as in COCO
        if not 0 <= label < len(names[1]):
            raise ValueError(
                f"{where}, {names[0]}: {label} is not the number of one of {len(names[1])} classes."
            )
        label = names[1][label]
    ignore = {"ignore": True} if item.get("iscrowd") in (1, True) else {}
    return {"box": box, "label": str(label), **ignore}
