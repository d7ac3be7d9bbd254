"""Report sections for numbers as answers: error sizes, accuracy by category, and questions.

Rows     lines of ``scores.jsonl`` with the columns
         id, target, parsed   the id of the test row, the true number, and the answered number
         text, reason         the text of the model, and why it could not be parsed
         exact                whether the answer is correct
         absolute_error, relative_error, log_error
         nonzero              whether the true number is not 0; only then relative_error is defined
         prompt, buckets      optional: the question; categories, such as {"category": "sums"}
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics.number_errors import digit_count
from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import Axis, SeriesStyle, bar_table, share_chart
from mm_numeric.evaluation.report.gallery import (
    Canvas,
    Entry,
    Tile,
    gallery_section,
    worst_and_others,
    worst_first,
)
from mm_numeric.evaluation.report.page import Block, Section, note
from mm_numeric.evaluation.report.results import Pooled, ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element

_SIDE_PX = 320  # the longer edge of an image of a question

WITHIN = {"exact": 0.0, "up to 1% off": 0.01, "up to 10%": 0.1, "up to 50%": 0.5}


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections for numbers as answers, or [] if no answer was scored."""
    pooled = results.pooled_rows(styles, scores)
    if not pooled:
        return []
    seeds = results.seeds_text(scores)
    errors, buckets = _errors_section(pooled, seeds), _buckets_section(pooled, seeds)
    return [errors, buckets, questions_section(folder, styles, scores)]


def _errors_section(pooled: Pooled, seeds: str) -> Section:
    shares = {style: _shares(rows) for style, rows in pooled.items()}
    text = (
        "Errors relative to the true number; if it is 0, every wrong answer is farther off. "
        f"The curve shows the share of answers up to an absolute error.{seeds}"
    )
    table = bar_table(
        "the answer is", [*WITHIN, "farther off", "unreadable"], shares, "Answers by error"
    )
    return Section.of("errors", "Error sizes", note(text), _curves(pooled), table)


def _shares(rows: Sequence[ScoredRow]) -> list[float]:
    counts = [0] * (len(WITHIN) + 2)
    for row in rows:
        if row["parsed"] is None:
            counts[-1] += 1
        elif row["exact"]:
            counts[0] += 1
        else:
            error = row["relative_error"] if row["nonzero"] else math.inf
            found = (i for i, limit in enumerate(WITHIN.values()) if i and error <= limit)
            counts[next(found, len(WITHIN))] += 1
    return [count / len(rows) for count in counts]


def _curves(pooled: Pooled) -> Block:
    errors = {
        style: sorted(math.log10(1 + row["absolute_error"]) for row in rows if row["parsed"])
        for style, rows in pooled.items()
    }
    end = max(1, math.ceil(max((e[-1] for e in errors.values() if e), default=1)))
    end = min(end, 12)  # the axis ends at 10^12: differences between larger errors do not matter
    steps = [end * step / 120 for step in range(121)]
    curves = {
        style: [(s, sum(e <= s + 1e-9 for e in found) / len(pooled[style])) for s in steps]
        for style, found in errors.items()
    }
    ticks = [(0.0, "0"), *((math.log10(1 + 10**k), f"{10**k:,}") for k in range(end))]
    x = Axis(
        low=0, high=end, ticks=ticks, label="absolute error of at most", value=lambda at: 10**at - 1
    )
    text = "Share of answers up to an absolute error, a curve for each objective."
    return share_chart(curves, x, text)


def _buckets_section(pooled: Pooled, seeds: str) -> Section:
    text = f"Correct answers; in brackets the number of answers.{seeds}"
    tables = []
    for kind, labels in _buckets(next(iter(pooled.values()))).items():
        shares = {style: _accuracies(rows, kind, labels) for style, rows in pooled.items()}
        names = [f"{label} ({count:,})" for label, count in labels.items()]
        tables.append(bar_table(plain(kind, 60), names, shares, f"Correct answers by {kind}"))
    return Section.of("buckets", "Accuracy by category", note(text), *tables)


def _accuracies(rows: Sequence[ScoredRow], kind: str, labels: Iterable[str]) -> list[float]:
    exact = {
        label: [row["exact"] for row in rows if _label(row, kind) == label] for label in labels
    }
    return [fmean(found) if found else 0.0 for found in exact.values()]


def _buckets(rows: Sequence[ScoredRow]) -> dict[str, dict[str, int]]:
    """Count the rows in each category, such as ``{"digits": {"1": 20, "2": 80}}``.

    ``digits`` is the number of digits of the true number before the decimal point.
    """
    kinds = dict.fromkeys(kind for row in rows for kind in row.get("buckets") or {})
    found: dict[str, dict[str, int]] = {}
    for kind in (*kinds, "digits"):
        counts = Counter(_label(row, kind) for row in rows)
        is_count = kind == "digits"
        order = sorted(counts, key=lambda label: (len(label) if is_count else 0, label))
        found[kind] = {label: counts[label] for label in order}
    return found


def _label(row: ScoredRow, kind: str) -> str:
    if kind == "digits":
        return digit_count(Number(_number_text(row["target"])))
    return str((row.get("buckets") or {}).get(kind, "none"))


def questions_section(folder: Path, styles: Styles, scores: Scores) -> Section:
    """Return the section with the questions with the largest errors, and some other questions.

    Questions about an image are shown with the image. ``folder`` is the folder of its path.
    """
    ranked = worst_first(styles, scores, lambda row: float(row["log_error"]))
    entries = []
    for number, own in enumerate(worst_and_others(ranked)):
        question, true = str(own.row.get("prompt") or own.id), _with_unit(own.row["target"])
        entry = Entry(
            question=own,
            answers={name: _answer_cell(row) for name, row in own.rows.items()},
            cells=[Cell(content=question, limit=160), Cell(content=true, limit=40)],
        )
        if own.row.get("image"):
            on = Canvas.open(folder / str(own.row["image"]), f"image{number}", _SIDE_PX)
            tiles = [_tile(styles[name], row, on) for name, row in own.rows.items()]
            entry = replace(entry, title=plain(question, 160), tiles=tiles, canvas=on)
        entries.append(entry)
    return gallery_section(
        "Questions and answers",
        entries,
        len(ranked),
        styles,
        scores,
        noun="row",
        error="error (as sign log10(1 + abs))",
        header=["question", "true"],
    )


def _tile(style: SeriesStyle, row: ScoredRow, on: Canvas) -> Tile:
    answer = "“{}”".format(plain(row["text"], 40))
    if row["parsed"] is not None:
        answer = plain(_with_unit(row["parsed"]), 40)
    words = f"answered {answer}, true {plain(_with_unit(row['target']), 40)}"
    box = f"0 0 {on.region.width} {on.region.height}"
    used = element("use", href=f"#{on.anchor}")
    drawing = element("svg", used, viewBox=box, role="img", aria_label=words)
    return Tile(style.label(), drawing, words, "near" if row["exact"] else "off")


def _answer_cell(row: ScoredRow) -> Cell:
    if row["parsed"] is None:
        return Cell(content=f"“{plain(row['text'], 40)}”", css="unread")
    right = bool(row["exact"])
    text = _with_unit(row["parsed"])
    return Cell(content=text, limit=40, best=right, css="right" if right else "wrong")


def _number_text(recorded: Any) -> str:
    return str(recorded["answer"] if isinstance(recorded, Mapping) else recorded)


def _with_unit(recorded: Any) -> str:
    fields = recorded if isinstance(recorded, Mapping) else {}
    shown = fields.get("time") or _number_text(recorded)
    return " ".join([shown, *fields.get("unit", [])[:1]])
