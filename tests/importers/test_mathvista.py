"""MathVista's files: a row a question, as the task reads it."""

import json

import pytest
from importing import json_file, make_image, outcome

from mm_numeric.importers.mathvista import MathVistaImporter
from mm_numeric.importers.prepare import prepare

PROBLEM = {
    "pid": "7",
    "question": "Which shape?",
    "image": "images/7.jpg",
    "choices": ["circle", "square"],
    "unit": None,
    "precision": None,
    "answer": "square",
    "question_type": "multi_choice",
    "answer_type": "text",
    "metadata": {"split": "testmini", "skills": ["geometry reasoning"], "img_width": 9},
}
ROW = {"id": "7", **{n: v for n, v in PROBLEM.items() if v is not None and n != "pid"}}


def test_an_object_by_pid(tmp_path):
    unnamed = {name: value for name, value in PROBLEM.items() if name != "pid"}
    path = json_file(tmp_path / "testmini.json", {"6": unnamed, "7": PROBLEM})
    done = outcome(MathVistaImporter(), path)
    assert done.bad == []
    assert done.rows == [{**ROW, "id": "6"}, ROW]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_rows_of_parquet(tmp_path, name):
    saved = {**PROBLEM, "decoded_image": "saved/7.png", "query": "Hint: ...", "precision": 1.0}
    number = {**PROBLEM, "choices": None, "precision": float("nan"), "answer": "5"}
    number |= {"pid": "8", "question_type": "free_form", "answer_type": "integer"}
    done = outcome(MathVistaImporter(), json_file(tmp_path / name, [saved, number]))
    assert done.bad == []
    first, second = done.rows
    assert first == {**ROW, "image": "saved/7.png", "query": "Hint: ...", "precision": 1}
    assert "precision" not in second
    assert "choices" not in second


def test_images_are_checked(tmp_path):
    make_image(tmp_path / "images" / "7.jpg", (32, 16))
    path = json_file(tmp_path / "testmini.json", {"7": PROBLEM, "8": {**PROBLEM, "image": "8.jpg"}})
    done = outcome(MathVistaImporter(images=tmp_path), path)
    assert done.row["width"], done.row["height"] == (32, 16)
    assert done.kinds == ["image"]


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        ({"image": ""}, "text", "image must be a non-empty text, not ''."),
        ({"pid": 7}, "text", "pid must be a non-empty text, not 7."),
        ({"answer": "cube"}, "row", "the answer 'cube' is not one of the choices."),
        ({"question": None}, "row", 'no "question" (a text).'),
        ({"answer_type": "words"}, "row", "question_type 'multi_choice' with answer_type 'words'"),
    ],
)
def test_a_bad_question_is_listed(tmp_path, change, kind, why):
    path = json_file(tmp_path / "testmini.json", {"7": {**PROBLEM, **change}})
    done = outcome(MathVistaImporter(), path)
    assert done.kinds == [kind]
    assert done.why.startswith(why)
    assert done.bad[0].where == f"{path}, 7"


def test_what_is_no_question_is_listed(tmp_path):
    done = outcome(MathVistaImporter(), json_file(tmp_path / "testmini.json", {"7": [1]}))
    assert (done.kinds, done.why) == (["json"], "expected an object, found [1].")


def test_the_record_counts_rows_and_no_shapes(tmp_path):
    path = json_file(tmp_path / "testmini.json", {"7": PROBLEM})
    done = prepare("mathvista", MathVistaImporter(), [path], tmp_path / "rows.jsonl")
    counts = {name: count for name, count in done.record["counts"].items() if count}
    assert counts == {"rows": 1, "rows without a size": 1}
    assert json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8")) == ROW
