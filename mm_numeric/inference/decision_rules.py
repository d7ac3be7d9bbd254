"""Choose one answer from candidate answers and their probabilities.

Rules
    greedy    the greedy answer
    mean      numbers, clock times and boxes: the mean, which minimises the expected squared error
    median    for the same types: the median, which minimises the expected absolute error
    mbr       minimum Bayes risk: the candidate with the least expected cost, under any risk
    mode      the most probable candidate, as in self-consistency (https://arxiv.org/abs/2203.11171),
              which counts samples
    raft      numbers: the sum of each number times its probability, without normalisation. For
              answers of one token, the loss ``raft`` compares this sum with the label
              (Regression-Aware Fine-Tuning, https://openreview.net/forum?id=xGs7Ch3Vyo). For longer
              answers the sum is too small, because more of the probability is not explored

Means and medians of clock times are circular; for boxes they are computed for each coordinate. If
two separate boxes are equally probable, their mean or median may contain neither object; ``mbr``
always returns a candidate.

Equal answers with different texts count as one candidate. All rules but ``raft`` normalise the
probabilities of the candidates to sum to 1; ``Decision.covered`` is the sum before normalisation.
If measurements have different units, only candidates with the most probable unit are compared,
except under the risk ``exact``.

A confidence is not normalised: answers that were not explored count as wrong. The probability that
the answer is right lies between ``confidence`` and ``confidence + 1 - covered``.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from mm_numeric.answers import HALF_DAY_MINUTES, Box, ClockTime, Instances, Measurement, Number
from mm_numeric.config.decoding import DECODE_RULES, MBR, MODE
from mm_numeric.evaluation.metrics.number_errors import clipped
from mm_numeric.inference.number_distribution import Floats, Ints, NumberDistribution
from mm_numeric.inference.object_matching import matched_objects
from mm_numeric.inference.risks import (
    EXACT,
    Risk,
    accuracy_at,
    by_type,
    check_fits,
    f1_at,
    first_equal,
    units_of,
    within_minutes,
)
from mm_numeric.registry import unknown

INTERVAL_MASS = 0.9
"""Probability of ``Decision.interval``."""

OBJECT_IOU = 0.5
"""Smallest IoU at which boxes, or objects of lists, match when a confidence is computed."""

CONFIDENCE: Mapping[type, Risk] = {
    ClockTime: within_minutes(5),
    Number: EXACT,
    Box: accuracy_at(OBJECT_IOU),
    Instances: f1_at(OBJECT_IOU),
}
"""The risk that defines the confidence of each answer type; ``EXACT`` for other types. The
confidence of an answer is 1 minus its expected cost: the probability that a time is within 5
minutes of the right one, that a box has an IoU of at least 0.5 with it, or that an answer of
another type, such as points, equals it. For a list of objects, it is the expected F1."""

_SPLITS = 32
"""Number of random splits of the draws into one part that chooses the answer, and one that gives
its confidence."""

_FRACTION_DECIMALS = 6  # decimals of a mean whose candidates include a fraction, such as 2/7


class Candidate(NamedTuple):
    """A parsed answer that a model may give. Unparseable answers are no candidates."""

    answer: Any
    """An instance of an answer type, such as ``ClockTime``."""

    text: str
    """The generated text, which ``answer`` was parsed from."""

    probability: float
    """Probability of the text, or its share of the samples, 0 to 1."""

    drawn: float = 0.0
    """The part of ``probability`` that was not explored, but estimated by systematic draws."""


@dataclass(frozen=True)
class Decision:
    """The decoded answer, and how certain it is under the distribution over the candidates."""

    answer: Any
    """The answer; None if no text could be parsed. The caller then keeps the greedy text."""

    text: str | None
    """The most probable text of the answer; None for a mean or median that equals no candidate. The
    caller then writes it with ``Task.format``."""

    covered: float
    """Sum of the probabilities of all candidates, explored or drawn, 0 to 1."""

    candidates: int
    """Number of different answers among the candidates."""

    drawn: float = 0.0
    """The part of ``covered`` that was drawn; all of ``covered`` if the candidates are samples."""

    interval: tuple[Any, Any] | None = None
    """The shortest interval with 90 % of the probability. For clock times, it is two texts, such as
    ``("11:58", "12:03")``, and may contain 12:00; for numbers, two numbers; None for other answers.
    For measurements, it is computed from the candidates with the unit of the answer."""

    confidence: float | None = None
    """The confidence that ``CONFIDENCE`` defines, 0 to ``covered``; None without an answer or
    without candidates. If ``mbr`` chose from draws, the confidence is a mean over random splits:
    three quarters of the draws choose an answer, and the others give its confidence."""

    object_confidences: tuple[float, ...] | None = None
    """For each object of a list: the probability that the right answer has an object with the same
    label and an IoU of at least 0.5, 0 to ``covered``. If ``mbr`` chose the list from samples, only
    the other samples count. None for answers other than lists."""

    support: tuple[Floats, Floats] | None = None
    """The probability of each candidate, [n], and how correct the answer is if this candidate is
    the true answer, 0 to 1, [n]. The sum of their products is the confidence. None for samples and
    without candidates."""


def decide(
    rule: str,
    candidates: Sequence[Candidate],
    risk: Risk,
    *,
    greedy: Candidate | None = None,
    samples: int = 0,
    allows: Callable[[Any], bool] = lambda _: True,
) -> Decision:
    """Decode one answer from the candidates of one sample.

    Raises ValueError if the rule or the risk does not fit the type of the answers.

    Args:
        rule: One of ``DECODE_RULES``.
        candidates: The parseable answers that were explored, in any order, perhaps with duplicates.
        risk: The cost that ``mbr`` minimises. Of equally good candidates, the best under
            ``Risk.finer`` is chosen, then the greedy answer, then the most probable one, then the
            first. Next to samples, the greedy answer counts as one more sample.
        greedy: The greedy answer, which the rule ``greedy`` returns; None if it is unparseable. Its
            probability is not used.
        samples: If probabilities are shares of texts that were drawn at random, the number of these
            texts, including unparseable texts; 0 if probabilities are computed by the model.
        allows: True for the answers that ``mbr`` and ``mode`` may choose, such as objects of the
            classes of the task. The other answers may still be right. If none may be chosen, the
            greedy answer is.
    """
    if rule not in DECODE_RULES:
        raise unknown(rule, DECODE_RULES, "rule", "decode")
    merged = merge_equal(candidates)
    _, covered = _probabilities(merged)
    drawn = covered if samples else min(covered, math.fsum(own.drawn for own in merged))
    chosen: tuple[Any, str | None] | None
    pool = None
    if rule == "greedy":
        chosen = None if greedy is None else (greedy.answer, greedy.text)
    elif not merged:
        chosen = None
    elif rule in (MBR, MODE):
        risk = risk if rule == MBR else EXACT
        own = merged if risk is EXACT else _of_one_unit(merged)
        pool = _Pool(own, risk, allows, greedy, counts_greedy=rule == MBR and samples > 0)
        best = pool.chosen(samples)
        chosen = None if best is None else (best.answer, best.text)
        if all(best is not candidate for candidate in merged):
            pool = None  # it was not drawn
    else:
        chosen = _computed(rule, _of_one_unit(merged))
    if chosen is None:
        return Decision(None, None, covered, len(merged), drawn)
    found = Decision(*chosen, covered, len(merged), drawn)
    if not merged:
        return found
    found = _judged(found, merged, pool if drawn else None, samples)
    return replace(found, support=None) if samples else found


class _Pool:
    """The candidates of a decision, and the cost of each if another one is right.

    If ``counts_greedy``, a greedy answer that is no candidate is added, with a probability of 0.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        risk: Risk,
        allows: Callable[[Any], bool],
        greedy: Candidate | None,
        *,
        counts_greedy: bool,
    ) -> None:
        self.fallback = greedy
        self.greedy: int | None = None
        self.added: Candidate | None = None
        known = [(c.answer, units_of(c.answer)) for c in candidates]
        if greedy is not None and (own := (greedy.answer, units_of(greedy.answer))) in known:
            self.greedy = known.index(own)
        elif greedy is not None and counts_greedy and risk.fits(own[0]) and own[1] == known[0][1]:
            self.greedy, self.added = len(candidates), greedy._replace(probability=0.0)
            candidates = [*candidates, self.added]
        self.candidates, self.risk = candidates, risk
        self.answers = answers = [candidate.answer for candidate in candidates]
        self.allowed = np.array([allows(answer) for answer in answers])
        for answer in answers:
            check_fits(risk, answer, "decode")
        self.costs = np.asarray(risk.costs(answers, answers))
        if self.costs.shape != (len(answers), len(answers)):
            raise ValueError(
                f"decode: the risk {risk.name!r} returned costs of shape {list(self.costs.shape)} "
                f"for {len(answers)} candidates and {len(answers)} truths; return one cost for "
                "each pair."
            )
        self.finer = None if risk.finer is None else risk.finer.costs(answers, answers)

    def chosen(self, samples: int) -> Candidate | None:
        """Return the best candidate; the greedy answer if none is allowed."""
        if not self.allowed.any():
            return self.fallback
        weights, covered = _probabilities(self.candidates)
        if self.added is not None:
            weights[-1] = 1 / (samples * covered)
        return self.candidates[self.best(weights[None])[0]]

    def best(self, weights: Floats | Ints) -> Ints:
        """Return, for each row of ``weights``, the index of the candidate of least expected cost.

        ``weights`` [s, candidates] are probabilities or numbers of samples; the result is [s]. Of
        equally good candidates, the best under the finer risk is chosen, then the greedy answer,
        then the one with the largest weight, then the first. Candidates of weight 0, and those that
        are not allowed, are not chosen.
        """
        left = (weights > 0) & self.allowed
        for costs in (self.costs, self.finer):
            if costs is not None:
                expected = np.where(left, weights @ costs.T, np.inf)
                least = expected.min(axis=1, keepdims=True)
                left &= np.isclose(expected, least, rtol=1e-9, atol=1e-12)
        ranked = np.where(left, weights, -1.0)
        if self.greedy is not None:
            ranked[left[:, self.greedy], self.greedy] = np.inf
        return ranked.argmax(axis=1)


def _judged(
    found: Decision, merged: Sequence[Candidate], pool: _Pool | None, samples: int
) -> Decision:
    """Add the interval and the confidences; ``pool`` is not None if draws chose the answer."""
    answer, truths = found.answer, [candidate.answer for candidate in merged]
    probs = _probabilities(merged)[0] * found.covered
    has_points = isinstance(answer, Instances) and any(
        len(item.shape.points) == 1 for item in answer.items
    )
    measure = EXACT if has_points else by_type(CONFIDENCE, type(answer), EXACT)
    rights = 1 - measure.costs([answer], truths)[0]
    confidence = rights @ probs
    if pool is not None:
        confidence = _held_out(pool, measure, samples)
    if pool is not None and samples:
        own = next(i for i, truth in enumerate(truths) if truth is answer)
        probs = (samples * probs - (np.arange(len(probs)) == own)) / max(1, samples - 1)
    objects = None
    if isinstance(answer, Instances) and not has_points:  # points have no IoU
        matched, truth, _ = matched_objects([answer], truths, OBJECT_IOU)
        sums = np.bincount(matched, probs[truth], minlength=len(answer.items))
        objects = tuple(sums.clip(0, 1).tolist())
    return replace(
        found,
        interval=_interval(_of_unit(merged, units_of(answer))),
        confidence=float(np.clip(confidence, 0, 1)),
        object_confidences=objects,
        support=(probs, rights),
    )


def _held_out(pool: _Pool, measure: Risk, samples: int) -> float:
    """Return the confidence of an answer that ``mbr`` chose from draws.

    If the same draws chose the answer and gave its confidence, the confidence would be too high,
    because their noise favours the answer. So the draws are split at random: one part chooses, the
    other gives the confidence. Exact probabilities are used in both parts. With one sample, the
    confidence is 0.
    """
    if samples == 1:
        return 0.0
    answers, costs, number = pool.answers, pool.costs, len(pool.answers)
    rights = 1 - (costs if measure.name == pool.risk.name else measure.costs(answers, answers))
    probs = np.array([candidate.probability for candidate in pool.candidates])
    if samples:
        counts = np.rint(samples * probs).astype(np.int64)
        # Unparseable texts, and texts with another unit, choose no answer, and reduce the
        # confidence of every answer.
        drawn = np.repeat([*range(number), number], [*counts, samples - counts.sum()])
        weights, exact = np.append(np.full(number, 1 / samples), 0), np.zeros(number)
    else:
        estimated = np.array([candidate.drawn for candidate in pool.candidates])
        drawn, weights, exact = np.flatnonzero(estimated), estimated, probs - estimated
    order = np.random.default_rng(0).permuted(np.tile(drawn, (_SPLITS, 1)), axis=1)
    held = max(1, len(drawn) // 4)
    judge, choose = (
        _weight_sums(side, weights, number) * (len(drawn) / max(1, side.shape[1])) + exact
        for side in (order[:, :held], order[:, held:])
    )
    found = (rights[pool.best(choose)] * judge).sum(axis=1) * (choose * pool.allowed).any(axis=1)
    return float(found.mean())


def _weight_sums(side: Ints, weights: Floats, number: int) -> Floats:
    """Return the sum of the weights of each candidate below ``number`` in each row of ``side``."""
    cells = side + (number + 1) * np.arange(len(side))[:, None]
    sums = np.bincount(cells.ravel(), weights[side].ravel(), len(side) * (number + 1))
    return sums.astype(np.float64).reshape(len(side), -1)[:, :number]


def merge_equal(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Merge candidates with equal answers: add probabilities, and keep the most probable text.

    Merged candidates are in the order in which their answers first occur. Candidates with a
    probability of 0 are dropped.
    """
    possible = [candidate for candidate in candidates if candidate.probability > 0]
    firsts = first_equal([candidate.answer for candidate in possible])
    if (firsts == np.arange(len(firsts))).all():
        return possible
    groups: dict[int, list[Candidate]] = {}
    for candidate, first in zip(possible, firsts.tolist(), strict=True):
        groups.setdefault(first, []).append(candidate)
    return [
        max(group, key=lambda own: own.probability)._replace(
            probability=math.fsum(own.probability for own in group),
            drawn=math.fsum(own.drawn for own in group),
        )
        for group in groups.values()
    ]


def _of_one_unit(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates with the most probable unit; all candidates if no unit occurs."""
    if not any(isinstance(candidate.answer, Measurement) for candidate in candidates):
        return candidates
    probabilities: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for candidate in candidates:
        probabilities[units_of(candidate.answer)] += candidate.probability
    return _of_unit(candidates, max(probabilities, key=lambda unit: probabilities[unit]))


def _of_unit(candidates: Sequence[Candidate], unit: tuple[str, ...]) -> Sequence[Candidate]:
    return [candidate for candidate in candidates if units_of(candidate.answer) == unit]


def _probabilities(candidates: Sequence[Candidate]) -> tuple[Floats, float]:
    """Return the normalised probabilities of candidates, and their sum before normalisation."""
    total = math.fsum(candidate.probability for candidate in candidates)
    return np.array([each.probability for each in candidates]) / (total or 1), min(1.0, total)


def _computed(rule: str, merged: Sequence[Candidate]) -> tuple[Any, str | None]:
    probs, covered = _probabilities(merged)
    answers = [candidate.answer for candidate in merged]
    for kind in {type(answer) for answer in answers}:
        check_rule(rule, kind, "decode")
    compute = by_type(_COMPUTE, type(answers[0]), None)
    assert compute is not None
    answer = (
        _rounded_mean(answers, probs, covered) if rule == "raft" else compute(rule, answers, probs)
    )
    same = first_equal([*answers, answer])[-1]  # == ignores the unit: 37 °F == 37 °C
    return answer, merged[same].text if same < len(merged) else None


def check_rule(rule: str, kind: type, where: str) -> None:
    """Raise ValueError if a rule is not defined for the answer type ``kind``: the mean of texts."""
    if rule == "raft" and not issubclass(kind, Number):
        raise ValueError(
            f"{where}: raft is defined for numbers, not for answers of type {kind.__name__}; use "
            "another rule."
        )
    if rule in ("mean", "median") and by_type(_COMPUTE, kind, None) is None:
        raise ValueError(
            f"{where}: {rule} is defined for numbers, clock times and boxes, not for answers of "
            f"type {kind.__name__}; use greedy or mbr."
        )


def _of_times(rule: str, answers: Sequence[ClockTime], probs: Any) -> ClockTime:
    minutes = NumberDistribution.of([time.minutes for time in answers], probs)
    value = minutes.mean(HALF_DAY_MINUTES) if rule == "mean" else minutes.median(HALF_DAY_MINUTES)
    return ClockTime.from_minutes(round(value))


def _of_numbers(rule: str, answers: Sequence[Number], probs: Any) -> Number:
    if rule == "mean":
        return _rounded_mean(answers, probs)
    values = clipped([number.value for number in answers])
    at = np.flatnonzero(values == NumberDistribution.of(values, probs).median())
    return answers[at[np.argmax(probs[at])]]


def _rounded_mean(answers: Sequence[Number], probs: Floats, factor: float = 1.0) -> Number:
    """Return ``factor`` times the mean, with as many decimals as the answer with most decimals."""
    values = clipped([number.value for number in answers])
    mean = factor * NumberDistribution.of(values, probs).mean()
    text = f"{mean:z.{max(map(_decimals, answers))}f}"
    return replace(answers[int(np.argmax(probs))], text=text)


def _decimals(number: Number) -> int:
    """Return the number of decimals: 2 for ``3.50``, 4 for ``1.5e-3``, 0 for ``7`` and ``1e3``."""
    if "/" in number.text:
        return _FRACTION_DECIMALS
    exponent = Decimal(number.text).as_tuple().exponent
    return min(max(0, -int(exponent)), 1000)


def _of_boxes(rule: str, answers: Sequence[Box], probs: Any) -> Box:
    coordinates = np.array([[box.x1, box.y1, box.x2, box.y2] for box in answers], dtype=np.float64)
    each = [NumberDistribution.of(values, probs) for values in coordinates.T]
    return Box(*(own.mean() if rule == "mean" else own.median() for own in each))


_COMPUTE: Mapping[type, Callable[[str, Any, Any], Any]] = {
    ClockTime: _of_times,
    Number: _of_numbers,
    Box: _of_boxes,
}
"""For each answer type, the function that computes a mean or median. Its arguments are ``"mean"``
or ``"median"``, the answers [n] and their probabilities [n]."""


def _interval(candidates: Sequence[Candidate]) -> tuple[Any, Any] | None:
    if not candidates:
        return None
    probs, _ = _probabilities(candidates)
    answers = [candidate.answer for candidate in candidates]
    if all(isinstance(answer, ClockTime) for answer in answers):
        minutes = NumberDistribution.of([time.minutes for time in answers], probs)
        low, high = minutes.interval(INTERVAL_MASS, HALF_DAY_MINUTES)
        return str(ClockTime.from_minutes(int(low))), str(ClockTime.from_minutes(int(high)))
    if all(isinstance(answer, Number) for answer in answers):
        values = clipped([number.value for number in answers])
        low, high = NumberDistribution.of(values, probs).interval(INTERVAL_MASS)
        return _as_json(low), _as_json(high)
    return None


def _as_json(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
