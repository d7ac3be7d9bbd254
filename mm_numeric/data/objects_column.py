"""Convert the column ``objects`` of detection data sets on the Hugging Face hub to instances.

cppe-5 and many others have, for each image, lists of the same length in one column:

    objects  {"bbox": [[302, 109, 73, 52], ...], "category": [4, ...], "id": [...], "area": [...]}

or a list with one mapping per object. ``category`` (or ``label``) has the names of classes, or
their numbers in a ``ClassLabel``. Whether a box is [x, y, width, height] or [x1, y1, x2, y2] is not
stored in a data set, so that a config declares it (``boxes``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mm_numeric.geometry.row_shapes import finite_numbers

COLUMN = "objects"
_LABELS = ("category", "label", "categories", "labels", "class")


def class_names(features: Any) -> tuple[str, Sequence[str]] | None:
    """Return the field of ``objects`` with class numbers, and the names of the classes, or None.

    ``features`` are those of a data set; the field is a ``ClassLabel``, in a list or not.
    """
    fields = _element((features or {}).get(COLUMN))
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

    A row without this column, or with ``instances``, is returned unchanged.

    Args:
        row: The fields of the row.
        names: Result of ``class_names``.
        where: Location of the row, for error messages.
        xywh: True if a box is [x, y, width, height], False if it is [x1, y1, x2, y2].
    """
    objects = row.get(COLUMN)
    if "instances" in row or not isinstance(objects, Mapping | list):
        return row
    items = objects if isinstance(objects, list) else _transposed(objects, where)
    instances = [_instance(item, names, f"{where}, objects.{i}", xywh) for i, item in
                 enumerate(items)]  # fmt: skip
    return {**{k: v for k, v in row.items() if k != COLUMN}, "instances": instances}


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
        label = item[names[0]]  # another field may have numbers of its own, as of COCO
        if not 0 <= label < len(names[1]):
            raise ValueError(
                f"{where}, {names[0]}: {label} is not the number of one of {len(names[1])} classes."
            )
        label = names[1][label]
    ignore = {"ignore": True} if item.get("iscrowd") in (1, True) else {}
    return {"box": box, "label": str(label), **ignore}
