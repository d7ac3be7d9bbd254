"""The command ``calibrate``, from new rows to predictions with other confidences."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from finished_runs import copy_and_enter
from PIL import Image
from result_files import section, write_lines

from mm_numeric.api import predict
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.report.confidence_section import calibration_text
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.score import score
from mm_numeric.inference.calibrate import FEWEST, fit_calibration, known_ids, read_calibration

pytestmark = pytest.mark.slow

NEW, TRAINED = 60, 5


@pytest.fixture
def run(finished_runs, tmp_path, monkeypatch):
    """A copy of a finished run, with new.jsonl: rows of which five are training questions."""
    copy_and_enter(finished_runs, tmp_path / "runs", monkeypatch)
    draw, rows = random.Random(0), {}
    trained = read("train.jsonl")[:TRAINED]
    tested = {row["question"] for row in read("test.jsonl")}
    while len(rows) < NEW:
        a, b, c = (draw.randrange(10) for _ in range(3))
        question = f"{a} + {b} - {c} ="
        if question not in tested and question not in rows:
            rows[question] = {
                "id": f"new{len(rows)}",
                "question": question,
                "answer": str(a + b - c),
            }
    write_lines(
        tmp_path / "runs/new.jsonl",
        [*rows.values(), *({**row, "id": f"old{i}"} for i, row in enumerate(trained))],
    )
    return tmp_path / "runs/run"


def read(name):
    """Return the rows of a file in the current folder."""
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


def command(*words):
    return cli.main([*map(str, words)])


@pytest.mark.parametrize("samples", [[], ["--samples", "8"]])
def test_calibrated_confidences_replace_those_of_the_model(run, capsys, samples):
    rows = ["--model", run, "--decode", "median", "--data", "new.jsonl", *samples]
    assert command("predict", *rows, "--out", "raw.jsonl") == 0
    assert command("calibrate", run, "--data", "new.jsonl", "--decode", "median", *samples) == 0
    shown = capsys.readouterr().out
    assert f"{NEW} answers to {NEW} rows, decoded by median (correct: equal in value)" in shown
    assert f"{TRAINED} rows are left out" in shown
    assert ("temperature" in shown) == (not samples)  # shares of samples have none
    assert command("predict", *rows, "--out", "new_answers.jsonl") == 0
    before, after = read("raw.jsonl"), read("new_answers.jsonl")
    found = read_calibration(run, "median")
    changed = 0
    for one, two in zip(before, after, strict=True):
        assert one["text"] == two["text"]
        raw = two["decode"].pop("confidence_raw", None)
        calibrated = two["decode"].pop("confidence")
        assert raw == one["decode"].pop("confidence")
        assert one["decode"] == two["decode"]
        if raw is not None and found.applied == "platt":
            assert calibrated == pytest.approx(float(found.platt(raw)), abs=1e-5)
        changed += raw != calibrated
    assert changed > NEW / 2
    assert command("score", "new_answers.jsonl") == 0
    entry = section(run.parent, name="new_answers.jsonl.results.json")["calibration"]
    assert abs(entry["gap"]["value"]) <= abs(entry["raw"]["gap"]["value"]) + 0.02
    assert "; before calibration: gap " in capsys.readouterr().out


def test_the_report_of_a_run_shows_both(run):
    assert command("calibrate", run, "--data", "new.jsonl", "--decode", "median") == 0
    assert command("predict", "--model", run, "--decode", "median") == 0
    assert command("score", run / "predictions.median.jsonl") == 0
    for path in write_report(run):
        text = path.read_text("utf-8")
        for name in ("test rows, before calibration", "test rows, calibrated", "rows, platt"):
            assert f"median, {name}" in text or f"median, calibration {name}" in text


def test_mistakes_are_one_sentence(run, capsys):
    def error(*words):
        assert command(*words) == 2
        return capsys.readouterr().err

    calibrate = ("calibrate", run, "--data")
    assert "greedy answers have no confidence; add --decode median" in error(
        *calibrate, "new.jsonl"
    )
    rows = read("new.jsonl")
    write_lines(Path("few.jsonl"), rows[: FEWEST - 1] + rows[NEW:])
    found = error(*calibrate, "few.jsonl", "--decode", "median")
    assert f"few.jsonl: {FEWEST - 1} questions with a parseable answer are neither" in found
    assert not list(run.glob("calibration*"))
    assert command(*calibrate, "new.jsonl", "--decode", "median") == 0
    found = error(*calibrate, "few.jsonl", "--decode", "median")
    assert "contains predictions of another run, of other rows" in found
    assert command(*calibrate, "new.jsonl", "--decode", "mean") == 0
    found = error("predict", "--model", run, "--decode", "mean", "--mass", "0.5")
    assert "was fitted to answers with other settings (mass is 0.99 there and 0.5 here)" in found


def test_rows_that_cannot_be_compared_are_a_warning(run, capsys):
    (run.parent / "train.jsonl").unlink()
    assert command("calibrate", run, "--data", "new.jsonl", "--decode", "median") == 0
    shown = capsys.readouterr()
    assert "new.jsonl: not compared with the training and test rows of the run: " in shown.err
    assert f"{NEW + TRAINED} answers" in shown.out
    assert not read_calibration(run, "median").checked


def test_the_distribution_of_several_runs_is_another_one(run, capsys):
    assert command("calibrate", run, "--data", "new.jsonl", "--decode", "median") == 0
    other = shutil.copytree(run, "other")
    predict([run, other], "new.jsonl", "both.jsonl", decode="median", limit=3)
    assert "its calibration is not applied, as it was fitted to the answers of" in (
        capsys.readouterr().err
    )
    rows = read("both.jsonl")
    assert all("confidence_raw" not in row["decode"] for row in rows)
    assert np.isfinite([row["decode"]["confidence"] or 0 for row in rows]).all()


def test_a_copied_image_with_the_same_prompt_is_a_known_question(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, colour in (("a", 0), ("b", 90), ("c", 180), ("copy_of_a", 0), ("copy_of_b", 90)):
        Image.new("L", (8, 8), colour).save(f"{name}.png")

    def rows(name, images):
        lines = [{"id": f"{i}", "image": f"{own}.png", "time": "3:00"} for i, own in images]
        return str(write_lines(tmp_path / name, lines))

    train, test = rows("train.jsonl", [(0, "a")]), rows("test.jsonl", [(0, "b")])
    config = read_config(
        "clock_tiny", [f"data.train={{path: {train}}}", f"data.test={{path: {test}}}"]
    )
    own = rows("new.jsonl", [(0, "c"), (1, "copy_of_a"), (2, "copy_of_b")])
    assert known_ids(config, DataSource(path=own)) == {"1", "2"}


def test_every_object_of_a_list_is_fitted(tmp_path, monkeypatch):
    """Lists of two boxes, of which the first is always right and the second never."""
    monkeypatch.chdir(tmp_path)
    size = {"width_px": 100, "height_px": 100}
    frame = {
        **size, "view": {**size, "scale_x": 1, "scale_y": 1}, "coordinates": {"format": "json"},
    }  # fmt: skip
    rows, answers = [], []
    for i in range(2 * FEWEST):
        Image.new("L", (100, 100), i).save(f"{i}.png")
        right = {"box": [0, 0, 40, 20 + i], "label": "a"}
        other = {"box": [50, 50, 90, 80], "label": "a"}
        rows.append({"id": f"{i}", "image": f"{i}.png", "instances": [right]})
        answers.append({
            "id": f"{i}", "task": "detection", "image": f"{i}.png", "frame": frame,
            "target": [right],
            "text": json.dumps([{"bbox_2d": own["box"], "label": "a"} for own in (right, other)]),
            "decode": {"rule": "mbr", "confidence": 0.5, "support": None}, "scores": [0.95, 0.9],
        })  # fmt: skip
    new = write_lines(tmp_path / "new.jsonl", rows)
    trained = write_lines(tmp_path / "train.jsonl", [{**rows[0], "id": "copy"}])
    predictions = write_lines(tmp_path / "predictions.mbr.jsonl", answers)
    Path("predictions.mbr.jsonl.made_by.json").write_text('{"run": "1a", "rows": "2b"}', "utf-8")
    sources = [f"data.{name}={{path: {trained}}}" for name in ("train", "test")]
    text = Path("config.yaml")
    base = read_config("text_detection_tiny", sources).to_dict()
    text.write_text(yaml.safe_dump({**base, "task": "detection"}), "utf-8")
    scores = score(predictions, write=False)
    found = fit_calibration(
        read_config(text),
        DataSource(path=str(new)),
        predictions,
        "mbr",
        scores.rows,
        scores.confidences,
    )
    assert (found.per_object, found.temperature, found.applied) == (True, None, "platt")
    assert (found.rows, found.left_out, found.settings) == (2 * FEWEST - 1, 1, {"run": "1a"})
    assert found.reliability["raw"]["count"] == 2 * (2 * FEWEST - 1)
    assert found.reliability["raw"]["gap"]["value"] == pytest.approx(0.425)
    assert abs(found.reliability["platt"]["gap"]["value"]) < 0.02
    assert found(0.95, None) > 0.9 > 0.1 > found(0.9, None)
    assert "objects to 39 rows" in calibration_text(found)
