"""Report sections on boxes and polygons: IoU, sizes, classes, duplicates, partly invalid answers.

Units    IoU is 0 to 1. Shares are fractions of all true shapes. If an answer could not be parsed,
         the true shapes of its row are included with IoU 0.

The confusion matrix pairs predicted with true shapes of any label. Precision and recall only pair
shapes with the same label. Pairs are chosen by decreasing IoU, down to 0.5.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instance
from mm_numeric.evaluation.metrics.base import THRESHOLDS
from mm_numeric.evaluation.metrics.boxes import size_of
from mm_numeric.evaluation.metrics.matching import (
    FOUND_IOU,
    MatchedShapes,
    are_words,
    match_rows,
    mean_box,
)
from mm_numeric.evaluation.metrics.repeats import DUPLICATE_IOU, TRUNCATED
from mm_numeric.evaluation.report.charts import Axis, Points, SeriesStyle, bar_table, share_chart
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, group, heading, note
from mm_numeric.evaluation.report.results import Pooled, ScoredRow
from mm_numeric.evaluation.table import Cell, Quantity, Table, TableRow, cell_of, percent
from mm_numeric.geometry.row_shapes import instance_row

BINS = 20
_CLASSES = 12  # a confusion matrix shows this many of the most frequent true classes
_NOTHING, _OTHER = "(no object)", "(other classes)"
_RECALL = Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)], label="recall")

Matched = Mapping[SeriesStyle, Sequence[MatchedShapes]]
"""Maps the style of each objective to the matched shapes of its rows."""

MEAN_BOX = SeriesStyle(
    name="mean box", colour="var(--warm)", shape="M-7,-1.6H7V1.6H-7Z", dash="1.5 3"
)
"""The style, in charts, of a guess: the mean of all true boxes is the answer to every image."""


@dataclass(frozen=True)
class IouStatistics:
    """The IoU of each true shape with its prediction, for all runs (seeds) of one objective."""

    style: SeriesStyle
    ious: NDArray[np.float64]  # the IoU of each true shape
    parsed: NDArray[np.bool_]  # for each true shape, whether the answer could be parsed
    sizes: NDArray[np.str_]  # small, medium or large, for each true shape
    answers: int  # the number of predicted shapes, except those in ignored regions

    @property
    def unparsed(self) -> float:
        """Return the fraction of true shapes that are in rows with an unparseable answer."""
        return _mean(~self.parsed)

    @property
    def without_overlap(self) -> float:
        """Return the fraction of true shapes that have IoU 0 although the answer was parsed."""
        return _mean(self.parsed & (self.ious == 0))

    def share_from(self, threshold: float, size: str | None = None) -> float | None:
        """Return the fraction of true shapes whose IoU is at least ``threshold``.

        With ``size`` (small, medium or large), it is the fraction of true shapes of this size.
        """
        ious = self.ious if size is None else self.ious[self.sizes == size]
        return _mean(ious >= threshold) if len(ious) else None

    def mean_iou(self, size: str | None = None) -> float | None:
        """Return the mean IoU of all true shapes, or of all true shapes of one ``size``."""
        ious = self.ious if size is None else self.ious[self.sizes == size]
        return _mean(ious) if len(ious) else None

    @property
    def precision(self) -> float | None:
        """Return the fraction of predicted shapes that match a true shape with an IoU >= 0.5."""
        return int((self.ious >= FOUND_IOU).sum()) / self.answers if self.answers else None

    def bins(self) -> list[float]:
        """Return a histogram of IoU as fractions: unparseable answers, IoU 0, then 20 ranges."""
        edges = [step / BINS for step in range(BINS + 1)]
        # Because of rounding errors, the IoU of equal polygons may be a little above 1.
        counts, _ = np.histogram(self.ious[self.ious > 0].clip(max=1), edges)
        return [self.unparsed, self.without_overlap, *(counts / max(len(self.ious), 1)).tolist()]


def statistics_of(
    style: SeriesStyle, rows: Sequence[ScoredRow], paired: Sequence[MatchedShapes]
) -> IouStatistics:
    """Collect the IoU and the size of each true shape, from the scored rows of one objective."""
    sizes = [size_of(truth.shape) for own in paired for truth in own.truths]
    parsed = [
        row["parsed"] is not None for row, own in zip(rows, paired, strict=True) for _ in own.truths
    ]
    return IouStatistics(
        style=style,
        ious=np.array([iou for own in paired for iou in own.ious], dtype=np.float64),
        parsed=np.array(parsed, dtype=np.bool_),
        sizes=np.array(sizes, dtype=np.str_),
        answers=sum(sum(own.counts) for own in paired),
    )


def mean_box_statistics(
    rows: Sequence[ScoredRow], paired: Sequence[MatchedShapes]
) -> tuple[Instance, IouStatistics] | None:
    """Return the mean of all true boxes, and the IoU statistics of always predicting this box.

    The label of the box is the most frequent true label; in text spotting, it has no label. Return
    None if there are no true boxes.
    """
    box = mean_box(paired)
    if box is None:
        return None
    labels = Counter(truth.label for own in paired for truth in own.truths)
    answer = Instance(box, "" if are_words(rows) else labels.most_common(1)[0][0])
    answers = [{**row, "parsed": instance_row(answer)} for row in rows]
    return answer, statistics_of(MEAN_BOX, answers, match_rows(answers))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


SIZES = {"small": "below 32 × 32 pixels", "medium": "below 96 × 96", "large": "from 96 × 96"}
_IOU_TICKS = [(t, f"{t:g}") for t in (0, 0.25, *THRESHOLDS, 1)]
_Statistics = Sequence[IouStatistics]
_Content = Quantity | None
_RANGES = [f"{index / BINS:.2f} to {(index + 1) / BINS:.2f}" for index in range(BINS)]
_LEFT = ["unreadable", "no overlap"]
_READING = (
    "The values of a curve at 0.5, 0.75 and 0.9 are the shares in the table. A curve that is "
    "higher on the left finds more shapes; one that falls late on the right locates them better."
)


def iou_section(
    found: _Statistics, answer: Instance | None, seeds: str, *, single: bool
) -> Section:
    """Return the section on the IoU of true and predicted shapes: curves and tables.

    ``answer`` is the mean box, or None without true shapes; the last element of ``found`` has the
    statistics of always predicting it. ``seeds`` is the result of ``results.seeds_text``.
    ``single`` is True if each answer is exactly one shape.
    """
    share = "Acc" if single else "recall"
    labels = [f"{share}@{t:g}" for t in THRESHOLDS] + ["mean IoU"]
    labels += _LEFT if single else [f"precision@{FOUND_IOU:g}", *_LEFT]
    text = f"{_definition(answer, single=single)}{seeds} "
    text += _mean_box_text(found, answer, single=single)
    shares = {own.style: own.bins() for own in found}
    distribution = bar_table("IoU", [*_LEFT, *_RANGES], shares, "True shapes by IoU")
    return Section.of(
        "overlap",
        "Overlap (IoU)",
        group("halves", [_curves(found), group("", [text, note(_READING)])]),
        _table(
            "IoU and recall of true shapes",
            labels,
            found,
            [_iou_cells(own, single=single) for own in found],
        ),
        fold("Distribution of IoU", [distribution]),
    )


def _definition(answer: Instance | None, *, single: bool) -> str:
    if single:
        return "IoU is the area of the intersection of answered and true box over their union."
    alike = " of the same label" if answer and answer.label else ""
    return (
        f"Every true shape is paired with at most one answered shape{alike}, the highest IoU "
        "first. IoU is the area of their intersection over their union, and 0 without a pair."
    )


def _mean_box_text(found: _Statistics, answer: Instance | None, *, single: bool) -> str:
    if answer is None:
        return "There are no true shapes in these images."
    edges = ", ".join(f"{edge:.0f}" for point in answer.shape.points for edge in point)
    own = found[-1]
    recall, precision = percent(own.share_from(FOUND_IOU)), percent(own.precision)
    results = [f"{'Acc' if single else 'recall'}@{FOUND_IOU:g} {_text(recall)}"]
    results += [] if single else [f"precision@{FOUND_IOU:g} {_text(precision)}"]
    return (
        f"The mean box, [{edges}] in pixels, is the mean of the true boxes of the test rows. "
        f"Answering it {'every time' if single else 'once in every image'}"
        f"{f', as “{answer.label}”,' if answer.label else ''} results in {', '.join(results)} "
        f"and a mean IoU of {_text(_iou(own.mean_iou()))}. The constant answer among the guesses "
        "is another one: of the most frequent true answers, the best for the metric."
    )


def _iou_cells(own: IouStatistics, *, single: bool) -> list[_Content]:
    cells = [*(percent(own.share_from(t)) for t in THRESHOLDS), _iou(own.mean_iou())]
    cells += [] if single else [percent(own.precision)]
    return [*cells, percent(own.unparsed), percent(own.without_overlap)]


def size_section(found: _Statistics, rows: Pooled, *, single: bool) -> Section | None:
    """Return the section on small, medium and large shapes, or None if there are no true shapes.

    Sizes are defined as by COCO. ``iou_section`` describes the arguments.
    """
    sizes = [size for size in SIZES if (found[-1].sizes == size).any()]
    if not sizes:
        return None
    precisions = {style: _precisions(own, sizes) for style, own in rows.items()}
    has_precision = not single and any(precisions.values())
    names = [f"Acc@{FOUND_IOU:g}" if single else f"recall@{FOUND_IOU:g}"]
    names += [f"precision@{FOUND_IOU:g}"] if has_precision else ["mean IoU"]
    cells: list[list[_Content]] = []
    for own in found:
        line: list[_Content] = [percent(own.share_from(FOUND_IOU, size)) for size in sizes]
        known = precisions.get(own.style) or {}
        line += [percent(known.get(s)) if has_precision else _iou(own.mean_iou(s)) for s in sizes]
        cells.append(line)
    counts = [f"{size}, {SIZES[size]}: {(found[-1].sizes == size).sum():,}" for size in sizes]
    text = f"Sizes are areas of true shapes as in COCO ({'; '.join(counts)} in the test rows)."
    if has_precision:
        text += " An answered shape without a pair counts by its own size."
    labels = [f"{name}, {size}" for name in names for size in sizes]
    return Section.of(
        "sizes", "By object size", note(text), _table("By object size", labels, found, cells)
    )


def _precisions(rows: Sequence[ScoredRow], sizes: Sequence[str]) -> dict[str, float | None]:
    """Return the precision for each object size; {} if rows have no counts for each size."""
    columns = [f"{part}_{size}" for part in ("paired", "counted") for size in sizes]
    if not all(isinstance(row.get(column), int | float) for row in rows for column in columns):
        return {}
    sums = {column: sum(row[column] for row in rows) for column in columns}
    pairs = {size: (sums[f"paired_{size}"], sums[f"counted_{size}"]) for size in sizes}
    return {size: paired / count if count else None for size, (paired, count) in pairs.items()}


_INVALID = {
    "cut": "answers that end within a shape",
    "malformed": "answers with malformed shapes",
    "invalid_detections": "answers with invalid shapes",
}
"""Column of scores.jsonl that counts invalid parts of an answer -> its name in tables."""


def invalid_answers_section(rows: Pooled, seeds: str) -> Section | None:
    """Return the section on truncated answers and invalid shapes; None if they are not counted."""
    columns = [c for c in _INVALID if any(c in row for own in rows.values() for row in own)]
    if not columns:
        return None
    text = (
        f"Answers of which only a part is valid: their valid shapes were scored.{seeds} "
        "Malformed: not the right number of coordinates. Invalid: shapes without area, and "
        "polygons that intersect themselves."
    )
    lines = [["answers", *(f"{len(own):,}" for own in rows.values())]]
    for column in columns:
        counts = [sum(bool(row.get(column)) for row in own) for own in rows.values()]
        lines.append([_INVALID[column], *(f"{count:,}" for count in counts)])
    table = Table.of(
        ["number of", *(style.cell() for style in rows)], lines, title="Partly invalid answers"
    )
    return Section.of("broken", "Partly invalid answers", note(text), table)


def _curves(found: _Statistics) -> Block:
    steps = [step / 100 for step in range(1, 101)]
    curves = {own.style: [(step, own.share_from(step) or 0.0) for step in steps] for own in found}
    x = Axis(low=0, high=1, ticks=_IOU_TICKS, label="IoU of at least")
    text = "Share of true shapes by the minimum IoU, a curve for each objective."
    return share_chart(curves, x, text)


def _table(
    title: str, labels: Sequence[str], found: _Statistics, cells: Sequence[Sequence[_Content]]
) -> Table:
    """Return a table: a row per objective, and a grey row for always predicting the mean box."""
    rows = []
    for own, line in zip(found, cells, strict=True):
        kind: Literal["aside", ""] = "aside" if own.style is MEAN_BOX else ""
        rows.append(TableRow(cells=[own.style.cell(), *map(cell_of, line)], kind=kind))
    return Table.of(["objective", *labels], rows, title=title)


def _iou(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value=value, decimals=3)


def _text(quantity: Quantity | None) -> str:
    return cell_of(quantity).text


def detection_section(rows: Pooled, matched: Matched, seeds: str) -> Section | None:
    """Return the section on classes, confidences and duplicates; None if it would be empty."""
    blocks = repeat_blocks(rows, seeds)
    curves = {style: precision_recall(rows[style], own) for style, own in matched.items()}
    if drawn := {style: points for style, points in curves.items() if points}:
        blocks += [
            heading("Precision and recall by confidence"),
            note(f"From the shape of highest confidence to all, at an IoU of {FOUND_IOU:g}."),
            share_chart(drawn, _RECALL, "Precision by recall, a curve for each objective."),
        ]
    has_classes = not any(are_words(own) for own in rows.values())
    if has_classes and any(t.label for own in matched.values() for row in own for t in row.truths):
        blocks += [heading("Classes"), note("Rows are true classes, columns predicted ones.")]
        blocks += [confusion_table(style, own) for style, own in rows.items()]
    return Section.of("objects", "Classes and duplicates", *blocks) if blocks else None


def repeat_blocks(rows: Pooled, seeds: str) -> list[Content]:
    """Return a table of duplicates, long runs and truncated answers of each objective.

    Return [] if the protocol does not count duplicates (columns of ``repeats.columns_of``).
    """
    if not all("duplicates" in row for own in rows.values() for row in own):
        return []
    lines = []
    for style, own in rows.items():
        shapes = sum(len(row["parsed"] or ()) for row in own)
        count = sum(int(row["duplicates"]) for row in own)
        known = [row[TRUNCATED] for row in own if row["end_known"]]
        lines.append(
            [
                style.cell(),
                f"{shapes:,}",
                f"{count:,}",
                percent(count / max(shapes, 1)),
                f"{count / max(len(own), 1):.2f}",
                f"{max((int(row['longest_run']) for row in own), default=0):,}",
                percent(sum(known) / len(known)) if known else "unknown",
            ]
        )
    header = ["objective", "predicted shapes", "duplicates", "share", "per answer", "longest run"]
    text = (
        "A duplicate is a predicted shape whose IoU with an earlier one of "
        f"the same label and answer is at least {DUPLICATE_IOU:g}, or whose coordinates are equal. "
        "A run is a sequence of shapes that repeat the one before; a truncated answer reached the "
        f"token limit.{seeds}"
    )
    return [note(text), Table.of([*header, "truncated"], lines, title="Duplicates")]


def precision_recall(rows: Sequence[ScoredRow], matched: Sequence[MatchedShapes]) -> Points:
    """Return the points (recall, precision) by decreasing confidence; [] without confidences."""
    found = [
        (confidence, right)
        for row, own in zip(rows, matched, strict=True)
        for confidence, right, counts in zip(
            row.get("scores") or (), own.right, own.counts, strict=False
        )
        if counts
    ]
    truths = sum(len(own.truths) for own in matched)
    if not truths or len({confidence for confidence, _ in found}) < 2:
        return []
    confidence, right = np.array(found).T
    order = np.argsort(-confidence, kind="stable")
    hits = np.cumsum(right[order])
    last = np.flatnonzero(np.diff(-confidence[order], append=np.inf))  # last of equal confidences
    return [(float(hits[i]) / truths, float(hits[i]) / (int(i) + 1)) for i in last]


def confusion_table(style: SeriesStyle, rows: Sequence[ScoredRow]) -> Table:
    """Return the confusion matrix of one objective: rows are true, columns predicted classes.

    Labels that are not among the most frequent true classes count as ``(other classes)``.
    """
    counts: Counter[tuple[str, str]] = Counter()
    labelled = match_rows(rows)
    plain = match_rows([{**row, **_without_labels(row)} for row in rows])
    for names, own in zip(labelled, plain, strict=True):
        pairs = {
            partner: index
            for index, (partner, found) in enumerate(zip(own.partners, own.found, strict=True))
            if found and partner is not None
        }
        missed = set(range(len(names.truths))) - set(pairs.values())
        for partner, index in pairs.items():
            counts[names.truths[index].label, names.answers[partner].label] += 1
        for index in missed:
            counts[names.truths[index].label, _NOTHING] += 1
        for index, item in enumerate(names.answers):
            if index not in pairs and own.counts[index]:
                counts[_NOTHING, item.label] += 1
    return _matrix(style, counts)


def _without_labels(row: ScoredRow) -> dict[str, object]:
    return {
        key: [{k: v for k, v in item.items() if k != "label"} for item in row[key] or ()]
        for key in ("target", "parsed")
    }


def _matrix(style: SeriesStyle, counts: Mapping[tuple[str, str], int]) -> Table:
    totals: Counter[str] = Counter()
    for (true, _), count in counts.items():
        if true != _NOTHING:
            totals[true] += count
    known = sorted(name for name, _ in totals.most_common(_CLASSES))
    shown: Counter[tuple[str, str]] = Counter()
    for pair, count in counts.items():
        true, predicted = (own if own in {*known, _NOTHING} else _OTHER for own in pair)
        shown[true, predicted] += count
    names = [*known, *([_OTHER] if any(_OTHER in pair for pair in shown) else []), _NOTHING]
    lines = [
        [
            Cell(content=true, limit=30),
            *(
                Cell(content=f"{shown[true, predicted]:,}", best=true == predicted)
                if (true, predicted) != (_NOTHING, _NOTHING)
                else Cell(content="")
                for predicted in names
            ),
        ]
        for true in names
        if true != _OTHER or len(totals) > len(known)
    ]
    return Table.of(["true class", *names], lines, title=f"Classes predicted by {style.name}")
