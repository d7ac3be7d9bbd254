"""Standalone SVG images that contain charts of the report."""

from collections.abc import Sequence

from markupsafe import escape

from mm_numeric.evaluation.report.charts import theme_colours, with_colours
from mm_numeric.io.markup import element

COLOURS = {**theme_colours(), "--ours": "#0a62a9", "--other": "#b4500f"}
HEAT = ((255, 252, 238), (253, 204, 120), (232, 110, 60), (150, 28, 60), (52, 8, 46))


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return str(element("text", text, x=x, y=y, class_=kind, text_anchor=anchor))


def placed(chart: str, x: float, y: float, width: float, height: float) -> str:
    """Return a chart of the report at a position in an image."""
    at = f'<svg x="{x}" y="{y}" width="{width}" height="{height}" '
    return str(chart).replace("<svg ", at, 1)  # Markup would escape the replacement


def image(width: float, height: float, spoken: str, parts: Sequence[str]) -> str:
    """Return a complete SVG file."""
    body = with_colours("\n".join(parts), COLOURS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(spoken)}">\n'
        f"{element('title', spoken)}\n"
        "<style>text { font: 12px sans-serif; fill: #59626f; }\n"
        ".title { font: bold 16px sans-serif; fill: #171b22; }\n"
        ".name { font: bold 12px sans-serif; fill: #171b22; }</style>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def colour_bar(x: float, y: float, largest: float) -> str:
    """Return the colour scale of a panel, from 0 to its largest loss."""
    cells = "".join(
        f'<rect x="{x + 4 * i}" y="{y}" width="4.4" height="9" fill="{heat(i / 19)}"/>'
        for i in range(20)
    )
    ends = words(x, y + 23, "0", anchor="middle")
    return cells + ends + words(x + 80, y + 23, f"{largest:.3g}", anchor="middle")


def heat(share: float) -> str:
    """Return the colour of a loss, given as a share of the largest one."""
    place = max(0.0, min(1.0, share)) * (len(HEAT) - 1)
    low = min(int(place), len(HEAT) - 2)
    pairs = zip(HEAT[low], HEAT[low + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)
