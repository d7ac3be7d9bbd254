"""Each notebook runs: its cells one after the other in this process, on the CPU, offline."""

import ast
import json
import shlex
import sys
from typing import ClassVar

import pytest
from import_graph import ROOT

from mm_numeric.cli import main as cli
from mm_numeric.comparison.rows import read_comparison

NOTEBOOKS = {path.stem: path for path in sorted(ROOT.glob("docs/notebooks/*.ipynb"))}
SIZE = "TINY = not torch.cuda.is_available()"


def cells(name, *, tiny):
    """Return the code of a notebook with tiny models or with published ones."""
    notebook = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    install, *texts = ["".join(cell["source"]) for cell in code]
    assert install.startswith("%pip install -q ")
    assert sum(SIZE in text for text in texts) == 1
    return [text.replace(SIZE, f"TINY = {tiny}") for text in texts]


class Shell:
    """The shell of a notebook, whose commands of mm-numeric run in this process."""

    user_ns: ClassVar = {}

    def system(self, line):
        python, *words = shlex.split(line)
        assert [python, *words[:3]] == [sys.executable, "-P", "-m", "mm_numeric"]
        self.user_ns["_exit_code"] = cli.main(words[3:])


def execute(text, names):
    """Execute a cell. The value of its last line, which a notebook shows, is ``names["shown"]``."""
    tree = ast.parse(text)
    if isinstance(tree.body[-1], ast.Expr) and not text.split("\n")[-1].startswith("run("):
        tree.body[-1] = ast.Assign([ast.Name("shown", ast.Store())], tree.body[-1].value)
    exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), names)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that executes a notebook in an empty folder, and returns its names."""
    monkeypatch.chdir(tmp_path)

    def run_notebook(name):
        names = {"get_ipython": Shell}
        for text in cells(name, tiny=True):
            execute(text, names)
        return names

    return run_notebook


@pytest.mark.slow
def test_losses(run, capsys):
    results = run("losses")["results"]
    assert list(results) == ["ce", "emd"]
    assert all(len(errors) == 8 and min(errors) >= 0 for errors in results.values())
    printed = capsys.readouterr().out
    # wrong digit 0 and 4: the same cross-entropy, five times the distance
    rows = [line.split() for line in printed.splitlines() if "█" in line]
    assert len({row[1] for row in rows}) == 1
    assert float(rows[0][2]) == pytest.approx(5 * float(rows[4][2]), abs=0.01)


@pytest.mark.slow
def test_clock(run, tmp_path):
    names = run("clock")
    assert names["shown"].size == (224, 224)
    assert len(names["answers"]) == 4
    assert (tmp_path / "clock-model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_detection(run, tmp_path):
    assert run("detection")["shown"].size == (84, 84)
    assert (tmp_path / "runs/detection/results.json").is_file()


@pytest.mark.parametrize("name", ["clock", "detection"])
def test_the_config_of_the_published_model_is_valid(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size, config = (
        next(text for text in cells(name, tiny=False) if part in text)
        for part in ("TINY = ", "yaml.safe_dump")
    )
    execute(f"from pathlib import Path\n{size}\n{config}", {})
    assert read_comparison(f"{name}.yaml").model.name == "Qwen/Qwen2-VL-2B-Instruct"


def test_a_notebook_stops_at_the_first_command_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"get_ipython": Shell}
    execute(next(text for text in cells("clock", tiny=True) if "def run(" in text), names)
    with pytest.raises(
        RuntimeError, match=r"^mm-numeric train clock\.yaml failed: see its message"
    ):
        execute('run("mm-numeric train clock.yaml")', names)
    assert "clock.yaml: there is no such file." in capsys.readouterr().err


def test_no_notebook_gives_a_command_to_a_shell_that_may_not_find_it():
    for name in NOTEBOOKS:
        assert [
            line for text in cells(name, tiny=True) for line in text.split("\n") if line[:1] == "!"
        ] == []
