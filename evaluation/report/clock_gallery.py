"""Report sections for clock reading: deviations, and answers drawn on the images.

Units    minutes on a 12-hour dial; a deviation is 0 to 360, a signed deviation -359 to 360
Rows     lines of ``scores.jsonl`` with the columns
         target, parsed      the true and the answered time, as ``H:MM``; parsed may be None
         text, reason        the text of the model, and why it could not be parsed
         deviation_minutes   the circular distance between both times
         id, image           the id and the image file of the test row
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import Axis, SeriesStyle, bar_table, share_chart
from mm_numeric.evaluation.report.gallery import (
    Canvas,
    Entry,
    Question,
    Tile,
    gallery_section,
    worst_and_others,
    worst_first,
)
from mm_numeric.evaluation.report.page import Block, Section, group, heading, render
from mm_numeric.evaluation.report.results import Pooled, ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, Table, percent
from mm_numeric.io.escaping import plain

DIAL = 720  # minutes of a full turn
BINS = [(0, 0), (1, 1), (2, 5), (6, 15), (16, 30), (31, 60), (61, 180), (181, 360)]


def _bin_name(low: int, high: int, minutes: int) -> str:
    span = f"{low}" if low == high else f"{low} to {high}"
    return f"{span} {'late' if minutes > 0 else 'early'}" if high else span


BIN_NAMES = [
    *(_bin_name(*own, -1) for own in BINS[::-1]),
    *(_bin_name(*own, 1) for own in BINS[1:]),
    "unreadable",
]
WITHIN = [1, 5, 15, 60]
SIDE_PX = 224
_KEY = (
    '<p class="note"><span class="key" style="background:#1550c8"></span>the true time, '
    '<span class="key dashed" style="color:#f06a0a"></span>the answered time. Hands are drawn '
    "upright from the centre of the image; the clock face below may be rotated or shifted.</p>"
)
_TIME = re.compile(r"(1[0-2]|0?[1-9]):([0-5]\d)")


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections for clock reading, or [] if no answer was scored."""
    pooled = results.pooled_rows(styles, scores)
    if not pooled:
        return []
    seeds = results.seeds_text(scores)
    return [_deviations(pooled, seeds), _gallery(folder, styles, scores)]


def minutes_of(text: object) -> int | None:
    """Convert ``H:MM`` to minutes after 12:00 (0 to 719). Return None for any other text."""
    found = _TIME.fullmatch(str(text).strip())
    return int(found[1]) % 12 * 60 + int(found[2]) if found else None


def signed_deviation(row: ScoredRow) -> int | None:
    """Return answered minus true time in minutes (-359 to 360); None if a time is missing."""
    target, answer = minutes_of(row["target"]), minutes_of(row["parsed"])
    if target is None or answer is None:
        return None
    difference = (answer - target) % DIAL
    return difference if difference <= DIAL // 2 else difference - DIAL


def bin_shares(rows: Sequence[ScoredRow]) -> list[float]:
    """Return the fraction of answers in each of ``BIN_NAMES``, such as ``2 to 5 late``."""
    counts: Counter[str] = Counter()
    for row in rows:
        minutes = signed_deviation(row)
        if minutes is None:
            counts["unreadable"] += 1
        else:
            low, high = next((low, high) for low, high in BINS if abs(minutes) <= high)
            counts[_bin_name(low, high, minutes)] += 1
    return [counts[name] / len(rows) for name in BIN_NAMES]


def _share_within(rows: Sequence[ScoredRow], minutes: int) -> float:
    return sum(_is_within(row, minutes) for row in rows) / len(rows)


def _is_within(row: ScoredRow, minutes: int) -> bool:
    return row["parsed"] is not None and bool(row["deviation_minutes"] <= minutes)


def _hour_errors(pooled: Pooled) -> str:
    """State in how many answers with an error above 15 minutes only the hour is wrong."""
    every = [row for rows in pooled.values() for row in rows if row["parsed"] is not None]
    large = [row["deviation_minutes"] for row in every if row["deviation_minutes"] > 15]
    if not large:
        return "No parsed answer deviates by more than 15 minutes."
    hours = sum(min(minutes % 60, -minutes % 60) <= 2 for minutes in large)
    return (
        f"Of the {len(large):,} parsed answers that deviate by more than 15 minutes, "
        f"{percent(hours / len(large))} deviate by whole hours (within 2 minutes): the minute hand "
        "was read correctly, the hour hand was not. Of random answers, about 8% would."
    )


def _deviations(pooled: Pooled, seeds: str) -> Section:
    within = [
        [style.cell(), *(percent(_share_within(rows, m)) for m in WITHIN)]
        for style, rows in pooled.items()
    ]
    table = Table.of(
        ["at most", *(f"{m} min" for m in WITHIN)], within, title="Share within a deviation"
    )
    shares = {style: bin_shares(rows) for style, rows in pooled.items()}
    return Section.of(
        "deviations",
        "Deviations",
        f"{_hour_errors(pooled)}{seeds}",
        heading("Share of answers within a number of minutes"),
        group("halves", [_cumulative(pooled), table]),
        heading("Distribution of deviations"),
        bar_table("deviation in minutes", BIN_NAMES, shares, "Share of answers by deviation"),
    )


def _cumulative(pooled: Pooled) -> Block:
    steps = sorted({*range(31), *range(30, 361, 5)})
    curves = {
        style: [(math.log2(1 + minutes), _share_within(rows, minutes)) for minutes in steps]
        for style, rows in pooled.items()
    }
    ticks = [(math.log2(1 + m), str(m)) for m in (0, 1, 2, 5, 10, 30, 60, 180, 360)]
    x = Axis(
        low=0,
        high=math.log2(361),
        ticks=ticks,
        label="deviation of at most, in minutes",
        value=lambda at: 2**at - 1,
    )
    text = "Share of answers within a number of minutes, a curve for each objective."
    return share_chart(curves, x, text)


def answer_text(row: ScoredRow) -> str:
    """Describe the true and the answered time, for example ``7:05 read as 8:05, 60 min``."""
    target = plain(row["target"], 20)
    if row["parsed"] is None:
        reason = plain(row["reason"] or "unreadable", 60)
        return f"{target} not read: {reason} in “{plain(row['text'], 60)}”"
    minutes = row["deviation_minutes"]
    deviation = "right" if minutes == 0 else f"{minutes:g} min"
    return f"{target} read as {plain(row['parsed'], 20)}, {deviation}"


def _gallery(folder: Path, styles: Styles, scores: Scores) -> Section:
    ranked = worst_first(styles, scores, lambda row: float(row["deviation_minutes"]))
    shown = worst_and_others(ranked)
    entries = [_entry(folder, own, f"image{i}", styles) for i, own in enumerate(shown)]
    return gallery_section(
        "Answers on the dial",
        entries,
        len(ranked),
        styles,
        scores,
        noun="image",
        error="deviation",
        header=["true"],
        mean="deviation",
        key=Markup(_KEY),
    )


def _entry(folder: Path, own: Question, anchor: str, styles: Styles) -> Entry:
    path, target = folder / str(own.row["image"]), plain(own.row["target"], 20)
    on = Canvas.open(path, anchor, SIDE_PX)
    answers = {}
    for name, row in own.rows.items():
        answers[name] = Cell(content=row["parsed"] or f"“{plain(row['text'], 40)}”", limit=44)
    return Entry(
        question=own,
        answers=answers,
        cells=[target],
        mean=f"{own.error:.0f} min",
        title=target,
        tiles=[_tile(styles[name], row, on) for name, row in own.rows.items()],
        canvas=on,
    )


def _tile(style: SeriesStyle, row: ScoredRow, on: Canvas) -> Tile:
    target, answer = minutes_of(row["target"]), minutes_of(row["parsed"])
    times = [] if target is None else [(target, "true")]
    if answer is not None and answer != target:
        times.append((answer, "answer"))
    words, name = answer_text(row), plain(style.name, 60)
    drawing = render("clock_tile.html", canvas=on, name=name, words=words, times=times)
    css = "near" if _is_within(row, 5) else "off"
    return Tile(style.label(), drawing, words.replace(" min", "\N{NO-BREAK SPACE}min"), css)
