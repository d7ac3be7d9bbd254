"""Config keys that were renamed: the old key is read for one release, with one warning."""

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "data.on_bad_picture": "data.on_bad_image",
    "data.picture_cache": "data.image_cache",
    "model.picture": "model.image_size",
}
"""Dotted path of each old key and of the key that takes its place."""


def new_path(path: str) -> str:
    """Return a dotted path under its new name; a path that was not renamed is returned as it is."""
    for old, new in RENAMED.items():
        if path == old or path.startswith(f"{old}."):
            return new + path[len(old) :]
    return path


def with_new_names(raw: Mapping[str, Any], where: str, *, warn: bool = True) -> dict[str, Any]:
    """Return settings with every old key replaced by its new name.

    Args:
        raw: A config as YAML gave it; it is not changed.
        where: The file, for the warning.
        warn: Whether to name the keys to change; False for configs that this library wrote.

    Raises:
        ValueError: If a config contains a key under both names.
    """
    changed: dict[str, Any] = dict(raw)
    for old, new in RENAMED.items():
        *sections, key = old.split(".")
        at: Any = changed
        for section in sections:
            at = at.get(section) if isinstance(at, Mapping) else None
        if not isinstance(at, Mapping) or key not in at:
            continue
        name = new.rpartition(".")[2]
        if name in at:
            raise ValueError(f"{where}: {old} is the old name of {new}; remove {old}.")
        if warn:
            message = f"{where}: {old} is now called {new}; the old name stops working in 0.3."
            warnings.warn(message, FutureWarning, stacklevel=2)
        changed = _replaced(changed, sections, key, name)
    return changed


def _replaced(at: Mapping[str, Any], sections: list[str], key: str, name: str) -> dict[str, Any]:
    """Return settings in which one key has another name, in its place."""
    if sections:
        return {**at, sections[0]: _replaced(at[sections[0]], sections[1:], key, name)}
    return {name if found == key else found: value for found, value in at.items()}
