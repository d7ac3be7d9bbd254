"""The documentation of dataclass fields: type in words, default and docstring."""

import ast
import functools
import inspect
import re
import sys
from dataclasses import MISSING, Field, is_dataclass
from typing import Any

import yaml

from mm_numeric.config.schema import plain

_TYPE_WORDS = {
    r" \| ": " or ", r"\bNone\b": "null", r"\bAny\b": "see meaning", r"\bstr\b": "text",
    r"\bint\b": "whole number", r"\bfloat\b": "number", r"\bbool\b": "true or false",
    r"tuple\[see meaning, …\]": "list", r"(?:tuple|Sequence)\[([^\[\]]*?)(?:, …)?\]": r"list of \1",
    r"list\[(\w+)\]": r"list of \1", r"(?:Mapping|dict)\[.*\]|\bdict\b|\w+Style": "mapping",
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
    text = re.sub(r"[\w.]+\.", "", annotation.replace("...", "…"))  # without the names of modules
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
