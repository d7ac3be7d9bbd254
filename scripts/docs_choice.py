"""Draw what a loss and a rule gain over CE with greedy decoding, by labels and task (choose.md).

`python scripts/docs_tables.py` writes the figure to docs/images/choice.svg, from the published
results. It is 390 pixels wide, so that a phone shows it at its own size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from docs_results import experiment
from svg import COLOURS, image, words

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import smallest_effect
from mm_numeric.io.markup import element
from mm_numeric.losses.presets import PRESETS

ROWS = (
    ("clocks, exact labels", "clock_noise", "0", "within_1_minute"),
    ("clocks, labels off by 5 min", "clock_evidence", "gaussian_5", "within_1_minute"),
    ("clocks, labels off by 10 min", "clock_evidence", "gaussian_10", "within_1_minute"),
    ("clocks, labels noted late", "clock_evidence", "exponential_5", "within_1_minute"),
    ("clocks, 10 % of labels random", "clock_evidence", "outliers_10", "within_1_minute"),
    ("boxes, exact labels", "grounding_noise", "0", "accuracy_at_0.75"),
    ("boxes, labels off by 4 pixels", "grounding_evidence", "", "accuracy_at_0.75"),
    ("sums, pretrained model", "arithmetic_smollm2", "", "mae_interpolation"),
    ("products, from the first step", "products", "", "log_mae"),
)
"""Each row: labels and task, experiment, cell of its grid, metric."""

SAME_COST = {"clock_evidence": "ce_twice"}
"""Experiment -> CE with as many steps as two runs."""

MARKS = {
    "CE, rule of the task": ("circle", "--ours"),
    "best loss, greedy": ("square", "--other"),
    "best loss, rule of the task": ("triangle", "--other"),
    "CE, twice the steps, greedy": ("ring", "--ours"),
}
WIDTH, LEFT, ROW, TOP = 390, 14, 44, 118
LOWEST, HIGHEST = -40, 80


@dataclass(frozen=True)
class Gains:
    """The gains of a row, as shares of the error of CE with greedy decoding."""

    label: str
    metric: str
    marks: dict[str, float]
    """Mark -> gain."""

    findable: float
    """The smallest gain that four of five such experiments find."""

    about: str


def gains(label: str, name: str, cell: str, metric: str) -> Gains:
    """Return the gains of a row; a share of correct answers counts as a share of errors."""
    own = experiment(name)
    described = next(each for each in own.summary["metrics"] if each["name"] == metric)

    def errors(objective: str, rule: str) -> Any:
        seeds = np.array(own.found(objective, cell, rule, metric)["seeds"])
        return 1 - seeds if described["higher_is_better"] else seeds

    base = errors("ce", GREEDY)
    no_losses = ("ce", own.summary["control"])
    losses = [each for each in own.objectives if each in PRESETS and each not in no_losses]
    found = {"CE, rule of the task": errors("ce", own.decoded)}
    for mark, rule in (("best loss, greedy", GREEDY), ("best loss, rule of the task", own.decoded)):
        if losses:
            found[mark] = min((errors(each, rule) for each in losses), key=np.mean)
    if name in SAME_COST:
        found["CE, twice the steps, greedy"] = errors(SAME_COST[name], GREEDY)
    variance = np.mean([(each - base).var(ddof=1) for each in found.values()])
    count = len(base)
    findable = smallest_effect(sqrt(variance / count), count - 1, len(found))
    marks = {mark: float((base - each).mean() / base.mean()) for mark, each in found.items()}
    about = f"{label}: " + ", ".join(f"{mark} {100 * own:+.0f} %" for mark, own in marks.items())
    return Gains(label, described["label"], marks, findable / base.mean(), about)


def draw_choice() -> str:
    """Return the figure as an SVG file."""
    rows = [gains(*row) for row in ROWS]
    if any(not LOWEST <= 100 * gain <= HIGHEST for row in rows for gain in row.marks.values()):
        raise ValueError("a gain is outside the axis; raise LOWEST and HIGHEST.")
    height = TOP + ROW * len(rows) + 30
    spoken = "Share of the errors of CE with greedy decoding that others avoid. " + "; ".join(
        row.about for row in rows
    )
    return image(WIDTH, height, spoken, [*_legend(), *_rows(rows), *_axis(len(rows))])


def _x(gain: float) -> float:
    share = (min(max(100 * gain, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
    return LEFT + share * (WIDTH - 2 * LEFT)


def _legend() -> Iterator[str]:
    yield words(LEFT, 22, "Which errors of CE, greedy, are avoided?", "title")
    for i, mark in enumerate(MARKS):
        yield _mark(mark, LEFT + 6, 42 + 17 * i)
        yield words(LEFT + 18, 46 + 17 * i, mark)
    yield f'<rect x="{LEFT + 196}" y="36" width="24" height="12" fill="{COLOURS["--faint"]}"/>'
    yield words(LEFT + 226, 46, "too small to be found")


def _rows(rows: list[Gains]) -> Iterator[str]:
    for i, row in enumerate(rows):
        top = TOP + ROW * i
        yield words(LEFT, top + 11, row.label, "name")
        yield words(WIDTH - LEFT, top + 11, row.metric, anchor="end")
        band = _x(-row.findable), _x(row.findable)
        yield (
            f'<rect x="{band[0]:.1f}" y="{top + 17}" width="{band[1] - band[0]:.1f}" height="18" '
            f'fill="{COLOURS["--faint"]}"/>'
        )
        yield _line(_x(0), top + 15, top + 37)
        for mark, gain in row.marks.items():
            yield _mark(mark, _x(gain), top + 26)


def _axis(count: int) -> Iterator[str]:
    foot = TOP + ROW * count
    for percent in range(LOWEST, HIGHEST + 1, 20):
        anchor = {LOWEST: "start", HIGHEST: "end"}.get(percent, "middle")
        yield _line(_x(percent / 100), foot - 4, foot)
        yield words(_x(percent / 100), foot + 14, f"{percent} %", anchor=anchor)


def _line(x: float, top: float, foot: float) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{foot}" stroke="#59626f"/>'


def _mark(name: str, x: float, y: float) -> str:
    shape, colour = MARKS[name][0], COLOURS[MARKS[name][1]]
    if shape in ("circle", "ring"):
        fill = colour if shape == "circle" else "#fff"
        return str(element("circle", cx=f"{x:.1f}", cy=y, r=5, fill=fill, stroke=colour))
    if shape == "square":
        return str(element("rect", x=f"{x - 4.5:.1f}", y=y - 4.5, width=9, height=9, fill=colour))
    points = f"{x:.1f},{y - 6} {x + 6:.1f},{y + 5} {x - 6:.1f},{y + 5}"
    return str(element("polygon", points=points, fill=colour))
