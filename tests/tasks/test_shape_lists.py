"""label_noise_pixels: simulated annotation errors of boxes in training labels."""

import statistics
from dataclasses import replace

import pytest

from mm_numeric.answers import Box, Instance, Instances
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding

SIZE = {"width": 1000, "height": 800}
ROWS = [
    (f"f, line {i}", {"id": str(i), "image": "a.png", "phrase": "cup", **SIZE}) for i in range(4000)
]
ROWS = [(where, {**row, "box": [300, 200, 600, 500]}) for where, row in ROWS]


def boxes(task, rows=ROWS, training=True):
    return {e.id: e.answer for e in task.examples(rows, training=training)}


def edges(box):
    return box.x1, box.y1, box.x2, box.y2


def test_each_edge_has_its_own_gaussian_noise():
    found = boxes(Grounding(label_noise_pixels=5.0)).values()
    by_edge = list(zip(*map(edges, found), strict=True))
    for values, edge in zip(by_edge, (300, 200, 600, 500), strict=True):
        assert abs(statistics.fmean(values) - edge) < 0.32  # four standard errors
        assert abs(statistics.pstdev(values) - 5) < 0.23
    assert abs(statistics.correlation(by_edge[0], by_edge[2])) < 0.07


@pytest.mark.parametrize(
    ("task", "training"), [(Grounding(label_noise_pixels=5.0), False), (Grounding(), True)]
)
def test_clean_boxes_stay_as_they_are(task, training):
    assert set(map(edges, boxes(task, ROWS[:9], training).values())) == {(300, 200, 600, 500)}


def test_the_noise_depends_on_the_id_and_the_seed_alone():
    task = Grounding(label_noise_pixels=5.0)
    first = boxes(task)
    assert boxes(task, ROWS[5:6]) == {"5": first["5"]}
    assert boxes(task.with_noise_of(0)) == first
    assert not set(boxes(task.with_noise_of(1)).values()) & set(first.values())
    assert Grounding().with_noise_of(1) is None
    assert "noise of 5 pixels" in task.describe()


def test_boxes_stay_boxes_inside_the_image():
    rows = [
        (where, {**row, "box": [x, 0, x + 2, 800]})
        for (where, row), x in zip(ROWS[:900], (0, 500, 998) * 300, strict=True)
    ]
    for box in boxes(Grounding(label_noise_pixels=40.0), rows).values():
        assert 0 <= box.x1 < box.x2 <= 1000
        assert 0 <= box.y1 < box.y2 <= 800


def test_a_box_outside_the_image_is_not_hidden():
    rows = [(ROWS[0][0], {**ROWS[0][1], "box": [-300, 10, 100, 900]})]
    (box,) = boxes(Grounding(label_noise_pixels=3.0), rows).values()
    assert box.x1 < -280
    assert box.y2 > 880


def test_each_box_of_a_list_moves():
    task = Detection(label_noise_pixels=3.0)
    shapes = [{"box": [10, 10, 50, 50], "label": "cup"}] * 2
    row = {"id": "0", "image": "a.png", "phrase": "cup", **SIZE, "instances": shapes}
    (example,) = task.examples([("f, line 1", row)], training=True)
    first, second = example.answer.items
    assert (first.label, second.label) == ("cup", "cup")
    assert len({first.shape, second.shape, Box(10, 10, 50, 50)}) == 3
    (clean,) = task.examples([("f, line 1", row)], training=False)
    assert clean.answer == Instances((Instance(Box(10, 10, 50, 50), "cup"),) * 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": None, "height": None}, r"line 1: label_noise_pixels needs the width and height"),
        (
            {"instances": [{"polygon": [0, 0, 9, 0, 9, 9], "label": "a"}]},
            r"line 1: label_noise_pixels moves boxes, and this row has a polygon\.",
        ),
    ],
)
def test_rows_whose_boxes_cannot_be_moved(change, message):
    task = Detection(shape="polygon", label_noise_pixels=3.0)
    row = {**ROWS[0][1], "instances": [{"box": [1, 1, 5, 5], "label": "a"}]} | change
    with pytest.raises(ValueError, match=message):
        list(task.examples([("f, line 1", row)], training=True))


@pytest.mark.parametrize("noise", [-1.0, float("inf"), float("nan")])
def test_an_invalid_noise_is_rejected(noise):
    with pytest.raises(ValueError, match="label_noise_pixels is 0 or more, not"):
        replace(Grounding(), label_noise_pixels=noise)
