"""The library uses no name of torch that the oldest supported version, torch 2.6, lacks."""

import tomllib

from import_graph import ROOT
from torch_names import used_names

# Names that the library uses and torch 2.6.0 has, found in the Python files of its wheel.
IN_TORCH_2_6 = ROOT / "tests" / "helpers" / "torch_2_6.txt"


def test_the_oldest_torch_is_2_6():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    assert [line for line in lines if line.startswith("torch")] == 2 * ["torch>=2.6,<2.14"]


def test_torch_2_6_has_every_name_that_is_used():
    known = set(IN_TORCH_2_6.read_text("utf-8").split())
    unknown = {name: file for name, file in used_names().items() if name not in known}
    assert unknown == {}  # add those that torch 2.6 has to the file, and replace the others
