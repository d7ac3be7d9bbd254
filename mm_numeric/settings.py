"""Parse YAML strictly, apply command-line overrides, and check types of dataclass fields."""

import math
import types
import typing
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mm_numeric.io.files import not_utf8, require_file
from mm_numeric.registry import unknown

MAX_VALUES = 100_000
"""Maximum number of values in a YAML file, after its aliases are expanded."""

MAX_DEPTH = 100
"""Maximum depth of nested brackets in a YAML file."""


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that raises an error for duplicate keys; ``SafeLoader`` uses the last value."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803
        if self.flow_level >= MAX_DEPTH:  # the time of PyYAML is quadratic in the depth
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._flat = set[int]()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Check before the base class adds the keys of a merge (<<: *base), which may be repeated.
        if id(node) not in self._flat:
            self._flat.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class raises an error
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)


_CURES = {
    "expected <block end>": " The line is indented differently from those above it, which belong "
    "to the same section.",
    "mapping values are not allowed here": " Correct the indentation of this line, write a space "
    "after each colon, and put texts with a colon in quotes.",
    "'\\t' that cannot start": " Indent with spaces, not with tabs.",
    "expected ',' or": " A bracket or brace may not be closed, here or in a line above.",
    "end of stream": " A quote is not closed.",
    "'<stream end>'": " A bracket is not closed; put a setting with spaces in quotes.",
    "that cannot start any token": " Put the text in quotes.",
    "alphabetic or numeric character": " Put the text in quotes.",
    "found another document": " A config is one YAML document; delete the line --- and what "
    "follows it.",
    "expected '<document start>'": " A config is one YAML file, not a file of rows.",
}
"""Maps a part of a PyYAML error message to a hint for the user."""


def _expanded_size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return the number of values of a YAML node after its aliases are expanded.

    Ten lines, each with ten aliases of the line before, would expand to 10^10 values. ``known``
    has the sizes of the nodes that were counted before, by their id.
    """
    if node is None:
        return 0
    if id(node) not in known:
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_expanded_size(part, known) for part in parts)
    return known[id(node)]


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text, and raise ValueError if it is invalid or has duplicate keys."""
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        if (size := _expanded_size(node, {})) > MAX_VALUES:
            raise ValueError(f"{size:,} values with its aliases expanded, above {MAX_VALUES:,}")
        return None if node is None else loader.construct_document(node)
    except RecursionError as error:
        raise ValueError(f"{where}: nested too deep, or an alias contains itself.") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        hints = (hint for problem, hint in _CURES.items() if problem in str(error.problem))
        problem = str(error.problem).removeprefix("but ")
        raise ValueError(f"{where}, line {line}: {problem}.{next(hints, '')}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2020-13-45
        raise ValueError(f"{where}: not YAML ({error}).") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings and return its top-level mapping as a dictionary."""
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}).") from error
    raw = parse_yaml(text, str(path))
    if not isinstance(raw, dict):
        found = "an empty file" if raw is None else repr(raw)
        raise ValueError(f"{path}: expected settings as `key: value`, found {found:.60}.")
    return raw


def with_override(raw: Mapping[str, Any], override: str) -> dict[str, Any]:
    """Return a copy of settings with one override, such as ``trainer.seed=3``, applied.

    The override ``objective.numeric_weight=0.8`` changes the short form ``objective: ntil`` to
    ``objective: {preset: ntil, numeric_weight: 0.8}``, and likewise for ``task: clock``.
    """
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ValueError(f"{override}: write an override as name.of.setting=value.")
    return with_setting(raw, path, parse_yaml(text, override), override)


def with_setting(raw: Mapping[str, Any], path: str, value: Any, where: str) -> dict[str, Any]:
    """Return a copy of settings with a new value at a dotted path like ``trainer.seed``."""
    return _set(dict(raw), path.split("."), value, where, ())


def setting_at(raw: Any, path: str) -> Any:
    """Return the value of a setting at a dotted path like ``trainer.seed``; None if not set."""
    for key in path.split("."):
        if isinstance(raw, list) and key.isdecimal() and int(key) < len(raw):
            raw = raw[int(key)]
        else:
            raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


def _set(at: Any, path: list[str], value: Any, override: str, done: tuple[str, ...]) -> Any:
    """Return a copy of nested settings in which ``path``, a list of keys, has a new value."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if at is None:
        at = {}
    if isinstance(at, str) and done in {("objective",), ("task",)}:
        at = {"preset" if done == ("objective",) else "name": at}
    if isinstance(at, list) and key.isdecimal() and int(key) < len(at):
        items = list(at)
        items[int(key)] = _set(items[int(key)], rest, value, override, (*done, key))
        return items
    if not isinstance(at, Mapping):
        raise ValueError(f"{override}: {'.'.join(done)} has no setting {key!r}; it is {at!r:.60}.")
    return {**at, key: _set(at.get(key), rest, value, override, (*done, key))}


def read_dataclass(cls: type, raw: Any, where: str) -> Any:
    """Create a dataclass from parsed YAML, and check each value against its annotated type.

    A base class may have a method ``class_of``, which returns the subclass that the settings name.
    """
    if not isinstance(raw, Mapping):
        names = [f.name for f in fields(cls)]
        hint = f" Write {{{names[0]}: {raw:.60}}}." if isinstance(raw, str) and names else ""
        listed = ", ".join(names)
        raise ValueError(f"{where}: expected settings ({listed}), found {raw!r:.60}.{hint}")
    if hasattr(cls, "class_of"):
        cls = cls.class_of(raw, where)
    hints = _type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    for key in raw:
        if key not in known:
            raise unknown(key, known, "setting", where)
    for name, declared in known.items():
        if name not in raw and declared.default is MISSING and declared.default_factory is MISSING:
            raise ValueError(f"{where}: the setting {name!r} is missing.")
    values = {key: read_value(hints[key], value, f"{where}.{key}") for key, value in raw.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).rstrip('.')}.") from error


# get_type_hints evaluates all annotations at each call, and is called for each row of answers.
_type_hints = cache(typing.get_type_hints)


def check_choices(settings: Any, **choices: Collection[str]) -> None:
    """Check that each named field of ``settings`` has one of its allowed values."""
    for name, allowed in choices.items():
        if (value := getattr(settings, name)) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}")


def check_at_least_1(settings: Any, *names: str) -> None:
    """Check that each named field of ``settings`` is None or at least 1."""
    for name in names:
        if (value := getattr(settings, name)) is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def read_value(hint: Any, value: Any, where: str) -> Any:
    """Convert a parsed YAML value to the type ``hint``, or raise ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return read_dataclass(hint, value, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        chosen = [a for a in arguments if a is not type(None)]
        if isinstance(value, list | tuple):  # so that the error is about its items
            chosen = [a for a in chosen if typing.get_origin(a) in (tuple, Sequence)] or chosen
        for option in chosen[:-1]:
            try:
                return read_value(option, value, where)
            except ValueError:
                continue
        return read_value(chosen[-1], value, where)
    if origin in (tuple, Sequence):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: {value!r:.60} is not a list; write [a, b].")
        return tuple(read_value(arguments[0], v, f"{where}.{i}") for i, v in enumerate(value))
    if hint is Mapping or origin in (Mapping, dict) or hint is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: expected settings as `key: value`, found {value!r:.60}.")
        return dict(value)
    return read_scalar(hint, value, where)


def read_scalar(kind: type, value: Any, where: str) -> Any:
    """Return a YAML value of type ``kind``, or raise ValueError. An int is accepted as a float."""
    if kind is float and type(value) in (int, float) and value == value:  # not nan
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where}: {value!r:.20}... is larger than any float.") from None
    if type(value) is kind and kind is not float:
        return value
    reason = f"{where}: {value!r:.60} is not {_NAMES.get(kind, kind.__name__)}."
    if kind in (int, float) and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise ValueError(reason) from None
        if not math.isfinite(number) or (kind is int and not number.is_integer()):
            raise ValueError(reason)
        written = _as_yaml(number) if kind is float else str(int(number))
        raise ValueError(f"{reason} YAML reads {value} as text: write {written}.")
    if kind is str and type(value) in (int, float, bool):
        raise ValueError(f"{reason} YAML reads 12:30, 7 and on as other types: use quotes.")
    raise ValueError(reason)


def _as_yaml(number: float) -> str:
    """Format a float for YAML 1.1, which requires a decimal point and a signed exponent."""
    digits, e, exponent = repr(number).partition("e")
    digits = digits if "." in digits else f"{digits}.0"
    return f"{digits}e{int(exponent):+d}" if e else digits


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
