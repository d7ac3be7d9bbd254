import importlib.util
import json

import pytest
import yaml
from documents import blocks
from framework_runs import MODEL, ROWS, STEPS, expected, prepare, process, run

from mm_numeric.integrations.llamafactory import main, split_settings

MODULE = "mm_numeric.integrations.llamafactory"
ADDED = yaml.safe_load(blocks("docs/frameworks.md", "yaml")[1])

installed = pytest.mark.skipif(
    importlib.util.find_spec("llamafactory") is None, reason="LLaMA-Factory is not installed"
)


def test_the_key_is_removed():
    settings, objective = split_settings({"stage": "sft", "numeric_loss": "ntl_was"})
    assert settings == {"stage": "sft"}
    assert [term.name for term in objective.terms] == ["ntl_was"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--stage", "sft"], "name a config file with numeric_loss"),
        ({"stage": "sft"}, "the config of LLaMA-Factory has no numeric_loss"),
        ({"numeric_loss": "ntl"}, "numeric_loss"),
        ({"numeric_loss": "ntil", "use_eaft_loss": True}, "use_eaft_loss: True requests another"),
        ({"numeric_loss": "ntil", "enable_liger_kernel": True}, "enable_liger_kernel: True"),
        ({"numeric_loss": "ntil", "use_ray": True}, "use_ray has a trainer of its own"),
        ({"numeric_loss": "ntil", "stage": "dpo"}, "the config has stage: dpo"),
    ],
)
def test_settings_that_cannot_be_combined(settings, message):
    with pytest.raises(ValueError, match=message):
        split_settings(settings)


@pytest.mark.parametrize("variable", ["USE_RAY", "USE_MCA"])
def test_variables_that_choose_another_trainer(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ValueError, match=f"{variable.lower()} has a trainer of its own"):
        split_settings({"numeric_loss": "ntil"})


def test_only_train_has_a_loss(monkeypatch):
    monkeypatch.setattr("sys.argv", [MODULE, "chat", "a.yaml"])
    with pytest.raises(ValueError, match=r"the command is: python -m .* train config.yaml"):
        main()


def write_config(folder, **changes):
    columns = {"messages": "messages"}
    tags = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
    }
    rows = {"file_name": ROWS, "formatting": "sharegpt", "columns": columns, "tags": tags}
    (folder / "dataset_info.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    config = {
        "model_name_or_path": MODEL,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "dataset_dir": ".",
        "dataset": "rows",
        "template": "default",
        "cutoff_len": 64,
        "output_dir": "out",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        **ADDED,
        **changes,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


@installed
@pytest.mark.slow
def test_a_training_of_llamafactory(tmp_path):
    prepare(tmp_path)
    write_config(tmp_path, learning_rate=1e-3)
    first, last = run(tmp_path, MODULE, "train", "config.yaml")
    for name, value in expected(tmp_path, "ntil").items():
        assert first[name] == pytest.approx(value, abs=1e-5)
    assert last["loss"] < first["loss"] - 0.3


@installed
@pytest.mark.slow
def test_two_ranks_of_llamafactory_and_one_have_the_same_loss(tmp_path):
    """Two micro-batches per rank on two ranks, and four on one."""
    prepare(tmp_path)
    losses = []
    for ranks in (1, 2):
        write_config(
            tmp_path,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4 // ranks,
            disable_shuffling=True,
            learning_rate=0.0,
            ddp_backend="gloo",
            output_dir=f"out{ranks}",
        )
        torchrun = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(ranks)}
        done = process(tmp_path, MODULE, "train", "config.yaml", **torchrun)
        assert done.returncode == 0, done.stdout[-3000:]
        state = json.loads(
            (tmp_path / f"out{ranks}/trainer_state.json").read_text(encoding="utf-8")
        )
        losses.append(state["log_history"][0]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@installed
@pytest.mark.slow
def test_an_error_of_llamafactory_has_no_traceback(tmp_path):
    write_config(tmp_path, use_dft_loss=True)
    done = process(tmp_path, MODULE, "train", "config.yaml")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("mm-numeric: use_dft_loss: True requests")
    assert "Traceback" not in done.stdout
