"""Areas and intersections of polygons that cross themselves, as in the package Polygon."""

import numpy as np
import pytest
from crossing_shapes import instances, moved_quads

from mm_numeric.answers import Box, Polygon
from mm_numeric.evaluation.metrics.detection import TEXT_DETECTION
from mm_numeric.evaluation.metrics.polygon_iou import (
    Pairs,
    collect_shapes,
    intersection_areas,
    ious,
)

RECTANGLE = ((0, 0), (40, 0), (40, 20), (0, 20))

# Printed by Polygon3 3.0.9.1: the area of the polygon, of its intersection with the rectangle, and
# of its intersection with itself.
PRINTED = {
    "bow tie": (((0, 0), (40, 20), (40, 0), (0, 20)), 0.0, 400.0, 400.0),
    "uneven bow tie": (((0, 0), (40, 30), (40, 0), (0, 10)), 400.0, 433.3333333333333, 500.0),
    "spike": (((0, 0), (60, 0), (30, 0), (30, 20)), 300.0, 300.0, 300.0),
    "pentagram": (
        ((20, 0), (32, 36), (0, 14), (40, 14), (8, 36)),
        608.0,
        184.96969696969694,
        321.0056497175142,
    ),
    "double loop": (
        ((0, 0), (30, 0), (30, 20), (10, 20), (10, -5), (20, -5), (20, 10), (0, 10)),
        650.0,
        400.0,
        450.0,
    ),
    "repeated corner": (((0, 0), (0, 0), (30, 20), (0, 20)), 300.0, 300.0, 300.0),
    "other direction": (RECTANGLE[::-1], 800.0, 800.0, 800.0),
}


@pytest.mark.parametrize("name", PRINTED)
def test_areas_are_those_that_the_package_polygon_printed(name):
    corners, area, with_rectangle, with_itself = PRINTED[name]
    polygon = Polygon(tuple(corners))
    one, both = collect_shapes([[polygon] * 2]), collect_shapes([[Polygon(RECTANGLE), polygon]])
    at = np.arange(2)
    shared = intersection_areas(one, at, both, at)
    assert one.ring_areas.tolist() == [pytest.approx(area, abs=1e-9)] * 2
    assert shared.tolist() == pytest.approx([with_rectangle, with_itself], abs=1e-9)
    assert one.areas.tolist() == [pytest.approx(with_itself, abs=1e-9)] * 2  # repaired
    is_invalid = name not in ("repeated corner", "other direction")
    assert one.invalid.tolist() == [is_invalid] * 2


def test_iou_uses_repaired_areas_unless_the_areas_as_written_are_asked_for():
    # Half of the bow tie's rectangle is inside the bow tie, whose loops cancel each other.
    bow_tie = collect_shapes([[Polygon(PRINTED["bow tie"][0])]])
    rectangle = collect_shapes([[Box(0, 0, 40, 20)]])
    at = np.zeros(1, dtype=np.int64)
    for truth, repaired, as_written in ((rectangle, 0.5, 1.0), (bow_tie, 1.0, 0.0)):
        pairs = Pairs(at, at, intersection_areas(bow_tie, at, truth, at))
        assert ious(bow_tie, truth, pairs) == repaired
        assert ious(bow_tie, truth, pairs, ring_areas=True) == as_written


def test_hmean_of_crossing_quads_is_that_of_the_icdar_script_with_polygon3():
    """Figures of the script's matching loop with Polygon3 3.0.9.1, for 704 synthetic detections.

    24 % of the detections cross themselves. With repaired polygons, Hmean was 0.5159.
    """
    images = moved_quads(200, seed=1)
    columns = TEXT_DETECTION.columns(
        [instances(found) for found, _, _ in images],
        [instances(truths, ignored) for _, truths, ignored in images],
    )
    sums = [columns[name].sum() for name in ("matched", "detected", "truths")]
    assert sums == [344, 520, 595]
    figures = {m.name: float(m.value(columns)) for m in TEXT_DETECTION.metrics}
    assert figures["precision"] == 0.6615384615384615
    assert figures["recall"] == 0.5781512605042017
    assert figures["hmean"] == pytest.approx(0.6170403587443947, abs=1e-15)
    assert figures["invalid_detections"] == pytest.approx(0.243, abs=1e-3)
    assert figures["mean_iou_of_pairs"] <= 1
    rules = TEXT_DETECTION.protocols["hmean, precision, recall"]["invalid polygons"]
    assert "shoelace" in rules
