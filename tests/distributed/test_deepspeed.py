"""The shipped DeepSpeed settings, and settings that are rejected before a model is loaded."""

import json

import pytest
from tiny_models import small_config

from mm_numeric.config.trainer_settings import (
    check_trainer_settings,
    deepspeed_settings,
    find_deepspeed,
)
from mm_numeric.distributed import deepspeed as zero
from mm_numeric.training.setup import training_arguments

NAMES = ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"]


def test_a_name_is_a_file_that_ships_and_a_path_is_a_file_of_ones_own(tmp_path):
    assert list(deepspeed_settings()) == NAMES
    mine = tmp_path / "zero2"
    mine.write_text("{}")
    assert find_deepspeed(str(mine), "t") == mine
    for value in ("zero2", str(mine), {"zero_optimization": {"stage": 2}}, None):
        assert check_trainer_settings({"deepspeed": value}, "t") == {"deepspeed": value}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "zero4",
            r"^t\.deepspeed: there is no DeepSpeed setting 'zero4'\. Did you mean 'zero3'\? "
            r"Known: zero1, zero2, zero2_offload, zero3, zero3_offload\.$",
        ),
        ("my/zero2.json", r"^t\.deepspeed: there is no file my/zero2\.json\. What ships: zero1, "),
        ("", r"^t\.deepspeed: there is no DeepSpeed setting ''\."),
    ],
)
def test_an_unknown_name_is_one_sentence(name, message):
    with pytest.raises(ValueError, match=message):
        check_trainer_settings({"deepspeed": name}, "t")


@pytest.mark.parametrize("name", NAMES)
def test_what_ships_leaves_the_job_to_the_config(name):
    """The Trainer fills "auto" in; an optimiser or a schedule here would take its place."""
    settings = json.loads(deepspeed_settings()[name].read_text())
    stage = int(name[4])
    assert settings["zero_optimization"]["stage"] == stage
    assert settings["zero_optimization"].get(zero.GATHER_KEY.partition(".")[2]) is (
        True if stage == 3 else None
    )
    assert ("offload_optimizer" in settings["zero_optimization"]) == name.endswith("_offload")
    assert {"optimizer", "scheduler"}.isdisjoint(settings)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu",
                "gradient_accumulation_steps", "gradient_clipping"):  # fmt: skip
        assert settings[key] == "auto"
    assert settings["bf16"] == settings["fp16"] == {"enabled": "auto"}


def test_without_deepspeed_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(zero, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^clock_tiny, trainer\.deepspeed: DeepSpeed is not "
                       r"installed; run `pip install 'mm-numeric\[deepspeed\]'`"):  # fmt: skip
        training_arguments(small_config(tmp_path, "trainer.deepspeed=zero2"))
