"""Keep the import rules of CONTRIBUTING.md, for what a module loads and not only what it names."""

import ast
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from import_graph import ROOT, graph, imports_of, loaded_by, modules, packages, syntax_tree

EDGES = graph()
LEAVES = "registry settings io answers geometry numbers.numerals"
LIBRARY = "data families baselines models inference training"
TRAINING = (
    f"{LEAVES} compat distributed.ranks distributed.deepspeed numbers losses config runs.folder "
    f"runs.manifest runs.resume runs.tensor_files {LIBRARY} evaluation.score "
    "evaluation.metrics rewards tasks.base"
)
TORCH = (":torch", ":transformers", ":accelerate", ":peft", ":deepspeed")


def full(names):
    """Return the full names of rooms; a colon precedes a package that is not ours."""
    return tuple(n.lstrip(":") if n.startswith(":") else f"mm_numeric.{n}" for n in names)


def inside(module, rooms):
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


MAY_IMPORT = {
    LEAVES: LEAVES,
    "numbers.vocabulary numbers.spans losses": f"{LEAVES} numbers losses",
    "tasks": "answers geometry numbers.numerals registry tasks",
    "evaluation.metrics": "answers geometry numbers.numerals evaluation.metrics",
    "synthetic": f"{LEAVES} synthetic",
    "config.data": f"{LEAVES} config synthetic.generator",
    "config": f"{LEAVES} compat config families.prompts losses.spec losses.presets tasks.base",
    "compat distributed.ranks": "",
    "distributed.ray": "registry io.log config",
    "runs.folder": f"{LEAVES} config runs.trust",
    "runs.trust": f"{LEAVES} losses.presets",
    "runs.results_file": f"{LEAVES} config runs.folder",
    "runs distributed": f"{LEAVES} compat config distributed.ranks runs",
    "importers": f"{LEAVES} importers config.data data tasks",
    "data families baselines models": f"{LEAVES} compat numbers losses config runs.folder "
    "runs.results_file runs.trust data families baselines models tasks.base",
    "inference": f"{LEAVES} compat distributed.ranks distributed.ray numbers losses config "
    "runs.folder data families baselines models inference evaluation.metrics tasks.base",
    "rewards": f"{LEAVES} evaluation.metrics rewards tasks.answer_part tasks.base",
    "training": TRAINING,
    "integrations": f"{TRAINING} integrations",
    "evaluation": f"{LEAVES} numbers losses config runs.folder runs.results_file runs.trust data "
    "families baselines models inference tasks evaluation",
    "comparison": f"{LEAVES} distributed.ranks distributed.ray numbers losses config runs.folder "
    f"runs.results_file runs.trust {LIBRARY} tasks evaluation comparison",
    "labels": f"{LEAVES} distributed.ranks distributed.ray numbers losses config runs.folder "
    f"runs.results_file runs.trust {LIBRARY} tasks evaluation comparison labels",
}
"""The modules of this package that a room may import, at load or lazily; the first line that
contains a module holds for it. ``tasks.base`` is the contract of a task: every room that receives a
task may name it, and no room but ``tasks`` may name a task."""

MAY_NOT_LOAD = {
    LEAVES: TORCH,
    "tasks evaluation.metrics rewards config importers synthetic runs.folder": TORCH,
    "distributed.ranks cli": TORCH,
    "rewards": (":PIL", ":shapely"),  # a reward of a number needs neither
    "inference.number_distribution inference.risks inference.decision_rules": TORCH,
    "inference.decode evaluation.answers": TORCH,
    "numbers losses": (":transformers", ":accelerate", ":peft", ":deepspeed"),
    f"{LIBRARY} runs distributed numbers losses": ("evaluation.report", "comparison", "cli"),
}
"""What must not be loaded, however indirectly, when a module of a room is imported."""


def allowed(module):
    for rooms, may in MAY_IMPORT.items():
        if inside(module, full(rooms.split())):
            return full(may.split())
    return None


def breaches(module, imports):
    """Yield the modules of this package that a module imports and may not."""
    may = allowed(module)
    for name in sorted(imports.at_load | imports.lazy):
        if inside(name, full(["cli"])) and not inside(module, full(["cli", "__main__"])):
            yield name
        if name.split(".")[0] in ("tasks", "evaluation", "configs"):
            yield name
        ours = name.startswith("mm_numeric.")
        if may is not None and ours and not inside(name, may):
            yield name


def test_a_room_imports_what_it_may():
    found = {module: list(breaches(module, imports)) for module, imports in EDGES.items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_nothing_heavy_is_loaded_indirectly():
    for module in EDGES:
        loads = loaded_by(module, EDGES)
        banned = [b for rooms, names in MAY_NOT_LOAD.items() for b in full(names)
                  if inside(module, full(rooms.split()))]  # fmt: skip
        found = {name: by for name, by in loads.items() if inside(name, banned)}
        assert found == {}, module


def test_there_is_no_import_circle_also_not_a_lazy_one():
    edges = {
        module: {name for name in imports.at_load | imports.lazy if name in EDGES} - {module}
        for module, imports in EDGES.items()
        if module != "mm_numeric"  # its names are loaded on first use
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("mm_numeric.tasks.new", "def f():\n    from mm_numeric.evaluation.metrics import clock"),
        ("mm_numeric.importers.new", "from mm_numeric.evaluation.metrics.boxes import iou"),
        ("mm_numeric.losses.new", "from mm_numeric.tasks import clock"),
        ("mm_numeric.tasks.new", "from mm_numeric.synthetic.clock_faces import Clocks"),
        ("mm_numeric.data.new", "from mm_numeric.synthetic.generator import Generator"),
        ("mm_numeric.answers", "from mm_numeric.numbers.spans import NumberSpans"),
        ("mm_numeric.training.run", "from mm_numeric.cli.main import main"),
        ("mm_numeric.evaluation.report.page", "import tasks"),
    ],
)
def test_a_breach_is_found(tmp_path, module, line):
    (tmp_path / "new.py").write_text(line, encoding="utf-8")
    assert list(breaches(module, imports_of(tmp_path / "new.py")))


@pytest.mark.parametrize("module", ["mm_numeric.cli.main", "mm_numeric.config.reader"])
def test_the_graph_agrees_with_python(module):
    code = f"import sys, {module}; print(*[m for m in sys.modules if m.startswith('mm_numeric.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen = set(done.stdout.split()) - {module}
    assert seen == {name for name in loaded_by(module, EDGES) if name.startswith("mm_numeric.")}


def test_every_rule_names_modules_that_exist():
    rules = [*MAY_IMPORT, *MAY_IMPORT.values(), *MAY_NOT_LOAD]
    assert {name for rule in rules for name in full(rule.split())} <= set(EDGES)
    assert len(EDGES) > 100


def test_imports_are_absolute(tmp_path):
    for path in [
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("scripts/**/*.py"),
    ]:  # EDGES has the others
        if "from ." in path.read_text(encoding="utf-8"):
            imports_of(path)
    (tmp_path / "new.py").write_text("from . import answers", encoding="utf-8")
    with pytest.raises(AssertionError, match="line 1: a relative import"):
        imports_of(tmp_path / "new.py")


def test_the_package_list_is_what_is_on_the_disk():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(packages())
    assert all((folder / "__init__.py").is_file() for folder in packages().values())


@pytest.mark.parametrize("room", ["tasks", "evaluation", "configs"])
def test_the_links_are_relative_and_lead_to_the_rooms(room):
    link = ROOT / "mm_numeric" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


@pytest.mark.parametrize("room", ["tasks", "evaluation"])
def test_a_bare_import_is_rejected(room):
    command = [sys.executable, "-c", f"import {room}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: import mm_numeric.{room}: a bare `import {room}`" in done.stderr


def test_functions_are_short():
    """At most 50 lines in the body of a function, without its docstring."""
    long = {}
    for module, path in modules().items():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
                if (lines := (body[-1].end_lineno or 0) - body[0].lineno + 1) > 50:
                    long[f"{module}, {node.name}"] = lines
    assert long == {}
