"""Estimate the errors of labels from a second labelling: ``mm-numeric labels --again``.

The second labelling counts as correct, unless ``same_care``: see ``mm_numeric.labels.errors``.

times     minutes on a circle of 12 hours, or of 24 if an hour is above 12
numbers   differences, or with ``log`` differences of the natural logarithms
boxes     edges in pixels of the original image; another shape counts as the box around it
lists     edges of matched objects: boxes are matched one to one by decreasing IoU, from 0.2 on,
          whatever their labels; ignored objects are left out
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.answers import (
    HALF_DAY_MINUTES,
    Box,
    ClockReading,
    ClockTime,
    Example,
    Instance,
    Instances,
    Number,
    Polygon,
)
from mm_numeric.evaluation.answers.source import PreparedRows, read_questions
from mm_numeric.evaluation.metrics.boxes import iou
from mm_numeric.evaluation.metrics.clock import with_hands_swapped
from mm_numeric.evaluation.score_text import in_unit, indented_table
from mm_numeric.geometry.row_shapes import around
from mm_numeric.labels.advice import BOXES, LISTS, NUMBERS, TIMES, advice
from mm_numeric.labels.errors import (
    Differences,
    Estimate,
    Floats,
    LabelErrors,
    estimate_errors,
    share_of,
)
from mm_numeric.tasks.base import Task

LEAST_ROWS = 50
"""A second labelling has at least this many rows."""

MATCHED_IOU = 0.2
"""Two boxes of a list are the same object only if their IoU is at least this."""

_SHOWN = 5  # rows whose labels differ most


class Pair(NamedTuple):
    """A row with both of its labels."""

    first: Example
    second: Example


class SecondLabelling(NamedTuple):
    """The errors of labels, as a second labelling shows them."""

    heading: str
    errors: LabelErrors
    lines: list[tuple[str, Estimate, str]]
    """Name, estimate and unit of each line of the table."""

    farthest: list[tuple[float, Pair]]
    """Distance of the labels of each row, and the row; the largest distance first."""

    advice: str

    def different_rows(self, task: Task) -> list[dict[str, Any]]:
        """Return the rows with different labels for JSON, the most different first."""
        return [
            {
                "id": first.id,
                "image": None if first.image is None else str(first.image),
                "label": task.record(first.answer),
                "second_label": task.record(second.answer),
                "distance": distance,
            }
            for distance, (first, second) in self.farthest
            if distance > 0
        ]

    def text(self, task: Task) -> str:
        """Return the estimates as a table, the rows that differ most, and the advice."""
        table = []
        for name, (value, low, high), unit in self.lines:
            interval = f"{in_unit(low, unit)} to {in_unit(high, unit)}"
            table.append((name, in_unit(value, unit), interval))
        far = "; ".join(
            f"{row['id']}: {json.dumps(row['label']):.60} and {json.dumps(row['second_label']):.60}"
            for row in self.different_rows(task)[:_SHOWN]
        )
        shown = f"most different: {far}\n" if far else ""
        return f"{self.heading}\n{indented_table(table)}\n{shown}advice: {self.advice}"


def read_pairs(task: Task, first: PreparedRows, second: PreparedRows) -> list[Pair]:
    """Return the rows that both files have, in the order of the second file.

    Rows are matched by id or, if no id is in both files, by image and question. Raises ValueError
    if a row of the second file is not in the first, or if there are fewer than ``LEAST_ROWS``.
    """
    known, again = (
        [own.example for own in read_questions(task, f).values()] for f in (first, second)
    )
    rows: dict[Any, Example] = {example.id: example for example in known}
    keys: list[Any] = [example.id for example in again]
    by_question = {_question(example): example for example in known}
    if not rows.keys() & keys and len(by_question) == len(known):
        rows, keys = by_question, [_question(example) for example in again]
    missing = [example for key, example in zip(keys, again, strict=True) if key not in rows]
    if missing:
        raise ValueError(
            f"{missing[0].where}: the row {missing[0].id!r:.60} is not in {first.path}, where "
            f"ids are such as {known[0].id!r:.60}, and so for {len(missing)} of {len(again)} rows; "
            "keep the ids in the second labelling."
        )
    pairs = [Pair(rows[key], example) for key, example in zip(keys, again, strict=True)]
    for one, other in pairs:
        if one.prompt != other.prompt:
            raise ValueError(
                f"{other.where}: the question {other.prompt!r:.60} is not {one.prompt!r:.60} as in "
                f"{one.where}; label the same question again."
            )
    if len(pairs) < LEAST_ROWS:
        raise ValueError(
            f"{second.path}: {len(pairs)} rows are too few for an estimate; label at least "
            f"{LEAST_ROWS} rows again, drawn at random."
        )
    return pairs


def compare_labels(
    pairs: Sequence[Pair], *, log: bool = False, same_care: bool = False
) -> SecondLabelling:
    """Estimate the errors of the first labels of rows; ``log`` is for numbers."""
    kind = _kind(pairs[0].first)
    if log and kind != NUMBERS:
        raise ValueError(f"--log is for numbers, and these labels are {kind}.")
    different = sum(first.answer != second.answer for first, second in pairs)
    more = [("different labels", share_of(different, len(pairs)), "%")]
    if kind == LISTS:
        data, distances, own = _lists(pairs)
        more += own
    else:
        sides = [np.array([_values(e, log=log) for e in side]) for side in zip(*pairs, strict=True)]
        data = {TIMES: _times, NUMBERS: _numbers, BOXES: _boxes}[kind](sides, log, same_care)
        distances = abs(data.values).max(axis=1).tolist()
    if kind == BOXES:
        ious = np.array([iou(around(a.answer), around(b.answer)) for a, b in pairs])
        distances = (1 - ious).tolist()
        more.append(("mean IoU", _mean(ious), ""))
    errors = estimate_errors(data, same_care=same_care)
    unit = "%" if log else {TIMES: "min", NUMBERS: ""}.get(kind, "px")
    names = ("bias",) if len(errors.biases) == 1 else ("larger on each side", "right", "down")
    biases = [] if same_care else list(zip(names, errors.biases, [unit] * 3, strict=False))
    shares = [(name, share, "%") for name, share in errors.shares.items()]
    care = "have errors of the same distribution" if same_care else "count as correct"
    return SecondLabelling(
        heading=f"{len(pairs)} rows, {kind}; second labels {care}; 95 % intervals",
        errors=errors,
        lines=[("noise (standard deviation)", errors.noise, unit), *biases, *shares, *more],
        farthest=sorted(zip(distances, pairs, strict=True), key=lambda own: -own[0]),
        advice=advice(kind, errors, unit, data.unit, same_care=same_care),
    )


def _question(example: Example) -> tuple[str, str]:
    return "" if example.image is None else example.image.name, example.prompt


def _kind(example: Example) -> str:
    kinds: dict[str, tuple[type, ...]] = {
        TIMES: (ClockTime, ClockReading),
        NUMBERS: (Number,),
        BOXES: (Box, Polygon),
        LISTS: (Instances,),
    }
    for kind, types in kinds.items():
        if isinstance(example.answer, types):
            return kind
    raise ValueError(
        f"{example.where}: the label is of the type {type(example.answer).__name__}; a second "
        "labelling is compared for times, numbers, boxes and lists of objects."
    )


def _values(example: Example, *, log: bool) -> list[float]:
    answer = example.answer
    if isinstance(answer, ClockTime):
        return [float(answer.minutes)]
    if isinstance(answer, ClockReading):
        fields = [answer.fields.get(name, False) for name in ClockReading.FIELDS[:3]]
        if not all(isinstance(own, int) for own in fields) or fields[0] is False:
            raise ValueError(
                f"{example.where}: the label has no time, or accepts several times; remove the row."
            )
        return [60 * fields[0] + fields[1] + fields[2] / 60]
    if isinstance(answer, Number):
        if log and answer.value <= 0:
            raise ValueError(f"{example.where}: --log needs numbers above 0, not {answer}.")
        return [math.log(answer.value) if log else answer.value]
    return _corners(around(answer))


def _corners(box: Box) -> list[float]:
    return [box.x1, box.y1, box.x2, box.y2]


def _differences(
    sides: Sequence[Floats],
    mixups: Mapping[str, Callable[[Floats], Floats]],
    log_random: float | None,
    same_care: bool,
    period: float = math.inf,
) -> Differences:
    """Return the differences of two labellings [n, e]; ``mixups`` map values to forms [n, o, e].

    With ``same_care``, either of the labels may be the one with the mix-up.
    """

    def shortest(values: Floats) -> Floats:
        half = period / 2
        return values if math.isinf(period) else (values + half) % period - half

    first, second = sides
    forms = {}
    for name, form in mixups.items():
        own = [first[:, None] - form(second), second[:, None] - form(first)]
        forms[name] = shortest(np.concatenate(own[: 1 + same_care], axis=1))
    steps = np.diff(np.unique(np.concatenate(sides)))
    unit = float(steps.min()) if len(steps) else 1.0
    if math.isinf(period):  # errors below a hundredth of the interquartile range do not matter
        unit = max(unit, float(np.ptp(np.percentile(second, [25, 75]))) / 100)
    return Differences(
        values=shortest(first - second),
        mixups=forms,
        log_random=log_random,
        unit=unit,
        groups=np.arange(len(first)),
    )


def _times(sides: Sequence[Floats], log: bool, same_care: bool) -> Differences:
    period = HALF_DAY_MINUTES * (1 + (max(side.max() for side in sides) >= HALF_DAY_MINUTES + 60))

    def swapped(times: Floats) -> Floats:
        dials = (ClockTime.from_minutes(round(own)) for own in times[:, 0])
        found = np.array([[[float(with_hands_swapped(dial).minutes)]] for dial in dials])
        return found + (times // HALF_DAY_MINUTES * HALF_DAY_MINUTES)[:, None]

    def hours_off(times: Floats) -> Floats:
        return times[:, None] + np.array([[-60.0], [60.0]])

    mixups = {"hands swapped": swapped, "off by an hour": hours_off}
    return _differences(sides, mixups, -math.log(period), same_care, period)


def _numbers(sides: Sequence[Floats], log: bool, same_care: bool) -> Differences:
    def tenfold(values: Floats) -> Floats:
        ten = math.log(10)
        return np.stack([values - ten, values + ten] if log else [values / 10, values * 10], axis=1)

    log_random = -math.log(np.ptp(np.concatenate(sides)) or 1)
    return _differences(sides, {"off by a factor of 10": tenfold}, log_random, same_care)


def _boxes(sides: Sequence[Floats], log: bool, same_care: bool) -> Differences:
    def exchanged(boxes: Floats) -> Floats:
        return boxes[:, None, [1, 0, 3, 2]]

    width, height = np.concatenate(sides)[:, 2:].max(axis=0)
    log_random = math.log(4 / (width * height) ** 2)
    return _differences(sides, {"x and y swapped": exchanged}, log_random, same_care)


def _lists(
    pairs: Sequence[Pair],
) -> tuple[Differences, list[float], list[tuple[str, Estimate, str]]]:
    """Return the differences of matched boxes, the differing objects per row, and shares."""
    boxes: list[tuple[Box, Box]] = []
    groups: list[int] = []
    changed: list[bool] = []
    distances, counts = [], np.zeros(2)
    for row, pair in enumerate(pairs):
        one, other = ([item for item in side.answer.items if not item.ignore] for side in pair)
        found = _matched(one, other)
        boxes += [(around(a.shape), around(b.shape)) for a, b in found]
        groups += [row] * len(found)
        own = [a.label != b.label for a, b in found]
        changed += own
        counts += len(one), len(other)
        distances.append(float(len(one) + len(other) - 2 * len(found) + sum(own)))
    if not boxes:
        where = pairs[0].second.where
        raise ValueError(f"{where}: no object here or below is in both labellings of its image.")
    sides = [np.array([_corners(pair[side]) for pair in boxes]) for side in (0, 1)]
    data = replace(
        _differences(sides, {}, None, same_care=False),
        groups=np.unique(groups, return_inverse=True)[1],
    )
    extra, missing = counts - len(boxes)
    shares = [
        ("missing objects", share_of(missing, counts[1]), "%"),
        ("extra objects", share_of(extra, counts[0]), "%"),
        ("another class", share_of(sum(changed), len(changed)), "%"),
        ("mean IoU", _mean(np.array([iou(*own) for own in boxes])), ""),
    ]
    return data, distances, shares


def _mean(values: Floats) -> Estimate:
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    return Estimate(mean, mean - 1.96 * error, mean + 1.96 * error)


def _matched(one: Sequence[Instance], other: Sequence[Instance]) -> list[tuple[Instance, Instance]]:
    pairs = [
        (iou(around(a.shape), around(b.shape)), i, j)
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]
    found: dict[int, int] = {}
    for overlap, i, j in sorted(pairs, reverse=True):
        if overlap >= MATCHED_IOU and i not in found and j not in found.values():
            found[i] = j
    return [(one[i], other[j]) for i, j in found.items()]
