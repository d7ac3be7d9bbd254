"""Charts as inline SVG: marks, legends, dots with intervals, lines.

An objective has one ``Mark`` (colour, shape, dash) on the whole page. Colours are CSS variables
of the page, so that a chart follows the reader's light or dark setting. Plain numbers in, a
string of HTML out; whoever calls has no text to escape.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mm_numeric.evaluation.report.html import html_table, html_text, percent

_COLOURS = [f"var(--o{index})" for index in range(6)]
_SHAPES = [
    "M-5,-5H5V5H-5Z",  # square
    "M0,-6.6L6.6,0L0,6.6L-6.6,0Z",  # diamond
    "M0,-6.4L6.2,4.8H-6.2Z",  # triangle
    "M0,6.4L6.2,-4.8H-6.2Z",  # triangle on its point
    "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",  # plus
    "M-6,-3L-3,-6L0,-3L3,-6L6,-3L3,0L6,3L3,6L0,3L-3,6L-6,3L-3,0Z",  # cross
]
_CIRCLE = "M-5.4,0A5.4,5.4,0,1,1,5.4,0A5.4,5.4,0,1,1,-5.4,0Z"
_DASHES = ["", "7 3", "2 3"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How one objective looks everywhere on the page."""

    name: str
    colour: str
    shape: str
    dash: str = ""
    hollow: bool = False

    def drawn(self) -> str:
        """Return the shape around the origin."""
        fill = "var(--paper)" if self.hollow else self.colour
        return f'<path d="{self.shape}" fill="{fill}" stroke="{self.colour}" stroke-width="2"/>'


def choose_marks(objectives: Sequence[str], baseline: str, control: str | None) -> dict[str, Mark]:
    """Give the baseline ink, its control a hollow grey, and every other objective a colour."""
    marks = {}
    others = 0
    for name in objectives:
        if name == baseline:
            marks[name] = Mark(name=name, colour="var(--base)", shape=_CIRCLE)
        elif name == control:
            marks[name] = Mark(
                name=name, colour="var(--control)", shape=_CIRCLE, dash="4 3", hollow=True
            )
        else:
            # the shift by one each round keeps pairs of colour and shape apart for 36 objectives
            marks[name] = Mark(
                name=name,
                colour=_COLOURS[others % len(_COLOURS)],
                shape=_SHAPES[(others + others // len(_COLOURS)) % len(_SHAPES)],
                dash=_DASHES[others // len(_COLOURS) % len(_DASHES)],
            )
            others += 1
    return marks


def who(mark: Mark) -> str:
    """Write an objective's mark and name."""
    glyph = f'<svg width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true">{mark.drawn()}'
    name = f'<span class="name">{html_text(mark.name, 60)}</span>'
    return f'<span class="who">{glyph}</svg>{name}</span>'


def legend(marks: Mapping[str, Mark], names: Sequence[str]) -> str:
    """List the marks of some objectives."""
    return '<ul class="legend">' + "".join(f"<li>{who(marks[n])}</li>" for n in names) + "</ul>"


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers between ``low`` and ``high``, about ``wanted`` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Write a tick without trailing zeros."""
    return f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """One objective in a chart of dots and intervals; ``told`` is HTML, ``spoken`` is text."""

    mark: Mark
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    told: str
    spoken: str
    apart: bool = False


def dot_chart(rows: Sequence[DotRow], baseline: float | None, scale: float, unit: str) -> str:
    """Draw mean, interval and one ring for each seed; the baseline's mean runs through all rows.

    Positions are percentages of the width, so the text keeps its size on a phone.

    Args:
        rows: The objectives, top first.
        baseline: Where the dashed line goes, or ``None``.
        scale: What values are multiplied by before they are written at the axis.
        unit: What is written behind the numbers at the axis.
    """
    values = [scale * v for row in rows for v in (row.mean, row.low, row.high, *row.seeds)]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - margin, high + margin

    def at(value: float) -> str:
        return f"{100 * (scale * value - low) / (high - low):.2f}%"

    ticks = nice_ticks(low, high, 6)
    grid = "".join(
        f'<line x1="{at(t / scale)}" x2="{at(t / scale)}" y1="0" y2="100%" stroke="var(--grid)"/>'
        for t in ticks
    )
    if baseline is not None:
        grid += (
            f'<line x1="{at(baseline)}" x2="{at(baseline)}" y1="0" y2="100%" '
            'stroke="var(--base)" stroke-width="1.25" stroke-dasharray="3 3"/>'
        )
    parts = []
    for row in rows:
        rings = "".join(
            f'<circle cx="{at(v)}" cy="41" r="3.4" fill="none" stroke="{row.mark.colour}" '
            'stroke-width="1.4"/>'
            for v in row.seeds
        )
        line = (
            f'<line x1="{at(row.low)}" x2="{at(row.high)}" y1="23" y2="23" '
            f'stroke="{row.mark.colour}" stroke-width="3" stroke-linecap="round"/>'
        )
        shape = f'<svg x="{at(row.mean)}" y="23" width="1" height="1">{row.mark.drawn()}</svg>'
        extra = ' class="apart"' if row.apart else ""
        parts.append(
            f'<div{extra}>{who(row.mark)}<svg class="plot" height="54" role="img" '
            f'aria-label="{html_text(row.spoken)}"><title>{html_text(row.spoken)}</title>'
            f'{grid}{line}{shape}{rings}</svg><span class="told">{row.told}</span></div>'
        )
    labels = "".join(
        f'<text x="{at(t / scale)}" y="15" text-anchor="middle">{tick_text(t)}{html_text(unit)}'
        "</text>"
        for t in ticks
    )
    parts.append(
        '<div class="axis"><span></span><svg class="plot" height="22" aria-hidden="true">'
        f"{labels}</svg><span></span></div>"
    )
    return '<div class="dots">' + "".join(parts) + "</div>"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve of a chart."""

    points: Sequence[tuple[float, float]]
    colour: str
    width: float = 2.0
    dash: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The range of an axis and where it is written on: (position, text)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str = ""


def plain_axis(low: float, high: float, label: str = "", wanted: int = 5) -> Axis:
    """Return an axis with round numbers."""
    if not high > low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    ticks = [(tick, tick_text(tick)) for tick in nice_ticks(low, high, wanted)]
    return Axis(low=low, high=high, ticks=ticks, label=label)


def line_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    spoken: str,
    shaded_to: float | None = None,
    width: int = 350,
    height: int = 230,
) -> str:
    """Draw curves; what leaves the ranges of the axes is cut off.

    Args:
        lines: Curves, the last one on top.
        x: The axis below.
        y: The axis on the left.
        spoken: What the chart shows, for who cannot see it.
        shaded_to: Everything left of this ``x`` has a grey ground.
        width: Of the drawing in px, before it is scaled to the room there is.
        height: Likewise.
    """
    left, right, top, bottom = 44, 8, 8, 38
    wide, tall = width - left - right, height - top - bottom

    def across(value: float) -> float:
        return wide * (value - x.low) / (x.high - x.low)

    def down(value: float) -> float:
        return tall * (1 - (value - y.low) / (y.high - y.low))

    parts = []
    if shaded_to is not None:
        area = f'x="{left}" y="{top}" width="{across(shaded_to):.1f}" height="{tall}"'
        parts.append(f'<rect {area} fill="var(--wash)"/>')
    for value, text in y.ticks:
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{top + down(value):.1f}" '
            f'y2="{top + down(value):.1f}" stroke="var(--grid)"/><text x="{left - 7}" '
            f'y="{top + down(value) + 4:.1f}" text-anchor="end">{html_text(text)}</text>'
        )
    for value, text in x.ticks:
        parts.append(
            f'<line x1="{left + across(value):.1f}" x2="{left + across(value):.1f}" '
            f'y1="{top + tall}" y2="{top + tall + 4}" stroke="var(--soft)"/>'
            f'<text x="{left + across(value):.1f}" y="{top + tall + 17}" '
            f'text-anchor="middle">{html_text(text)}</text>'
        )
    parts.append(
        f'<line x1="{left}" x2="{width - right}" y1="{top + tall}" y2="{top + tall}" '
        f'stroke="var(--soft)"/><text x="{left + wide / 2}" y="{height - 5}" '
        f'text-anchor="middle">{html_text(x.label)}</text>'
    )
    parts.append(
        f'<svg x="{left}" y="{top}" width="{wide}" height="{tall}" style="overflow:hidden">'
    )
    for line in lines:
        path = "L".join(f"{across(px):.1f},{down(py):.1f}" for px, py in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{line.colour}" stroke-width="{line.width}" '
            f'stroke-opacity="{line.opacity}" stroke-linejoin="round"{dash}/>'
        )
    parts.append("</svg>")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html_text(spoken)}">'
        f"<title>{html_text(spoken)}</title>{''.join(parts)}</svg>"
    )


def bar_table(
    corner: str,
    rows: Sequence[str],
    marks: Mapping[str, Mark],
    shares: Mapping[str, Sequence[float]],
) -> str:
    """Write shares, a column for each objective, with a bar in each cell."""
    largest = max(max(column) for column in shares.values()) or 1.0
    body = "".join(
        f"<tr><th>{html_text(label)}</th>"
        + "".join(
            f'<td><span class="share">{percent(column[index])}</span><span class="bar" style="'
            f'width:{72 * column[index] / largest:.1f}px;background:{marks[name].colour}"></span>'
            "</td>"
            for name, column in shares.items()
        )
        + "</tr>"
        for index, label in enumerate(rows)
    )
    return html_table([html_text(corner), *(who(marks[name]) for name in shares)], body, "bins")


def thinned(points: Sequence[tuple[float, float]], most: int = 200) -> list[tuple[float, float]]:
    """Average neighbours until at most so many points are left."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    groups = [np.array(points[at : at + size]).mean(axis=0) for at in range(0, len(points), size)]
    return [(float(x), float(y)) for x, y in groups]
