"""MMOCR's JSON: polygons and boxes of words."""

import pytest
from importing import examples, json_file, outcome

from mm_numeric.importers.mmocr import MMOCR

WORD = {"polygon": [1, 2, 30, 2, 30, 9], "bbox": [1, 2, 30, 9], "bbox_label": 0, "ignore": False}


def mmocr(path, *images):
    return json_file(path / "textdet.json", {"metainfo": {}, "data_list": list(images)})


def scene(name="img_1.jpg", *words):
    return {"img_path": name, "height": 720, "width": 1280, "instances": list(words)}


def test_mmocr(tmp_path):
    box = {"bbox": [1.0, 2.0, 30.0, 9.0], "text": "the", "ignore": True}
    path = mmocr(tmp_path, scene("img_1.jpg", WORD, box, {**WORD, "text": ""}))
    assert outcome(MMOCR(), path).row == {
        "id": "img_1.jpg",
        "image": "img_1.jpg",
        "width": 1280,
        "height": 720,
        "instances": [
            {"polygon": [1, 2, 30, 2, 30, 9]},
            {"box": [1, 2, 30, 9], "text": "the", "ignore": True},
            {"polygon": [1, 2, 30, 2, 30, 9], "text": ""},
        ],
    }
    assert len(examples(MMOCR(), [path], tmp_path)[0].answer.items) == 3


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        ({**scene("a.jpg"), "instances": None}, "instances", 'there is no list "instances"'),
        ({**scene("a.jpg"), "img_path": None}, "text", "img_path must be a non-empty text"),
        ({**scene("a.jpg"), "height": "720"}, "image", "height '720' are not a size in pixels"),
        (7, "json", "expected an object"),
    ],
)
def test_a_bad_image_of_mmocr(tmp_path, bad, kind, why):
    done = outcome(MMOCR(), mmocr(tmp_path, scene(), bad))
    assert done.kinds == [kind]
    assert why in done.why
    assert "row 2" in done.bad[0].where
    assert done.row["id"] == "img_1.jpg"


@pytest.mark.parametrize("text", ['{"data_list": [', '{"images": []}', "7"])
def test_a_file_in_another_format_than_mmocr(tmp_path, text):
    path = tmp_path / "textdet.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"not JSON|expected a list of rows"):
        outcome(MMOCR(), path)
