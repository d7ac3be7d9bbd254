"""log.jsonl, and the reporters that a config names."""

import json
from types import SimpleNamespace

import pytest
from sums import sums_config
from tiny_models import small_config

from mm_numeric.runs.folder import LOG
from mm_numeric.training.callbacks.json_log import JsonLog
from mm_numeric.training.run import train
from mm_numeric.training.setup import training_arguments

FIRST = SimpleNamespace(is_world_process_zero=True, global_step=4)


def test_the_log_is_cut_at_the_checkpoint_and_a_half_line_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"step": step, "components": {"ce": 1.0}}) for step in (2, 4, 6)]
    path.write_text("\n".join(lines) + "\n" + lines[0][:-1])  # ends with a brace, but not its own
    JsonLog(path).on_train_begin(None, FIRST, None)
    assert path.read_text().splitlines() == lines[:2]
    path.write_text(lines[0] + "\n\0\0\n" + lines[1] + "\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: invalid log line \(.*delete the"):
        JsonLog(path).on_train_begin(None, FIRST, None)


def test_what_belongs_together_is_written_together_and_nan_as_null(tmp_path):
    logs = {"loss": 0.5, "grad_norm": float("inf"), "loss/ce": float("nan"), "epoch": 1.0,
            "numbers/accuracy": 0.25, "numbers/error/x": 3.0}  # fmt: skip
    JsonLog(tmp_path / LOG).on_log(None, FIRST, None, logs=logs)
    JsonLog(tmp_path / LOG).on_log(None, FIRST, None, logs={"eval_iou": float("nan"), "epoch": 1.0})

    def reject(name):
        raise AssertionError(f"{name} is not JSON")

    text = (tmp_path / LOG).read_text().splitlines()
    assert [json.loads(line, parse_constant=reject) for line in text] == [
        {"step": 4, "loss": 0.5, "grad_norm": None, "components": {"ce": None}, "epoch": 1.0,
         "numbers": {"accuracy": 0.25, "error": {"x": 3.0}}},
        {"step": 4, "epoch": 1.0, "eval": {"iou": None}},
    ]  # fmt: skip


def test_a_report_that_cannot_be_made_is_rejected_before_anything_is_loaded(tmp_path, monkeypatch):
    config = small_config(tmp_path, "trainer.report_to=[tensorbord]")
    with pytest.raises(ValueError, match=r"report_to: 'tensorbord' is not available"):
        train(config)
    where = "transformers.integrations.integration_utils.is_tensorboard_available"
    monkeypatch.setattr(where, lambda: False)
    config = small_config(tmp_path, "trainer.report_to=tensorboard")
    with pytest.raises(ValueError, match="requires tensorboard to be installed"):
        train(config)
    assert not (tmp_path / "run").exists()
    assert training_arguments(small_config(tmp_path)).report_to == []


def test_tensorboard_draws_every_figure(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    accumulated = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(sums_config(tmp_path, "causal_lm", max_steps=2, logging_steps=1, report_to="tensorboard"))
    board = accumulated.EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    drawn = set(board.Tags()["scalars"])
    assert {"train/loss", "train/loss/ce", "train/numbers/accuracy", "train/numbers/error/free",
            "train/speed/tokens_per_second", "train/memory/peak_gib"} <= drawn  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / LOG).open()]
    points = board.Scalars("train/numbers/error/free")
    assert [point.step for point in points] == [line["step"] for line in lines] == [1, 2]
    written = [line["numbers"]["error"]["free"] for line in lines]
    assert [point.value for point in points] == pytest.approx(written)
