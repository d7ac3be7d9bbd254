"""Rotated boxes: IoU next to a slow clipping loop and shapely, angles, corners, and drawing."""

import math

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_numeric.answers import Box, Polygon
from mm_numeric.evaluation.metrics.boxes import iou
from mm_numeric.geometry.row_shapes import corners_of, read_rotated_box


def area(points):
    """Signed area by the shoelace formula."""
    total = 0.0
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
        total += (x1 * y2 - x2 * y1) / 2
    return total


def clipped(points, window):
    """Cut a polygon by each edge of a convex window (Sutherland and Hodgman), in float64."""
    for (ax, ay), (bx, by) in zip(window, window[1:] + window[:1], strict=True):
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in points]
        kept = []
        for i, (p, s) in enumerate(zip(points, sides, strict=True)):
            q, t = points[i - 1], sides[i - 1]
            if (s >= 0) != (t >= 0):
                share = t / (t - s)
                kept.append((q[0] + share * (p[0] - q[0]), q[1] + share * (p[1] - q[1])))
            if s >= 0:
                kept.append(p)
        points = kept
    return points


def slow_iou(a, b):
    a, b = list(a.points), list(b.points)
    both = abs(area(clipped(a, b)))
    return both / (abs(area(a)) + abs(area(b)) - both)


sides = st.floats(2, 90)
rotated = st.tuples(st.floats(0, 60), st.floats(0, 60), sides, sides, st.floats(-360, 360)).map(
    lambda numbers: corners_of(read_rotated_box(list(numbers), "test"), "test")
)


@given(a=rotated, b=rotated)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_iou_of_rotated_boxes_is_that_of_a_loop_and_of_shapely(a, b):
    p, q = shapely.Polygon(a.points), shapely.Polygon(b.points)
    assert iou(a, b) == pytest.approx(slow_iou(a, b), abs=1e-9)
    assert iou(a, b) == pytest.approx(p.intersection(q).area / p.union(q).area, abs=1e-9)
    assert iou(a, a) == pytest.approx(1)


def detectron2_corners(x, y, width, height, degrees):
    """get_rotated_vertices of detectron2 (box_iou_rotated_utils.h): counterclockwise degrees."""
    sin, cos = math.sin(math.radians(degrees)) / 2, math.cos(math.radians(degrees)) / 2
    first = x + sin * height + cos * width, y + cos * height - sin * width
    second = x - sin * height + cos * width, y - cos * height - sin * width
    return [first, second, *((2 * x - px, 2 * y - py) for px, py in (first, second))]


@given(box=st.tuples(*[st.floats(1, 50)] * 4), turn=st.floats(-89, 89).filter(lambda a: abs(a) > 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_all_conventions_of_the_angle_are_one_box(box, turn):
    """Oc: 0 to 90; le90: the longer side, -90 to 90; le135: the longer side, -45 to 135."""
    x, y, width, height = box
    same = [(x, y, width, height, turn), (x, y, width, height, turn + 180),
            (x, y, height, width, turn + 90), (x, y, height, width, turn - 90)]  # fmt: skip
    oc = next(b for b in same if 0 < b[4] <= 90)
    longer = [b for b in same if b[2] >= b[3] or width == height]
    le90 = next(b for b in longer if -90 <= b[4] < 90)
    others = [b for b in longer if -45 <= b[4] < 135]
    first = corners_of(read_rotated_box(list(same[0]), "test"), "test")
    for other in (oc, le90, *others[:1]):
        found = corners_of(read_rotated_box(list(other), "test"), "test")
        assert np.array(found.points) == pytest.approx(np.array(first.points), abs=1e-9)
    opposite = detectron2_corners(x, y, width, height, -turn)
    assert sorted(opposite) == [pytest.approx(p, abs=1e-9) for p in sorted(first.points)]
    centre = np.mean(first.points, axis=0)
    assert centre == pytest.approx([x, y])
    assert area(list(first.points)) == pytest.approx(width * height)  # clockwise with y downwards


def test_corners_begin_at_the_top():
    diamond = Polygon(((5, 10), (0, 5), (5, 0), (10, 5)))  # counterclockwise
    assert corners_of(diamond, "test").points == ((5, 0), (10, 5), (5, 10), (0, 5))
    assert corners_of(Box(1, 2, 3, 4), "test").points == ((1, 2), (3, 2), (3, 4), (1, 4))
    with pytest.raises(ValueError, match=r"^row 1: a rotated box has 4 corners, and this polygon"):
        corners_of(Polygon(((0, 0), (1, 0), (0, 1))), "row 1")
    for value in ([1, 2, 0, 4, 5], [1, 2, 3, 4], [1, 2, 3, float("nan"), 5]):
        with pytest.raises(ValueError, match=r"^row 1: .*"):
            read_rotated_box(value, "row 1")
