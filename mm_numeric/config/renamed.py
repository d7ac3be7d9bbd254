"""Old names of config keys and values, read for one release with a warning that names the new one.

An objective or a comparison row whose name is derived from its settings keeps the name that the
old keys gave it, so that its folder is found again.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from mm_numeric.config.names import objective_name, row_name, value_name
from mm_numeric.geometry import coordinates
from mm_numeric.losses import spec
from mm_numeric.moved import RenamedSettings, warn_renamed
from mm_numeric.parsing import with_override

_SECTIONS: Mapping[str, RenamedSettings] = {
    "": RenamedSettings({"parts": "modules"}),
    "data": RenamedSettings({"on_bad_picture": "on_bad_image", "picture_cache": "image_cache"}),
    "model": RenamedSettings(
        {"picture": "image_size"}, {"coordinates": coordinates.RENAMED_PRESETS}
    ),
    "model.coordinates": coordinates.RENAMED,
    "objective": spec.RENAMED,
}
"""Dotted path of each section with renamed keys or values."""


_NameOf = Callable[[Mapping[str, Any]], str]


class _Change(NamedTuple):
    """An old key, or an old key and value, and what replaces it."""

    old: str
    new: str


def with_new_names(raw: Mapping[str, Any], where: str, *, warn: bool = True) -> dict[str, Any]:
    """Return settings with every old key and value replaced by the new one.

    Args:
        raw: A config as read from YAML; it is not changed.
        where: The file, for warnings and errors.
        warn: Whether to warn about each old name; False for configs that this library wrote.

    Raises:
        ValueError: If a setting is given under both names.
    """
    reader = _Reader(where)
    settings: dict[str, Any] = reader.section(raw, "")
    if isinstance(raw.get("compare"), Mapping):
        settings["compare"] = reader.comparison(raw["compare"])
    if isinstance(raw.get("objective"), Mapping):
        settings["objective"] = reader.objective(raw["objective"], "objective", objective_name)
    if warn:
        reader.warn()
    return settings


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str], where: str) -> dict[str, Any]:
    """Return the settings of a file with new names and with overrides applied.

    Args:
        raw: The file as read from YAML.
        overrides: ``name.of.setting=value``, under the new or the old name.
        where: The file, for warnings and errors.

    Raises:
        ValueError: If an override is not valid, or a setting is given under both names.
    """
    with_new_names(raw, where)  # only for the warnings: names of objectives need the old keys
    settings = dict(raw)
    for override in overrides:
        settings = with_override(settings, override, _as_in_file)
    return with_new_names(settings, where, warn=False)


def _as_in_file(raw: Mapping[str, Any], path: str, value: Any, override: str) -> tuple[str, Any]:
    """Return path and value of an override under the name, old or new, that the file uses."""
    reader = _Reader(override)
    _, new_value = reader.setting(path, value)
    reader.warn()
    words: list[str] = []
    section, at = "", cast(Any, raw)
    for word in path.split("."):
        names = _SECTIONS[section].names if section in _SECTIONS else {}
        if isinstance(at, Mapping) and word not in at:
            other_names = (names.get(word, word), *(o for o, new in names.items() if new == word))
            word = next((name for name in other_names if name in at), word)
        words.append(word)
        section = f"{section}.{names.get(word, word)}".lstrip(".")
        if re.fullmatch(r"compare\.objectives\.\d+", section):
            section = "objective"
        if isinstance(at, list | tuple):
            at = dict(zip(map(str, range(len(at))), at, strict=True))
        at = at.get(word) if isinstance(at, Mapping) else None
    found = ".".join(words)
    return found, value if found == path else new_value


class _Reader:
    """Replaces old names and collects the changes."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.changes: dict[_Change, None] = {}  # ordered, and each change once

    def warn(self) -> None:
        """Warn about every change."""
        for change in self.changes:
            warn_renamed(self.where, change.old, change.new)

    def section(self, raw: Any, path: str, shown: str | None = None) -> Any:
        """Return a section with new names.

        Args:
            raw: Content of the section.
            path: Its key in ``_SECTIONS``.
            shown: Its path in warnings; ``path`` when None.
        """
        renamed = _SECTIONS.get(path)
        if renamed is None or not isinstance(raw, Mapping):
            return raw
        shown = path if shown is None else shown
        settings = {}
        for key, value in raw.items():
            name, new_value = renamed.translate(key, value)
            old, new = (f"{shown}.{end}".lstrip(".") for end in (key, name))
            if name != key and name in raw:
                raise ValueError(f"{self.where}: {old} is the old name of {new}; remove {old}.")
            if new_value != value:
                old, new = f"{old}: {value}", f"{new}: {new_value}"
            if old != new:
                self.changes[_Change(old, new)] = None
            settings[name] = self.section(new_value, f"{path}.{name}".lstrip("."))
        return settings

    def objective(self, raw: Any, shown: str, name_of: _NameOf) -> Any:
        """Return an objective with new names, and the name that its old keys gave it."""
        if not isinstance(raw, Mapping):
            return raw
        settings = self.section(raw, "objective", shown)
        if settings != raw and "name" not in raw:
            settings["name"] = name_of(raw)
        return settings

    def setting(self, path: str, value: Any) -> tuple[str, Any]:
        """Return a dotted path and its value with new names."""
        words = path.split(".")
        tree = value
        for word in reversed(words):
            tree = {word: tree}
        tree = self.section(tree, "")
        if words[:2] == ["compare", "objectives"] and len(words) > 3:
            name, value = self.setting(".".join(["objective", *words[3:]]), value)
            return ".".join([*words[:3], name.partition(".")[2]]), value
        names = []
        for _ in words:
            ((name, tree),) = tree.items()
            names.append(name)
        return ".".join(names), tree

    def comparison(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section ``compare`` with new names."""
        settings = dict(raw)
        if isinstance(raw.get("objectives"), list | tuple):
            settings["objectives"] = [
                self._row(item, f"compare.objectives.{i}")
                for i, item in enumerate(raw["objectives"])
            ]
        if isinstance(raw.get("grid"), Mapping):
            settings["grid"] = self._grid(raw["grid"])
        return settings

    def _row(self, raw: Any, shown: str) -> Any:
        row = self.objective(raw, shown, row_name)
        if isinstance(raw, Mapping) and isinstance(raw.get("with"), Mapping):
            row["with"] = self._settings(raw["with"], f"{shown}.with")
        return row

    def _settings(self, raw: Mapping[Any, Any], shown: str) -> dict[Any, Any]:
        """Return a mapping from dotted paths to values with new names."""
        settings = {}
        for path, value in raw.items():
            name, value = self.setting(path, value) if isinstance(path, str) else (path, value)
            if name in settings or (name != path and name in raw):
                raise ValueError(f"{self.where}, {shown}: {path} is the old name of {name}.")
            settings[name] = value
        return settings

    def _grid(self, raw: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a grid with new names; its rows keep the names that the old keys gave them."""
        grid, axes = {}, [axis for axis in raw if isinstance(axis, str)]
        for axis, values in raw.items():
            if not isinstance(axis, str) or not isinstance(values, list | tuple | Mapping):
                grid[axis] = values
                continue
            name = self.setting(axis, None)[0]
            if name != axis and name in raw:
                raise ValueError(f"{self.where}, compare.grid: {axis} is the old name of {name}.")
            new_values = [
                self.objective(value, "compare.grid.objective", objective_name)
                if axis == "objective"
                else self.setting(axis, value)[1]
                for value in (values.values() if isinstance(values, Mapping) else values)
            ]
            labels: Iterable[Any] | None = None
            if isinstance(values, Mapping):
                labels = values
            elif axis != "objective" and (name, new_values) != (axis, list(values)):
                labels = _value_names(axis, values, axes)
            grid[name] = dict(zip(labels, new_values, strict=True)) if labels else new_values
        return grid


def _value_names(axis: str, values: Sequence[Any], axes: list[str]) -> list[str] | None:
    """Return the names of the values of a grid axis; None if one cannot be part of a name."""
    if any(isinstance(value, list | tuple | Mapping) for value in values):
        return None
    return [value_name(axis, value, axes) for value in values]
