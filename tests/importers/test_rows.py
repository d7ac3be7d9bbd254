"""Rows of your own: each is read as its task reads it, and the bad ones are listed."""

import json

from importing import make_image, outcome

from mm_numeric.importers.rows import Rows


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
        {**good, "phrase": None}, {"image": "1.jpg", "instances": [{}]}, {**good, "width": 3},
    )  # fmt: skip
    assert len(done.rows) == 1
    assert [line.where.rpartition("line ")[2] for line in done.bad] == list("234567")
    assert [line.why.partition(";")[0].partition("(")[0].strip() for line in done.bad] == [
        "not JSON",
        "box: the box [30, 2, 1, 40] is reversed",
        "no image",
        "no phrase",
        "instances.0: no shape",
        "width 3 and height None are not the pixels of an image",
    ]


def test_questions_with_numbers_for_answers_are_rows_too(tmp_path):
    good = {"id": 8, "question": "What is 3 + 4?", "answer": 7, "category": "easy"}
    done = rows(tmp_path, good, {**good, "id": 9, "answer": "seven"}, {**good, "id": ""})
    assert done.rows == [{**good, "id": "8"}]
    assert [line.where.rpartition("line ")[2] for line in done.bad] == ["2", "3"]
    assert done.bad[0].why.startswith("the answer 'seven' is not a number;")
