"""Modules next to a config are found by every command, also from other folders and processes."""

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import thermometer

from mm_numeric import registry
from mm_numeric.answers import Number
from mm_numeric.cli import main as cli
from mm_numeric.config.reader import names_module
from mm_numeric.runs.trust import FLAG

CONFIG = f"""\
task: {thermometer.NAME}
data:
  train: {{synthetic: {{name: {thermometer.BARS}, rows: 4}}}}
  test: {{synthetic: {{name: {thermometer.BARS}, rows: 2, seed: 1}}}}
model: {{name: tiny, dtype: float32}}
trainer: {{output_dir: run, max_steps: 1, per_device_train_batch_size: 1}}
compare: {{output_dir: compared, objectives: [ce], seeds: [0], control: null}}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A config with its module in one folder, and two other folders to work in."""
    for name in ("project", "work", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / f"project/{thermometer.MODULE}.py").write_text(thermometer.SOURCE, encoding="utf-8")
    (tmp_path / "project/mine.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv(registry.PLUGINS, "[]")
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path
    forget()


def forget():
    """Forget the module and where it was found, as a new process does."""
    registry._PLUGINS.__init__()
    for name in (thermometer.MODULE, "degrees_of_a_user", "wandb_of_a_user"):
        sys.modules.pop(name, None)


def run(*words):
    """Run a command as in a new process."""
    forget()
    return cli.main(words)


@pytest.mark.slow
def test_a_module_next_to_the_config_is_found_by_every_command(project, monkeypatch, capsys):
    found = f"modules of the config are also imported from {project}/project\n"
    assert run("compare", "../project/mine.yaml") == 0
    assert capsys.readouterr().err.count(found) == 1
    assert run("check", "compared/config.yaml") == 0  # which processes of a comparison read
    Path("compared/report.md").unlink()
    monkeypatch.chdir("../elsewhere")
    capsys.readouterr()
    predict = ["predict", "--model", "../work/compared/seed0/ce", "--out", "p.jsonl"]
    assert run(*predict) == 2
    assert found not in capsys.readouterr().err
    assert run(*predict, FLAG) == 0
    assert capsys.readouterr().out.endswith(
        f"next: PYTHONPATH={project}/project mm-numeric score p.jsonl --task {thermometer.NAME}\n"
    )
    assert run("report", "../work/compared", FLAG) == 0
    assert "2 readings" in Path("../work/compared/report.md").read_text(encoding="utf-8")


def test_the_folder_of_the_config_is_reported_once_and_not_on_the_import_path(project, capsys):
    before = [*sys.path]
    assert run("check", "../project/mine.yaml") == 0
    assert cli.main(["check", "../project/mine.yaml"]) == 0
    said = capsys.readouterr()
    assert said.err == (
        f"mm-numeric: modules of the config are also imported from {project}/project\n"
    )
    assert f"\nplugins: {project}/project\n" in said.out
    assert sys.path == before
    assert run("check", "clock_tiny") == 0
    assert "\nplugins: null\n" in capsys.readouterr().out


def test_only_the_named_modules_and_what_they_import_are_found(project):
    """A library finds no optional import in the folder; the module finds its own, also later."""
    module = Path(f"../project/{thermometer.MODULE}.py")
    late = "\n\ndef late(name):\n    import importlib\n    return importlib.import_module(name)\n"
    source = "import degrees_of_a_user\n" + thermometer.SOURCE + late
    module.write_text(source, encoding="utf-8")
    for name in ("degrees", "wandb"):
        Path(f"../project/{name}_of_a_user.py").touch()
    Path("other_of_a_user.py").touch()  # in the working directory
    assert run("check", "../project/mine.yaml") == 0
    assert "degrees_of_a_user" in sys.modules
    assert find_spec("wandb_of_a_user") is None
    late = sys.modules[thermometer.MODULE].late
    assert late("wandb_of_a_user").__name__ == "wandb_of_a_user"
    with pytest.raises(ModuleNotFoundError):
        late("other_of_a_user")


@pytest.mark.slow
def test_other_processes_find_the_modules_of_the_objects_that_they_receive(project):
    """As data loaders with ``spawn`` do, and tasks of Ray."""
    forget()
    registry.import_from(str(project / "project"))
    task = registry.load(thermometer.NAME, "a.yaml")()
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[1].highest)"
    sent = pickle.dumps((Number("5"), task))  # an object of the library comes first
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout == b"40\n"


def test_another_folder_may_be_named(project, capsys):
    Path("mine.yaml").write_text(CONFIG, encoding="utf-8")
    assert run("check", "mine.yaml") == 2
    assert "Modules are found next to the config, in the working folder" in capsys.readouterr().err
    assert run("check", "mine.yaml", "plugins=../project") == 0
    assert f"\nplugins: {project}/project\n" in capsys.readouterr().out
    assert run("check", "mine.yaml", "plugins=[a]") == 2
    assert "mine.yaml, plugins: ['a'] is not text." in capsys.readouterr().err


def test_which_settings_name_a_module():
    assert names_module({"compare": {"objectives": [{"terms": [{"name": "my_terms:Term"}]}]}})
    assert names_module({"predict": {"decode": {"for": "my.risks:RISK"}}})
    assert not names_module({"task": "mm_numeric.tasks.clock:Clock", "a": "7:05", "b": ["c: d", 1]})
