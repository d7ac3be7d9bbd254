"""Draw how the median changes the metric of each objective: the first figure of README.md.

`python scripts/docs_tables.py` writes it to docs/images/median.svg, from the published results of
the experiment clock_noise.
"""

from docs_results import differences, experiment
from svg import image, words

EXPERIMENT, MINUTES = "clock_noise", "10"
LEFT, WIDTH, ROW = 110, 480, 34  # pixels
LOW, HIGH = 55, 90  # per cent at the ends of the axis


def draw_median() -> str:
    """Return the figure as SVG: a line from the greedy answers to the median, by objective."""
    own = experiment(EXPERIMENT)
    title = f"Clocks read within 5 minutes (%), training labels with noise of {MINUTES} minutes"
    parts = [words(20, 28, title, "title")]
    bottom = 66 + ROW * len(own.objectives)
    for value in range(LOW, HIGH + 1, 5):
        parts.append(_line(value, 60, value, bottom, "#e8ebef", 1))
        parts.append(words(_x(value), bottom + 18, str(value), anchor="middle"))
    changes = {(row.better, row.other): row for row in differences(EXPERIMENT)}
    for i, objective in enumerate(own.objectives):
        y, row = 84 + ROW * i, own.rows[objective, MINUTES]
        greedy, median = (
            100 * own.found(objective, MINUTES, rule, own.metrics[0]["name"])["value"]
            for rule in own.rules
        )
        parts.append(words(20, y + 4, objective, "name"))
        parts.append(_line(greedy, y, median, y, "#0a62a9", 2))
        parts.append(_circle(greedy, y, "#fff") + _circle(median, y, "#0a62a9"))
        change = changes[f"{row}, median", row]
        parts.append(words(LEFT + WIDTH + 22, y + 4, change.texts()[0].strip("*")))
    caption = (
        "Ring: greedy answers. Disc: median of the same models. Means of "
        f"{len(own.summary['seeds'])} seeds; p by Holm ({change.family})."
    )
    parts.append(words(20, bottom + 44, caption))
    return image(LEFT + WIDTH + 140, bottom + 60, title, parts)


def _x(value: float) -> float:
    return round(LEFT + WIDTH * (value - LOW) / (HIGH - LOW), 1)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    ends = f'x1="{_x(x1)}" y1="{y1}" x2="{_x(x2)}" y2="{y2}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _circle(x: float, y: float, fill: str) -> str:
    return f'<circle cx="{_x(x)}" cy="{y}" r="5" fill="{fill}" stroke="#0a62a9" stroke-width="2"/>'
