"""Rows of grounding and text detection: what is read, and what is refused in one sentence."""

import pytest

from mm_numeric.answers import Polygon
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.text_detection import TextDetection

ROW = {"id": "1", "image": "a.png", "phrase": "red car", "box": [50, 100, 320, 350]}
QUAD = [10, 10, 100, 12, 98, 40, 9, 38]


def grounded(task=None, **changes):
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    return list((task or Grounding()).examples([("r, line 1", row)], training=True))


def detected(*instances, task=None, **changes):
    row = {"id": "1", "image": "a.png", "instances": list(instances), **changes}
    (example,) = (task or TextDetection()).examples([("r, line 1", row)], training=True)
    return example


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
        ({"box": None, "box_xywh": [9, 2, -3, 4]}, r"\[9, 2, -3, 4\] is reversed; width and hei"),
        ({"box": None, "box_xywh": [9, 2, 0, 4]}, r"the box \[9, 2, 0, 4\] has no area"),
        ({"width": 640}, "line 1: width 640 and height None are not the pixels of an image"),
        ({"width": 640, "height": 10**400}, "height 10{39} are not the pixels of an image"),
    ],
)
def test_a_bad_row_is_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        grounded(**changes)


def test_an_id_may_be_0():
    assert [grounded(id=i)[0].id for i in (0, "", None)] == ["0", "a.png", "a.png"]
    assert grounded(id=None, ref_id=0)[0].id == "0"
    assert detected(id=0).id == "0"


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (5, r"line 1, instances\.0: expected an object"),
        ({}, r'line 1, instances\.0: no shape; each instance needs "polygon", "box", "rot'),
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
def test_an_unknown_choice_is_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
