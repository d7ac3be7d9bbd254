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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import (
    Axis,
    SeriesStyle,
    bar_table,
    draw,
    figure,
    share_chart,
)
from mm_numeric.evaluation.report.gallery import (
    Ranked,
    Tile,
    by_question,
    data_url,
    names_of,
    open_upright,
    order_text,
    worst_first,
)
from mm_numeric.evaluation.report.page import Block, Section, fold, group, heading, note, render
from mm_numeric.evaluation.report.results import Pooled, ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, Table, percent
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import MISSING

DIAL = 720  # minutes of a full turn
BINS = [(0, 0), (1, 1), (2, 5), (6, 15), (16, 30), (31, 60), (61, 180), (181, 360)]
BIN_NAMES = [f"{low}" if low == high else f"{low} to {high}" for low, high in BINS] + ["unreadable"]
WITHIN = [1, 5, 15, 60]
WORST, FOLDED, TYPICAL, LISTED = 24, 8, 6, 10
SIDE_PX = 224
_WORST_SEED = "the worst of each image"
_TIME = re.compile(r"(1[0-2]|0?[1-9]):([0-5]\d)")

Answers = Mapping[tuple[str, int], Mapping[str, ScoredRow]]
"""Maps the id of a test row and a seed to the row of each objective."""


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
    """Return answered minus true time in minutes (-359 to 360), or None if one is missing."""
    target, answer = minutes_of(row["target"]), minutes_of(row["parsed"])
    if target is None or answer is None:
        return None
    difference = (answer - target) % DIAL
    return difference if difference <= DIAL // 2 else difference - DIAL


def sector_shares(rows: Sequence[ScoredRow]) -> dict[int, float]:
    """Return the fraction of answers by how late or early they are, in 72 sectors of 10 minutes.

    Sector 0 has answers up to 5 minutes late or early, sector 1 answers 6 to 15 minutes late, and
    sector 71 answers 6 to 15 minutes early. Sectors without answers are omitted.
    """
    counts: Counter[int] = Counter()
    for row in rows:
        deviation = signed_deviation(row)
        if deviation is not None:
            sectors = (abs(deviation) + 4) // 10
            counts[(sectors if deviation > 0 else -sectors) % 72] += 1
    return {sector: count / len(rows) for sector, count in sorted(counts.items())}


def _bin_shares(rows: Sequence[ScoredRow]) -> list[float]:
    counts = [0] * (len(BINS) + 1)
    for row in rows:
        if row["parsed"] is None:
            counts[-1] += 1
        else:
            deviation = row["deviation_minutes"]
            counts[next(i for i, (_, high) in enumerate(BINS) if deviation <= high)] += 1
    return [count / len(rows) for count in counts]


def _share_within(rows: Sequence[ScoredRow], minutes: int) -> float:
    return sum(_is_within(row, minutes) for row in rows) / len(rows)


def _is_within(row: ScoredRow, minutes: int) -> bool:
    return row["parsed"] is not None and bool(row["deviation_minutes"] <= minutes)


def _hour_errors(pooled: Pooled) -> str:
    """Return a sentence: the share of errors above 15 minutes in which only the hour is wrong."""
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
    longest = max(
        (share for rows in pooled.values() for at, share in sector_shares(rows).items() if at),
        default=1.0,
    )
    dials = (
        "Each dial is rotated so that the true time is at 12 o’clock: a bar at 1 o’clock is an "
        "answer one hour late, a bar at 6 is six hours off. Bars are 10 minutes wide, whole hours "
        "in full colour. The longest bar is the most frequent error of all objectives; the bar of "
        "correct answers (within 5 minutes) is clipped there."
    )
    within = [
        [style.cell(), *(percent(_share_within(rows, m)) for m in WITHIN)]
        for style, rows in pooled.items()
    ]
    table = Table.of(
        ["at most", *(f"{m} min" for m in WITHIN)],
        within,
        title="Share within a deviation",
    )
    shares = {style: _bin_shares(rows) for style, rows in pooled.items()}
    return Section.of(
        "deviations",
        "Deviations",
        f"{_hour_errors(pooled)}{seeds}",
        heading("Signed deviations on the dial"),
        note(dials),
        group("roses", [_rose(style, rows, longest) for style, rows in pooled.items()]),
        heading("Share of answers within a number of minutes"),
        group("halves", [_cumulative(pooled), table]),
        heading("Distribution of deviations"),
        bar_table("deviation in minutes", BIN_NAMES, shares, "Share of answers by deviation"),
    )


def _rose(style: SeriesStyle, rows: Sequence[ScoredRow], longest: float) -> Block:
    shares = sector_shares(rows)
    description = f"{style.name}: signed deviations of {len(rows):,} answers on a dial."
    late = {sector if sector <= 36 else sector - 72: share for sector, share in shares.items()}
    lines = [[f"{10 * sector:g}", percent(late[sector], 2)] for sector in sorted(late)]
    chart = draw(
        "clock_rose.html",
        description,
        Table.of(["minutes late, in sectors of 10", "share of answers"], lines),
        bars={sector: min(share / longest, 1) for sector, share in shares.items()},
        colour=style.colour,
        right=percent(shares.get(0, 0)),
        failed=percent(sum(row["parsed"] is None for row in rows) / len(rows)),
    )
    return figure(chart, style.cell())


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


def _tile(style: SeriesStyle, row: ScoredRow, image: str, css: str) -> Tile:
    target, answer = minutes_of(row["target"]), minutes_of(row["parsed"])
    times = [] if target is None else [(target, "true")]
    if answer is not None and answer != target:
        times.append((answer, "answer"))
    words, name = answer_text(row), plain(style.name, 60)
    drawing = render("clock_tile.html", image=image, name=name, words=words, times=times)
    css = f"{css} {'near' if _is_within(row, 5) else 'off'}"
    return Tile(style.label(), drawing, words.replace(" min", "\N{NO-BREAK SPACE}min"), css)


def _gallery(folder: Path, styles: Styles, scores: Scores) -> Section:
    ranked = worst_first(scores, lambda row: float(row["deviation_minutes"]))
    worst = ranked[:WORST]
    middle = max(len(worst), (len(ranked) - TYPICAL) // 2)
    answers = by_question(styles, scores)
    seeds = sorted({seed for _, seed in scores})
    cases = [
        _case(folder, own, f"image{index}", styles, answers, seeds)
        for index, own in enumerate(worst + ranked[middle : middle + TYPICAL])
    ]
    intro = order_text("deviation", scores)
    missing = sum(case["url"] is None for case in cases)
    intro += f" {missing} of the {len(cases)} images could not be opened." if missing else ""
    drawn = render(
        "clock_gallery.html",
        cases=cases,
        seeds=[_WORST_SEED, *seeds] if len(seeds) > 1 else [],
        is_alone=len(scores) == 1,
        worst=cases[:FOLDED],
        more=cases[FOLDED : len(worst)],
        typical=cases[len(worst) :],
    )
    table = _worst_table(worst[:LISTED], styles, scores, answers)
    hidden = ".gallery-seeds:has(#seed{0}:checked)~* .tile:not(.s{0}){{display:none}}"
    css = "".join(hidden.format(i) for i in range(len(seeds) + 1)) if len(seeds) > 1 else ""
    return Section.of("gallery", "Answers on the dial", intro, Block(drawn), table, css=css)


def _case(
    folder: Path, own: Ranked, image: str, styles: Styles, answers: Answers, seeds: Sequence[int]
) -> dict[str, Any]:
    """Return one gallery entry for its HTML template: a test image, and the answers of each seed.

    Tiles of the worst seed have the CSS class s0, those of the first, second ... seed s1, s2 ...
    """
    found = {
        (name, seed): row for seed in seeds for name, row in answers.get((own.id, seed), {}).items()
    }
    tiles = []
    for (name, seed), row in found.items():
        css = f"s{seeds.index(seed) + 1}" + " s0" * (seed == own.seed)
        tiles.append(_tile(styles[name], row, image, css))
    row = next(iter(found.values()))
    path = folder / str(row["image"])
    opened = open_upright(path)
    return {
        "id": plain(own.id, 60),
        "target": plain(row["target"], 20),
        "about": f"{own.error:.0f} min off" + f", seed {own.seed}" * (len(seeds) > 1),
        "image": image,
        "file": plain(path.name, 14),
        "url": None if opened is None else data_url(opened, SIDE_PX),
        "tiles": tiles,
    }


def _worst_table(
    worst: Sequence[Ranked], styles: Styles, scores: Scores, answers: Answers
) -> Block:
    names, several = names_of(styles, scores), len({seed for _, seed in scores}) > 1
    rows = []
    for own in worst:
        found = answers[own.id, own.seed]
        target = str(next(iter(found.values()))["target"])
        cells = [Cell(content=_short(found.get(name)), limit=44) for name in names]
        label = Cell(content=own.id, limit=60, note=f"seed {own.seed}" if several else "")
        rows.append([label, plain(target, 20), *cells, f"{own.error:.0f}"])
    header = ["image", "true", *(styles[name].cell() for name in names), "deviation (min)"]
    title = f"The worst {len(rows)}; parse failures are in quotes"
    return fold("The worst as a table", [Table.of(header, rows, title=title)])


def _short(row: ScoredRow | None) -> str:
    if row is None:
        return MISSING
    return str(row["parsed"] or f"“{plain(row['text'], 40)}”")
