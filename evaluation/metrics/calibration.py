"""Compare confidences with correctness: calibration error, AUROC, and risk at a given coverage.

A confidence is the probability, 0 to 1, that a model assigns to its own answer being correct. It
assumes that the labels are made like the labels of the training data.

ECE     expected calibration error (Guo et al. 2017, arXiv 1706.04599): the mean difference between
        confidence and share of correct answers, over bins of equal width
gap     mean confidence minus share of correct answers: above 0, the model is overconfident
AUROC   probability that a correct answer has a higher confidence than a wrong one; 0.5 is random
AURC    area under the risk-coverage curve (Geifman and El-Yaniv 2017, arXiv 1705.08500): the share
        of wrong answers among the k most confident answers, averaged over all k

If answers were decoded by a rule, such as the median, rows of the predictions file have ``decode``
with ``rule``, ``confidence`` and, if confidences were calibrated, ``confidence_raw`` (the value
before). The confidences of a list of objects are ``scores`` and ``decode.scores_raw``; the
confidence of the whole list, its expected F1, is not used here. An unparseable answer counts as
wrong with confidence 0. Therefore shares of answers are shares of all rows.

Shapes    ``confidence`` and ``right`` are float64 [n], one value per answer; ``right`` is 1 for a
          correct answer and 0 for a wrong one
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Unreadable
from mm_numeric.evaluation.metrics.base import Groups, RowColumns, Scorer
from mm_numeric.evaluation.metrics.bootstrap import group_numbers
from mm_numeric.evaluation.metrics.intervals import seed_interval, wilson_interval

Array = NDArray[np.float64]

LEAST_COVERED = 0.9
"""``score`` warns if explored and drawn answers have less total probability (median) than this."""

LEAST_EXPLORED = 0.5
"""If the explored answers have less total probability than this, and the other answers were not
sampled, ``score`` rejects answers decoded by mean or median."""

COVERAGES = (1.0, 0.9, 0.8, 0.5)
"""Shares of answers to select; results.json and reports have a confidence threshold for each."""

RIGHT_SHARES = (0.9, 0.95, 0.99)
"""Shares of correct answers to reach; results.json and reports have a threshold for each share."""

_RESAMPLES = 1000

BINS = 10
"""Number of bins of equal width in a reliability table."""


class Bin(NamedTuple):
    """The answers with a confidence greater than ``low`` and up to ``high``."""

    low: float
    high: float
    answers: int
    confidence: float | None
    """Mean confidence of the answers in the bin; None for an empty bin."""

    right: float | None
    """Share of correct answers in the bin, 0 to 1; None for an empty bin."""


class Gap(NamedTuple):
    """Mean confidence minus share of correct answers, with its 95 % interval."""

    value: float
    low: float | None
    """Lower end; None if all answers are in one group of rows, because it shows no variance."""

    high: float | None


class Selection(NamedTuple):
    """The answers with a confidence of at least ``threshold``."""

    threshold: float
    coverage: float
    """Share of all answers that are selected, 0 to 1."""

    right: float
    """Share of the selected answers that are correct, 0 to 1."""


def reliability(confidence: Array, right: Array, bins: int = BINS) -> list[Bin]:
    """Group answers by confidence into bins of equal width, from 0 to 1.

    As in Guo et al. (2017), a confidence on the border of two bins is in the lower bin.
    """
    edges = np.arange(bins + 1) / bins
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(index, minlength=bins)
    sums = [np.bincount(index, values, minlength=bins) for values in (confidence, right)]
    return [
        Bin(
            float(edges[i]),
            float(edges[i + 1]),
            int(count),
            *(float(own[i] / count) if count else None for own in sums),
        )
        for i, count in enumerate(counts)
    ]


def expected_calibration_error(confidence: Array, right: Array, bins: int = BINS) -> float:
    """Return the mean of |mean confidence - share correct| of the bins, weighted by answers."""
    found = [own for own in reliability(confidence, right, bins) if own.answers]
    gaps = [own.answers * abs((own.confidence or 0) - (own.right or 0)) for own in found]
    return sum(gaps) / sum(own.answers for own in found)


def gap(seeds: Sequence[tuple[Array, Array, NDArray[np.uint64]]]) -> Gap:
    """Return the mean gap of one or more runs on the same test rows, with its interval.

    Args:
        seeds: For each run, three arrays [n]: the confidences, 1 or 0 for correct or wrong answers,
            and the groups of rows. The bootstrap draws whole groups. n may differ between runs.
    """
    index = group_numbers(np.concatenate([own[2] for own in seeds]))
    count = index.max() + 1
    ends = np.cumsum([len(own[2]) for own in seeds])[:-1]
    sums, counts = (
        np.stack([np.bincount(at, values, minlength=count) for at, values in pairs])
        for pairs in (
            [(at, own[0] - own[1]) for at, own in zip(np.split(index, ends), seeds, strict=True)],
            [(at, np.ones(len(at))) for at in np.split(index, ends)],
        )
    )
    values = sums.sum(axis=1) / counts.sum(axis=1)
    if count < 2:
        return Gap(float(values.mean()), None, None)
    draw, draws = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        often = np.bincount(draw.integers(0, count, count), minlength=count)
        draws.append((sums @ often) / np.maximum(counts @ often, 1))
    low, high, _ = seed_interval(values, np.stack(draws, axis=1))
    return Gap(float(values.mean()), *np.clip([low, high], -1, 1).tolist())


def share_interval(right: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of ``right``, the share of correct ones of ``count`` answers.

    Answers are assumed to be independent. The interval is Wilson's (1927), or the interval of
    Clopper and Pearson for a share of 0 or 1.
    """
    if right in (0, 1):
        width = 1 - 0.025 ** (1 / count)
        return (0.0, width) if right == 0 else (1 - width, 1.0)
    return wilson_interval(right, count)


class Coverage(NamedTuple):
    """The total probability of the candidate answers from which each of n rows was decoded."""

    covered: Array
    """[n] total probability of the parseable answers whose probability was computed exactly."""

    drawn: Array
    """[n] estimated total probability of the other parseable answers, from drawn samples."""

    is_completed: bool
    """True if the unexplored answers were sampled. False for a server, which does not return the
    probabilities that this needs."""

    def results(self) -> dict[str, dict[str, float]]:
        """Return the median and the tenth percentile of ``covered`` and ``drawn`` over all rows."""
        return {
            name: {
                "median": float(np.median(values)),
                "tenth_percentile": float(np.quantile(values, 0.1)),
            }
            for name, values in (("covered", self.covered), ("drawn", self.drawn))
        }

    def line(self) -> str:
        """Format ``covered`` and ``drawn`` as one line for a terminal or a report."""
        found = self.results()
        covered, drawn = (
            f"{found[name]['median']:.3f} (tenth percentile {found[name]['tenth_percentile']:.3f})"
            for name in ("covered", "drawn")
        )
        return (
            f"probability of the parseable answers, median of rows: explored exactly {covered}, "
            f"drawn {drawn}"
        )

    def warning(self) -> str:
        """Return a warning if the median of ``covered + drawn`` is below 0.9, otherwise ""."""
        if (median := float(np.median(self.covered + self.drawn))) >= LEAST_COVERED:
            return ""
        cure = "if few of the texts can be parsed, predict with --constrain, or train for longer"
        if not self.is_completed:
            cure = (
                "what was left out was not drawn. Predict again, or raise predict.branches "
                f"(--branches) and predict.mass (--mass); {cure}"
            )
        return (
            f"the answers that were explored or drawn have a probability of {median:.3f} (median "
            "of decode.covered + decode.drawn), and the rest counts as wrong in every confidence; "
            f"{cure}"
        )

    def check_rule(self, rule: str, where: str) -> None:
        """Raise ValueError for a mean or median of answers with too little probability in total."""
        median = float(np.median(self.covered + self.drawn))
        if not self.is_completed and rule in ("mean", "median") and median < LEAST_EXPLORED:
            raise ValueError(
                f"{where}: the {rule} was computed from {median:.3f} of the probability (median of "
                "decode.covered), and what was left out was not drawn, so that it is not the "
                f"{rule} of the model's answers; predict again, which draws it, or decode the rows "
                "by greedy or mbr."
            )


def auroc(confidence: Array, right: Array) -> float | None:
    """Return the probability that a correct answer has a higher confidence than a wrong answer.

    Equal confidences count as a half. Returns None if all answers are correct or all are wrong.
    """
    positives = int(right.sum())
    negatives = len(right) - positives
    if not positives or not negatives:
        return None
    _, index, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # from 1; equal values share a mean rank
    wins = (ranks * right).sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def risk_coverage(confidence: Array, right: Array) -> tuple[Array, Array]:
    """Return coverage k / n and risk, both [n], for the k most confident answers, k = 1 to n.

    Risk is the share of wrong answers among these k. If answers have the same confidence, risk is
    the mean over all orders of these answers.
    """
    _, index, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(index, 1 - right)
    errors = np.cumsum(np.repeat(wrong / counts, counts))
    number = np.arange(1, len(right) + 1)
    return number / len(right), errors / number


def aurc(confidence: Array, right: Array) -> float:
    """Return the area under the risk-coverage curve, 0 to 1; lower is better."""
    return float(risk_coverage(confidence, right)[1].mean())


def selections(confidence: Array, right: Array) -> list[Selection]:
    """Return the selection for each different confidence as threshold, from high to low."""
    values, index, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    given, correct = np.cumsum(counts), np.cumsum(np.bincount(index, right))
    columns = (-values, given / len(right), correct / given)
    return [Selection(*map(float, own)) for own in zip(*columns, strict=True)]


def select_coverage(found: Sequence[Selection], coverage: float) -> Selection:
    """Return the smallest selection that has at least the share ``coverage`` of all answers.

    ``found`` is the result of ``selections``. Answers with equal confidence are selected together.
    """
    return next(own for own in found if own.coverage >= min(coverage, 1.0))


def select_right(found: Sequence[Selection], right: float) -> Selection | None:
    """Return the largest selection with at least a share ``right``, 0 to 1, of correct answers.

    ``found`` is the result of ``selections``. Returns None if no threshold reaches this share.
    """
    return next((own for own in reversed(found) if own.right >= right), None)


@dataclass(frozen=True, eq=False)
class Confidences:
    """The confidences of scored answers or objects, and whether each of them is correct."""

    rule: str
    """Rule that all answers were decoded with: ``greedy``, ``mean``, ``median`` or ``mbr``."""

    correct: str
    """The condition for a correct answer or object, such as ``IoU of at least 0.5``."""

    per_object: bool
    """True for lists of objects: there is one value per object instead of one per answer."""

    rows: int
    """Number of judged answers. Unparseable answers are included, unless they should be lists."""

    confidence: Array
    """Confidence, 0 to 1, of each answer or object, [n]; 0 for an unparseable answer."""

    right: Array
    """1 for a correct answer or object and 0 for a wrong one, [n]."""

    index: NDArray[np.int64]
    """Index of the row of each answer or object, [n]."""

    groups: Groups
    """Group of the row with each answer or object, [n]; the bootstrap draws whole groups."""

    raw: Array | None = None
    """The confidences before the calibration, [n]; None if they were not calibrated."""

    def results(self) -> dict[str, Any]:
        """Return gap, ece, auroc, aurc, thresholds and the decoding rule, for results.json.

        If confidences were calibrated, ``raw`` has gap, ece and reliability before calibration.
        """
        values = (self.confidence, self.right)
        return {
            "rule": self.rule,
            "correct": self.correct,
            "rows": self.rows,
            **({"objects": len(self.right)} if self.per_object else {}),
            **reliability_entry(self.confidence, self.right, self.groups),
            "auroc": auroc(*values),
            "aurc": aurc(*values),
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


def reliability_entry(confidence: Array, right: Array, groups: Groups) -> dict[str, Any]:
    """Return, for results.json, the number of answers, mean confidence, gap, ECE and bins."""
    return {
        "count": len(right),
        "mean_confidence": float(confidence.mean()),
        "right": float(right.mean()),
        "gap": gap([(confidence, right, groups)])._asdict(),
        "ece": expected_calibration_error(confidence, right),
        "reliability": [list(own) for own in reliability(confidence, right)],
    }


def gap_text(found: Mapping[str, float | None]) -> str:
    """Format a gap with its interval: ``-0.283 (-0.301 to -0.264)``."""
    value = f"{found['value']:+.3f}"
    if found["low"] is None:
        return value
    return f"{value} ({found['low']:+.3f} to {found['high']:+.3f})"


def thresholds(confidence: Array, right: Array) -> dict[str, list[dict[str, float | None]]]:
    """Return the selections of answers whose confidence is at least a threshold.

    ``coverage`` lists the smallest selection for each coverage in ``COVERAGES``. ``right`` lists
    the largest selection for each share of correct answers in ``RIGHT_SHARES``. ``wanted`` is this
    coverage or share; ``threshold`` is None if no threshold reaches it.
    """
    found = selections(confidence, right)

    def entry(wanted: float, own: Selection | None) -> dict[str, float | None]:
        values = {"threshold": None, "coverage": 0.0, "right": None}
        return {"wanted": wanted, **(values if own is None else own._asdict())}

    return {
        "coverage": [entry(c, select_coverage(found, c)) for c in COVERAGES],
        "right": [entry(r, select_right(found, r)) for r in RIGHT_SHARES],
    }


def collect_confidences(
    scorer: Scorer,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Any],
    targets: Sequence[Any],
    columns: RowColumns,
    groups: Groups,
) -> Confidences | None:
    """Return the confidences of scored answers; None without confidences or ``scorer.success``.

    ``rows`` are rows of scores.jsonl with ``decode``; the arguments after it have the same order.
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
    scored = ~np.isnan(rights)  # objects in ignored regions have nan
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


def collect_coverage(rows: Sequence[Mapping[str, Any]]) -> Coverage | None:
    """Read ``covered`` and ``drawn`` of all rows; None if no row has ``decode.covered``."""
    found = [row["decode"] for row in rows if row.get("decode", {}).get("covered") is not None]
    if not found:
        return None
    covered, drawn = (
        np.array([own.get(name) or 0.0 for own in found], dtype=np.float64)
        for name in ("covered", "drawn")
    )
    is_completed = all(own.get("drawn") is not None for own in found)
    return Coverage(covered, drawn, is_completed)
