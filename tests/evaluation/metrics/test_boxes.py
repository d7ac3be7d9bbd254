"""Overlap, against a count of cells and by hand."""

import json
import random
import re

import numpy as np
import pytest

from mm_numeric.answers import Box, Polygon, Unreadable
from mm_numeric.evaluation.metrics.boxes import BOXES, iou, lenient_box, shape_ious, size_of
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.grounding import Grounding


def by_cells(a, b):
    """Count the unit cells that two boxes in whole pixels share and cover."""
    cells = [
        {(x, y) for x in range(int(s.x1), int(s.x2)) for y in range(int(s.y1), int(s.y2))}
        for s in (a, b)
    ]
    either = len(cells[0] | cells[1])
    return len(cells[0] & cells[1]) / either if either else 0.0


def random_boxes(count, seed):
    draw = np.random.default_rng(seed)
    near = draw.integers(0, 9, size=(count, 2))
    sides = draw.integers(-2, 9, size=(count, 2))  # some are reversed or have no area
    return [Box(*map(float, row)) for row in np.hstack([near, near + sides])]


def test_boxes_overlap_as_their_cells_do():
    a, b = random_boxes(400, 0), random_boxes(400, 1)
    expected = [by_cells(*pair) for pair in zip(a, b, strict=True)]
    assert shape_ious(a, b) == pytest.approx(expected, abs=1e-12)
    assert sum(value > 0 for value in expected) > 30


def test_polygons_of_boxes_overlap_as_boxes_do():
    a, b = random_boxes(200, 2), random_boxes(200, 3)
    upright = [s for s in b if s.x1 < s.x2 and s.y1 < s.y2]
    around = [Polygon(((s.x1, s.y1), (s.x2, s.y1), (s.x2, s.y2), (s.x1, s.y2))) for s in upright]
    a = a[: len(upright)]  # reversed ones too
    assert shape_ious(a, around) == pytest.approx(shape_ious(a, upright), abs=1e-9)


def test_a_triangle_is_half_its_box():
    triangle = Polygon(((0.0, 0.0), (10.0, 0.0), (0.0, 10.0)))
    assert iou(triangle, Box(0, 0, 10, 10)) == pytest.approx(0.5)
    bow = Polygon(((0.0, 0.0), (10.0, 10.0), (10.0, 0.0), (0.0, 10.0)))  # crosses itself
    assert iou(bow, Box(0, 0, 10, 10)) == pytest.approx(0.5)
    assert iou(Polygon(((1.0, 1.0),)), Box(0, 0, 10, 10)) == 0


def test_what_was_not_read_has_found_nothing():
    assert shape_ious([None], [Box(0, 0, 1, 1)]).tolist() == [0]
    columns = BOXES.columns([None, Box(0, 0, 10, 5)], [Box(0, 0, 1, 1), Box(0, 0, 10, 10)])
    assert columns["iou"].tolist() == [0, 0.5]
    assert columns["accuracy_at_0.5"].tolist() == [0, 1]  # at least 0.5
    assert columns["accuracy_at_0.75"].tolist() == [0, 0]
    assert columns["unreadable"].tolist() == [1, 0]


def test_a_reversed_box_covers_nothing_of_a_polygon_either():
    square = Polygon(((0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0)))
    assert iou(Box(10, 10, 0, 0), square) == 0
    assert iou(Box(0, 0, 10, 10), square) == 1


@pytest.mark.parametrize("far", [1e10, 1e200, float("inf"), float("nan")])
def test_an_absurd_shape_covers_nothing(far):
    target = Polygon(((0.0, 0.0), (10.0, 0.0), (10.0, 10.0)))
    assert iou(Box(0, 0, far, far), target) == 0
    assert iou(Polygon(((0.0, 0.0), (far, 0.0), (10.0, far))), target) == 0
    assert iou(Box(0, 0, far, 10), Box(0, 0, 10, 10)) == 0


@pytest.mark.parametrize(
    ("shape", "size", "kinder"),
    [
        (Box(9, 8, 1, 2), None, Box(1, 2, 9, 8)),
        (Box(1, 8, 9, 2), (640, 480), Box(1, 2, 9, 8)),
        (Box(-5, 2, 700, 490), (640, 480), Box(0, 2, 640, 480)),
        (Box(-5, 2, 700, 490), None, Box(-5, 2, 700, 490)),
        (Polygon(((700.0, 2.0),)), (640, 480), Polygon(((700.0, 2.0),))),
        (None, (640, 480), None),
    ],
)
def test_a_kinder_reading_swaps_and_clips(shape, size, kinder):
    assert lenient_box(shape, size) == kinder


def test_lenient_metrics_are_listed_next_to_the_strict_ones():
    targets = [Box(0, 0, 10, 10)] * 4
    answers = [
        Unreadable("reversed box", lenient=Box(10, 10, 0, 0)),
        Unreadable("no box"),
        Box(0, 0, 10, 30),
        Box(0, 0, 10, 10),
    ]
    columns = BOXES.judge(answers, targets, [None, None, (10, 10), (10, 10)])
    assert columns["iou"] == pytest.approx([0, 0, 1 / 3, 1])
    assert columns["unreadable"].tolist() == [1, 1, 0, 0]
    assert columns["lenient_iou"].tolist() == [1, 0, 1, 1]
    figures = {metric.name: float(metric.value(columns)) for metric in BOXES.metrics}
    assert (figures["accuracy_at_0.5"], figures["lenient_accuracy_at_0.5"]) == (0.25, 0.75)
    assert BOXES.judge(answers, targets)["lenient_iou"] == pytest.approx([1, 0, 1 / 3, 1])


def test_mean_iou_at_success_is_over_the_rows_above_one_half():
    metric = next(m for m in BOXES.metrics if m.name == "mean_iou_at_success")
    boxes = [Box(0, 0, 10, height) for height in (10, 6, 4)]
    assert metric.value(BOXES.judge(boxes, [Box(0, 0, 10, 10)] * 3)) == pytest.approx(0.8)
    assert np.isnan(metric.value(BOXES.judge([None], [Box(0, 0, 10, 10)])))


def test_sizes_are_coco_s():
    sides = {31: "small", 32: "medium", 95: "medium", 96: "large"}
    assert {side: size_of(Box(0, 0, side, side)) for side in sides} == sides


def test_predictions_are_read_in_the_frame_of_their_row(tmp_path):
    frame = Frame(640, 480, Resize(kind="letterbox", side=336).view(640, 480),
                  COORDINATES["llava"])  # fmt: skip
    row = {"task": "grounding", "target": {"box": [50, 100, 320, 350]}, "frame": frame.to_dict()}
    texts = {"a": "[0.078, 0.281, 0.500, 0.672]", "b": "[0.5, 0.3", "c": "[0.6, 0.3, 0.3, 0.6]"}
    lines = [json.dumps({**row, "id": key, "text": text}) + "\n" for key, text in texts.items()]
    file = tmp_path / "predictions.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    scores = score(file)
    assert [r["reason"] for r in scores.rows] == [None, "cut off within a shape", "reversed box"]
    assert scores.columns["lenient_iou"] == pytest.approx(
        [0.997, 0, iou(Box(192, 112, 384, 304), Box(50, 100, 320, 350))], abs=2e-3
    )
    assert scores.columns["iou"] == pytest.approx([0.997, 0, 0], abs=2e-3)
    assert scores.rows[0]["parsed"]["box"] == pytest.approx([49.92, 99.84, 320, 350.08])
    del row["frame"]
    file.write_text(json.dumps({**row, "id": "a", "text": texts["a"]}) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: boxes, polygons and points need the frame"):
        score(file)


def read_as_vlmevalkit(text, width, height):
    """``_parse_prediction`` of RefCOCO in VLMEvalKit, then clipped and its corners sorted.

    The first four numbers in square brackets, else the first four numbers of the text.
    """
    number = r"[-+]?\d*\.?\d+"
    found = re.search(rf"\[\s*{number}(?:(?:\s*,\s*|\s+){number}){{3}}\s*\]", text)
    numbers = [float(n) for n in re.findall(number, found[0] if found else text)[:4]]
    if len(numbers) < 4:
        return None
    xs = sorted(min(max(x, 0), width) for x in numbers[::2])
    ys = sorted(min(max(y, 0), height) for y in numbers[1::2])
    return Box(xs[0], ys[0], xs[1], ys[1])


def by_edges(a, b):
    width = max(0, min(a.x2, b.x2) - max(a.x1, b.x1))
    height = max(0, min(a.y2, b.y2) - max(a.y1, b.y1))
    areas = [(box.x2 - box.x1) * (box.y2 - box.y1) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def test_the_lenient_accuracy_is_that_of_a_script_that_reads_prose():
    """As of published answers: JSON mostly, boxes in prose, reversed ones, and none at all."""
    frame = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen2_5_vl"])
    rng = random.Random(3)
    answers, texts, targets = [], [], []
    for n in range(120):
        x, y = rng.randint(0, 400), rng.randint(0, 300)
        true = [x, y, x + rng.randint(20, 200), y + rng.randint(20, 150)]
        near = [number + rng.randint(-25, 25) for number in true]
        numbers = ",".join(map(str, near if n % 20 else [*near[2:], *near[:2]]))
        text = f'[{{"bbox_2d": [{numbers}], "label": "dog"}}]'
        if n % 8 == 0:
            text = f"The bounding box of the dog is ({numbers})." if n % 3 else f"It is [{numbers}]"
        if n % 30 == 7:
            text = "There is no dog."
        texts.append(text)
        answers.append(Grounding().parse(text, frame))
        targets.append(Box(*map(float, true)))
    columns = BOXES.judge(answers, targets, [(640, 480)] * 120)
    boxes = [read_as_vlmevalkit(text, 640, 480) for text in texts]
    ious = [0 if a is None else by_edges(a, b) for a, b in zip(boxes, targets, strict=True)]
    strict, lenient = (columns[f"{kind}accuracy_at_0.5"].mean() for kind in ("", "lenient_"))
    assert columns["lenient_iou"] == pytest.approx(ious)
    assert lenient == np.mean(np.array(ious) >= 0.5)
    assert strict < lenient  # by the reversed boxes alone
