"""Rows of grounding: phrases, boxes, and boxes outside of their image."""

import pytest

from mm_numeric.answers import Box
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.grounding import Grounding

FRAME = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen3_vl"])
ROW = {"id": "1", "image": "a.png", "phrase": "red car", "box": [50, 100, 320, 350]}


def grounded(task=None, **changes):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    return list((task or Grounding()).examples([("r, line 1", row)], training=True))


def test_a_row_is_a_question_about_a_phrase():
    (example,) = grounded(width=640, height=480, category="cars")
    assert example.prompt == "Locate: red car"
    assert example.answer == Box(50, 100, 320, 350)
    assert example.size_px == (640, 480)
    assert example.buckets == {"category": "cars"}


def test_every_sentence_is_a_question():
    found = grounded(phrase=None, sentences=["a", "b"], box=None, box_xywh=[50, 100, 270, 250])
    assert [(e.id, e.prompt) for e in found] == [("1.0", "Locate: a"), ("1.1", "Locate: b")]
    assert {e.answer for e in found} == {Box(50, 100, 320, 350)}


def test_a_box_comes_back_from_its_text():
    written = Grounding().format(Box(50, 100, 320, 350), FRAME)
    assert written.text == '[{"bbox_2d": [78, 208, 500, 729]}]'
    found = Grounding().parse(written.text, FRAME)
    assert Grounding().format(found, FRAME) == written
    assert Grounding().recorded(Grounding().record(found)) == found


def test_a_box_outside_is_rejected_or_clipped_as_declared():
    far = Box(600, 400, 700, 470)
    with pytest.raises(ValueError, match=r"the point \(700, 470\) is outside the image of 640"):
        Grounding().format(far, FRAME)
    assert Grounding(outside="clip").format(far, FRAME).text.endswith("1000, 979]}]")
    farther = Box(650, 400, 700, 470)
    with pytest.raises(
        ValueError, match=r"begins at \(650, 400\) is outside the image of 640 x 480"
    ):
        Grounding(outside="clip").format(farther, FRAME)
