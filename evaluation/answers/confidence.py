"""Read the confidences of decoded answers, and compare them with the correctness of the answers.

A row of a predictions file that was decoded by a rule, such as the median, has

    decode        {"rule": "median", "for": name of the risk, "confidence": 0.87 or null, ...}
    scores        for a list of objects: the confidence of each object
    token_scores  for a list of objects: the mean probability of the tokens of each object

A confidence is the belief of a model, 0 to 1, that the answer or the object is correct: that a
label like those of its training would agree. That of a whole list is its expected F1, and is not
compared. ``decode.confidence_raw`` and, of objects, ``decode.scores_raw`` are those before a
calibration of the run (``mm_numeric.inference.calibrate``). A confidence is null for an unparseable
answer, which counts as wrong with the confidence 0, so that shares of answers are shares of all
rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instances, Unreadable
from mm_numeric.evaluation.metrics import calibration
from mm_numeric.evaluation.metrics.base import Groups, RowColumns, Scorer
from mm_numeric.registry import RANK_FIELDS

COVERAGES = (1.0, 0.9, 0.8, 0.5)
"""Shares of the answers to give, for which results.json and reports have a threshold."""

RIGHT_SHARES = (0.9, 0.95, 0.99)
"""Shares of correct answers to reach, for which results.json and reports have a threshold."""


@dataclass(frozen=True, eq=False)
class Confidences:
    """The confidences of scored answers or objects, and whether these are correct."""

    rule: str
    """Rule that all answers were decoded with: ``greedy``, ``mean``, ``median`` or ``mbr``."""

    correct: str
    """When an answer or object counts as correct, such as ``IoU of at least 0.5``."""

    per_object: bool
    """True for lists of objects: there is one value per object instead of one per answer."""

    rows: int
    """Number of answers that can be judged, also unparseable ones; of lists of objects, only the
    parseable ones."""

    confidence: NDArray[np.float64]
    """Confidence, 0 to 1, of each answer or object, [n]; 0 for an answer without one, such as an
    unparseable answer."""

    right: NDArray[np.float64]
    """1 for a correct answer or object and 0 for a wrong one, [n]."""

    index: NDArray[np.int64]
    """Index of the row of each answer or object, [n]."""

    groups: Groups
    """Group of the row of each answer or object, [n]; see ``evaluation.scores.row_groups``."""

    raw: NDArray[np.float64] | None = None
    """The confidences before the calibration, [n]; None if they were not calibrated."""

    def results(self) -> dict[str, Any]:
        """Return gap, ece, auroc, aurc and thresholds, and what they are of, for results.json.

        ``raw`` has the gap, the ece and the reliability before the calibration, if there was one.
        """
        values = (self.confidence, self.right)
        return {
            "rule": self.rule,
            "correct": self.correct,
            "rows": self.rows,
            **({"objects": len(self.right)} if self.per_object else {}),
            **reliability_entry(self.confidence, self.right, self.groups),
            "auroc": calibration.auroc(*values),
            "aurc": calibration.aurc(*values),
            "thresholds": thresholds(*values),
            **(
                {}
                if self.raw is None
                else {"raw": reliability_entry(self.raw, self.right, self.groups)}
            ),
        }

    def line(self) -> str:
        """Format gap, ece, auroc and aurc as one line for a terminal."""
        found = self.results()
        count = f"{len(self.right):,} {'objects' if self.per_object else 'answers'}"
        ranked = "-" if found["auroc"] is None else f"{found['auroc']:.3f}"
        before = ""
        if self.raw is not None:
            raw = found["raw"]
            before = f"; before calibration: gap {gap_text(raw['gap'])}, ECE {raw['ece']:.3f}"
        return (
            f"confidence of {count}, decoded by {self.rule} (correct: {self.correct}): "
            f"mean {self.confidence.mean():.3f}, correct {self.right.mean():.3f}, "
            f"gap {gap_text(found['gap'])}, "
            f"ECE {found['ece']:.3f}, AUROC {ranked}, AURC {found['aurc']:.3f}{before}"
        )


def reliability_entry(
    confidence: NDArray[np.float64], right: NDArray[np.float64], groups: Groups
) -> dict[str, Any]:
    """Return the count, means, gap, ECE and bins of the confidences of answers."""
    return {
        "count": len(right),
        "mean_confidence": float(confidence.mean()),
        "right": float(right.mean()),
        "gap": calibration.gap([(confidence, right, groups)])._asdict(),
        "ece": calibration.expected_calibration_error(confidence, right),
        "reliability": [list(own) for own in calibration.reliability(confidence, right)],
    }


def gap_text(found: Mapping[str, float | None]) -> str:
    """Format a gap with its interval: ``-0.283 (-0.301 to -0.264)``."""
    value = f"{found['value']:+.3f}"
    if found["low"] is None:
        return value
    return f"{value} ({found['low']:+.3f} to {found['high']:+.3f})"


def thresholds(
    confidence: NDArray[np.float64], right: NDArray[np.float64]
) -> dict[str, list[dict[str, float | None]]]:
    """Return the answers that are given from a threshold of the confidence on.

    ``coverage`` has the smallest selection with each of ``COVERAGES``, and ``right`` the largest
    one with each share of correct answers in ``RIGHT_SHARES``: ``wanted`` is this share, and
    ``threshold`` None if no threshold reaches it.
    """
    found = calibration.selections(confidence, right)

    def entry(wanted: float, own: calibration.Selection | None) -> dict[str, float | None]:
        values = {"threshold": None, "coverage": 0.0, "right": None}
        return {"wanted": wanted, **(values if own is None else own._asdict())}

    return {
        "coverage": [entry(c, calibration.select_coverage(found, c)) for c in COVERAGES],
        "right": [entry(r, calibration.select_right(found, r)) for r in RIGHT_SHARES],
    }


def collect_confidences(
    scorer: Scorer,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Any],
    targets: Sequence[Any],
    columns: RowColumns,
    groups: Groups,
) -> Confidences | None:
    """Return the confidences of scored answers; None if there are none or nothing to compare with.

    All arguments but the scorer are in the order of the rows, which are those of scores.jsonl and
    have ``decode``.
    """
    success = scorer.success
    if success is None:
        return None
    if success.objects is not None:
        read = [None if isinstance(answer, Unreadable) else answer for answer in answers]
        found = success.objects(read, targets)
        known = [i for i, row in enumerate(rows) if row.get("scores") is not None]
        rights = np.concatenate([np.empty(0), *(found[i] for i in known)])
        own = [rows[i]["scores"] for i in known]
        raws = [rows[i]["decode"].get("scores_raw", rows[i]["scores"]) for i in known]
        is_calibrated = any("scores_raw" in rows[i]["decode"] for i in known)
    else:
        if not any("confidence" in row["decode"] for row in rows):
            return None
        judged = columns[success.scored] if success.scored else np.ones(len(rows))
        known = np.flatnonzero(judged).tolist()
        rights = (columns[success.column][known] >= success.least).astype(np.float64)
        own = [[rows[i]["decode"].get("confidence") or 0.0] for i in known]
        raws = [[rows[i]["decode"].get("confidence_raw") or 0.0] for i in known]
        is_calibrated = any("confidence_raw" in rows[i]["decode"] for i in known)
    scored = ~np.isnan(rights)  # not objects in ignored regions
    if not scored.any():
        return None
    confidence, raw = (np.array([*chain(*side)], dtype=np.float64)[scored] for side in (own, raws))
    index = np.repeat(np.array(known, dtype=np.int64), [len(values) for values in own])[scored]
    return Confidences(
        rule=rows[0]["decode"]["rule"],
        correct=success.label,
        per_object=success.objects is not None,
        rows=len(known),
        confidence=confidence,
        right=rights[scored],
        index=index,
        groups=groups[index],
        raw=raw if is_calibrated else None,
    )


def collect_coverage(rows: Sequence[Mapping[str, Any]]) -> calibration.Coverage | None:
    """Return how much of the distributions was explored and drawn; None if no row says it."""
    found = [row["decode"] for row in rows if row.get("decode", {}).get("covered") is not None]
    if not found:
        return None
    covered, drawn = (
        np.array([own.get(name) or 0.0 for own in found], dtype=np.float64)
        for name in ("covered", "drawn")
    )
    is_completed = all(own.get("drawn") is not None for own in found)
    return calibration.Coverage(covered, drawn, is_completed)


def decode_fields(row: Mapping[str, Any], answer: Any, where: str) -> dict[str, Any]:
    """Validate and return the fields of a row of a predictions file that are about confidence.

    These are ``decode`` and ``confidence``, a copy of ``decode.confidence``, and ``scores`` and
    ``token_scores`` of a list of objects. A field ``decode`` of another tool, which is not an
    object with a ``rule``, is ignored. ``where`` names the row in error messages.
    """
    found: dict[str, Any] = {}
    if isinstance(row.get("decode"), dict) and "rule" in row["decode"]:
        found["decode"] = _checked_decode(row["decode"], where)
        found["confidence"] = found["decode"].get("confidence")
    if isinstance(answer, Instances):
        for name in RANK_FIELDS:
            if row.get(name) is not None:
                found[name] = _checked_scores(row[name], name, len(answer.items), where)
        if "decode" in found:
            _check_probabilities(found.get("scores", ()), f"{where}: scores")
            if (raw := found["decode"].get("scores_raw")) is not None:
                _checked_scores(raw, "decode.scores_raw", len(answer.items), where)
                _check_probabilities(raw, f"{where}: decode.scores_raw")
    return found


def check_same_rule(first: Mapping[str, Any], row: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if two rows of a predictions file were not decoded by the same rule.

    The risk may differ between rows: by default it is that of the type of the answer.
    """
    one, other = (
        f"decoded by {own['decode']['rule']}" if own.get("decode") else 'without "decode"'
        for own in (first, row)
    )
    if one != other:
        raise ValueError(
            f"{where}: a row {other} among rows {one}; score the answers of each rule in a file "
            "of its own."
        )


def _checked_decode(decode: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(decode["rule"], str):
        raise ValueError(
            f"{where}: decode.rule is {decode['rule']!r:.60}; write the name of a rule, such as "
            '"median", or remove the field "decode".'
        )
    for name in ("confidence", "confidence_raw", "covered", "drawn"):
        if decode.get(name) is not None:
            _check_probabilities([decode[name]], f"{where}: decode.{name}")
    return decode


def _check_probabilities(values: Sequence[Any], where: str) -> None:
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(
                f"{where} has {value!r:.40}; a confidence of a decoded answer is a probability, "
                "0 to 1."
            )


def _checked_scores(scores: Any, name: str, count: int, where: str) -> list[float]:
    numbers = isinstance(scores, list) and all(type(s) in (int, float) for s in scores)
    if not numbers or len(scores) != count:
        raise ValueError(
            f'{where}: "{name}" is {scores!r:.60}, and the text holds {count} shapes; write one '
            "number for each shape, or remove the field."
        )
    return scores
