"""Reward rules: functions that assign a value from 0 to 1 to a parsed answer.

    rule             targets          value
    iou              box, polygon     IoU
                     temporal spans   IoU in time of the first span and the nearest true span
                     list             2 * (sum of the IoUs of pairs) / (answered + true objects)
    acc@T            box, polygon,    1 if IoU >= T
                     temporal spans
    f1@T             list             F1 of pairs with IoU >= T
    point_gaussian   box, polygon,    exp(-(dx^2 + dy^2) / 2) between the centres; dx and dy are in
                     click            units of half the width and half the height of the target
    point_f1         pointing         F1 of the points; a point is right inside its assigned object
    time             clock time       1 - (circular deviation in minutes) / 360
    relative_error   number           1 - |answer - target| / |target|, at least 0; if the target is
                                      0, 1 for an equal answer
    correct          all but lists    1 if the task's scorer counts the answer as correct
    format           all              1 if the text after thoughts, within answer tags, is an answer
                                      in the format of the task, and nothing else

The task's scorer computes all values except those of ``point_gaussian`` and ``format``. If there
are no true objects, an answer without objects has the value 1.

Sources: for one box, ``iou`` and ``acc@T`` are the rewards of VLM-R1 (arXiv 2504.07615) and
Visual-RFT (arXiv 2503.01785); for a list, each missing and each superfluous object reduces ``iou``.
``point_gaussian`` is the point reward of GUI-G2 (arXiv 2507.15846): a Gaussian whose standard
deviations are proportional to the width and the height of the target. It does not depend on the
size of the predicted box, which policies would exploit (GUI-G1, arXiv 2505.15810). ``time`` is
linear in the circular deviation, and ``relative_error`` in the error that MAPE averages.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mm_numeric.answers import Box, ClockTime, Instances, Number, Polygon, Shape, TimeSpans
from mm_numeric.evaluation.metrics.base import THRESHOLDS, Scorer
from mm_numeric.evaluation.metrics.clock import WORST_DEVIATION
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import list_regex
from mm_numeric.geometry.row_shapes import around
from mm_numeric.tasks.base import Task

_DEVIATIONS = 0.5  # standard deviation, as a multiple of the target's width and height
_FENCED = re.compile(r"```(?:json)?(.*)```", re.DOTALL)
_JSON_SPACING = re.compile(r'("(?:[^"\\]|\\.)*+")|\s+|([,:])')


@dataclass(frozen=True)
class ParsedAnswer:
    """A generated text whose answer could be parsed, and the target to compare it with."""

    text: str
    """The part of the generated text that contains the answer: without thoughts and answer tags."""

    answer: Any
    target: Any
    frame: Frame | None
    task: Task
    scorer: Scorer

    @cached_property
    def columns(self) -> dict[str, float]:
        """Return the values that the task's scorer computes for this answer, by column name."""
        found = self.scorer.columns([self.answer], [self.target])
        return {name: float(values[0]) for name, values in found.items()}


@dataclass(frozen=True)
class Rule:
    """A rule that assigns a value to a parsed answer. Unparseable answers have the value 0."""

    name: str

    targets: tuple[type, ...]
    """Types of targets for which the rule is defined, such as ``Box``; ``object`` for all."""

    value: Callable[[ParsedAnswer], float | str]
    """Function that returns the value of an answer, 0 to 1. If the answer cannot be compared with
    the target, it returns the reason as a text; the value is then 0."""


def accuracy(threshold: float = THRESHOLDS[0]) -> Rule:
    """Return the rule ``acc@T``: 1 if the IoU is at least ``threshold``, else 0."""
    if not 0 < threshold <= 1:
        raise ValueError(f"an IoU threshold is above 0 and at most 1, not {threshold:g}")
    return Rule(
        f"acc@{threshold:g}",
        (Box, Polygon, TimeSpans),
        lambda parsed: float(parsed.columns["iou"] >= threshold),
    )


def f1(threshold: float = THRESHOLDS[0]) -> Rule:
    """Return the rule ``f1@T``: F1 of the pairs with an IoU of at least ``threshold``."""
    if threshold not in THRESHOLDS:
        known = ", ".join(f"{t:g}" for t in THRESHOLDS)
        raise ValueError(f"the scorer counts pairs at an IoU of {known}, not {threshold:g}")
    column = f"paired_at_{threshold:g}"
    return Rule(f"f1@{threshold:g}", (Instances,), lambda parsed: _dice(parsed, column))


def _dice(parsed: ParsedAnswer, column: str) -> float:
    """Return 2 * ``column`` / (answered + true objects); ``column`` is a sum over matched pairs."""
    if column not in parsed.columns:
        raise ValueError(
            "this reward needs a task that pairs objects by their IoU; choose another reward, such "
            "as point_gaussian or correct"
        )
    total = parsed.columns["counted"] + parsed.columns["truths"]
    return 2 * parsed.columns[column] / total if total else 1.0


def _iou(parsed: ParsedAnswer) -> float:
    if isinstance(parsed.target, Instances):
        return _dice(parsed, "paired_iou")
    return parsed.columns["iou"]


def _point_gaussian(parsed: ParsedAnswer) -> float:
    answer, target = parsed.answer, parsed.target
    if isinstance(target, Instances):
        if len(target.items) > 1:
            raise ValueError(
                f"point_gaussian needs one object, not {len(target.items)}; choose another reward"
            )
        if not (target.items and answer.items):
            return float(not target.items and not answer.items)
        answer, target = answer.items[0].shape, target.items[0].shape
    (x, y, _, _), (true_x, true_y, width, height) = map(_centre_and_size, (answer, target))
    if not (width > 0 and height > 0):
        raise ValueError(f"point_gaussian needs a target with an area, not {target}")
    dx, dy = (x - true_x) / (_DEVIATIONS * width), (y - true_y) / (_DEVIATIONS * height)
    return math.exp(-(dx * dx + dy * dy) / 2)


def _point_f1(parsed: ParsedAnswer) -> float:
    if not parsed.columns.get("scored"):
        raise ValueError(
            "point_f1 needs the task pointing, and a polygon or a box for each true object"
        )
    return parsed.columns["f1"]


def _centre_and_size(shape: Shape) -> tuple[float, float, float, float]:
    box = around(shape)
    return (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2, box.x2 - box.x1, box.y2 - box.y1


def _time(parsed: ParsedAnswer) -> float:
    return 1 - parsed.columns["deviation_minutes"] / WORST_DEVIATION


def _relative_error(parsed: ParsedAnswer) -> float:
    if not parsed.columns["nonzero"]:
        return parsed.columns["exact"]
    return max(0.0, 1 - parsed.columns["relative_error"])


def _correct(parsed: ParsedAnswer) -> float | str:
    scorer = parsed.scorer
    if scorer.reason and (reason := scorer.reason(parsed.answer, parsed.target)):
        return reason
    success = scorer.success
    if success is None or not success.column:
        raise ValueError(
            "the reward 'correct' needs a task whose scorer counts each answer as correct or "
            "wrong; choose another reward, such as f1"
        )
    return float(parsed.columns[success.column] >= success.least)


def _format(parsed: ParsedAnswer) -> float | str:
    frame, text = parsed.frame, parsed.text.strip()
    grammar = parsed.task.grammar(frame)
    if grammar is None:
        raise ValueError("the reward 'format' needs a task with a grammar; remove the reward")
    if frame is not None and parsed.task.text_frame(frame).coordinates.text.quoted:
        # Qwen2.5-VL and Qwen3-VL write lists in a code block, with line breaks and tabs.
        fenced = _FENCED.fullmatch(text)
        # strip(), because a pattern that removes spaces takes cubic time for many of them.
        text = _JSON_SPACING.sub(_respaced, fenced[1].strip() if fenced else text)
    if re.fullmatch(grammar, text):
        return 1.0
    if frame is not None and isinstance(parsed.answer, Box):
        found = frame.read(text)  # a label may be next to the box
        is_one = isinstance(found, Instances) and len(found.items) == 1
        if is_one and re.fullmatch(list_regex(frame, labels=True), text):
            return 1.0
    return "text that is not in the format of the task"


def _respaced(match: re.Match[str]) -> str:
    """Return a matched part of a JSON text with the spaces of ``json.dumps``; keep strings."""
    return match[1] or (f"{match[2]} " if match[2] else "")


IOU = Rule("iou", (Box, Polygon, TimeSpans, Instances), _iou)
POINT_GAUSSIAN = Rule("point_gaussian", (Box, Polygon, Instances), _point_gaussian)
POINT_F1 = Rule("point_f1", (Instances,), _point_f1)
TIME = Rule("time", (ClockTime,), _time)
RELATIVE_ERROR = Rule("relative_error", (Number,), _relative_error)
CORRECT = Rule("correct", (object,), _correct)
FORMAT = Rule("format", (object,), _format)
