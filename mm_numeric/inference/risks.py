"""Risks: the cost of each candidate answer if another answer is right.

Minimum Bayes risk decoding returns the candidate with the least expected cost. The risk should
therefore be the metric by which the answers are evaluated. T stands for a number in these names:

    circular_minutes    shortest distance on a 12-hour dial, in minutes
    within_T_minutes    1 if the times are more than T minutes apart, such as within_5_minutes
    absolute            |x - y|, in the unit of the numbers
    relative            |x - y| / |y| for the right number y; 0 if y is 0, where MAPE is undefined
    iou                 1 - IoU of two boxes
    accuracy_at_T       1 if the IoU is below T, such as accuracy_at_0.5
    f1_at_T             1 - F1 of two lists of objects. Objects with the same label are matched
                        one-to-one, greedily by decreasing IoU, if their IoU is at least T
    panoptic_quality    1 - PQ of two lists of objects: PQ is F1 at IoU 0.5 in which each match
                        counts as its IoU, not as 1 (arXiv:1801.00868)
    quantile_T          the pinball loss of numbers and times, 0 < T < 1: T per unit if the right
                        answer is larger or later, 1 - T per unit if it is smaller or earlier. The
                        T-quantile has the least expected cost; T = 0.5 gives the median
    exact               1 if the answers differ, for every type of answer

``mm_numeric.registry.RISKS`` lists them. A config may also name a ``Risk`` by its import path,
such as ``my_module:MY_RISK``.

Shapes    a cost matrix is [c, t] for c candidates and t truths (answers assumed to be right)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mm_numeric.answers import HALF_DAY_MINUTES, Box, ClockTime, Instances, Measurement, Number
from mm_numeric.evaluation.metrics.number_errors import clipped
from mm_numeric.evaluation.metrics.polygon_iou import (
    Pairs,
    collect_shapes,
    intersection_areas,
    ious,
)
from mm_numeric.inference.number_distribution import Floats, Ints, distance
from mm_numeric.inference.object_matching import matched_objects, owners
from mm_numeric.registry import RISK_OF_ANSWER, RISKS, choose, load, split_threshold
from mm_numeric.tasks.base import Task


@dataclass(frozen=True)
class Risk:
    """A cost that decoding minimises: how bad an answer is if another answer is right."""

    name: str

    answers: tuple[type, ...]
    """Types of answers that the risk is defined for, such as ``ClockTime``; ``object`` for all."""

    costs: Callable[[Sequence[Any], Sequence[Any]], Floats]
    """Function of c candidates and t truths. It returns the cost of each candidate if each truth is
    the right answer, [c, t]; costs are at least 0."""

    finer: "Risk | None" = None
    """A second risk for the same types, which decides between candidates with the same expected
    cost. A risk with a threshold needs it: the expected costs of all candidates are equal if they
    are all within the threshold of each other."""

    def fits(self, answer: Any) -> bool:
        """Return True if the risk is defined for the type of ``answer``."""
        return isinstance(answer, self.answers)


def _circular_costs(candidates: Sequence[ClockTime], truths: Sequence[ClockTime]) -> Floats:
    minutes = ([time.minutes for time in times] for times in (candidates, truths))
    a, b = (np.array(own, dtype=np.float64) for own in minutes)
    return distance(a[:, None], b, HALF_DAY_MINUTES)


def _absolute_costs(candidates: Sequence[Number], truths: Sequence[Number]) -> Floats:
    a, b = (clipped([number.value for number in numbers]) for numbers in (candidates, truths))
    return distance(a[:, None], b)


def _relative_costs(candidates: Sequence[Number], truths: Sequence[Number]) -> Floats:
    errors = _absolute_costs(candidates, truths)
    size = np.broadcast_to(np.abs(clipped([truth.value for truth in truths])), errors.shape)
    return np.divide(errors, size, out=np.zeros_like(errors), where=size > 0)


def _exact_costs(candidates: Sequence[Any], truths: Sequence[Any]) -> Floats:
    first = first_equal([*candidates, *truths])
    return (first[: len(candidates), None] != first[len(candidates) :]).astype(np.float64)


def first_equal(answers: Sequence[Any]) -> Ints:
    """Return, for each answer, the index of the first answer that is equal to it, [n]."""
    keys = answers
    if any(issubclass(kind, Measurement) for kind in {*map(type, answers)}):
        # 37 °C == 37 °F, because Measurement compares only numbers, but they differ.
        keys = [(a, units_of(a)) for a in answers]
    seen: dict[Any, int] = {}
    try:
        firsts = [seen.setdefault(key, i) for i, key in enumerate(keys)]
    except TypeError:  # an answer that contains a dictionary, such as ClockReading, has no hash
        firsts = [keys.index(key) for key in keys]
    return np.array(firsts, dtype=np.int64)


def units_of(answer: Any) -> tuple[str, ...]:
    """Return all spellings of the unit of a measurement; () for answers of other types."""
    return answer.units if isinstance(answer, Measurement) else ()


def iou_matrix(candidates: Sequence[Box], truths: Sequence[Box]) -> Floats:
    """Return the IoU of each candidate with each truth, [c, t]; boxes or polygons."""
    a, b = collect_shapes([candidates]), collect_shapes([truths])
    at_a, at_b = (at.ravel() for at in np.indices((len(candidates), len(truths))))
    pairs = Pairs(at_a, at_b, intersection_areas(a, at_a, b, at_b))
    return ious(a, b, pairs).reshape(len(candidates), len(truths))


def _f1_costs(
    candidates: Sequence[Instances],
    truths: Sequence[Instances],
    *,
    threshold: float,
    by_iou: bool = False,
) -> Floats:
    shape = len(candidates), len(truths)
    matched, truth, iou = matched_objects(candidates, truths, threshold)
    cells = np.ravel_multi_index((owners(candidates)[matched], truth), shape)
    counts = np.bincount(cells, iou if by_iou else None, minlength=shape[0] * shape[1])
    paired = counts.reshape(shape)
    a, b = (np.array([len(own.items) for own in side]) for side in (candidates, truths))
    total = (a[:, None] + b).astype(np.float64)
    # Two empty lists agree.
    return 1 - np.divide(2 * paired, total, out=np.ones(shape), where=total > 0)


def within_minutes(t: float) -> Risk:
    """Return the risk ``within_T_minutes``: 1 for times more than ``t`` minutes apart, else 0."""

    def costs(candidates: Sequence[ClockTime], truths: Sequence[ClockTime]) -> Floats:
        return (_circular_costs(candidates, truths) > t).astype(np.float64)

    name = f"within_{t:g}_minute{'' if t == 1 else 's'}"
    return Risk(name, (ClockTime,), costs, CIRCULAR_MINUTES)


def accuracy_at(t: float) -> Risk:
    """Return the risk ``accuracy_at_T``: 1 for two boxes with an IoU below ``t``, else 0."""
    _check_iou(t)

    def costs(candidates: Sequence[Box], truths: Sequence[Box]) -> Floats:
        return (iou_matrix(candidates, truths) < t).astype(np.float64)

    return Risk(f"accuracy_at_{t:g}", (Box,), costs, IOU)


def f1_at(t: float) -> Risk:
    """Return the risk ``f1_at_T``: 1 - F1 of two lists, whose objects match at IoU >= ``t``."""
    _check_iou(t)
    costs = partial(_f1_costs, threshold=t)
    return Risk(f"f1_at_{t:g}", (Instances,), costs, PANOPTIC_QUALITY)


def quantile(t: float) -> Risk:
    """Return the risk ``quantile_T``, whose best answer is the ``t``-quantile.

    For times, the loss uses the shortest signed difference on the dial, -360 to 360 minutes.
    """
    if not 0 < t < 1:
        raise ValueError(f"a quantile is above 0 and below 1, not {t:g}")

    def costs(candidates: Sequence[Any], truths: Sequence[Any]) -> Floats:
        a, b = (
            np.array([own.minutes for own in side], dtype=np.float64)
            if isinstance(side[0], ClockTime)
            else clipped([own.value for own in side])
            for side in (candidates, truths)
        )
        later = b - a[:, None]
        if isinstance(truths[0], ClockTime):
            half = HALF_DAY_MINUTES / 2
            later = (later + half) % HALF_DAY_MINUTES - half
        return np.maximum(t * later, (t - 1) * later)

    return Risk(f"quantile_{t:g}", (ClockTime, Number), costs)


def _check_iou(t: float) -> None:
    if not 0 < t <= 1:
        raise ValueError(f"an IoU threshold is above 0 and at most 1, not {t:g}")


CIRCULAR_MINUTES = Risk("circular_minutes", (ClockTime,), _circular_costs)
ABSOLUTE = Risk("absolute", (Number,), _absolute_costs)
RELATIVE = Risk("relative", (Number,), _relative_costs)
IOU = Risk("iou", (Box,), lambda candidates, truths: 1 - iou_matrix(candidates, truths))
PANOPTIC_QUALITY = Risk(
    "panoptic_quality", (Instances,), partial(_f1_costs, threshold=0.5, by_iou=True)
)
EXACT = Risk("exact", (object,), _exact_costs)


def find_risk(name: str, where: str) -> Risk:
    """Return the risk for a name such as ``absolute`` or ``accuracy_at_0.5``, or an import path.

    ``where`` is the file and field that contain the name, for error messages.
    """
    key, threshold = split_threshold(name)
    found = choose(key, RISKS, "risk", where)
    if threshold is not None:
        try:
            found = found(threshold)
        except ValueError as error:
            raise ValueError(f"{where}: {name}: {error}.") from None
    if not isinstance(found, Risk):
        wrong = "write a number for T" if name in RISKS else f"it is a {type(found).__name__}"
        raise ValueError(f"{where}: {name!r} is not a Risk; {wrong}.")
    return found


def risk_of(task: Task, answer: Any, where: str, name: str | None = None) -> Risk:
    """Return the risk for decoding, and check that it fits the type of ``answer``.

    ``answer`` may be any answer of the task. If ``name`` is None, the risk that the task sets is
    used; if it sets none, the default risk of the answer type.
    ``where`` is the file and field that contain the name, for error messages.
    """
    default = by_type(RISK_OF_ANSWER, type(answer), "exact")
    risk = find_risk(name or task.risk or default, where)
    check_fits(risk, answer, where)
    return risk


def by_type(table: Mapping[type, Any], kind: type, default: Any) -> Any:
    """Return the entry for the type ``kind``, or else for its nearest base class in ``table``."""
    return next((table[base] for base in kind.__mro__ if base in table), default)


def check_fits(risk: Risk, answer: Any, where: str) -> None:
    """Raise ValueError if a risk does not fit the type of ``answer``; list the risks that fit."""
    if risk.fits(answer):
        return
    known = {name: load(path, where) for name, path in RISKS.items()}
    fitting = [
        name
        for name, found in known.items()
        if (found if isinstance(found, Risk) else found(0.5)).fits(answer)
    ]
    raise ValueError(
        f"{where}: the risk {risk.name!r} does not fit answers of type {type(answer).__name__}; "
        f"choose from {', '.join(fitting)}."
    )
