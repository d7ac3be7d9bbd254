"""HierText and TextOCR: JSON files of words, in the form of their documentation."""

import json

import pytest
from importing import json_file, outcome

from mm_numeric.importers.text_json import HierText, TextOCR

QUAD = [[10, 20], [60, 20], [60, 40], [10, 40]]
FLAT = [n for point in QUAD for n in point]


def hier_text(path, *paragraphs, **changes):
    image = {"image_id": "a1", "image_width": 1600, "image_height": 1200}
    annotation = {**image, "paragraphs": list(paragraphs), **changes}
    file = path / "train.jsonl"
    file.write_text(json.dumps({"info": {}, "annotations": [annotation]}), encoding="utf-8")
    return file


def region(**parts):
    return {"vertices": QUAD, "legible": True, **parts}


def test_words_of_hiertext(tmp_path):
    words = [region(text="A", vertical=False), region(text="x", legible=False)]
    lines = [region(text="A x", words=words), region(text="", words=[], legible=False)]
    file = hier_text(tmp_path, region(lines=lines), region(lines=[], legible=False))
    done = outcome(HierText(), file)
    assert not done.bad
    assert done.row == {
        "id": "a1",
        "image": "a1.jpg",
        "width": 1600,
        "height": 1200,
        "instances": [
            {"polygon": FLAT, "text": "A"},
            {"polygon": FLAT, "text": "x", "ignore": True},
            {"polygon": FLAT, "text": "", "ignore": True},
            {"polygon": FLAT, "ignore": True},
        ],
    }


def text_ocr(path, **anns):
    image = {"id": "a1", "width": 1024, "height": 768, "set": "train", "file_name": "train/a1.jpg"}
    own = {"imgs": {"a1": image}, "anns": anns, "imgToAnns": {"a1": ["a1_1", "a1_2"]}}
    return json_file(path / "TextOCR_0.1_train.json", own)


def test_words_of_textocr(tmp_path):
    word = {"id": "a1_1", "image_id": "a1", "bbox": [10, 20, 50, 20], "points": FLAT}
    file = text_ocr(
        tmp_path, a1_1={**word, "utf8_string": "Sign"}, a1_2={**word, "utf8_string": "."}
    )
    done = outcome(TextOCR(), file)
    assert not done.bad
    assert done.row == {
        "id": "a1",
        "image": "a1.jpg",
        "width": 1024,
        "height": 768,
        "instances": [
            {"polygon": FLAT, "text": "Sign"},
            {"polygon": FLAT, "text": ".", "ignore": True},
        ],
    }


def test_what_is_wrong_is_named(tmp_path):
    line = region(words=[region(text=None), region(text="x", vertices=[[1, 2]])])
    done = outcome(HierText(), hier_text(tmp_path, region(lines=[line])))
    assert done.kinds == ["text", "polygon"]
    assert done.bad[0].where.endswith("annotations.0, paragraphs.0, lines.0, words.0")
    done = outcome(TextOCR(), text_ocr(tmp_path, a1_1={"points": FLAT, "utf8_string": "x"}))
    assert "this word is not among the anns" in done.why
    with pytest.raises(ValueError, match='there is no "annotations"; is it a file of the other'):
        outcome(HierText(), text_ocr(tmp_path))


@pytest.mark.parametrize("paragraphs", [5, "x", [5], [{"lines": 5}], [{"lines": [{"words": [5]}]}]])
def test_an_invalid_list_is_one_error(tmp_path, paragraphs):
    done = outcome(HierText(), hier_text(tmp_path, paragraphs=paragraphs))
    assert done.kinds == ["json"]
    assert len(done.rows) == isinstance(paragraphs, list)
