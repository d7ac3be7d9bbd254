"""Rows of grounding and text detection: what is read, and what is refused in one sentence."""

import pytest

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.text_detection import TextDetection

FRAME = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen3_vl"])
ROW = {"id": "1", "image": "a.png", "phrase": "red car", "box": [50, 100, 320, 350]}
QUAD = [10, 10, 100, 12, 98, 40, 9, 38]


def grounded(task=None, **changes):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    return list((task or Grounding()).examples([("r, line 1", row)], training=True))


def detected(*instances, task=None, **changes):
    row = {"id": "1", "image": "a.png", "instances": list(instances), **changes}
    (example,) = (task or TextDetection()).examples([("r, line 1", row)], training=True)
    return example


def test_a_row_is_a_question_about_a_phrase():
    (example,) = grounded(width=640, height=480)
    assert example.prompt == "Locate: red car"
    assert example.answer == Box(50, 100, 320, 350)
    assert example.size_px == (640, 480)


def test_every_sentence_is_a_question():
    found = grounded(phrase=None, sentences=["a", "b"], box=None, box_xywh=[50, 100, 270, 250])
    assert [(e.id, e.prompt) for e in found] == [("1.0", "Locate: a"), ("1.1", "Locate: b")]
    assert {e.answer for e in found} == {Box(50, 100, 320, 350)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, r'line 1: no image; each row needs "image"'),
        ({"phrase": None}, r'line 1: no phrase; each row needs "phrase"'),
        ({"phrase": ["a", ""]}, "line 1: no phrase"),
        ({"phrase": None, "sentences": []}, "line 1: no phrase"),
        ({"box": None}, r'line 1: no box; each row needs "box" as \[x1'),
        ({"box": None, "bbox": [1, 2, 3, 4]}, '"bbox" may be x1, y1, x2, y2 or x, y, width'),
        ({"box_xyxy": [1, 2, 3, 4]}, "line 1: box and box_xyxy both define the box; keep"),
        ({"box": [1, 2, 3]}, r"line 1, box: a box is \[x1, y1, x2, y2\], not 3 numbers\."),
        ({"box": "1 2 3 4"}, "line 1, box: expected a list of numbers, found '1 2 3 4'"),
        ({"box": [1, 2, "3", 4]}, "line 1, box: '3' is not a number"),
        ({"box": [1, 2, float("nan"), 4]}, "line 1, box: nan is not a finite number"),
        ({"box": [1, 2, 10**400, 4]}, "line 1, box: 10{39} is not a finite number"),
        ({"box": [9, 2, 3, 4]}, r"the box \[9, 2, 3, 4\] is reversed; write the smaller"),
        ({"box": [3, 2, 3, 4]}, r"the box \[3, 2, 3, 4\] has no area"),
        ({"width": 640}, "line 1: width 640 and height None are not the pixels of an image"),
        ({"width": 640, "height": 10**400}, "height 10{39} are not the pixels of an image"),
    ],
)
def test_a_bad_row_is_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        grounded(**changes)


def test_a_box_comes_back_from_its_text():
    written = Grounding().format(Box(50, 100, 320, 350), FRAME)
    assert written.text == '[{"bbox_2d": [78, 208, 500, 729]}]'
    found = Grounding().parse(written.text, FRAME)
    assert Grounding().format(found, FRAME) == written
    assert Grounding().recorded(Grounding().record(found)) == found


def test_an_id_may_be_0():
    assert [grounded(id=i)[0].id for i in (0, "", None)] == ["0", "a.png", "a.png"]
    assert grounded(id=None, ref_id=0)[0].id == "0"
    assert detected(id=0).id == "0"


def test_a_box_outside_is_refused_or_clipped_as_declared():
    far = Box(600, 400, 700, 470)
    with pytest.raises(ValueError, match=r"the point \(700, 470\) is outside the image of 640"):
        Grounding().format(far, FRAME)
    assert Grounding(outside="clip").format(far, FRAME).text.endswith("1000, 979]}]")
    farther = Box(650, 400, 700, 470)
    with pytest.raises(
        ValueError, match=r"begins at \(650, 400\) is outside the image of 640 x 480"
    ):
        Grounding(outside="clip").format(farther, FRAME)


def test_words_are_written_in_reading_order_without_the_ignored():
    low, high = [10, 300, 100, 300, 100, 340, 10, 340], QUAD
    example = detected(
        {"polygon": low, "label": "b"}, {"polygon": high}, {"box": [1, 1, 9, 9], "ignore": True}
    )
    text = TextDetection().format(example.answer, FRAME).text
    assert text == (
        '[{"poly_2d": [16, 21, 156, 25, 153, 83, 14, 79]}, '
        '{"poly_2d": [16, 625, 156, 625, 156, 708, 16, 708]}]'
    )
    assert len(TextDetection().parse(text, FRAME).items) == 2
    record = TextDetection().record(example.answer)
    assert TextDetection().recorded(record) == example.answer
    assert record[2] == {"box": [1, 1, 9, 9], "ignore": True}  # the truth stays as the rows have it


def test_words_may_be_boxes_and_in_the_order_of_the_rows():
    task = TextDetection(shape="box", order="rows")
    low = [[10, 300], [100, 302], [100, 340]]
    example = detected({"polygon": low}, {"polygon": QUAD}, task=task)
    assert example.answer == Instances(
        (Instance(Box(10, 300, 100, 340)), Instance(Box(9, 10, 100, 40)))
    )


def test_an_image_without_words_says_so():
    text = TextDetection().format(detected().answer, FRAME).text
    assert text == "[]"
    assert TextDetection().parse(text, FRAME) == Instances(())


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (5, r"line 1, instances\.0: expected an object"),
        ({}, r'line 1, instances\.0: no shape; each instance needs "polygon", "box" or'),
        ({"polygon": [1, 2, 3, 4]}, "at least three points, not 4 numbers"),
        ({"polygon": [1, 2, 3, 4, 5, 6, 7]}, "at least three points, not 7 numbers"),
        ({"polygon": QUAD, "ignore": 1}, "ignore is true or false, not 1"),
        ({"polygon": QUAD, "label": 0}, r"instances\.0: a label is a text, not 0"),
    ],
)
def test_a_bad_instance_is_one_sentence(instance, message):
    with pytest.raises(ValueError, match=message):
        detected(instance)


def test_fields_that_a_table_fills_with_null_are_missing():
    """parquet has one list of fields for all objects: null in those that an object lacks."""
    unused = dict.fromkeys(("box", "rotated_box", "label", "ignore"))
    assert detected({**unused, "polygon": QUAD}).answer == detected({"polygon": QUAD}).answer


def test_a_polygon_may_be_a_list_of_points():
    example = detected({"polygon": [[1, 2], [3, 4], [5, 6]]})
    assert example.answer.items[0].shape == Polygon(((1, 2), (3, 4), (5, 6)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grounding(prompt="Where?"), "prompt needs {phrase}"),
        (lambda: Grounding(outside="drop"), "outside is one of refuse, clip"),
        (lambda: TextDetection(shape="mask"), "shape is one of polygon, box"),
        (lambda: TextDetection(order="size"), "order is one of raster, area"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
