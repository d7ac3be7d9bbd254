"""ClockBench's two files: a row for each question about a clock, as the task reads it."""

import json

import pytest
from importing import json_file, make_image, outcome

from mm_numeric.answers import ClockReading
from mm_numeric.evaluation.metrics.clockbench import CLOCKBENCH
from mm_numeric.importers.clockbench import ClockBenchImporter
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.clockbench import ClockBench

KINDS = ("time", "shift", "angle", "zone")
QUESTIONS = {"image_url": "images/red_1.png", **{f"question_{k}": f"{k}?" for k in KINDS}}
TIME = {"valid": True, "hours": 1, "minutes": [4, 5], "seconds": 45}
ANSWERS = {f"answer_{kind}": json.dumps(TIME) for kind in KINDS}
BROKEN = {"answer_angle": '{\n "valid": true,\n "hours": 4,\n "minutes": 6,\n "seconds": 0,\n }'}
"""The published answers have a trailing comma in one object, which the script repairs."""


def files(folder, questions=QUESTIONS, answers=ANSWERS):
    return (
        json_file(folder / "input_sample.json", {"red_1": questions}),
        json_file(folder / "answers_sample.json", {"red_1": answers}),
    )


@pytest.mark.parametrize("order", [1, -1])
def test_every_question_about_a_clock_is_a_row(tmp_path, order):
    done = outcome(ClockBenchImporter(), *files(tmp_path, answers=ANSWERS | BROKEN)[::order])
    assert done.bad == []
    assert [row["id"] for row in done.rows] == [f"red_1/{kind}" for kind in KINDS]
    assert done.rows[0] == {
        "id": "red_1/time",
        "image": "images/red_1.png",
        "question": "time?",
        "category": "time",
        "answer": TIME,
    }
    assert done.rows[2]["answer"] == {"valid": True, "hours": 4, "minutes": 6, "seconds": 0}
    examples = list(ClockBench().examples([("a", row) for row in done.rows], training=True))
    assert examples[1].buckets == {"category": "shift"}
    written = ClockBench().format(examples[1].answer).text
    columns = CLOCKBENCH.judge([ClockBench().parse(written)], [examples[1].answer])
    assert columns["accuracy"].tolist() == [1]
    assert examples[1].answer == ClockReading(TIME)


def test_images_are_checked_and_inputs_are_recorded(tmp_path):
    inputs = files(tmp_path)
    make_image(tmp_path / "images" / "red_1.png", (32, 16))
    done = prepare(
        "clockbench", ClockBenchImporter(images=tmp_path), list(inputs), tmp_path / "rows.jsonl"
    )
    assert done.record["counts"]["rows"] == 4
    assert len(done.record["inputs"]) == 2
    row = json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (row["width"], row["height"]) == (32, 16)


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        ({"answer_time": None}, "answer", "answer_time: the answer None is not an object with"),
        ({"answer_time": "7:05"}, "answer", "answer_time: the answer '7:05' is not an object with"),
        ({"answer_time": TIME | {"hours": 25}}, "answer", "answer_time: hours 25 is not possible"),
        ({"question_time": ""}, "text", "question_time must be a non-empty text, not ''."),
    ],
)
def test_a_bad_question_is_listed(tmp_path, change, kind, why):
    (path, _), questions = files(tmp_path), QUESTIONS | change
    done = outcome(ClockBenchImporter(), *files(tmp_path, questions, ANSWERS | change))
    assert done.kinds == [kind]
    assert done.why.startswith(why)
    assert done.bad[0].where == f"{path}, red_1, time"


def test_both_files_are_needed(tmp_path):
    questions, answers = files(tmp_path)
    assert {bad.why for bad in outcome(ClockBenchImporter(), questions).bad} == {
        "no answers; give the file with the answers as well."
    }
    assert {bad.why for bad in outcome(ClockBenchImporter(), answers).bad} == {
        "no questions; give the file with the questions as well."
    }
    with pytest.raises(ValueError, match="expected an object with a field for each clock"):
        outcome(ClockBenchImporter(), json_file(tmp_path / "rows.json", [1]))
    bad = outcome(ClockBenchImporter(), json_file(tmp_path / "list.json", {"red_1": [1]}))
    assert (bad.kinds, bad.why) == (["json"], "expected an object, found [1].")
