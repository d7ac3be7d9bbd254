"""Estimate the errors of labels from a second, correct one: ``mm-numeric labels --again``.

times     minutes on a circle of 12 hours
numbers   differences, or with ``log`` differences of the natural logarithms
boxes     edges in pixels of the original image; another shape counts as the box around it
lists     edges of matched objects: boxes are matched one to one by decreasing IoU, from 0.2 on,
          whatever their labels; ignored objects are left out
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from mm_numeric.answers import HALF_DAY_MINUTES, Box, ClockTime, Example, Instances, Number, Polygon
from mm_numeric.evaluation.answers.source import PreparedRows, read_questions
from mm_numeric.evaluation.metrics import polygon_iou
from mm_numeric.evaluation.metrics.clock import with_hands_swapped
from mm_numeric.geometry.row_shapes import around
from mm_numeric.labels.advice import advice
from mm_numeric.labels.errors import Differences, Estimate, Floats, estimate_errors, share_of
from mm_numeric.tasks.base import Task

Pair = tuple[Example, Example]  # a row with its first and with its second label
Line = tuple[str, Estimate, str]  # name, estimate and unit of an error

_LEAST_ROWS, _MATCHED_IOU = 50, 0.2
_UNITS = {ClockTime: "min", Number: "", Box: "px", Polygon: "px", Instances: "px"}


def read_pairs(task: Task, first: Path, second: Path) -> list[Pair]:
    """Return the rows of the second file, of which each must be in the first, with both labels."""
    known, again = (read_questions(task, PreparedRows(path=own)) for own in (first, second))
    if missing := [own.example for key, own in again.items() if key not in known]:
        raise ValueError(
            f"{missing[0].where}: the row {missing[0].id!r:.60} is not in {first}, and so for "
            f"{len(missing)} of {len(again)} rows; keep the ids, such as {next(iter(known))!r:.60}."
        )
    if len(again) < _LEAST_ROWS:
        raise ValueError(
            f"{second}: {len(again)} rows are too few; label {_LEAST_ROWS} or more, at random."
        )
    return [(known[key].example, own.example) for key, own in again.items()]


def compare_labels(pairs: Sequence[Pair], *, log: bool = False) -> tuple[list[Line], str]:
    """Estimate the errors of the first labels of rows, and return them with a line of advice."""
    sides = [[example.answer for example in side] for side in zip(*pairs, strict=True)]
    kind, where = type(sides[0][0]), pairs[0][0].where
    if kind not in _UNITS:
        raise ValueError(
            f"{where}: --again is for times, numbers, boxes and objects, not {kind.__name__}."
        )
    for own in [own for pair in pairs for own in pair if log]:
        if kind is not Number or own.answer.value <= 0:
            raise ValueError(f"{own.where}: --log is for numbers above 0, not {own.answer}.")
    data, more = _lists(sides, where) if kind is Instances else (_data(sides, log), [])
    errors, unit = estimate_errors(data), "%" if log else _UNITS[kind]
    names = ("bias",) if len(errors.biases) == 1 else ("larger on each side", "right", "down")
    different = share_of(sum(a != b for a, b in zip(*sides, strict=True)), len(pairs))
    lines = [
        ("noise (standard deviation)", errors.noise, unit),
        *((name, bias, unit) for name, bias in zip(names, errors.biases, strict=True)),
        *((name, share, "%") for name, share in errors.shares.items() if kind is not Instances),
        *more,
        ("different labels", different, "%"),
    ]
    return lines, advice(errors, unit, data.unit)


def _data(sides: Sequence[Sequence[Any]], log: bool) -> Differences:
    """Return the differences of times, numbers or boxes."""
    kind = type(sides[0][0])
    if kind is ClockTime:
        both = np.array([[[own.minutes] for own in side] for side in sides], float)
        swapped = np.array([[[with_hands_swapped(own).minutes]] for own in sides[1]])
        forms = {"hands swapped": swapped, "off by an hour": both[1][:, None] + [[-60], [60]]}
        return _differences(both, -math.log(HALF_DAY_MINUTES), forms, HALF_DAY_MINUTES)
    if kind is Number:
        scale = math.log if log else float
        both = np.array([[[scale(own.value)] for own in side] for side in sides])
        return _differences(both, -math.log(np.ptp(both) or 1), {})
    both = np.array([[astuple(around(own)) for own in side] for side in sides])
    area = both[..., 2].max() * both[..., 3].max()
    forms = {"x and y swapped": both[1][:, None, [1, 0, 3, 2]]}
    return _differences(both, math.log(4 / area**2), forms)


def _lists(sides: Sequence[Sequence[Instances]], where: str) -> tuple[Differences, list[Line]]:
    """Return the differences of matched boxes, and shares of missing, extra and other objects."""
    items = [[[i for i in own.items if not i.ignore] for own in side] for side in sides]
    shapes = [[[around(i.shape) for i in own] for own in side] for side in items]
    one, two = map(polygon_iou.collect_shapes, shapes)
    pairs = polygon_iou.overlapping_pairs(one, two)
    ious = polygon_iou.ious(one, two, pairs)
    order = np.argsort(-ious, kind="stable")
    pairs = pairs.select(order[ious[order] >= _MATCHED_IOU])
    pairs = pairs.select(polygon_iou.greedy_one_to_one(pairs))
    if not (count := len(pairs.truth)):
        raise ValueError(f"{where}: no object here or below is in both labellings of its image.")
    names = [np.array([i.label for own in side for i in own], object) for side in items]
    changed = (names[0][pairs.detection] != names[1][pairs.truth]).sum()
    both = np.stack([one.bounds[pairs.detection], two.bounds[pairs.truth]])
    data = _differences(both, -math.inf, {})._replace(groups=one.image[pairs.detection])
    return data, [
        ("missing objects", share_of(len(two.areas) - count, len(two.areas)), "%"),
        ("extra objects", share_of(len(one.areas) - count, len(one.areas)), "%"),
        ("another class", share_of(float(changed), count), "%"),
    ]


def _differences(
    both: Floats, log_random: float, mixups: Mapping[str, Floats], period: int | None = None
) -> Differences:
    """Return differences; ``both`` is [2, n, e], ``mixups`` are forms of the second [n, o, e]."""

    def shortest(values: Floats) -> Floats:
        return values if period is None else (values + period / 2) % period - period / 2

    unit = float(np.diff(np.unique(both)).min(initial=1 if np.ptp(both) == 0 else math.inf))
    if period is None:  # errors below a hundredth of the interquartile range do not matter
        unit = max(unit, float(np.ptp(np.percentile(both[1], [25, 75]))) / 100)
    forms = {name: shortest(both[0][:, None] - own) for name, own in mixups.items()}
    values = shortest(both[0] - both[1])
    return Differences(values, unit, np.arange(len(values)), log_random, forms)
