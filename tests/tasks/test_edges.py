"""Decisions of tasks and scorers at their edges: order, image borders, and which way is better."""

import inspect
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

from mm_numeric.answers import Box, Instance, Instances, Number, Polygon, Unreadable
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.metrics.number_errors import NUMBERS
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.registry import SCORERS, load
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.text_detection import TextDetection

LOWER_IS_BETTER = re.compile(
    r"mae|rmse|mape|median_absolute_error|deviation|delta_seconds|unreadable|hand_swaps|"
    "nearest_credit|predicted_invalid|invalid_detections|duplicates|truncated"
)


def test_the_largest_shape_is_first_whatever_its_direction():
    small = Polygon(((90, 90), (94, 90), (94, 94), (90, 94)))
    middle = Box(10, 10, 15, 14)  # 20 square pixels, more than its polygon has
    triangle = Polygon(((20, 20), (20, 30), (30, 20)))  # 50, counterclockwise
    large = Polygon(((50, 50), (58, 50), (58, 58), (50, 58)))  # 64, clockwise
    answer = Instances(tuple(map(Instance, (small, large, middle, triangle))))
    written = []
    frame = SimpleNamespace(
        write=lambda items: written.extend(item.shape for item in items),
        quantised=lambda shape: shape,
    )
    TextDetection(order="area").format(answer, frame)
    assert written == [large, triangle, middle, small]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((0, 0, 100, 50), None),
        ((-5, -5, 0, 0), None),  # touches the image
        ((100, 50, 120, 60), None),
        ((-5, -5, -1, 3), "outside the image"),
        ((2, -9, 5, -1), "outside the image"),
        ((101, 0, 120, 9), "outside the image"),
        ((0, 51, 9, 60), "outside the image"),
        ((9, 0, 8, 9), "reversed box"),
        ((0, 9, 9, 8), "reversed box"),
        ((3, 4, 3, 4), None),
    ],
)
def test_a_box_at_the_border_of_the_image(box, reason):
    found = Instances((Instance(Box(*box)),))
    frame = SimpleNamespace(read=lambda text: found, width_px=100, height_px=50)
    parsed = Grounding().parse("", frame)
    assert parsed == Box(*box) if reason is None else parsed.reason == reason
    assert isinstance(parsed, Unreadable) == (reason is not None)


PATHS = [*SCORERS.values(), "mm_numeric.evaluation.metrics.number_errors:GSM8K"]


@pytest.mark.parametrize("path", PATHS)
def test_each_metric_knows_whether_higher_is_better(path):
    scorer = load(path, "test")
    assert isinstance(scorer, Scorer)
    for metric in scorer.metrics:
        assert metric.higher_is_better != bool(LOWER_IS_BETTER.search(metric.name)), metric.name


def test_the_tolerances_of_close_numbers_are_those_of_numpy():
    rules = NUMBERS.protocols["is_close"]
    signature = inspect.signature(np.isclose).parameters
    assert rules["relative tolerance"] == signature["rtol"].default
    assert rules["absolute tolerance"] == signature["atol"].default
    for target, answer in itertools.product(["0", "1", "1000000"], repeat=2):
        for shift in ("", ".000000009", ".000011", ".0000095"):
            columns = NUMBERS.columns([Number(answer + shift)], [Number(target)])
            assert columns["is_close"][0] == np.isclose(float(answer + shift), float(target))


def test_numbers_beyond_a_float_are_close_by_value():
    numbers = [("1e200", "1e160"), ("1e200", "1.000009e200"), ("-1e200", "1e200")]
    numbers += [("9" * 400, "1" + "0" * 400), ("1e999", "1.1e999")]
    answers, targets = ([Number(text) for text in texts] for texts in zip(*numbers, strict=True))
    assert NUMBERS.columns(answers, targets)["is_close"].tolist() == [0, 1, 0, 1, 0]
    assert len(in_unit(1e300, "%")) < 12
