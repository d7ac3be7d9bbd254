"""Read the values of one axis of ``compare.grid`` or ``compare.tune``. Does not import torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from mm_numeric.config.compare import row_name, value_name


def axis_values(axis: Any, values: Any, axes: Sequence[str], where: str) -> list[tuple[str, Any]]:
    """Return the label and value of each entry of an axis, given as a list or as a mapping.

    ``axes`` are the names of all axes, from which labels such as ``weight_0.3`` are derived.
    """
    if not isinstance(axis, str):
        raise ValueError(f"{where}: {axis!r} is not a setting; write one, such as model.digits.")
    if axis in ("objective.name", "objective.preset"):
        raise ValueError(f"{where}: {axis!r} cannot be an axis; use the axis objective.")
    if not isinstance(values, list | tuple | Mapping) or not values:
        raise ValueError(
            f"{where}.{axis}: expected a list of values, or a mapping from names to values, found "
            f"{values!r:.60}."
        )
    if isinstance(values, Mapping):
        return [(str(name), value) for name, value in values.items()]
    if axis == "objective":
        entries = [value if isinstance(value, Mapping) else {"preset": value} for value in values]
        return [(row_name(entry), value) for entry, value in zip(entries, values, strict=True)]
    named = []
    for value in values:
        if isinstance(value, list | tuple | Mapping):
            raise ValueError(
                f"{where}.{axis}: {value!r:.60} cannot be part of a name; write the axis as a "
                "mapping from names to values."
            )
        named.append((value_name(axis, value, axes), value))
    return named
