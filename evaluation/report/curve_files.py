"""Draw the learning curves of a run as curves.svg and curves.png, without a display."""

import re
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.evaluation.report.charts import (
    Axis,
    Chart,
    Line,
    choose_styles,
    line_chart,
    standalone_svg,
    theme_colours,
)
from mm_numeric.evaluation.report.learning_curves import EVALUATED, logged_curves, run_curve
from mm_numeric.evaluation.report.summary_file import read_lines
from mm_numeric.evaluation.table import Table
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import write_text
from mm_numeric.io.markup import element
from mm_numeric.runs.folder import LOG

SVG, PNG = "curves.svg", "curves.png"
_WIDTH, _HEIGHT, _COLUMNS = 340, 250, 3  # of a panel, in pixels; panels of a row
_TITLE = 20  # height of the title of a panel
_LEFT, _RIGHT, _FOOT = 48, 12, 46  # margins of the axes in a panel
_SCALE = 2  # pixels of the PNG for each pixel of the SVG
_DOT = 3.5 * _SCALE  # radius
_NOT_DRAWN = ("learning_rate", "grad_norm")


class Panel(NamedTuple):
    """The chart of one logged value."""

    name: str
    lines: list[Line]
    x: Axis
    y: Axis


def write_curves(folder: Path) -> None:
    """Draw the loss, its components and three metrics of a run, if it has logged any."""
    training, evaluation = logged_curves(read_lines(folder / LOG))
    losses = {name: own for name, own in training.items() if name not in _NOT_DRAWN}
    metrics = dict(list(evaluation.items())[:EVALUATED])
    style = choose_styles(["run"], "", None)["run"]
    panels = [
        Panel(plain(name, 40), *run_curve(style, points))
        for name, points in (*losses.items(), *metrics.items())
    ]
    if not panels:
        return
    write_text(folder / SVG, _svg(panels))
    with atomic_file(folder / PNG) as file:
        _png(panels).save(file, "PNG")


def _places(panels: list[Panel]) -> list[tuple[int, int]]:
    return [(_WIDTH * (i % _COLUMNS), _HEIGHT * (i // _COLUMNS)) for i in range(len(panels))]


def _size(panels: list[Panel]) -> tuple[int, int]:
    return _WIDTH * min(_COLUMNS, len(panels)), _HEIGHT * -(-len(panels) // _COLUMNS)


def _svg(panels: list[Panel]) -> str:
    parts = []
    for panel, (left, top) in zip(panels, _places(panels), strict=True):
        text = f"{panel.name} by training step."
        chart = line_chart(panel.lines, panel.x, panel.y, description=text)
        own = element("text", panel.name, x=left + _LEFT, y=top + 14, class_="name")
        size = {"width": _WIDTH - _RIGHT, "height": _HEIGHT - _TITLE}
        parts += [own, element("svg", chart.svg, x=left, y=top + _TITLE, **size)]
    width, height = _size(panels)
    drawn = element("svg", *parts, viewBox=f"0 0 {width} {height}", role="img")
    return standalone_svg(Chart(drawn, "Learning curves", Table.of([], [])))


def _png(panels: list[Panel]) -> Image.Image:
    width, height = _size(panels)
    image = Image.new("RGB", (_SCALE * width, _SCALE * height), theme_colours()["--paper"])
    draw = ImageDraw.Draw(image)
    for panel, place in zip(panels, _places(panels), strict=True):
        _draw_panel(draw, panel, *place)
    return image


def _draw_panel(draw: ImageDraw.ImageDraw, panel: Panel, left: int, top: int) -> None:
    colours, font = theme_colours(), ImageFont.load_default(11 * _SCALE)
    x1, x2 = left + _LEFT, left + _WIDTH - _RIGHT
    y1, y2 = top + _TITLE + 4, top + _HEIGHT - _FOOT

    def at(x: float, y: float) -> tuple[float, float]:
        return _SCALE * x, _SCALE * y

    def write(x: float, y: float, text: str, anchor: str, colour: str = "--soft") -> None:
        # Pillow's own font has no other characters.
        text = text.replace("\N{MINUS SIGN}", "-").encode("ascii", "replace").decode()
        draw.text(at(x, y), text, font=font, fill=colours[colour], anchor=anchor)

    write(x1, top + 12, panel.name, "lm", "--ink")
    for value, text in panel.y.ticks:
        y = y2 - (y2 - y1) * panel.y.share(value)
        draw.line([at(x1, y), at(x2, y)], fill=colours["--grid"], width=_SCALE)
        write(x1 - 7, y, text, "rm")
    for value, text in panel.x.ticks:
        x = x1 + (x2 - x1) * panel.x.share(value)
        draw.line([at(x, y2), at(x, y2 + 4)], fill=colours["--soft"], width=_SCALE)
        write(x, y2 + 13, text, "mm")
    draw.line([at(x1, y2), at(x2, y2)], fill=colours["--soft"], width=_SCALE)
    write((x1 + x2) / 2, y2 + 30, panel.x.label, "mm")
    for line in panel.lines:
        colour = colours[re.sub(r"var\((.*)\)", r"\1", line.colour)]
        points = [
            at(x1 + (x2 - x1) * panel.x.share(x), y2 - (y2 - y1) * panel.y.share(y))
            for x, y in line.points
        ]
        draw.line(points, fill=colour, width=round(_SCALE * line.width), joint="curve")
        for px, py in points if line.marker else ():
            draw.ellipse([px - _DOT, py - _DOT, px + _DOT, py + _DOT], fill=colour)
