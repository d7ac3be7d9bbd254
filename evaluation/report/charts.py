"""Charts as inline SVG: keys, dots with intervals and lines.

An objective has one ``SeriesStyle`` (colour, shape, dash) on the whole page. Colours are CSS
variables of the page, so that a chart follows the reader's light or dark setting.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from markupsafe import Markup

from mm_numeric.evaluation.markup import element
from mm_numeric.evaluation.report.sections import Block, figure
from mm_numeric.evaluation.table import Cell, Table, percent

Points = Sequence[tuple[float, float]]

_COLOURS = [f"var(--o{index})" for index in range(6)]
_SHAPES = [
    "M-5,-5H5V5H-5Z",  # square
    "M0,-6.6L6.6,0L0,6.6L-6.6,0Z",  # diamond
    "M0,-6.4L6.2,4.8H-6.2Z",  # triangle
    "M0,6.4L6.2,-4.8H-6.2Z",  # inverted triangle
    "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",  # plus
    "M-6,-3L-3,-6L0,-3L3,-6L6,-3L3,0L6,3L3,6L0,3L-3,6L-6,3L-3,0Z",  # cross
]
_CIRCLE = "M-5.4,0A5.4,5.4,0,1,1,5.4,0A5.4,5.4,0,1,1,-5.4,0Z"
_DASHES = ["", "7 3", "2 3"]


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """The colour, shape and dash of one objective in all charts of a page."""

    name: str
    colour: str
    shape: str
    dash: str = ""
    hollow: bool = False

    def drawn(self) -> Markup:
        """Return the shape around the origin."""
        fill = "var(--paper)" if self.hollow else self.colour
        return element("path", d=self.shape, fill=fill, stroke=self.colour, stroke_width=2)

    def cell(self, note: str = "") -> Cell:
        """Return a table cell with the key and the name of the objective."""
        size = {"width": 16, "height": 16, "viewBox": "-8 -8 16 16"}
        key = element("svg", self.drawn(), aria_hidden="true", **size)
        return Cell(content=self.name, is_name=True, symbol=key, note=note, limit=60)

    def label(self) -> Markup:
        """Return the key and the name as HTML."""
        return self.cell().to_html()


def choose_styles(
    objectives: Sequence[str], baseline: str, control: str | None
) -> dict[str, SeriesStyle]:
    """Return black for the baseline, grey for its control, and a colour for each other one."""
    styles = {}
    others = count()
    for name in objectives:
        if name == baseline:
            styles[name] = SeriesStyle(name=name, colour="var(--base)", shape=_CIRCLE)
        elif name == control:
            styles[name] = SeriesStyle(
                name=name, colour="var(--control)", shape=_CIRCLE, dash="4 3", hollow=True
            )
        else:
            cycle, index = divmod(next(others), len(_COLOURS))
            # Shifting the shapes by one in each cycle makes 36 distinct pairs with the colours.
            styles[name] = SeriesStyle(
                name=name,
                colour=_COLOURS[index],
                shape=_SHAPES[(index + cycle * (len(_COLOURS) + 1)) % len(_SHAPES)],
                dash=_DASHES[cycle % len(_DASHES)],
            )
    return styles


def legend(styles: Iterable[SeriesStyle]) -> Block:
    """Return a list of keys and names."""
    return Block(element("ul", *(element("li", s.label()) for s in styles), class_="legend"))


def svg_image(description: str, *children: object, **attributes: object) -> Markup:
    """Return an SVG image with a description for screen readers."""
    title = element("title", description)
    return element("svg", title, *children, role="img", aria_label=description, **attributes)


def svg_line(x1: object, y1: object, x2: object, y2: object, **style: object) -> Markup:
    """Return a line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **style)


def svg_rect(x: float, y: float, width: float, height: float, **style: object) -> Markup:
    """Return a rectangle without children."""
    return element("rect", x=x, y=y, width=width, height=height, **style)


def svg_text(
    x: object, y: object, *text: object, anchor: str = "middle", **style: object
) -> Markup:
    """Return a text; ``anchor`` is the point of the text that is placed at ``x``."""
    return element("text", *text, x=x, y=y, text_anchor=anchor, **style)


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return about ``wanted`` round numbers between ``low`` and ``high``."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Format a tick without trailing zeros."""
    return f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """One objective in a chart of dots and intervals."""

    style: SeriesStyle
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    value: str
    """The mean with its unit."""

    remark: str
    """The line below the value, such as the difference to the baseline."""

    trend: str
    """The CSS class of the remark."""

    description: str
    separated: bool = False
    """Whether there is a gap above the row."""


def dot_chart(rows: Sequence[DotRow], baseline: float | None, scale: float, unit: str) -> Markup:
    """Draw the mean, the interval and one ring per seed; a dashed line is at the baseline's mean.

    Positions are percentages of the width, so the text keeps its size on a phone.

    Args:
        rows: The objectives, from top to bottom.
        baseline: The position of the dashed line, or None.
        scale: The factor of values at the axis.
        unit: The unit of numbers at the axis.
    """
    values = [scale * v for row in rows for v in (row.mean, row.low, row.high, *row.seeds)]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - margin, high + margin

    def at(value: float) -> str:
        return f"{100 * (scale * value - low) / (high - low):.2f}%"

    ticks = nice_ticks(low, high, 6)
    places = [at(tick / scale) for tick in ticks]
    grid = [svg_line(x, 0, x, "100%", stroke="var(--grid)") for x in places]
    if baseline is not None:
        x, dashes = at(baseline), {"stroke_width": 1.25, "stroke_dasharray": "3 3"}
        grid.append(svg_line(x, 0, x, "100%", stroke="var(--base)", **dashes))
    labels = [svg_text(x, 15, tick_text(t), unit) for x, t in zip(places, ticks, strict=True)]
    axis = element("svg", *labels, class_="plot", height=22, aria_hidden="true")
    parts = [_dot_row(row, at, grid) for row in rows]
    parts.append(element("div", element("span"), axis, element("span"), class_="axis"))
    return element("div", *parts, class_="dots")


def _dot_row(row: DotRow, at: Callable[[float], str], grid: Sequence[Markup]) -> Markup:
    """Draw one row; ``at`` returns the position of a value."""
    colour = row.style.colour
    ring = {"fill": "none", "stroke": colour, "stroke_width": 1.4}
    rings = [element("circle", cx=at(value), cy=41, r=3.4, **ring) for value in row.seeds]
    thick = {"stroke": colour, "stroke_width": 3, "stroke_linecap": "round"}
    line = svg_line(at(row.low), 23, at(row.high), 23, **thick)
    shape = element("svg", row.style.drawn(), x=at(row.mean), y=23, width=1, height=1)
    plot = svg_image(row.description, *grid, line, shape, *rings, class_="plot", height=54)
    value = [element("b", row.value)]
    if row.remark:
        value += [element("br"), element("span", f" {row.remark}", class_=row.trend)]
    label = element("span", *value, class_="value")
    return element("div", row.style.label(), plot, label, class_="apart" if row.separated else None)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve of a chart."""

    points: Points
    colour: str
    width: float = 2.0
    dash: str = ""
    opacity: float = 1.0


def styled_line(style: SeriesStyle, points: Points) -> Line:
    """Return the curve of an objective."""
    return Line(points=points, colour=style.colour, dash=style.dash, width=2.2)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The range of an axis, its ticks (position, text) and its label."""

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
    description: str,
    shaded_to: float | None = None,
    width: int = 350,
    height: int = 230,
) -> Markup:
    """Draw curves; what leaves the ranges of the axes is clipped.

    Args:
        lines: The curves, the last one on top.
        x: The horizontal axis.
        y: The vertical axis.
        description: The text for screen readers.
        shaded_to: The background left of this ``x`` is grey.
        width: Width in pixels; the page scales the chart.
        height: Height in pixels.
    """
    left, right, top, bottom = 44, 8, 8, 38
    wide, tall = width - left - right, height - top - bottom

    def across(value: float) -> float:
        return wide * (value - x.low) / (x.high - x.low)

    def down(value: float) -> float:
        return tall * (1 - (value - y.low) / (y.high - y.low))

    foot = top + tall
    parts = []
    if shaded_to is not None:
        parts.append(svg_rect(left, top, across(shaded_to), tall, fill="var(--wash)"))
    for value, text in y.ticks:
        at = top + down(value)
        parts.append(svg_line(left, at, width - right, at, stroke="var(--grid)"))
        parts.append(svg_text(left - 7, at + 4, text, anchor="end"))
    for value, text in x.ticks:
        at = left + across(value)
        parts.append(svg_line(at, foot, at, foot + 4, stroke="var(--soft)"))
        parts.append(svg_text(at, foot + 17, text))
    parts.append(svg_line(left, foot, width - right, foot, stroke="var(--soft)"))
    parts.append(svg_text(left + wide / 2, height - 5, x.label))
    curves = [_curve(line, [(across(px), down(py)) for px, py in line.points]) for line in lines]
    inside = {"x": left, "y": top, "width": wide, "height": tall, "style": "overflow:hidden"}
    parts.append(element("svg", *curves, **inside))
    return svg_image(description, *parts, viewBox=f"0 0 {width} {height}")


def _curve(line: Line, points: Points) -> Markup:
    """Draw a curve through points in pixels."""
    path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = {"stroke": line.colour, "stroke_width": line.width, "stroke_opacity": line.opacity}
    dash = line.dash or None
    joins = {"stroke_linejoin": "round", "stroke_dasharray": dash}
    return element("path", d=f"M{path}", fill="none", **stroke, **joins)


def share_chart(curves: Mapping[SeriesStyle, Points], x: Axis, description: str) -> Block:
    """Draw shares from 0 to 100 %, a curve per objective, the first one on top."""
    lines = [styled_line(style, points) for style, points in curves.items()]
    y = Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)])
    chart = line_chart(lines[::-1], x, y, description=description, width=460, height=290)
    return figure(chart, css="panels wide")


def bar_table(
    corner: str, rows: Sequence[str], shares: Mapping[SeriesStyle, Sequence[float]]
) -> Table:
    """Return a table of shares, a column per objective, with a bar in each cell."""
    largest = max(max(column) for column in shares.values()) or 1.0
    lines = [
        [
            Cell(content=label, limit=60),
            *(
                Cell(
                    content=percent(column[index]),
                    css="share",
                    bar=(72 * column[index] / largest, style.colour),
                )
                for style, column in shares.items()
            ),
        ]
        for index, label in enumerate(rows)
    ]
    return Table.of([corner, *(style.cell() for style in shares)], lines, css="bins")


def thinned(points: Points, most: int = 200) -> list[tuple[float, float]]:
    """Average neighbouring points until at most ``most`` are left."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    groups = [np.array(points[at : at + size]).mean(axis=0) for at in range(0, len(points), size)]
    return [(float(x), float(y)) for x, y in groups]
