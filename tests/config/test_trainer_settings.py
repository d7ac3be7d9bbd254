"""The settings read from the source of TrainingArguments are those of the class itself."""

import dataclasses

import pytest

from mm_numeric.cli import main as cli
from mm_numeric.config.reader import read_config
from mm_numeric.config.trainer_settings import (
    NO_DEFAULT,
    check_trainer_settings,
    step_notes,
    trainer_defaults,
    trainer_settings,
)
from mm_numeric.evaluation.check_data.check import check_data


@pytest.fixture(scope="module")
def real():
    """Return the fields of the class that is installed, by name."""
    from transformers import TrainingArguments

    return {f.name: f for f in dataclasses.fields(TrainingArguments) if f.init}


def test_the_names_are_those_of_the_class(real):
    assert set(trainer_settings()) == {name for name in real if not name.startswith("_")}
    assert len(real) > 80


def test_the_defaults_are_those_of_the_class(real):
    plain = {k: s.default for k, s in trainer_settings().items() if s.default is not NO_DEFAULT}
    assert len(plain) > 70
    for name, default in plain.items():
        assert real[name].default == default, name
    assert plain["per_device_train_batch_size"] == 8


def test_the_types_are_those_of_the_class(real):
    for name, kind in [("learning_rate", "float"), ("max_steps", "int"), ("bf16", "bool")]:
        assert kind in trainer_settings()[name].types
        assert kind in str(real[name].type)
        assert trainer_settings()[name].help == " ".join(real[name].metadata["help"].split())
    assert sum(not setting.help for setting in trainer_settings().values()) == 0


def test_what_is_not_given_has_its_default():
    defaults = trainer_defaults({"max_steps": 5})
    assert "max_steps" not in defaults
    assert defaults["per_device_train_batch_size"] == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 1e-5, "max_steps": 5, "bf16": True, "output_dir": "runs/x"},
        {"learning_rate": 1},
        {"report_to": "none"},
        {"report_to": ["a", "b"]},
        {"report_to": None},
        {"lr_scheduler_type": "cosine", "save_strategy": "no"},
        {"lr_scheduler_kwargs": {"num_cycles": 2}},
        {"trackio_static_space_id": False},
        {"label_names": ["labels"]},
        {"num_train_epochs": 0, "max_steps": 5},
    ],
)
def test_right_settings_are_handed_on_unchanged(settings):
    checked = check_trainer_settings(settings, "t")
    assert checked == settings
    assert [type(v) for v in checked.values()] == [type(v) for v in settings.values()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learning_rat": 1.0},
            r"^t: there is no setting of transformers\.TrainingArguments 'learning_rat'\. "
            r"Did you mean 'learning_rate'\? Nearest of \d+: learning_rate, \w+, \w+\.$",
        ),
        ({"batch_size": 1}, r"Did you mean 'per_device_train_batch_size'\? Nearest of \d+: "),
        ({"lr": 1}, r"'lr'\. Did you mean 'learning_rate'\? Nearest of \d+: learning_rate, lr_sch"),
        ({"learning_rate": "1e-5"}, r"^t\.learning_rate: '1e-5' is not a number\. .* 1\.0e-5\.$"),
        ({"learning_rate": None}, r"^t\.learning_rate: None is not a number\."),
        ({"learning_rate": float("nan")}, r"^t\.learning_rate: nan is not a number\."),
        ({"learning_rate": [1.0]}, r"^t\.learning_rate: \[1\.0\] is not one of float\."),
        ({"max_steps": 5.0}, r"^t\.max_steps: 5\.0 is not a whole number\."),
        ({"max_steps": "1e3"}, r"^t\.max_steps: '1e3' is not a whole number\. .* write 1000\.$"),
        ({"max_steps": True}, r"^t\.max_steps: True is not a whole number\."),
        ({"max_steps": 0, "num_train_epochs": 3}, r"^t\.max_steps is 0, .* remove it, or set it "),
        ({"num_train_epochs": 0, "max_steps": -1}, r"^t\.num_train_epochs is 0, .*nothing would "),
        ({"bf16": 1}, r"^t\.bf16: 1 is not true or false\."),
        ({"output_dir": 750}, r"^t\.output_dir: 750 is not text\. YAML reads 12:30, .* quotes\.$"),
        ({"save_strategy": False}, r"^t\.save_strategy: False is not text\. .*on as"),
        ({"output_dir": {"a": 1}}, r"^t\.output_dir: \{'a': 1\} is not one of str, None\."),
        ({"train_sampling_strategy": "randon"}, r"^t\..*_strategy: .* 'randon'\. Did you mean 'ra"),
        ({"train_sampling_strategy": "batch_rebalance"}, r"Known: group_by_length, random, seq"),
        ({"log_level": "inform"}, r"^t\.log_level: .* 'inform'\. Did you mean 'info'\? Known: "),
        ({"gradient_accumulation_steps": 0}, r"^t\.gradient_.*_steps must be at least 1, not 0\.$"),
        ({"dataloader_prefetch_factor": 0}, r"^t\.dataloader_prefetch_factor must be at least 1"),
        ({"label_names": 5}, r"^t\.label_names: 5 is not one of list\[str\], None\."),
        ({"label_names": {"a": 1}}, r"^t\.label_names: \{'a': 1\} is not one of list"),
        ({3: 5}, r"^t: there is no setting of transformers\.TrainingArguments 3\. Nearest of "),
        (None, r"^t: expected settings as `key: value`, found None\."),
        (["a"], r"^t: expected settings as `key: value`, found \['a'\]\."),
    ],
)
def test_wrong_settings_are_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        check_trainer_settings(settings, "t")


@pytest.mark.parametrize(
    ("settings", "rows", "every", "names"),
    [
        ({"max_steps": 40, "warmup_steps": 50}, None, None, ["trainer.warmup_steps is 50, and"]),
        ({"max_steps": 40, "warmup_steps": 40}, None, None, ["trainer.warmup_steps is 40, and"]),
        ({"max_steps": 40, "warmup_steps": 0.1}, None, 40, []),
        ({"max_steps": 40, "warmup_steps": 39, "logging_steps": 40, "save_steps": 40}, 1, 40, []),
        (
            {"max_steps": 40, "logging_steps": 41, "save_steps": 500}, None, 50,
            ["trainer.logging_steps is 41",
             "trainer.save_steps is 500, and the training has 40 steps (trainer.max_steps): a "
             "checkpoint is saved only after the last step.",
             "evaluate.every_steps is"],
        ),
        ({"warmup_steps": 50}, None, None, []),  # epochs of an unknown number of rows
        # 17 rows in batches of 4 are 5 batches, so 3 steps an epoch and 8 in 2.5 epochs.
        (
            {"warmup_steps": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
             "num_train_epochs": 2.5, "save_steps": 8}, 17, 9,
            ["trainer.warmup_steps is 8, and the training has 8 steps (on one device): the "
             "learning rate does not reach trainer.learning_rate."],
        ),
    ],
)  # fmt: skip
def test_settings_that_the_training_is_too_short_for(settings, rows, every, names):
    found = step_notes(settings, every, rows)
    assert len(found) == len(names)
    assert all(text.startswith(name) for text, name in zip(found, names, strict=True))


def test_the_commands_name_a_warm_up_that_is_too_long(capsys, tmp_path):
    words = ["trainer.max_steps=10", "compare.warm_start.max_steps=20", "trainer.save_steps=10"]
    assert cli.main(["check", "clock_tiny", *words]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "# Note: " in line]
    assert [note.split()[2] for note in notes] == [
        "trainer.warmup_steps", "trainer.logging_steps", "compare.warm_start.warmup_steps",
    ]  # fmt: skip
    rows = [f"data.{name}.synthetic.rows=8" for name in ("train", "test")]
    config = read_config("clock_tiny", [*rows, f"data.cache={tmp_path}", "trainer.max_steps=10"])
    assert check_data(config).notes[0].startswith("trainer.warmup_steps is 20, and the training")
