"""Derive the names of objectives, and of rows in comparison tables, from their settings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def objective_name(options: Mapping[str, Any]) -> str:
    """Return an objective's ``name`` or, if not set, a name made of its preset and settings.

    For example, the name of ``{preset: emd, numeric_weight: 0.8}`` is ``emd_numeric_weight_0.8``.
    """
    if "name" in options:
        return str(options["name"])
    skipped = ("preset", "terms", "with", "baseline")
    changes = [f"{key}_{value}" for key, value in options.items() if key not in skipped]
    changes += ["terms"] if "terms" in options else []
    return "_".join([str(options.get("preset", "ce")), *changes])


def row_name(options: Mapping[str, Any]) -> str:
    """Return the name of a comparison row, given its entry in ``compare.objectives``.

    This is ``name`` if set, else the names of the baseline and of the loss, for example
    ``regression_transformer_emd``. Without a baseline, it is only the name of the loss: ``emd``.
    With a baseline and the default loss ``ce``, it is only the name of the baseline: ``xval``.
    """
    name, baseline = objective_name(options), options.get("baseline")
    if baseline is None or "name" in options:
        return name
    short = str(baseline.get("name") if isinstance(baseline, Mapping) else baseline)
    return short if name == "ce" else f"{short}_{name}"


def value_name(axis: str, value: Any, axes: Sequence[str]) -> str:
    """Return a name for a grid value: ``balance_ratio`` for the axis ``objective.balance``."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    words = axis.split(".")
    # The shortest dotted suffix of the axis that no other axis ends with.
    ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
    others = [f".{other}" for other in axes if other != axis]
    unique = (end for end in ends if not any(other.endswith(f".{end}") for other in others))
    return f"{next(unique, axis)}_{text}"
