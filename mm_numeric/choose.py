"""Look a name up in a table, or say what the names are and which one is nearest."""

import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def unknown(name: object, known: Iterable[str], what: str, where: str) -> ValueError:
    """Return the error for a name that is not in a table: place, value, nearest, choices."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{where}: there is no {what} {name!r}.{hint} Known: {', '.join(names)}.")


def choose(name: str, table: Mapping[str, Any], what: str, where: str) -> Any:
    """Return what a table holds under a name, or what ``my_package.module:Name`` points to.

    Args:
        name: A key of ``table``, or an import path with a colon.
        table: Values, or import paths with a colon that are loaded on first use.
        what: What the names stand for ("task", "loss term"), for the error.
        where: The file and field that the name came from, for the error.

    Raises:
        ValueError: If the name is not in the table, or its import path leads nowhere.
    """
    if name not in table and ":" not in name:
        raise unknown(name, table, what, where)
    entry = table.get(name, name)
    return load(entry, where) if isinstance(entry, str) else entry


def load(path: str, where: str) -> Any:
    """Import ``package.module:Name``."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # ":X", ".a:X"
        raise ValueError(f"{where}: {path!r} cannot be imported ({error}).") from error
