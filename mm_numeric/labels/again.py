"""Estimate the errors of labels from a second labelling: ``mm-numeric labels --again``.

The second labelling counts as correct, unless ``same_care``: see ``mm_numeric.labels.errors``.

times     minutes on a circle of 12 hours, or of 24 if an hour is above 12
numbers   differences, or with ``log`` differences of the natural logarithms
boxes     edges in pixels of the original image; another shape counts as the box around it
lists     edges of matched objects: boxes are matched one to one by decreasing IoU, from 0.2 on,
          whatever their labels; ignored objects are left out
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    Measurement,
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

_SHOWN = 5  # rows whose labels are farthest apart


class Pair(NamedTuple):
    """A row with both of its labels."""

    first: Example
    second: Example


@dataclass(frozen=True, kw_only=True)
class SecondLabelling:
    """The errors of labels, as a second labelling shows them."""

    kind: str
    """Kind of the answers: times, numbers, boxes or lists of objects."""

    unit: str
    """Unit of noise and biases: min, px, "" or, for logarithms, %."""

    errors: LabelErrors
    advice: str
    """Which loss and decoding rule fit such labels, with the evidence, in one line."""

    more: Mapping[str, Estimate]
    """Share of different labels; for lists, also of missing and extra objects, and so on."""

    farthest: Sequence[tuple[float, Pair]]
    """Distance of the two labels of each row, and the row; the largest distance first."""

    same_care: bool

    def text(self) -> str:
        """Return the estimates as a table, the rows with the largest distance, and the advice."""
        care = "have errors of the same size" if self.same_care else "count as correct"
        errors, lists = self.errors, self.kind == LISTS
        cells = [("noise (standard deviation)", errors.noise, self.unit)]
        names = ("larger on each side", "right", "down") if len(errors.biases) > 1 else ("",)
        if not self.same_care:
            for name, bias in zip(names, errors.biases, strict=True):
                cells.append((f"bias{f' ({name})' if name else ''}", bias, self.unit))
        shares = [*errors.shares.items(), *self.more.items()]
        cells += [(name, share, "%" * (name != "mean IoU")) for name, share in shares]
        table = indented_table(
            [
                (
                    name,
                    in_unit(own.value, unit),
                    f"{in_unit(own.low, unit)} to {in_unit(own.high, unit)}",
                )
                for name, own, unit in cells
            ]
        )
        rows = f"{len(self.farthest)} rows labelled twice, {self.kind}"
        far = "; ".join(
            f"{pair.first.id}: {_short(pair.first.answer)} and {_short(pair.second.answer)}"
            for distance, pair in self.farthest[:_SHOWN]
            if distance > 0 and not lists
        )
        shown = f"farthest apart: {far}\n" if far else ""
        return (
            f"{rows}; second labels {care}; 95 % intervals\n{table}\n{shown}advice: {self.advice}"
        )


def read_pairs(task: Task, first: PreparedRows, second: PreparedRows) -> list[Pair]:
    """Return the rows that both files have, in the order of the second file.

    Rows are matched by id or, if no id is in both files, by image and question. Raises ValueError
    if a row of the second file is not in the first, or if there are fewer than ``LEAST_ROWS``.
    """
    known, again = (
        [question.example for question in read_questions(task, rows).values()]
        for rows in (first, second)
    )
    by_id = {example.id: example for example in known}
    key: Callable[[Example], Any] = lambda example: example.id  # noqa: E731
    if not any(example.id in by_id for example in again):
        key = _question
    rows = {key(example): example for example in known}
    missing = [example for example in again if key(example) not in rows]
    if missing:
        raise ValueError(
            f"{missing[0].where}: neither the id {missing[0].id!r:.60} nor the image and question "
            f"are in {first.path} (ids such as {known[0].id!r:.60}), and so for {len(missing)} of "
            f"{len(again)} rows; keep the ids in the second labelling."
        )
    if key is _question and len(rows) < len(known):
        raise ValueError(
            f"{first.path}: several rows have the same image and question, and no id is in both "
            "files; give the rows ids."
        )
    pairs = [Pair(rows[key(example)], example) for example in again]
    for one, other in pairs:
        if one.prompt != other.prompt:
            raise ValueError(
                f"{other.where}: the question {other.prompt!r:.60} differs from {one.prompt!r:.60} "
                f"in {one.where}; label the same question again."
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
    first = [pair.first.answer for pair in pairs]
    second = [pair.second.answer for pair in pairs]
    kind = _kind(pairs[0].first)
    if log and kind != NUMBERS:
        raise ValueError(f"--log is for numbers, and these labels are {kind}.")
    own = [one != other for one, other in zip(first, second, strict=True)]
    more = {"different labels": share_of(sum(own), len(own))}
    if kind == LISTS:
        data, distances, counts = _lists(first, second)
        more |= counts
    else:
        sides = [np.array([_values(e, log=log) for e in side]) for side in zip(*pairs, strict=True)]
        data = {TIMES: _times, NUMBERS: _numbers, BOXES: _boxes}[kind](sides, log, same_care)
        distances = abs(data.values).max(axis=1).tolist()
    if kind == BOXES:
        ious = np.array([iou(around(a), around(b)) for a, b in zip(first, second, strict=True)])
        distances = (1 - ious).tolist()
        more["mean IoU"] = _mean(ious)
    errors = estimate_errors(data, same_care=same_care)
    unit = "%" if log else {TIMES: "min", NUMBERS: ""}.get(kind, "px")
    order = sorted(range(len(pairs)), key=lambda i: -distances[i])
    return SecondLabelling(
        kind=kind,
        unit=unit,
        errors=errors,
        advice=advice(kind, errors, unit, data.unit, same_care=same_care),
        more=more,
        farthest=[(distances[i], pairs[i]) for i in order],
        same_care=same_care,
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
            return TIMES if getattr(example.answer, "is_time", False) else kind
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
    if isinstance(answer, Measurement) and answer.is_time:
        return [answer.value / 60]
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
    return Differences(
        values=shortest(first - second),
        mixups=forms,
        log_random=log_random,
        unit=float(steps.min()) if len(steps) else 1.0,
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
        forms = (
            (values - math.log(10), values + math.log(10)) if log else (values / 10, values * 10)
        )
        return np.stack(forms, axis=1)

    extent = float(np.ptp(np.concatenate(sides)))
    return _differences(
        sides, {"off by a factor of 10": tenfold}, -math.log(extent or 1), same_care
    )


def _boxes(sides: Sequence[Floats], log: bool, same_care: bool) -> Differences:
    def exchanged(boxes: Floats) -> Floats:
        return boxes[:, None, [1, 0, 3, 2]]

    def sizes(boxes: Floats) -> Floats:
        corner, other = boxes[:, :2], boxes[:, 2:]
        forms = np.stack([other - corner, other + corner], axis=1)
        return np.concatenate([np.stack([corner, corner], axis=1), forms], axis=2)

    mixups = {"x and y swapped": exchanged, "size and corner mixed up": sizes}
    width, height = np.concatenate(sides)[:, 2:].max(axis=0)
    return _differences(sides, mixups, math.log(4 / (width * height) ** 2), same_care)


def _lists(
    first: Sequence[Instances], second: Sequence[Instances]
) -> tuple[Differences, list[float], dict[str, Estimate]]:
    """Return the differences of matched boxes, the differing objects per row, and shares."""
    matched, groups, distances, labels = [], [], [], []
    counts = np.zeros(2, dtype=int)
    for i, sides in enumerate(zip(first, second, strict=True)):
        one, other = ([item for item in side.items if not item.ignore] for side in sides)
        found = _matched(one, other)
        matched += [(around(one[a].shape), around(other[b].shape)) for a, b in found]
        changed = [one[a].label != other[b].label for a, b in found]
        labels += changed
        groups += [i] * len(found)
        counts += len(one), len(other)
        distances.append(float(len(one) + len(other) - 2 * len(found) + sum(changed)))
    if not matched:
        raise ValueError("no object of the second labelling overlaps with one of the first.")
    boxes = [np.array([_corners(own[side]) for own in matched]) for side in (0, 1)]
    data = _differences(boxes, {}, None, same_care=False)
    data = replace(data, groups=np.unique(groups, return_inverse=True)[1])
    extra, missing = counts - len(matched)
    ious = np.array([iou(*own) for own in matched])
    shares = {
        "missing objects": share_of(missing, counts[1]),
        "extra objects": share_of(extra, counts[0]),
        "another class": share_of(sum(labels), len(labels)),
        "mean IoU": _mean(ious),
    }
    return data, distances, shares


def _mean(values: Floats) -> Estimate:
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    return Estimate(mean, mean - 1.96 * error, mean + 1.96 * error)


def _matched(one: Sequence[Instance], other: Sequence[Instance]) -> list[tuple[int, int]]:
    pairs = [
        (iou(around(a.shape), around(b.shape)), i, j)
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]
    found: dict[int, int] = {}
    for overlap, i, j in sorted(pairs, key=lambda own: -own[0]):
        if overlap >= MATCHED_IOU and i not in found and j not in found.values():
            found[i] = j
    return list(found.items())


def _short(answer: Any) -> str:
    if isinstance(answer, Box):
        return f"[{answer.x1:g}, {answer.y1:g}, {answer.x2:g}, {answer.y2:g}]"
    if isinstance(answer, ClockReading):
        return ":".join(str(answer.fields.get(name)) for name in ClockReading.FIELDS[:2])
    return f"{answer!s:.60}"
