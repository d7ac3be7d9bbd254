"""Public names, and the commands as functions on the runs of other tests."""

import json
from pathlib import Path

import pytest
from finished_runs import copy_and_enter

import mm_numeric
from mm_numeric import compare, predict, prepare, report, score, train


@pytest.fixture
def runs(finished_runs, tmp_path, monkeypatch):
    return copy_and_enter(finished_runs, tmp_path / "runs", monkeypatch)


def test_every_public_name_is_listed_and_there():
    names = set(dir(mm_numeric))
    assert set(mm_numeric.__all__) < names
    assert {"NumericLoss", "Box", "ClockTime", "train", "TrainingCollator"} < names
    assert all(getattr(mm_numeric, name) is not None for name in mm_numeric.__all__)
    with pytest.raises(AttributeError, match="no attribute 'objective'"):
        _ = mm_numeric.objective


def test_train_predict_score_and_report(runs):
    config = mm_numeric.read_config("run.yaml", ["trainer.output_dir=again", "trainer.max_steps=2"])
    run = train(config)
    assert run.facts["steps"] == 2
    assert (run.model / "config.json").is_file()
    predictions = predict("again", limit=3, batch_size=2)
    assert predictions.path == Path("again/predictions.jsonl")
    assert (predictions.count, len(predictions.rows)) == (3, 3)
    assert predict("again", limit=3, batch_size=2).count == 0
    other = predict("again", "test.jsonl", "other.jsonl", limit=1)
    assert other.path.is_file()
    assert score(predictions.path, partial=True).count == 3
    assert [path.name for path in report("run", ["md"])] == ["report.md"]
    for out, message in (("runs", "is a folder"), ("a.txt", "must end in .jsonl")):
        Path("runs").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=message):
            predict("again", out=out)
    with pytest.raises(ValueError, match=r"predict: .*'decod'\. Did you mean 'decode'"):
        predict("again", decod="median")


def test_compare_a_finished_comparison(runs, monkeypatch):
    monkeypatch.setattr("mm_numeric.comparison.run.compare", lambda config, **_: config.output_dir)
    done = compare("comparison.yaml")
    assert set(mm_numeric.api.ComparedRuns(Path("comparison")).summary["table"]) >= {"ce", "ntil"}
    assert isinstance(done.folder, Path)


def test_prepare_rows(tmp_path):
    rows = tmp_path / "in.jsonl"
    rows.write_text(json.dumps({"question": "1 + 1 =", "answer": 2, "id": "1"}) + "\n", "utf-8")
    prepared = prepare("rows", str(rows), tmp_path / "out.jsonl", task="numbers")
    assert prepared.record["counts"]["rows"] == 1
    with pytest.raises(ValueError, match="prepare, format yolo: the option 'split' is missing"):
        prepare("yolo", tmp_path, tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match=r"prepare, format rows: .*'tsk'\. Did you mean 'task'"):
        prepare("rows", [rows], tmp_path / "out.jsonl", tsk="numbers")
    with pytest.raises(ValueError, match="there is no format 'cocoa'"):
        prepare("cocoa", [rows], tmp_path / "out.jsonl")
