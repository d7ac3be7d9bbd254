"""The library uses no name of torch that the oldest supported version, torch 2.6, lacks."""

import ast
import tomllib

import pytest
from import_graph import ROOT

FOLDERS = ("mm_numeric", "tasks", "evaluation")


def used_names():
    """Return each name of torch in the library, such as ``torch.cuda.is_available``, and a file."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in _names(ast.parse(path.read_text("utf-8"))):
                found.setdefault(name, path.relative_to(ROOT).as_posix())
    return found


def _names(tree):
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name.partition(".")[0]: a.name for a in node.names
                        if a.name.partition(".")[0] == "torch"}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    yield from aliases.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                words.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in aliases:
                yield ".".join([aliases[inner.id], *reversed(words)])


# Names that the library uses and torch 2.6.0 has, found in the Python files of its wheel.
IN_TORCH_2_6 = ROOT / "tests" / "helpers" / "torch_2_6.txt"


def test_the_oldest_torch_is_2_6():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    assert [line for line in lines if line.startswith("torch")] == 2 * ["torch>=2.6,<2.14"]


@pytest.mark.slow
def test_torch_2_6_has_every_name_that_is_used():
    known = set(IN_TORCH_2_6.read_text("utf-8").split())
    unknown = {name: file for name, file in used_names().items() if name not in known}
    assert unknown == {}  # add those that torch 2.6 has to the file, and replace the others
