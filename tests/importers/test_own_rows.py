"""Rows of your own: each is read as its task reads it, and the bad ones are listed."""

import json

from importing import json_file, make_image, outcome

from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.prepare import prepare


def rows(tmp_path, *found, **options):
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in found)
    )
    return outcome(Rows(**options), path)


def test_a_row_is_kept_under_one_name_for_each_field(tmp_path):
    make_image(tmp_path / "1.jpg", (60, 40))
    row = {"ref_id": 7, "file": "1.jpg", "box_xyxy": [1, 2, 30, 40], "phrase": "a bush", "by": "me"}
    words = {"id": "w", "image": "1.jpg", "instances": [{"polygon": [0, 0, 9, 0, 9, 9, 0, 9]}]}
    done = rows(tmp_path, row, words, images=tmp_path)
    assert not done.bad
    assert done.rows == [
        {"id": "7", "image": "1.jpg", "box": [1, 2, 30, 40], "phrase": "a bush", "by": "me",
         "width": 60, "height": 40},
        {**words, "width": 60, "height": 40},
    ]  # fmt: skip


def test_every_bad_row_is_listed_with_its_line(tmp_path):
    good = {"id": "1", "image": "1.jpg", "phrase": "a bush", "box": [1, 2, 30, 40]}
    done = rows(
        tmp_path, good, "{", {**good, "box": [30, 2, 1, 40]}, {**good, "image": None},
        {**good, "phrase": None}, {"image": "1.jpg", "instances": 7}, {**good, "width": 3},
    )  # fmt: skip
    assert len(done.rows) == 1
    assert [line.where.rpartition("line ")[2] for line in done.bad] == list("234567")
    assert [line.why.partition(";")[0].partition("(")[0].strip() for line in done.bad] == [
        "not JSON",
        "box: the box [30, 2, 1, 40] is reversed",
        "no image",
        "no phrase",
        'no "instances"',
        "width 3 and height None are not the pixels of an image",
    ]


def test_questions_with_numbers_for_answers_are_rows_too(tmp_path):
    good = {"id": 8, "question": "What is 3 + 4?", "answer": 7, "category": "easy"}
    done = rows(tmp_path, good, {**good, "id": 9, "answer": "seven"}, {**good, "id": ""})
    assert done.rows == [{**good, "id": "8"}]
    assert [line.where.rpartition("line ")[2] for line in done.bad] == ["2", "3"]
    assert done.bad[0].why.startswith("the answer 'seven' is not a number;")


def test_rows_of_other_tasks_are_read_by_the_task_that_is_named(tmp_path):
    make_image(tmp_path / "1.jpg", (60, 40))
    click = {"id": "c", "image": "1.jpg", "phrase": "OK", "polygon": [0, 0, 9, 0, 9, 9]}
    done = rows(tmp_path, click, {**click, "polygon": [1]}, images=tmp_path, task="click")
    assert done.rows == [{**click, "width": 60, "height": 40}]
    assert done.why.startswith("polygon: a polygon is")
    clip = {"id": 5, "frames": ["1.jpg"], "seconds": [0], "query": "a cat", "spans": [[0, 1]]}
    done = rows(tmp_path, clip, {**clip, "spans": [[1, 0]]}, task="temporal_spans")
    assert done.rows == [{**clip, "id": "5"}]
    assert done.why.startswith("spans: a span is [start, end]")
    counted = {"id": "n", "image": "1.jpg", "question": "How many?", "answer": 2.5}
    assert "a count is a whole number" in rows(tmp_path, counted, task="counting").why
    importer = Rows(task="click")
    json_file(tmp_path / "clicks.json", [{**click, "polygon": None, "box": [1, 2, 3, 4]}])
    record = prepare("rows", importer, [tmp_path / "clicks.json"], tmp_path / "out.jsonl").record
    assert record["task"] == "click"


def test_a_null_is_a_field_that_the_row_does_not_have(tmp_path):
    row = {"image": "1.jpg", "width": 60, "height": 40}
    named = {**row, "phrase": "a bush", "polygon": None}
    found = [
        {**named, "id": "1", "box": None, "box_xywh": [1, 2, 30, 40], "box_xyxy": None},
        {**named, "id": "2", "box_xyxy": [1, 2, 30, 40], "box": None},
        {**named, "id": "3", "box": [1, 2, 30, 40], "box_xyxy": None},
        {**row, "id": "4", "instances": [{"box": [1, 2, 30, 70], "polygon": None}]},
    ]
    path, out = tmp_path / "own.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in found))
    done = prepare("rows", Rows(), [path], out)
    assert not done.bad
    counts = done.record["counts"]
    assert (counts["rows"], counts["instances"], counts["outside"]) == (4, 4, 2)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert written[0]["box_xywh"] == written[1]["box"] == written[2]["box"] == [1, 2, 30, 40]


def test_a_shape_that_the_task_does_not_read_is_a_bad_line(tmp_path):
    row = {"image": "1.jpg", "width": 60, "height": 40, "question": "How many?", "answer": 2}
    path, out = tmp_path / "own.jsonl", tmp_path / "out.jsonl"
    lines = [{**row, "id": "1"}, {**row, "id": "2", "box": [1, 2]}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    done = prepare("rows", Rows(task="counting"), [path], out)
    assert done.bad == 1
    assert done.record["bad_lines"][0]["where"] == f"{path}, line 2"
    assert "a box is [x1, y1, x2, y2], not 2 numbers" in done.record["bad_lines"][0]["why"]


def test_a_null_does_not_decide_which_task_reads_a_row(tmp_path):
    row = {"id": "1", "image": "1.jpg"}
    box = {**row, "phrase": "a bush", "box": [1, 2, 30, 40], "instances": None}
    objects = {**row, "box": None, "instances": [{"box": [1, 2, 30, 40], "label": "bush"}]}
    for name, found, task in (
        ("box", box, "grounding"),
        ("objects", objects, {"name": "detection", "classes": ["bush"]}),
    ):
        path, out = tmp_path / f"{name}.json", tmp_path / f"{name}.jsonl"
        json_file(path, [found])
        assert prepare("rows", Rows(), [path], out).record["task"] == task
