"""Figures of a report: a chart with its caption, and links that save it as SVG and CSV.

A saved figure is in the page itself, as a data URL, so that no script and no request is needed.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from mm_numeric.escaping import plain
from mm_numeric.evaluation.markup import element
from mm_numeric.evaluation.report.sections import Block
from mm_numeric.evaluation.table import Cell, Table

_STYLE = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")


def theme_colours(style: str = _STYLE) -> dict[str, str]:
    """Return the CSS variables of the light theme: ``{"--ink": "#171b22", ...}``."""
    return dict(re.findall(r"(--\w+): (#\w+)", style.partition("@media")[0]))


@dataclass(frozen=True)
class Chart:
    """A chart as SVG, and its numbers."""

    svg: Markup
    description: str
    data: Table


def figure(
    chart: Chart,
    caption: Cell | None = None,
    css: str | None = None,
    *,
    page_html: Markup | None = None,
) -> Block:
    """Return a chart with a caption and links to save it; Markdown omits it.

    ``page_html`` is shown on the page in place of the SVG.
    """
    about = caption.text if caption else chart.description
    name = "-".join(re.findall("[a-z0-9]+", about.lower()))
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
    shown = element("div", page_html or chart.svg, class_="drawing")
    return Block(element("figure", element("figcaption", *above, below), shown, class_=css))


def standalone_svg(chart: Chart) -> str:
    """Return a chart as the text of an SVG file with the colours of the light theme."""
    svg = str(chart.svg)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    left, top, width, height = box[1].split()
    ground = element("rect", x=left, y=top, width=width, height=height, fill="var(--paper)")
    opened, closed = svg.split(">", 1)
    size = f' xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return with_colours(f"{opened}{size}>{FILE_STYLE}{ground}{closed}", theme_colours())


FILE_STYLE = (
    "<style>text { font: 12px sans-serif; fill: var(--soft); } "
    ".name, .share tspan { font-weight: 600; fill: var(--ink); }</style>"
)
"""Style of the texts in a saved figure."""


def with_colours(svg: str, colours: Mapping[str, str]) -> str:
    """Replace CSS variables by colours: many viewers of SVG files do not support variables."""
    for name, colour in colours.items():
        svg = svg.replace(f"var({name})", colour)
    return svg


def _data_url(mime: str, text: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(text.encode()).decode('ascii')}"
