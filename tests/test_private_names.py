"""Only mm_numeric/compat.py uses private names of transformers, TRL, accelerate and PEFT."""

import ast

import pytest
from import_graph import by_room, modules, syntax_tree
from private_names import BASES, private_uses

from mm_numeric import compat
from mm_numeric.baselines.baseline import read_baseline
from mm_numeric.registry import BASELINES

pytestmark = pytest.mark.slow

OVERRIDES = frozenset().union(compat.TRAINER_METHODS, compat.MODEL_METHODS)
ROOMS = by_room(name for name in modules() if name != "mm_numeric.compat")


@pytest.mark.parametrize("room", ROOMS)
def test_no_private_name_outside_of_compat(room):
    for module in ROOMS[room]:
        found = private_uses(module, syntax_tree(modules()[module]), OVERRIDES)
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
