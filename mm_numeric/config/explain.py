"""Explain the settings of a config, for ``mm-numeric check --explain``. Does not import torch."""

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

import yaml

from mm_numeric.config import compare, data, decoding, modules, schema
from mm_numeric.config.schema import plain
from mm_numeric.config.trainer_settings import (
    BY_MACHINE,
    NO_DEFAULT,
    ONLY,
    OURS,
    SHORT_NAMES,
    trainer_settings,
)
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.registry import GENERATORS, TASKS, load, unknown

_SCREEN = 40  # lines

_SOURCES = "data.train, data.test, evaluate.data, compare.select_on"

SECTIONS: Mapping[str, type] = {
    "data": data.DataConfig,
    "data.augment": data.AugmentConfig,
    _SOURCES: data.DataSource,
    "model": schema.ModelConfig,
    "model.coordinates": Coordinates,
    "modules.NAME": modules.ModuleSettings,
    "lora": modules.LoraSettings,
    "objective": ObjectiveSpec,
    "objective.terms": TermSpec,
    "distil": schema.DistilConfig,
    "predict": decoding.PredictConfig,
    "evaluate": data.EvaluateConfig,
    "compare": compare.CompareConfig,
    "compare.resources": compare.Resources,
    "compare.hypotheses": compare.HypothesisGroup,
}
"""Sections of a config, and the dataclass with their settings; NAME is one of ``MODULE_NAMES``."""


class SettingText(NamedTuple):
    """One setting, described in words."""

    path: str
    kind: str
    default: str
    meaning: str
    of: str = ""
    """The task or the generator that has the setting, such as ``task clock``; empty for others."""

    def __str__(self) -> str:
        title = f"{self.path} ({self.of})" if self.of else self.path
        lines = f"type:    {self.kind}", f"default: {self.default}", f"meaning: {self.meaning}"
        return "\n".join([title, *map(_wrapped, lines)])


def explain(key: str) -> str:
    """Return the type, default and meaning of a setting, or of each setting of a section.

    If these are longer than a screen, return the names of the settings of the section, and the
    defaults and the first words of those that are in no section of their own.

    Args:
        key: A dotted path as in an override, such as ``trainer.learning_rate``, or the path of a
            section, such as ``data.train``. Numbers in it select one of several sources or terms.
    """
    path = ".".join(word for word in key.split(".") if not word.isdecimal())
    known = known_settings()
    found = [s for s in known if f"{s.path}.".startswith(f"{path}.")]
    if not found:
        section, _, name = path.rpartition(".")
        meant = SHORT_NAMES.get(name) if section in ("", "trainer") else None
        meant = meant and f"trainer.{meant}"
        raise unknown(key, {s.path for s in known}, "setting", "--explain", meant)
    text = "\n\n".join(map(str, found))
    inside = [setting for setting in found if setting.path != path]
    if text.count("\n") < _SCREEN or not inside:
        return text
    whole = [str(setting) for setting in found if setting.path == path]
    return "\n\n".join([*whole, _overview(path, inside)])


def _overview(section: str, found: Sequence[SettingText]) -> str:
    """List the settings of a section that is longer than a screen."""
    own = [s for s in found if not s.of and s.path.rpartition(".")[0] == section]
    lines = [
        textwrap.shorten(f"{s.path} = {s.default}: {s.meaning}", 100, placeholder=" …") for s in own
    ]
    groups: dict[str, dict[str, None]] = {}
    if len(own) > _SCREEN:
        lines, groups[section] = [], dict.fromkeys(s.path.rpartition(".")[2] for s in own)
    for setting in found:
        name, _, inside = setting.path.removeprefix(f"{section}.").partition(".")
        title = f"{section}.{name}" if inside else f"{section} ({setting.of})"
        if inside or setting.of:
            groups.setdefault(title, {})[inside.partition(".")[0] or name] = None
    for title, names in groups.items():
        text = f"{title}: {', '.join(names)}"
        lines += textwrap.wrap(text, 100, subsequent_indent="    ", break_on_hyphens=False)
    example = (own or found)[0].path
    return "\n".join([*lines, f"Explain one of them: mm-numeric check --explain {example}"])


@functools.cache
def known_settings() -> list[SettingText]:
    """Return every setting of a config."""
    return list(dict.fromkeys(_settings()))


def _settings() -> Iterator[SettingText]:
    for sections, cls in SECTIONS.items():
        for section in sections.split(", "):
            for name in modules.MODULE_NAMES if "NAME" in section else [""]:
                yield from _fields(section.replace("NAME", name), cls)
    for task, import_path in TASKS.items():
        for setting in _fields("task", load(import_path, task)):
            yield setting._replace(of=f"task {task}")
    for section in _SOURCES.split(", "):
        for generator, import_path in GENERATORS.items():
            for setting in _fields(f"{section}.synthetic", load(import_path, generator)):
                yield setting._replace(of=f"generator {generator}")
    yield from _trainer()
    whole = {field.name: field for field in fields(schema.Config)}
    yield SettingText("plugins", kind(whole["plugins"]), "null", meanings(schema.Config)["plugins"])


def _fields(section: str, cls: type) -> Iterator[SettingText]:
    texts = meanings(cls)
    for field in fields(cls):
        path = f"{section}.{field.name}"
        yield SettingText(path, kind(field), default(field), texts[field.name])
        if isinstance(field.type, type) and is_dataclass(field.type):
            yield from _fields(path, field.type)


def _trainer() -> Iterator[SettingText]:
    """Yield the settings of ``trainer``, which are fields of transformers.TrainingArguments."""
    for name, setting in trainer_settings().items():
        value = OURS.get(name, setting.default)
        text = "computed" if value is NO_DEFAULT else as_yaml(value)
        if name in BY_MACHINE:
            text = "chosen by the machine"
        meaning = setting.help + BY_MACHINE.get(name, "")
        if name in ONLY:
            only, why = ONLY[name]
            meaning += f" Only {as_yaml(only)} can be used here, for {why}."
        yield SettingText(f"trainer.{name}", in_words(" | ".join(setting.types)), text, meaning)


def _wrapped(line: str) -> str:
    """Indent a line, and wrap it at 100 characters."""
    more = " " * len("  meaning: ")
    return textwrap.fill(
        line, 100, initial_indent="  ", subsequent_indent=more, break_on_hyphens=False
    )


_TYPE_WORDS = {
    r" \| ": " or ", r"\bNone\b": "null", r"\bAny\b": "see meaning", r"\bstr\b": "text",
    r"\bint\b": "whole number", r"\bfloat\b": "number", r"\bbool\b": "true or false",
    r"tuple\[see meaning, …\]": "list", r"(?:tuple|Sequence)\[([^\[\]]*?)(?:, …)?\]": r"list of \1",
    r"list\[(\w+)\]": r"list of \1", r"(?:Mapping|dict)\[.*\]|\bdict\b|\bGenerator\b": "mapping",
}  # fmt: skip


def meanings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, on one line.

    It is the string after the field, or its entry under ``Attributes:`` in the class docstring.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = _class_bodies(base.__module__).get(base.__name__, [])
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                docs.setdefault(ast.unparse(field.target), "")
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    docs[ast.unparse(field.target)] = str(after.value.value)
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(
            r"^ {4}(\w+): (.*(?:\n {5,}.*|\n(?=\n? {8}))*)", attributes, re.M
        ):
            docs[name] = text
    return {name: " ".join(text.replace("``", "`").split()) for name, text in docs.items()}


@functools.cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements in the body of each class of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def in_words(annotation: str) -> str:
    """Return a type annotation in words: ``text or null`` for ``str | None``."""
    text = re.sub(r"[\w.]+\.", "", annotation.replace("...", "…"))  # removes module names
    for found, word in 2 * [*_TYPE_WORDS.items()]:  # twice: a list of lists
        text = re.sub(found, word, text)
    return text


def kind(field: "Field[Any]") -> str:
    """Return the type of a field in words."""
    return in_words(inspect.formatannotation(field.type))


def default(field: "Field[Any]") -> str:
    """Return the default of a field as YAML, or ``required``."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is MISSING:
        return "required"
    return as_yaml({} if is_dataclass(value) else plain(value))


def as_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()
