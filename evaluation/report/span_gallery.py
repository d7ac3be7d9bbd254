"""Report section for temporal spans: the true and the predicted spans of questions on a timeline.

Rows     lines of ``scores.jsonl`` with the columns
         id, prompt          id and question of the test row
         target, parsed      lists of [start, end] in seconds; parsed may be None
         text, reason        the text of the model, and why it could not be parsed
         iou                 the IoU of the first answered span
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mm_numeric.answers import IMAGE
from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.gallery import (
    Entry,
    Question,
    Tile,
    answer_text,
    gallery_section,
    worst_and_others,
    worst_first,
)
from mm_numeric.evaluation.report.page import Section, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, number
from mm_numeric.io.escaping import plain

_FRAME = re.compile(r"<([0-9.]+) seconds>")
_WIDTH = 300  # width of a drawing, in units of its viewBox
_NEAR_IOU = 0.5
_DRAWN = 20  # maximum number of drawn spans per answer: repetitive answers can be very long


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the gallery of temporal spans, or [] if no answer was scored."""
    if not results.pooled_rows(styles, scores):
        return []
    ranked = worst_first(styles, scores, lambda row: 1 - float(row["iou"]))
    section = gallery_section(
        "Answers on the timeline",
        [_entry(own, styles) for own in worst_and_others(ranked)],
        len(ranked),
        styles,
        scores,
        noun="question",
        error="IoU",
        header=["true"],
        mean="mean IoU",
        key=render("span_key.html"),
        css="shown several",
    )
    return [section]


def _entry(own: Question, styles: Styles) -> Entry:
    prompt, target = str(own.row.get("prompt") or ""), own.row["target"]
    ends = [float(seconds) for seconds in _FRAME.findall(prompt)]
    length = max([*ends, *(end for _, end in target)])
    question = prompt.rpartition(IMAGE)[2]
    title = f"“{plain(question, 160)}”" if question else plain(own.id, 60)
    return Entry(
        question=own,
        answers={name: Cell(content=_words(row), limit=160) for name, row in own.rows.items()},
        cells=[_seconds(target)],
        mean=number(1 - own.error, 2),
        title=f"{title}, timeline of {number(length, 1)} s",
        tiles=[_tile(styles[name], row, length) for name, row in own.rows.items()],
    )


def _tile(style: SeriesStyle, row: ScoredRow, length: float) -> Tile:
    words = _words(row)
    drawing = render(
        "span_tile.html",
        width=_WIDTH,
        name=plain(style.name, 60),
        words=words,
        truths=_bars(row["target"], length),
        answered=_bars((row["parsed"] or [])[:_DRAWN], length),
    )
    return Tile(style.label(), drawing, words, "near" if row["iou"] >= _NEAR_IOU else "off")


def _bars(spans: Sequence[Sequence[float]], length: float) -> list[tuple[float, float]]:
    ends = [tuple(_WIDTH * min(at / length, 1) for at in span) for span in spans]
    return [(start, max(end - start, 0.0)) for start, end in ends]


def _words(row: ScoredRow) -> str:
    return (
        f"{answer_text(row)}: {_seconds(row['parsed'][:1])}" if row["parsed"] else answer_text(row)
    )


def _seconds(spans: Sequence[Sequence[float]]) -> str:
    return ", ".join(f"{number(start, 1)} to {number(end, 1)} s" for start, end in spans)
