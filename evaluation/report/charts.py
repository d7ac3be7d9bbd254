"""Draw charts as inline SVG: legends, dots with intervals, and line charts.

Every training objective (loss) has the same ``SeriesStyle`` (colour, shape, dash) in all charts of
a page. Colours are CSS variables, so that charts follow the light or dark theme of the browser.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from mm_numeric.evaluation.report.page import Block, render
from mm_numeric.evaluation.table import Cell, Quantity, Table, percent
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element, joined

_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
_FILE_STYLE = (
    "<style>text { font: 12px sans-serif; fill: var(--soft); } "
    ".name { font-weight: 600; fill: var(--ink); }</style>"
)
_MARGIN_PX = 14  # on the right, because the last label of the x axis may extend beyond the chart
_LEGEND_PX = 18  # height of a line of the legend in a saved figure
_STYLE = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")


def theme_colours(style: str = _STYLE) -> dict[str, str]:
    """Return the CSS variables of the light theme: ``{"--ink": "#171b22", ...}``."""
    return dict(re.findall(r"(--\w+): (#\w+)", style.partition("@media")[0]))


@dataclass(frozen=True)
class Chart:
    """A chart as SVG, and a table of the numbers that it shows."""

    svg: Markup
    description: str
    data: Table
    legend: Sequence[tuple[str, str, str]] = ()
    """Name, colour and dash of each curve, for saved SVG files; a page has one legend per group."""


def figure(
    chart: Chart,
    caption: Cell | None = None,
    css: str | None = None,
    *,
    page_html: Markup | None = None,
) -> Block:
    """Return a chart with a caption and links to save it, for HTML; Markdown omits charts.

    If ``page_html`` is given, the page shows it instead of the SVG.
    """
    name = "-".join(re.findall("[a-z0-9]+", chart.description.lower()))
    files = {
        "SVG": ("image/svg+xml", standalone_svg(chart)),
        "CSV": ("text/csv;charset=utf-8", chart.data.to_csv()),
    }
    links = [
        element("a", kind, download=f"{name[:60]}.{kind.lower()}", href=_data_url(mime, text),
                aria_label=f"{kind} file of the figure: {plain(chart.description, 80)}")
        for kind, (mime, text) in files.items()
    ]  # fmt: skip
    above = [] if caption is None else [caption.to_html()]
    below = element("span", *links, class_="files")
    region = {"role": "region", "aria_label": chart.description, "tabindex": "0"}
    is_wide = "wide" in (css or "")  # a wide chart scrolls on a phone, also by the keyboard
    shown = element("div", page_html or chart.svg, class_="drawing", **(region if is_wide else {}))
    return Block(element("figure", element("figcaption", *above, below), shown, class_=css))


def draw(
    template: str | Path,
    description: str,
    data: Table,
    *,
    legend: Sequence[tuple[str, str, str]] = (),
    **marks: object,
) -> Chart:
    """Draw a chart from a template and its variables ``marks``.

    ``template`` is the name of a file in the folder ``templates``, or the path of any other file;
    it calls the macro ``axes`` of ``axes.html``. ``description`` is the text for screen readers,
    and ``data`` is saved as the CSV file of the figure.
    """
    svg = render(template, description=description, **marks)
    return Chart(svg, description, data, legend)


def standalone_svg(chart: Chart) -> str:
    """Return a chart as the text of an SVG file with the colours of the light theme."""
    svg = str(chart.svg)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    left, top, width, height = map(float, box[1].split())
    width += _MARGIN_PX
    keys = []
    for name, colour, dash in chart.legend if len(chart.legend) > 1 else ():
        y = top + height + 8
        line = {"stroke": colour, "stroke_width": 2.2, "stroke_dasharray": dash or None}
        keys.append(element("path", d=f"M{left + 44:g},{y:g}h24", **line))
        keys.append(element("text", name, x=left + 74, y=y + 4, class_="name"))
        height += _LEGEND_PX
    ground = element("rect", x=left, y=top, width=width, height=height, fill="var(--paper)")
    size = f'width="{width:g}" height="{height:g}"'
    view = f'viewBox="{left:g} {top:g} {width:g} {height:g}"'
    opened, inside = svg.replace(box[0], f"{view} {size} {_NAMESPACE}", 1).split(">", 1)
    body = inside.rstrip().removesuffix("</svg>")
    text = f"{opened}>{_FILE_STYLE}{ground}{body}{joined(*keys)}</svg>\n"
    return with_colours(text, theme_colours())


def with_colours(svg: str, colours: Mapping[str, str]) -> str:
    """Replace CSS variables by colours, because many viewers of SVG files support no variables."""
    for name, colour in colours.items():
        svg = svg.replace(f"var({name})", colour)
    return svg


def _data_url(mime: str, text: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(text.encode()).decode('ascii')}"


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
DASHES = ["", "7 3", "2 3", "9 3 2 3"]


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """The colour, symbol and line dash of one training objective, the same in all charts."""

    name: str
    colour: str
    shape: str
    dash: str = ""
    hollow: bool = False

    def drawn(self) -> Markup:
        """Return the chart marker of this objective as an SVG path, centred at the origin."""
        fill = "var(--paper)" if self.hollow else self.colour
        return element("path", d=self.shape, fill=fill, stroke=self.colour, stroke_width=2)

    def cell(self, note: str = "") -> Cell:
        """Return a table cell with the symbol and name of the objective and the text ``note``."""
        size = {"width": 16, "height": 16, "viewBox": "-8 -8 16 16"}
        key = element("svg", self.drawn(), aria_hidden="true", **size)
        return Cell(content=self.name, is_name=True, symbol=key, note=note, limit=60)

    def label(self) -> Markup:
        """Return the symbol and the name of the objective as HTML."""
        return self.cell().to_html()


def choose_styles(
    objectives: Sequence[str], baseline: str, control: str | None
) -> dict[str, SeriesStyle]:
    """Choose the colour, symbol and line dash of each training objective (loss) in charts.

    ``baseline`` (black) is the objective that the others are compared with. ``control`` (grey), by
    default 1.3 times cross-entropy, tests if a larger loss alone helps.
    """
    styles = {}
    others = count()
    for name in objectives:
        if name == baseline:
            look = {"colour": "var(--base)", "shape": _CIRCLE}
        elif name == control:
            look = {"colour": "var(--control)", "shape": _CIRCLE, "dash": "4 3"}
        else:
            cycle, index = divmod(next(others), len(_COLOURS))
            # Shapes shift by one after each cycle of colours: there are 36 distinct pairs.
            shape = _SHAPES[(index + cycle * (len(_COLOURS) + 1)) % len(_SHAPES)]
            dash = DASHES[cycle % len(DASHES)]
            look = {"colour": _COLOURS[index], "shape": shape, "dash": dash}
        styles[name] = SeriesStyle(name=name, hollow=name == control and name != baseline, **look)
    return styles


def legend(styles: Iterable[SeriesStyle]) -> Block:
    """Return the legend of a chart: the symbol and the name of each objective."""
    return Block(element("ul", *(element("li", s.label()) for s in styles), class_="legend"))


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return about ``wanted`` round numbers from ``low`` to ``high``, for the ticks of an axis."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    indices = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(index * step, 12) for index in indices]


def tick_text(value: float) -> str:
    """Format the value of an axis tick without trailing zeros, such as ``2.5``."""
    return f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True, kw_only=True)
class DotRow:
    """One row of ``dot_chart``: the mean of a metric, its interval, and the value of each seed."""

    style: SeriesStyle
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    value: str  # the mean with its unit
    remark: str  # the line below the mean, such as the difference to the baseline
    trend: str  # the CSS class of the remark
    description: str
    separated: bool = False  # True: there is a gap above the row
    band: tuple[float, float] | None = None  # means in it differ too little to be told apart


def dot_chart(
    rows: Sequence[DotRow], baseline: float | None, scale: float, unit: str, label: str
) -> Block:
    """Draw the mean of a metric for each training objective, its interval, and each seed.

    A dashed line is drawn at ``baseline``, the mean of the baseline objective. The axis shows
    values multiplied by ``scale``; ``label`` is the name of the metric. Horizontal positions are
    percentages of the chart width; therefore the text keeps its size on a narrow screen. The
    ``band`` of a row is drawn in grey, and clipped at the ends of the axis.
    """
    values = [scale * v for row in rows for v in (row.mean, row.low, row.high, *row.seeds)]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - margin, high + margin

    def percent_of(value: float) -> float:
        return 100 * (min(max(scale * value, low), high) - low) / (high - low)

    def at(value: float) -> str:
        return f"{percent_of(value):.2f}%"

    def size(ends: tuple[float, float]) -> str:
        return f"{percent_of(ends[1]) - percent_of(ends[0]):.2f}%"

    ending = unit if unit in ("%", "") else f" {unit}"
    ticks = [(tick / scale, tick_text(tick) + ending) for tick in nice_ticks(low, high, 6)]
    marks: dict[str, Any] = {"rows": rows, "at": at, "size": size, "ticks": ticks}
    text = f"{label}: means, their intervals and single seeds."
    data = _dots_table(rows, scale, unit, label)
    shown, saved = (
        draw("dot_chart.html", text, data, as_file=is_file, baseline=baseline, **marks)
        for is_file in (False, True)
    )
    return figure(saved, page_html=shown.svg)


def _dots_table(rows: Sequence[DotRow], scale: float, unit: str, label: str) -> Table:
    seeds = max(len(row.seeds) for row in rows)

    def shown(value: float, low: float | None = None, high: float | None = None) -> Quantity:
        low, high = (None if end is None else scale * end for end in (low, high))
        return Quantity(value=scale * value, low=low, high=high, unit=unit)

    lines = [
        [
            row.style.name,
            shown(row.mean, row.low, row.high),
            *(shown(value) for value in row.seeds),
            *[None] * (seeds - len(row.seeds)),
        ]
        for row in rows
    ]
    return Table.of(["objective", label, *(f"run {i + 1}" for i in range(seeds))], lines)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve of a line chart: points (x, y) and the style of the line."""

    points: Points
    colour: str
    name: str = ""  # name in the CSV file of the figure; lines without a name are not in the file
    width: float = 2.0
    dash: str = ""
    marker: Markup | None = None  # drawn at each point
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high): a shaded area


def styled_line(style: SeriesStyle, points: Points) -> Line:
    """Return a curve through ``points``, in the colour and line dash of a training objective."""
    return Line(points=points, colour=style.colour, name=style.name, dash=style.dash, width=2.2)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a line chart: range, ticks as (value, text), and label."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str = ""
    value: Callable[[float], float] = float  # position -> value, for an axis that is not linear

    def share(self, value: float) -> float:
        """Return the position of a value on the axis from 0 (at ``low``) to 1 (at ``high``)."""
        return (value - self.low) / (self.high - self.low)


def plain_axis(low: float, high: float, label: str = "", wanted: int = 5) -> Axis:
    """Return an axis with about ``wanted`` ticks at round numbers."""
    if not high > low:
        low, high = low - 0.5 * abs(low), high + (0.5 * abs(high) or 1)
    ticks = [(tick, tick_text(tick)) for tick in nice_ticks(low, high, wanted)]
    return Axis(low=low, high=high, ticks=ticks, label=label)


def axis_around(values: Sequence[float]) -> Axis:
    """Return an axis with a margin of 6 % below and above the values."""
    margin = 0.06 * (max(values) - min(values))
    return plain_axis(min(values) - margin, max(values) + margin)


def line_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    description: str,
    data: Table | None = None,
    shaded_to: float | None = None,
    width: int = 320,
    height: int = 220,
) -> Chart:
    """Draw curves, the last curve on top. Points outside the axis ranges are clipped.

    ``description`` is the text for screen readers. ``data`` is saved as the CSV file of the figure;
    by default, it has the points of all lines with a name. The background is grey for x below
    ``shaded_to``. ``width`` and ``height`` are in pixels; the page scales the chart.
    """
    curves = {line.name: (line.colour, line.dash) for line in lines if line.name and line.width > 1}
    keys = [(name, *look) for name, look in curves.items()]
    data = _points_table(lines, x, y) if data is None else data
    size: dict[str, Any] = {"width": width, "height": height}
    marks = {"lines": lines, "x": x, "y": y, "shaded_to": shaded_to, **size}
    return draw("line_chart.html", description, data, legend=keys[::-1], **marks)


def _points_table(lines: Sequence[Line], x: Axis, y: Axis) -> Table:
    rows = []
    for line in lines:
        bands = {at: (low, high) for at, low, high in line.band}
        for px, py in line.points if line.name else ():
            low, high = bands.get(px, (None, None))
            value = Quantity(value=y.value(py), low=low, high=high)
            rows.append([line.name, Quantity(value=x.value(px)), value])
    return Table.of(["line", x.label or "x", y.label or "value"], rows)


def share_chart(curves: Mapping[SeriesStyle, Points], x: Axis, description: str) -> Block:
    """Draw one curve per objective on a y axis from 0 to 100 %, with the first curve on top."""
    lines = [styled_line(style, points) for style, points in curves.items()]
    y = Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)])
    chart = line_chart(lines[::-1], x, y, description=description, width=340, height=230)
    return figure(chart, css="curve")


def bar_table(
    corner: str, rows: Sequence[str], shares: Mapping[SeriesStyle, Sequence[float]], title: str
) -> Table:
    """Return a table of fractions (0 to 1), with a bar in each cell.

    ``rows`` are the names in the first column, ``corner`` is the heading of this column, and
    ``shares`` has one column of fractions per objective.
    """
    largest = max(max(column) for column in shares.values()) or 1.0

    def cell(share: float, colour: str) -> Cell:
        return Cell(content=percent(share), css="share", bar=(56 * share / largest, colour))

    lines = [
        [Cell(content=label, limit=60), *(cell(own[i], s.colour) for s, own in shares.items())]
        for i, label in enumerate(rows)
    ]
    return Table.of([corner, *(style.cell() for style in shares)], lines, title=title, css="bins")


def thinned(points: Points, most: int = 200) -> list[tuple[float, float]]:
    """Reduce a curve to at most ``most`` points by averaging neighbouring points."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    groups = [np.array(points[at : at + size]).mean(axis=0) for at in range(0, len(points), size)]
    return [(float(x), float(y)) for x, y in groups]
