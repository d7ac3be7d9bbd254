"""The chapters of a report that only make sense for clocks: deviations and a gallery of dials.

Units    minutes on a 12-hour dial: deviations 0 to 360, signed ones above -360 and up to 360
Rows     as ``scores.jsonl`` has them: id, image, target, text, parsed, reason, deviation_minutes
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.report.charts import Axis, Line, Mark, bar_table, line_chart, who
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
    percent,
    plain,
)
from mm_numeric.evaluation.report.images import data_url, open_upright
from mm_numeric.evaluation.report.results import COMPARE_AGAIN

Row = Mapping[str, Any]
Scores = Mapping[tuple[str, int], Sequence[Row]]  # by objective and seed

DIAL = 720  # minutes once round
BINS = [(0, 0), (1, 1), (2, 5), (6, 15), (16, 30), (31, 60), (61, 180), (181, 360)]
BIN_NAMES = [f"{low}" if low == high else f"{low} to {high}" for low, high in BINS] + ["unreadable"]
WITHIN = [1, 5, 15, 60]
WORST, FOLDED, TYPICAL, LISTED = 24, 8, 6, 10
SIDE_PX = 224
_TRUE, _READ = "#1550c8", "#f06a0a"
_TIME = re.compile(r"(1[0-2]|0?[1-9]):([0-5]\d)")


def sections(folder: Path, marks: Mapping[str, Mark], scores: Scores) -> list[Section]:
    """Return the deviation and the gallery chapters; none if no answer was scored."""
    if not any(scores.values()):
        return []
    for (name, seed), rows in scores.items():
        if any(not isinstance(row.get("deviation_minutes"), int | float) for row in rows):
            where = f"{folder}, scores.jsonl of {name}, seed {seed}"
            raise ValueError(f"{where}: a row has no deviation_minutes. {COMPARE_AGAIN}")
    return [_deviations(marks, scores), _gallery(folder, marks, scores)]


def minutes_of(text: object) -> int | None:
    """Return the minutes past twelve of ``H:MM``, or ``None`` for anything else."""
    found = _TIME.fullmatch(str(text).strip())
    return int(found[1]) % 12 * 60 + int(found[2]) if found else None


def signed_deviation(row: Row) -> int | None:
    """Return how far clockwise of the true time the answer is, or ``None`` if it is no time."""
    target, read = minutes_of(row["target"]), minutes_of(row["parsed"])
    if target is None or read is None:
        return None
    apart = (read - target) % DIAL
    return apart if apart <= DIAL // 2 else apart - DIAL


def pool(marks: Mapping[str, Mark], scores: Scores) -> dict[str, list[Row]]:
    """Put the answers of all seeds of an objective together."""
    pooled: dict[str, list[Row]] = {name: [] for name in marks}
    for (name, _), rows in scores.items():
        pooled[name] += rows
    return {name: rows for name, rows in pooled.items() if rows}


def _bin_shares(rows: Sequence[Row]) -> list[float]:
    """Return the share of answers in each of ``BINS``, and last of those that are unreadable."""
    counts = [0] * (len(BINS) + 1)
    for row in rows:
        if row["parsed"] is None:
            counts[-1] += 1
        else:
            apart = row["deviation_minutes"]
            counts[next(i for i, (_, high) in enumerate(BINS) if apart <= high)] += 1
    return [count / len(rows) for count in counts]


def _within(rows: Sequence[Row], minutes: int) -> float:
    """Return the share of answers that could be read and are at most ``minutes`` off."""
    return sum(_is_within(row, minutes) for row in rows) / len(rows)


def _is_within(row: Row, minutes: int) -> bool:
    return row["parsed"] is not None and bool(row["deviation_minutes"] <= minutes)


def _hour_slips(rows: Sequence[Row]) -> tuple[int, int]:
    """Count answers over 15 minutes off, and those of them within 2 of a whole hour off."""
    far = [r["deviation_minutes"] for r in rows if r["parsed"] is not None]
    far = [apart for apart in far if apart > 15]
    return len(far), sum(min(apart % 60, -apart % 60) <= 2 for apart in far)


def turns(rows: Sequence[Row]) -> dict[int, float]:
    """Return the share of answers in every ten minutes round the dial, 0 to 71, empty ones out.

    Place 0 is up to 5 minutes off either way, as in the metric; 1 is 6 to 15 late, 71 as early.
    """
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        apart = signed_deviation(row)
        if apart is not None:
            places = (abs(apart) + 4) // 10
            counts[(places if apart > 0 else -places) % 72] += 1
    return {turn: count / len(rows) for turn, count in sorted(counts.items())}


def _rose(mark: Mark, rows: Sequence[Row], longest: float) -> str:
    """Draw signed deviations round a dial: right answers at 12 o'clock, an hour late at 1."""
    inner, outer = 27, 84
    parts = [f'<circle r="{inner}" fill="none" stroke="var(--faint)"/>']
    for hour in range(12):
        reach = outer if hour % 3 == 0 else outer - 8
        turn = f'transform="rotate({30 * hour})" y1="{-inner}" y2="{-reach}"'
        parts.append(f'<line {turn} stroke="var(--faint)"/>')
    shares = turns(rows)
    for tenth, share in shares.items():
        length = max((outer - inner) * min(share / longest, 1), 0.8)
        opacity = 1 if tenth % 6 == 0 else 0.5
        parts.append(
            f'<rect transform="rotate({5 * tenth})" x="-1.9" y="{-inner - length:.1f}" width="3.8" '
            f'height="{length:.1f}" fill="{mark.colour}" fill-opacity="{opacity}"/>'
        )
    right = f"{percent(shares.get(0, 0))} right"
    places = ((0, -89, "middle"), (88, 4, "start"), (0, 97, "middle"), (-88, 4, "end"))
    for (x, y, anchor), text in zip(places, (right, "+3 h", "6 h", "−3 h"), strict=True):
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')
    unread = sum(row["parsed"] is None for row in rows) / len(rows)
    parts.append(f'<text y="1" text-anchor="middle">{percent(unread)}</text>')
    parts.append('<text y="12" text-anchor="middle" class="tiny">unreadable</text>')
    spoken = html_text(f"{mark.name}: signed deviations of {len(rows):,} answers round a dial.")
    return (
        f"<figure><figcaption>{who(mark)}</figcaption>"
        '<svg class="rose" viewBox="-114 -101 228 202" role="img" '
        f'aria-label="{spoken}"><title>{spoken}</title>{"".join(parts)}</svg></figure>'
    )


def _cumulative(marks: Mapping[str, Mark], pooled: Mapping[str, Sequence[Row]]) -> str:
    """Draw the share of answers within so many minutes, minutes on a logarithmic axis."""
    steps = sorted({*range(31), *range(30, 361, 5)})
    places = [(m, math.log2(1 + m)) for m in steps]
    lines = []
    lowest = 1.0
    for name, rows in pooled.items():
        points = [(place, _within(rows, minutes)) for minutes, place in places]
        lowest = min(lowest, points[0][1])
        mark = marks[name]
        lines.append(Line(points=points, colour=mark.colour, dash=mark.dash, width=2.2))
    shown = (0, 1, 2, 5, 10, 30, 60, 180, 360)
    return line_chart(
        lines[::-1],
        Axis(
            low=0,
            high=math.log2(361),
            ticks=[(math.log2(1 + m), str(m)) for m in shown],
            label="at most so many minutes off",
        ),
        Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)]),
        spoken="Share of answers within a number of minutes, a curve for each objective.",
        width=460,
        height=290,
    )


def _deviations(marks: Mapping[str, Mark], scores: Scores) -> Section:
    """Write the chapter on how far off the answers are."""
    pooled = pool(marks, scores)
    names = list(pooled)
    shares = {name: _bin_shares(rows) for name, rows in pooled.items()}
    near = {name: [percent(_within(pooled[name], m)) for m in WITHIN] for name in names}
    slips = [_hour_slips(rows) for rows in pooled.values()]
    far, slipped = (sum(column) for column in zip(*slips, strict=True))
    hours = (
        f"Of the {far:,} answers that could be read and are more than 15 minutes off, "
        f"{percent(slipped / far)} miss by whole hours (to within 2 minutes): the minute hand was "
        "read, the hour was not. Chance alone would give about 8%."
        if far
        else "No answer that could be read is more than 15 minutes off."
    )
    longest = max(
        (share for rows in pooled.values() for turn, share in turns(rows).items() if turn),
        default=1.0,
    )
    roses = "".join(_rose(marks[name], rows, longest) for name, rows in pooled.items())
    near_rows = "".join(
        f"<tr><th>{who(marks[name])}</th>" + "".join(f"<td>{v}</td>" for v in near[name]) + "</tr>"
        for name in names
    )
    html = (
        f"<p>{hours} All seeds together.</p><h3>Round the dial</h3>"
        '<p class="note">The true time is turned to 12 o’clock: a bar at 1 o’clock is an answer '
        "one hour late, a bar at 6 is six hours off. Bars are 10 minutes wide, whole hours in full "
        "colour; the longest is the commonest mistake of all objectives, and the bar of right "
        f'answers (up to 5 minutes off) is cut there.</p><div class="roses">{roses}</div>'
        '<h3>Share of answers within so many minutes</h3><div class="halves">'
        f'<figure class="panels wide">{_cumulative(marks, pooled)}</figure>'
        + html_table(["at most", *(f"{m} min" for m in WITHIN)], near_rows)
        + "</div>"
        "<h3>How many answers are how far off</h3>"
        + bar_table("minutes off", BIN_NAMES, marks, shares)
    )
    head = [markdown_name(name) for name in names]
    bins = markdown_table(
        ["minutes off", *head],
        [[label, *(percent(shares[n][i]) for n in names)] for i, label in enumerate(BIN_NAMES)],
    )
    within = markdown_table(
        ["at most", *head],
        [[f"{m} min", *(near[n][i] for n in names)] for i, m in enumerate(WITHIN)],
    )
    return Section(
        anchor="deviations",
        title="How far off",
        html=html,
        markdown=f"{hours} All seeds together.\n\n{within}\n\n{bins}",
    )


def _cases(scores: Scores) -> list[tuple[float, str]]:
    """Return (mean deviation over objectives and seeds, id) of every image, worst first."""
    deviations: dict[str, list[float]] = defaultdict(list)
    for rows in scores.values():
        for row in rows:
            deviations[str(row["id"])].append(float(row["deviation_minutes"]))
    means = [(sum(values) / len(values), id_) for id_, values in deviations.items()]
    return sorted(means, key=lambda case: (-case[0], case[1]))


def told(row: Row) -> str:
    """Say in words what was read: ``7:05 read as 8:05, 60 min``."""
    target = plain(row["target"], 20)
    if row["parsed"] is None:
        reason = plain(row["reason"] or "unreadable", 60)
        return f"{target} not read: {reason} in “{plain(row['text'], 60)}”"
    off = row["deviation_minutes"]
    apart = "right" if off == 0 else f"{off:g} min"
    return f"{target} read as {plain(row['parsed'], 20)}, {apart}"


def _hands(minutes: int, ink: str, wider: float = 0) -> str:
    """Draw an hour and a minute hand from the middle of a 100 by 100 image."""
    return "".join(
        f'<path transform="rotate({turn:g} 50 50)" d="M50,50V{50 - length}" {ink} '
        f'stroke-width="{width + wider:g}"/>'
        for turn, length, width in ((minutes / 2, 25, 4.2), (minutes % 60 * 6, 39, 2.4))
    )


def _tile(mark: Mark, row: Row, image: str, seed_index: int) -> str:
    """Draw one answer over its image."""
    target, read = minutes_of(row["target"]), minutes_of(row["parsed"])
    drawn = [] if target is None else [(target, f'stroke="{_TRUE}"')]
    if read is not None and read != target:
        drawn.append((read, f'stroke="{_READ}" stroke-dasharray="5 2.5"'))
    hands = "".join(
        _hands(minutes, 'stroke="#fff" stroke-opacity=".8"', 2.2) for minutes, _ in drawn
    )
    hands += "".join(_hands(minutes, ink) for minutes, ink in drawn)
    words = html_text(told(row), 200)
    state = "near" if _is_within(row, 5) else "off"
    return (
        f'<figure class="tile s{seed_index} {state}"><figcaption>{who(mark)}</figcaption>'
        f'<svg viewBox="0 0 100 100" role="img" aria-label="{html_text(mark.name, 60)}: {words}">'
        f'<title>{words}</title><use href="#{image}" opacity=".62"/>{hands}</svg>'
        f'<span class="words">{words.replace(" min", "&nbsp;min")}</span></figure>'
    )


def _image(folder: Path, name: str, anchor: str) -> tuple[str, bool]:
    """Return an image as an SVG definition, and whether it could be opened."""
    image = open_upright(folder / name)
    if image is None:
        label = html_text(Path(name).name, 20)
        style = 'x="50" text-anchor="middle" style="font:8px sans-serif;fill:#39424f"'
        return (
            f'<g id="{anchor}"><rect width="100" height="100" fill="#c9ced6"/>'
            f'<text y="86" {style}>no image</text><text y="95" {style}>{label}</text></g>'
        ), False
    url = data_url(image, SIDE_PX)
    return f'<image id="{anchor}" width="100" height="100" href="{url}"/>', True


def _gallery(folder: Path, marks: Mapping[str, Mark], scores: Scores) -> Section:
    """Write the chapter that shows the answers on their images."""
    cases = _cases(scores)
    worst = cases[:WORST]
    middle = max(len(worst), (len(cases) - TYPICAL) // 2)
    typical = cases[middle : middle + TYPICAL]
    by_id = {key: {str(row["id"]): row for row in rows} for key, rows in scores.items()}
    seeds = sorted({seed for _, seed in scores})
    definitions, missing = [], 0
    shown: dict[str, str] = {}
    for index, (mean, id_) in enumerate(worst + typical):
        image = f"image{index}"
        answers = [
            (marks[name], by_id[name, seed][id_], place)
            for place, seed in enumerate(seeds)
            for name in marks
            if id_ in by_id.get((name, seed), {})
        ]
        row = answers[0][1]
        definition, found = _image(folder, str(row["image"]), image)
        definitions.append(definition)
        missing += not found
        tiles = "".join(_tile(mark, answer, image, place) for mark, answer, place in answers)
        shown[id_] = (
            f'<article class="case"><div class="truth"><svg viewBox="0 0 100 100" role="img" '
            f'aria-label="test image {html_text(id_, 60)}"><use href="#{image}"/></svg><p><b>'
            f"{html_text(row['target'], 20)}</b><br>{html_text(id_, 60)}<br>"
            f'{mean:.0f} min off on average</p></div><div class="tiles">{tiles}</div></article>'
        )
    absent = f" {missing} of the {len(shown)} images could not be opened." if missing else ""
    few, more, middling = (
        "".join(shown[id_] for _, id_ in cases)
        for cases in (worst[:FOLDED], worst[FOLDED:], typical)
    )
    html = (
        f'<svg class="store" aria-hidden="true"><defs>{"".join(definitions)}</defs></svg>'
        "<p>Worst first, by the mean deviation over all objectives"
        f"{' and seeds' if len(seeds) > 1 else ''}.{absent}</p>"
        f'<p class="note"><span class="key" style="background:{_TRUE}"></span>the true time, '
        f'<span class="key dashed" style="color:{_READ}"></span>the time that was read. Hands are '
        "drawn upright from the middle of the image; the face below may be turned or moved.</p>"
        f"{_seed_switch(seeds)}{few}"
    )
    if more:
        html += f"<details><summary>{len(worst) - FOLDED} more</summary>{more}</details>"
    if typical:
        html += f"<h3>Typical ones, from the middle of the ranking</h3>{middling}"
    return Section(
        anchor="gallery",
        title="On the dial",
        html=html,
        markdown=_worst_table(worst[:LISTED], marks, by_id, seeds[0]) + absent,
        css="".join(
            f".gallery-seeds:has(#seed{i}:checked)~* .tile:not(.s{i}){{display:none}}"
            for i in range(len(seeds))
        ),
    )


def _seed_switch(seeds: Sequence[int]) -> str:
    """Let the reader choose the seed whose answers are drawn; the page's CSS does the rest."""
    if len(seeds) < 2:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="seed" id="seed{index}"'
        f"{' checked' if index == 0 else ''}> {seed}</label>"
        for index, seed in enumerate(seeds)
    )
    return f'<fieldset class="gallery-seeds"><legend>Answers of seed</legend>{choices}</fieldset>'


def _short(answer: Row | None) -> str:
    if answer is None:
        return NOTHING
    return str(answer["parsed"] or f"“{plain(answer['text'], 40)}”")


def _worst_table(
    worst: Sequence[tuple[float, str]],
    marks: Mapping[str, Mark],
    by_id: Mapping[tuple[str, int], Mapping[str, Row]],
    seed: int,
) -> str:
    """List the worst images: the true time and what every objective read with one seed."""
    names = [name for name in marks if (name, seed) in by_id]
    rows = []
    for mean, id_ in worst:
        answers = [by_id[name, seed].get(id_) for name in names]
        target = next((a["target"] for a in answers if a), NOTHING)
        reads = [markdown_text(_short(answer), 44) for answer in answers]
        rows.append([markdown_text(id_, 60), markdown_text(target, 20), *reads, f"{mean:.0f}"])
    header = ["image", "true", *map(markdown_name, names), "mean minutes off"]
    intro = f"The worst {len(rows)}, as read with seed {seed}; in quotes what could not be read."
    return f"{intro}\n\n{markdown_table(header, rows)}\n"
