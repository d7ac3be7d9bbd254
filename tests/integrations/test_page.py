"""The blocks of docs/frameworks.md that the tests of the single frameworks do not run."""

import sys
import types

import pytest
import yaml
from documents import blocks
from framework_runs import MODEL, ROWS, prepare
from tiny_llama import TOKENIZER
from trl import SFTTrainer

from mm_numeric import NumericLossMixin
from mm_numeric.config.reader import config_from_dict

_, UNSLOTH, SCRIPT = blocks("docs/frameworks.md", "python")


def test_the_class_for_unsloth(monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", types.ModuleType("unsloth"))
    sys.modules["unsloth"].FastLanguageModel = object
    names = {}
    exec(UNSLOTH, names)
    assert issubclass(names["NumericSFTTrainer"], NumericLossMixin | SFTTrainer)


@pytest.mark.slow
def test_the_script_for_trl(tmp_path, monkeypatch):
    prepare(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / ROWS).rename(tmp_path / "rows" / "train.jsonl")
    settings = {
        "model_name_or_path": MODEL,
        "dataset_name": "rows",
        "output_dir": "out",
        "assistant_only_loss": True,
        "max_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["sft.py", *arguments])
    names = {}
    exec(SCRIPT, names)
    first = names["trainer"].state.log_history[0]
    assert first["loss"] == pytest.approx(1.3 * first["loss/ce"], rel=1e-3)
    assert names["trainer"].objective.vocabulary.require_tokenizer(TOKENIZER) is None
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_the_config_for_check_data():
    raw = yaml.safe_load(blocks("docs/frameworks.md", "yaml")[2])
    config = config_from_dict(raw, where="mine.yaml", title="check")
    assert config.task_name == "grounding"
