"""Stored runs, checkpoints and data files execute no Python code without the command line's flag.

Each attack is real: ``evil.py`` lies in the working directory, where the commands find modules, and
the code of the checkpoint lies next to its weights. Both write a file when they are executed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from finished_runs import copy_and_enter
from result_files import section

from mm_numeric import registry
from mm_numeric.cli import main as cli
from mm_numeric.runs.trust import named_code

EVIL = """
from pathlib import Path
Path("executed").touch()
from mm_numeric.families.causal_lm import CausalLM as Family
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.tasks.number_questions import Arithmetic as Task
SPEC = ObjectiveSpec()
"""
MODEL_CODE = """
from pathlib import Path
Path("executed").touch()
from transformers import GPT2Config, GPT2LMHeadModel
class Config(GPT2Config):
    pass
class Model(GPT2LMHeadModel):
    config_class = Config
"""
FLAG = "--trust-remote-code"


@pytest.fixture
def folder(finished_runs, tmp_path, monkeypatch):
    """Enter a folder with a finished run, a checkpoint, a comparison and ``evil.py``."""
    copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    Path("evil.py").write_text(EVIL, encoding="utf-8")
    monkeypatch.setenv(registry.PLUGINS, "[]")
    registry._PLUGINS.__init__()  # as in a new process
    yield tmp_path / "files"
    registry._PLUGINS.__init__()
    sys.modules.pop("evil", None)


def change(file: str, setting: str, value) -> None:
    """Change a dotted setting of a YAML file."""
    config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    *keys, last = setting.split(".")
    at = config
    for key in keys:
        at = at[key]
    at[last] = value
    Path(file).write_text(yaml.safe_dump(config), encoding="utf-8")


def add_model_code(weights: str) -> None:
    """Let config.json of a checkpoint name Python code that lies next to it."""
    file = Path(weights, "config.json")
    config = json.loads(file.read_text(encoding="utf-8"))
    classes = {"AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
    file.write_text(json.dumps({**config, "model_type": "evil", "auto_map": classes}))
    Path(weights, "modeling_evil.py").write_text(MODEL_CODE, encoding="utf-8")


def error_of(capsys, *words: str) -> str:
    """Run a command that must end with one sentence and exit code 2, and execute nothing."""
    assert cli.main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not Path("executed").exists()
    assert "evil" not in sys.modules
    return line


COMMANDS = {
    "predict": ["predict", "--model", "run", "--out", "new/predictions.jsonl"],
    "ask": ["predict", "--model", "run", "--ask", "What?"],
    "demo": ["demo", "--model", "run"],
    "export": ["export", "run", "--out", "new"],
    "push": ["push", "run", "somebody/new"],
}
STORED = [
    ("task.name", "evil:Task", "import evil:Task (task)"),
    ("task", "evil:Task", "import evil:Task (task)"),
    ("task.scorer", "evil:SCORER", "import evil:SCORER (task.scorer)"),
    ("model.family", "evil:Family", "import evil:Family (model.family)"),
    ("model.baseline", "evil:Baseline", "import evil:Baseline (model.baseline)"),
    ("model.baseline", {"name": "evil:Baseline"}, "import evil:Baseline (model.baseline)"),
    ("objective", "evil:SPEC", "import evil:SPEC (objective)"),
    ("objective", {"preset": "evil:SPEC"}, "import evil:SPEC (objective)"),
    ("data.test", {"synthetic": {"name": "evil:Rows"}}, "import evil:Rows (data.test.synthetic)"),
    (
        "data.train",
        [{"synthetic": {"name": "evil:Rows"}}, {"synthetic": {"name": "clocks"}}],
        "import evil:Rows (data.train.0.synthetic)",
    ),
    ("predict", {"decode": {"for": "evil:RISK"}}, "import evil:RISK (predict.decode.for)"),
]


@pytest.mark.parametrize(
    ("command", "setting", "value", "what"),
    [
        *(("predict", *stored) for stored in STORED),
        *((command, *STORED[0]) for command in COMMANDS if command != "predict"),
    ],
)
def test_a_stored_run_imports_nothing(folder, capsys, command, setting, value, what):
    change("run/config.yaml", setting, value)
    assert error_of(capsys, *COMMANDS[command]) == (
        f"mm-numeric: run: the config of this run would {what}, but a stored run may not execute "
        f"code by itself; if you trust whoever made it, add {FLAG}."
    )
    assert not Path("new").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stored_run_executes_no_code_of_its_checkpoint(folder, capsys, command):
    change("run/config.yaml", "model.trust_remote_code", True)
    add_model_code("run/model")
    found = error_of(capsys, *COMMANDS[command])
    assert (
        "run: the config of this run would execute Python code of the checkpoint "
        "(model.trust_remote_code: modeling_evil.Config in config.json, modeling_evil.Model in "
        "config.json), but a stored run may not execute code by itself; "
    ) in found


def test_the_flag_of_this_command_permits_the_code_of_a_run(folder, capsys):
    change("run/config.yaml", "model.trust_remote_code", True)
    add_model_code("run/model")
    assert cli.main([*COMMANDS["predict"], FLAG]) == 0
    assert Path("executed").exists()
    assert len(Path("new/predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 24


def test_the_flag_permits_the_module_of_a_task_and_the_next_command_names_it(folder, capsys):
    change("run/config.yaml", "task", "evil:Task")
    assert cli.main([*COMMANDS["predict"], "--limit", "2", FLAG]) == 0
    assert Path("executed").exists()
    assert "next: mm-numeric score new/predictions.jsonl --task evil:Task --partial\n" in (
        capsys.readouterr().out
    )


def test_a_checkpoint_with_code_that_nobody_permitted_is_one_sentence(folder, capsys):
    add_model_code("run/model")
    assert (
        "run, model.name: 'run/model' needs Python code of its own to be loaded "
        "(modeling_evil.Config in config.json, modeling_evil.Model in config.json); if you trust "
        "whoever made it, set model.trust_remote_code to true."
    ) in error_of(capsys, *COMMANDS["predict"])


@pytest.mark.parametrize(
    ("setting", "value"), [("task", "evil:Task"), ("model.trust_remote_code", True)]
)
def test_training_into_the_folder_of_another_run_executes_nothing(folder, capsys, setting, value):
    change("checkpoint/config.yaml", setting, value)
    found = error_of(capsys, "train", "checkpoint.yaml", "--resume")
    assert (
        f"checkpoint contains another run: {setting} is {value!r} there and not set here." in found
    )


def test_comparing_into_the_folder_of_another_comparison_executes_nothing(folder, capsys):
    change("comparison/config.yaml", "task.name", "evil:Task")
    found = error_of(capsys, "compare", "comparison.yaml")
    assert "comparison contains another run: task is 'evil:Task' there and not set here." in found


@pytest.mark.parametrize("nested", [False, True])
def test_adapters_import_nothing(folder, capsys, nested):
    """PEFT imports any module of a package ``megatron``, here one in the working directory.

    Nested adapters are those whose base model is again a folder with adapters.
    """
    Path("megatron").mkdir()
    Path("megatron", "__init__.py").touch()
    shutil.copy("evil.py", "megatron/evil.py")
    lora = ["modules={language: adapted, embeddings: frozen, head: frozen}", "lora={rank: 2}"]
    new = ["model.name=micro", "trainer.output_dir=adapted", "trainer.max_steps=1"]
    assert cli.main(["train", "run.yaml", *lora, *new]) == 0
    capsys.readouterr()
    file = Path("adapted/model/adapter_config.json")
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings |= {"megatron_config": {"a": 1}, "megatron_core": "megatron.evil"}
    file.write_text(json.dumps(settings), encoding="utf-8")
    if nested:
        shutil.copytree("adapted/model", "base")
        settings |= {"base_model_name_or_path": "base", "megatron_config": None}
        file.write_text(json.dumps(settings), encoding="utf-8")
    found = error_of(capsys, "predict", "--model", "adapted", "--out", "new/predictions.jsonl")
    sys.modules.pop("megatron", None)
    assert "megatron.evil" not in sys.modules
    if nested:
        assert "model.name: 'base' holds adapters, and a whole model is needed here; " in found
    else:
        assert (
            "adapter_config.json: megatron_config would make PEFT import the module 'meg" in found
        )


IN_A_RUN = {
    "check": ["check", "config.yaml"],
    "predict": ["predict", "--model", ".", "--data", "../test.jsonl", "--out", "../new.jsonl"],
    "score": ["score", "predictions.jsonl", "--out", "../new"],
    "report": ["report", "."],
    "export": ["export", ".", "--out", "../new"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", IN_A_RUN)
def test_no_command_finds_modules_in_the_run_folder_that_it_is_called_in(
    folder, monkeypatch, command
):
    monkeypatch.chdir("run")
    assert cli.main(IN_A_RUN[command]) == 0
    shutil.copy("../evil.py", "wandb_of_evil.py")
    assert find_spec("wandb_of_evil") is None


@pytest.mark.slow
def test_an_optional_import_of_a_library_is_not_found_in_a_run_folder(folder):
    """The standard library and NumPy look for these; `python -m` looks in this folder first."""
    for name in ("org", "msvcrt", "scipy", "wandb"):
        Path("run", f"{name}.py").write_text("open('executed', 'w')", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    del environment[registry.PLUGINS]  # only processes that mm-numeric starts have it
    done = subprocess.run(
        [sys.executable, "-m", "mm_numeric", "score", "predictions.jsonl"],
        cwd="run", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path("run/executed").exists()


def name_task_in_predictions() -> None:
    file = Path("run/predictions.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "task": "evil:Task"}) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("options", [[], ["--protocol", "coco_ap"], ["--protocol", "labelled"]])
def test_a_predictions_file_imports_nothing(folder, capsys, options):
    name_task_in_predictions()
    assert (
        "run/predictions.jsonl, line 1: the task 'evil:Task' is an import path, and a data file "
        "may not import code; if you trust the module evil, add --task evil:Task."
    ) in error_of(capsys, "score", "run/predictions.jsonl", *options)


def test_a_predictions_file_names_no_scorer(folder, capsys):
    file = Path("run/predictions.jsonl")
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    lines = [json.dumps({**row, "task_options": {"scorer": "evil:SCORER"}}) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")
    for options in ([], ["--task", "numbers"]):
        assert "line 1: task_options names a scorer, and a data file may not import code" in (
            error_of(capsys, "score", str(file), *options)
        )


def test_the_command_line_may_name_the_module_of_a_task(folder, capsys):
    name_task_in_predictions()
    recorded = section("run")["metrics"]
    assert cli.main(["score", "run/predictions.jsonl", "--task", "evil:Task"]) == 0
    assert Path("executed").exists()
    found = section("run")["metrics"]
    assert found["accuracy"]["value"] == recorded["accuracy"]["value"]


@pytest.mark.slow
def test_a_report_imports_the_task_of_a_stored_comparison_only_with_the_flag(folder):
    file = Path("comparison/summary.json")
    summary = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**summary, "task": "evil:Task"}), encoding="utf-8")
    message = (
        "comparison/summary.json: 'evil:Task' is an import path, and a stored result "
        "may not import code. The chapters of the task are left out; if you trust the module, add "
        f"{FLAG}."
    )
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert cli.main(["report", "comparison"]) == 0
    assert not Path("executed").exists()
    assert "Error sizes" not in Path("comparison/report.md").read_text(encoding="utf-8")
    assert cli.main(["report", "comparison", FLAG]) == 0
    assert Path("executed").exists()
    assert "Error sizes" in Path("comparison/report.md").read_text(encoding="utf-8")


def test_settings_that_name_code_are_found():
    """Names of the tables and loss terms are not code that ``predict`` would execute."""
    assert named_code({}) == {}
    raw = {
        "task": {"name": "clock"},
        "model": {"family": "t5", "baseline": None, "trust_remote_code": False},
        "objective": {"terms": [{"name": "evil:Term"}]},
    }
    assert named_code(raw) == {}
    assert named_code({"task": "a:B", "model": {"family": "c:D", "trust_remote_code": True}}) == {
        "task": "a:B",
        "model.family": "c:D",
        "model.trust_remote_code": True,
    }
