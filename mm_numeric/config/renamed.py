"""Replace deprecated config keys and values by the new ones, with a warning.

A run folder of a comparison may be named after its settings, such as ``emd_weight_0.8``. If a
setting has been renamed, the folder keeps its old name, so that the results of old runs are found.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mm_numeric.config.names import row_name, value_name
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
"""Renamed keys and values of each config section, by the section's dotted path."""


def with_new_names(raw: Mapping[str, Any], where: str, *, warn: bool = True) -> dict[str, Any]:
    """Return the settings of a config with every old key and value replaced by the new one.

    ``where`` is the name of the file in warnings and errors.
    """
    translator = _Translator(where)
    settings: dict[str, Any] = translator.section(raw, "")
    if isinstance(raw.get("compare"), Mapping):
        settings["compare"] = translator.comparison(raw["compare"])
    if warn:
        translator.warn()
    return settings


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str], where: str) -> dict[str, Any]:
    """Apply overrides to the settings of a file, then replace old names by new ones.

    An override (``name.of.setting=value``) may use the old or the new name of a setting.
    """
    with_new_names(raw, where)  # only for the warnings: names of objectives need the old keys
    settings = dict(raw)
    for override in overrides:
        settings = with_override(settings, override, _as_in_file)
    return with_new_names(settings, where, warn=False)


def _as_in_file(raw: Mapping[str, Any], path: str, value: Any, override: str) -> tuple[str, Any]:
    """Translate an override such as ``parts.language=frozen`` to the names in the config file.

    Both may use the old or the new name of a renamed setting. Returns the dotted path and value.
    """
    translator = _Translator(override)
    _, new_value = translator.setting(path, value)
    translator.warn()
    words: list[str] = []
    section = ""
    at: Any = raw
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


class _Translator:
    """Replaces old names in a config by new ones, and records the replacements for warnings."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.changes: dict[tuple[str, str], None] = {}  # ordered, and each change once

    def warn(self) -> None:
        for old, new in self.changes:
            warn_renamed(self.where, old, new)

    def section(self, raw: Any, path: str, shown: str | None = None) -> Any:
        """Return a config section with old keys and values replaced by the new ones.

        ``path`` is the dotted path of the section, such as ``model``; ``shown`` is its name in
        warnings, by default the path. An objective without a name is named after its old
        keys, because an existing run folder may have this name.
        """
        renamed = _SECTIONS.get(path)
        if renamed is None or not isinstance(raw, Mapping):
            return raw
        shown = path if shown is None else shown
        settings = {}
        for key, value in raw.items():
            name, new_value = renamed.translate(key, value)
            old, new = (f"{shown}.{end}".lstrip(".") for end in (key, name))
            self._check_once(raw, key, name, f": {old} is the old name of {new}; remove {old}")
            if new_value != value:
                old, new = f"{old}: {value}", f"{new}: {new_value}"
            if old != new:
                self.changes[old, new] = None
            settings[name] = self.section(new_value, f"{path}.{name}".lstrip("."))
        if path == "objective" and settings != raw and "name" not in raw:
            settings["name"] = row_name(raw)
        return settings

    def setting(self, path: Any, value: Any) -> tuple[Any, Any]:
        """Return a setting's dotted path and value, with old names replaced by the new ones."""
        if not isinstance(path, str):
            return path, value
        words = path.split(".")
        if words[:2] == ["compare", "objectives"] and len(words) > 3:
            name, value = self.setting(".".join(["objective", *words[3:]]), value)
            return ".".join([*words[:3], name.partition(".")[2]]), value
        tree = value
        for word in reversed(words):
            tree = {word: tree}
        tree = self.section(tree, "")
        names = []
        for _ in words:
            name, tree = next(iter(tree.items()))
            names.append(name)
        return ".".join(names), tree

    def comparison(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config section ``compare`` with old names replaced by the new ones."""
        settings = dict(raw)
        if isinstance(raw.get("objectives"), list | tuple):
            settings["objectives"] = [
                self._row(item, f"compare.objectives.{i}")
                for i, item in enumerate(raw["objectives"])
            ]
        if isinstance(raw.get("grid"), Mapping):
            axes = [axis for axis in raw["grid"] if isinstance(axis, str)]
            settings["grid"] = dict(self._axis(axis, raw["grid"], axes) for axis in raw["grid"])
        return settings

    def _row(self, raw: Any, shown: str) -> Any:
        row = self.section(raw, "objective", shown)
        if isinstance(raw, Mapping) and isinstance(raw.get("with"), Mapping):
            row["with"] = {}
            for path, value in raw["with"].items():
                name, new_value = self.setting(path, value)
                message = f", {shown}.with: {path} is the old name of {name}"
                self._check_once(raw["with"], path, name, message)
                row["with"][name] = new_value
        return row

    def _axis(self, axis: Any, grid: Mapping[Any, Any], axes: list[str]) -> tuple[Any, Any]:
        """Return a grid setting and its values, with old names replaced by the new ones.

        Run folders are named after the values, such as ``weight_0.3``. Renamed values are returned
        as a dict from old folder name to value, so that existing folders are still found.
        """
        values = grid[axis]
        if not isinstance(axis, str) or not isinstance(values, list | tuple | Mapping):
            return axis, values
        name, _ = self.setting(axis, None)
        self._check_once(grid, axis, name, f", compare.grid: {axis} is the old name of {name}")
        old = list(values.values() if isinstance(values, Mapping) else values)
        if axis == "objective":
            new = [self.section(value, axis, "compare.grid.objective") for value in old]
        else:
            new = [self.setting(axis, value)[1] for value in old]
        nested = any(isinstance(value, list | tuple | Mapping) for value in old)
        if isinstance(values, Mapping):
            labels = list(values)
        elif axis == "objective" or nested or (name, new) == (axis, old):
            return name, new
        else:
            labels = [value_name(axis, value, axes) for value in old]
        return name, dict(zip(labels, new, strict=True)) if labels else new

    def _check_once(self, raw: Mapping[Any, Any], key: Any, name: Any, message: str) -> None:
        """Raise a ValueError if a config has both the old and the new name of a setting."""
        if name != key and name in raw:
            raise ValueError(f"{self.where}{message}.")
