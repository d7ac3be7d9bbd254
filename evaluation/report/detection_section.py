"""Report section on labels and confidences of detected objects, and on objects detected twice.

A confusion matrix pairs shapes whatever their labels; precision and recall pair shapes of one
label. Both pair the highest IoU first, of at least 0.5.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from mm_numeric.evaluation.metrics.matching import FOUND_IOU, MatchedShapes, are_words, match_rows
from mm_numeric.evaluation.metrics.repeats import DUPLICATE_IOU, TRUNCATED
from mm_numeric.evaluation.report.charts import Axis, Points, SeriesStyle, share_chart
from mm_numeric.evaluation.report.page import Content, Section, heading, note
from mm_numeric.evaluation.report.results import Pooled, ScoredRow
from mm_numeric.evaluation.table import Cell, Table, percent

_CLASSES = 12  # of a confusion matrix: the most frequent true classes
_NOTHING, _OTHER = "(no object)", "(other classes)"
_RECALL = Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)], label="recall")

Matched = Mapping[SeriesStyle, Sequence[MatchedShapes]]
"""Maps the style of each objective to the matched shapes of its rows."""


def detection_section(rows: Pooled, matched: Matched, seeds: str) -> Section | None:
    """Return the section on classes, confidences and duplicates; None if there are none of them.

    ``seeds`` is that of ``results.seeds_text``.
    """
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

    It is empty if rows lack the columns of ``columns_of``, as those of other protocols do.
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
        "A run is a row of shapes that each repeat the one before; a truncated answer reached the "
        f"token limit.{seeds}"
    )
    return [note(text), Table.of([*header, "truncated"], lines, title="Duplicates")]


def precision_recall(rows: Sequence[ScoredRow], matched: Sequence[MatchedShapes]) -> Points:
    """Return the points (recall, precision) by falling confidence; [] without confidences."""
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
    last = np.flatnonzero(np.diff(-confidence[order], append=np.inf))  # of equal confidences
    return [(float(hits[i]) / truths, float(hits[i]) / (int(i) + 1)) for i in last]


def confusion_table(style: SeriesStyle, rows: Sequence[ScoredRow]) -> Table:
    """Return the confusion matrix of one objective: counts of true by predicted classes.

    Labels that the model made up are predicted as other classes.
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
