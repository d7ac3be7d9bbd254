"""Only mm_numeric/compat.py uses private names of transformers, TRL, accelerate and PEFT."""

import ast
import builtins
import functools
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from import_graph import modules, syntax_tree

from mm_numeric import compat
from mm_numeric.baselines.baseline import read_baseline
from mm_numeric.registry import BASELINES

LIBRARIES = ("accelerate", "peft", "transformers", "trl")

BASES = {
    "mm_numeric.training.mixin.NumericLossMixin": "trl.SFTTrainer",
    "mm_numeric.baselines.number_head.WithNumberHead": "transformers.PreTrainedModel",
    "mm_numeric.baselines.regression_transformer.WithNumberEncodings": (
        "transformers.PreTrainedModel"
    ),
}
"""Classes of libraries that are combined with a mixin of this library."""

_OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
_BY_NAME = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"}
_SEPARATE = {"experimental", "models"}
"""Folders of libraries whose private names are not read: many files, of single models."""


def is_private(name):
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@functools.cache
def names_of_libraries():
    """Return the private names that the libraries define or read, without those of one model."""
    found, pattern = set(), r"(?:\.|\bdef |\bclass )(_[A-Za-z]\w*)"
    for library in LIBRARIES:
        folder = Path(find_spec(library).origin).parent
        for path in folder.rglob("*.py"):
            if not _SEPARATE.intersection(path.relative_to(folder).parts):
                found.update(re.findall(pattern, path.read_text("utf-8")))
    return found


@functools.cache
def names_of_class(cls):
    """Return the private names of a library's class, and those set on ``self`` in its files."""
    found = {name for name in dir(cls) if is_private(name)}
    for each in cls.__mro__:
        if each.__module__.partition(".")[0] in LIBRARIES:
            text = Path(sys.modules[each.__module__].__file__).read_text("utf-8")
            found.update(re.findall(r"\bself\.(_[A-Za-z]\w*)(?:: [^=\n]+)? = ", text))
    return found


class Module:
    """Names in a module of this library.

    Attributes:
        imported: What each name stands for that it imports, also inside functions.
        own: Names that it defines.
    """

    def __init__(self, tree):
        self.imported, self.own = {}, set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imported[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                self.imported.update(names)
            elif isinstance(node, ast.AsyncFunctionDef | ast.ClassDef | ast.FunctionDef):
                self.own.add(node.name)
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                if isinstance(node, ast.Name):
                    self.own.add(node.id)
                elif isinstance(node, ast.Attribute) and dotted(node.value) in ("self", "cls"):
                    self.own.add(node.attr)


def dotted(node):
    """Return ``a.b.c`` for such an expression, else None."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(words)]) if isinstance(node, ast.Name) else None


@functools.cache
def classes():
    """Return the module, the syntax tree and the imports of each class of this library."""
    found = {}
    for module, path in modules().items():
        tree = syntax_tree(path)
        nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        names = Module(tree).imported if nodes else {}
        found |= {f"{module}.{node.name}": (module, node, names) for node in nodes}
    return found


def library_bases(module, node, names):
    """Yield each class of a library that a class inherits from; None for a base in a variable."""
    for base in [dotted(each) for each in node.bases] + [BASES.get(f"{module}.{node.name}")]:
        first, _, rest = (base or "object").partition(".")
        known = names.get(first, first if first in LIBRARIES else f"{module}.{first}")
        full = f"{known}.{rest}" if rest else known
        if full.partition(".")[0] in LIBRARIES:
            owner, _, name = full.rpartition(".")
            yield getattr(importlib.import_module(owner), name)
        elif full in classes():
            yield from library_bases(*classes()[full])
        elif known == f"{module}.{first}" and not hasattr(builtins, first):
            yield None


def inherited(module, node, names):
    """Return the private names that a class inherits from classes of libraries.

    A base in a variable stands for every class of a library that this library inherits from.
    """
    found = set(library_bases(module, node, names))
    return set().union(*(names_of_class(each) if each else names_of_all_bases() for each in found))


@functools.cache
def names_of_all_bases():
    """Return the private names of each class of a library that this library inherits from."""
    found = {base for each in classes().values() for base in library_bases(*each)} - {None}
    return set().union(*map(names_of_class, found))


class Finder(ast.NodeVisitor):
    """Collects (line, description) of each private name in a module."""

    def __init__(self, module, tree, overrides):
        self.module, self.overrides = module, overrides
        names = Module(tree)
        self.names, self.inherited, self.found = names.imported, [], []
        self.own = names.own - names_of_all_bases() | _OF_NAMED_TUPLES
        self.visit(tree)

    def add(self, node, text):
        self.found.append((node.lineno, text))

    def visit_Import(self, node):
        self._import(node, [alias.name for alias in node.names])

    def visit_ImportFrom(self, node):
        self._import(node, [f"{node.module}.{alias.name}" for alias in node.names])

    def _import(self, node, names):
        for name in names:
            first, *rest = name.split(".")
            if first in LIBRARIES and any(map(is_private, rest)):
                self.add(node, f"import of {name}")

    def visit_ClassDef(self, node):
        self.inherited.append(inherited(self.module, node, self.names) - self.overrides)
        for each in node.body:
            targets = (
                [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
            )
            names = [getattr(each, "name", ""), *(getattr(target, "id", "") for target in targets)]
            for name in self.inherited[-1].intersection(names):
                self.add(each, f"override of {name}")
        self.generic_visit(node)
        self.inherited.pop()

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if not is_private(node.attr):
            return
        if self._is_self(node.value):
            if node.attr in self.inherited[-1]:
                self.add(node, f"{node.attr} of a base class")
            return
        root = self.names.get((dotted(node.value) or "").partition(".")[0])
        is_other = root is not None and root.partition(".")[0] not in (*LIBRARIES, "mm_numeric")
        if not is_other and node.attr not in self.own:
            self.add(node, f"{node.attr} of another object")

    def _is_self(self, node):
        if isinstance(node, ast.Call) and dotted(node.func) == "super":
            node = ast.Name("self")
        return bool(self.inherited) and dotted(node) in ("self", "cls")

    def visit_Call(self, node):
        by_name = (dotted(node.func) or "").rpartition(".")[2] in _BY_NAME
        for each in node.args:
            if by_name and isinstance(each, ast.Constant) and isinstance(each.value, str):
                private = [part for part in each.value.split(".") if is_private(part)]
                if not self.own.issuperset(private):
                    self.add(each, f"{each.value!r} as the name of an attribute")
        self.generic_visit(node)

    def visit_Constant(self, node):
        text = node.value
        if not isinstance(text, str):
            return
        first, *rest = text.split(".")
        if first in LIBRARIES and any(map(is_private, rest)):
            self.add(node, f"{text!r}")
        elif is_private(text) and text not in self.own and text in names_of_libraries():
            self.add(node, f"{text!r}, a name of a library")

    def visit_keyword(self, node):
        if is_private(node.arg or ""):
            self.add(node, f"argument {node.arg}")
        self.generic_visit(node)

    def visit_arg(self, node):
        if is_private(node.arg):
            self.add(node, f"parameter {node.arg}")
        self.generic_visit(node)


def private_uses(module, tree, overrides):
    """Return (line, description) of each private name of a library that a module uses.

    ``overrides`` are the names that classes may override, and call on themselves.
    """
    return sorted(set(Finder(module, tree, frozenset(overrides)).found))


pytestmark = pytest.mark.slow

OVERRIDES = frozenset().union(compat.TRAINER_METHODS, compat.MODEL_METHODS)


def test_no_private_name_outside_of_compat():
    for module, path in modules().items():
        if module != "mm_numeric.compat":
            found = private_uses(module, syntax_tree(path), OVERRIDES)
            assert not found, f"{module}: {found}; move it to mm_numeric.compat"


def test_the_mixins_of_all_baselines_are_checked():
    known = tuple(name.rpartition(".")[2] for name in BASES)
    for name in BASELINES:
        mixin = read_baseline(name, "model.baseline").kind.model_mixin
        assert {cls.__name__ for cls in mixin.__mro__}.intersection(known), name


SUBCLASS = "from transformers import Trainer\nclass A(Trainer):\n    "
PLANTED = {
    "from transformers._x import y": "import of transformers._x.y",
    "def f():\n    from trl.trainer.utils import _y": "import of trl.trainer.utils._y",
    "import accelerate._x as a": "import of accelerate._x",
    "import transformers as t\nt.trainer._x()": "_x of another object",
    "from transformers import trainer\ntrainer._x = 1": "_x of another object",
    "from transformers import Trainer\nTrainer._x": "_x of another object",
    "def f(model):\n    return model.config._x": "_x of another object",
    # Also where the same file overrides the method.
    "def _save(): ...\ndef f(trainer):\n    trainer._save()": "_save of another object",
    "def f(trainer):\n    getattr(trainer, '_x', None)": "'_x' as the name of an attribute",
    "from operator import attrgetter\nattrgetter('a._x')": "'a._x' as the name of an attribute",
    "for n in ('_attn_implementation',): f(n)": "'_attn_implementation', a name of a library",
    "import_module('peft._x.y')": "'peft._x.y'",
    "def f(trainer):\n    trainer.save_model(_internal_call=True)": "argument _internal_call",
    "class A:\n    def save_model(self, _internal_call=False): ...": "parameter _internal_call",
    SUBCLASS + "def _inner_training_loop(self): ...": "override of _inner_training_loop",
    SUBCLASS + "_inner_training_loop = print": "override of _inner_training_loop",
    SUBCLASS + "def f(self): super()._inner_training_loop()": (
        "_inner_training_loop of a base class"
    ),
    "import trl\nclass A(trl.SFTTrainer):\n    def f(self): self._metrics": (
        "_metrics of a base class"
    ),
    "from mm_numeric.training.trainer import NumericTrainer\nclass A(NumericTrainer):\n"
    "    def f(self): self._maybe_log_save_evaluate()": "_maybe_log_save_evaluate of a base class",
    "def f(base):\n    class A(base):\n        def _inner_training_loop(self): ...": (
        "override of _inner_training_loop"
    ),
    # No names of libraries:
    "class A(dict):\n    _inner_training_loop = 1": None,
    "class A:\n    def _x(self): ...\ndef f(a: A): return a._x(), getattr(a, '_x')": None,
    SUBCLASS + "def _own(self): self._own()": None,
    SUBCLASS + "def _save(self): super()._save()": None,  # compat lists it
    "import torch\ntorch._C._x": None,
    "from typing import NamedTuple\ndef f(a: NamedTuple):\n    a._replace(b='_suffix')": None,
}


@pytest.mark.parametrize("source", PLANTED, ids=range(len(PLANTED)))
def test_planted_names_are_found(source):
    found = [text for _, text in private_uses("mm_numeric.planted", ast.parse(source), OVERRIDES)]
    assert found == ([] if PLANTED[source] is None else [PLANTED[source]])


def test_an_override_that_compat_does_not_list_is_found():
    tree = syntax_tree(modules()["mm_numeric.training.trainer"])
    found = private_uses("mm_numeric.training.trainer", tree, OVERRIDES - {"_save_checkpoint"})
    assert {text for _, text in found} == {
        "override of _save_checkpoint",
        "_save_checkpoint of a base class",
    }
