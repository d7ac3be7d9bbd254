"""How many steps each row of a comparison takes to a given figure, from evaluation on the way.

Figure 4 of NTL (arXiv 2411.02083) counts the epochs to an error. A level counts as reached at the
first evaluation whose figure is as good; the warm start's last one is step 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mm_numeric.evaluation.metrics.bootstrap import draws_interval
from mm_numeric.evaluation.report.charts import (
    Axis,
    Line,
    Mark,
    legend,
    line_chart,
    nice_ticks,
    plain_axis,
    who,
)
from mm_numeric.evaluation.report.html import (
    Metric,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    number,
)
from mm_numeric.evaluation.report.results import Comparison, Runs

_LEVELS = 6
_DRAWS = 2000
Curve = Sequence[tuple[int, float]]
"""(step, figure), the warm start's last evaluation as step 0."""


@dataclass(frozen=True)
class Reached:
    """The steps that the seeds of a row took to a level; None where it was not reached."""

    steps: Sequence[int | None]

    @property
    def mean(self) -> float | None:
        """The mean, where every seed reached it."""
        known = [step for step in self.steps if step is not None]
        return sum(known) / len(known) if known and len(known) == len(self.steps) else None

    def written(self) -> str:
        """Say it in words: the mean with its interval over seeds, or how many reached it."""
        if self.mean is None:
            count = sum(step is not None for step in self.steps)
            if not count:
                return "not reached"
            return f"not reached by {len(self.steps) - count} of {len(self.steps)} seeds"
        text = number(self.mean, 0)
        if len(self.steps) > 1:
            low, high = self.interval()
            text += f" ({number(low, 0)} to {number(high, 0)})"
        return text

    def interval(self) -> tuple[float, float]:
        """Return from where to where the mean goes when seeds are drawn again."""
        values = np.array(self.steps, dtype=np.float64)
        at = np.random.default_rng(0).integers(len(values), size=(_DRAWS, len(values)))
        return draws_interval(values[at].mean(axis=1))


def first_step(curve: Curve, level: float, *, higher_is_better: bool) -> int | None:
    """Return the step of the first figure that is as good as a level, or None."""
    sign = 1 if higher_is_better else -1
    return next((step for step, figure in curve if sign * figure >= sign * level), None)


def reached_section(
    comparison: Comparison, marks: Mapping[str, Mark], logs: Runs, starts: Runs
) -> Section | None:
    """Write the chapter, None where nothing was evaluated on the way.

    Args:
        comparison: The comparison.
        marks: Its rows, in the order of the page.
        logs: Of the runs, by row and seed.
        starts: Of their warm starts, likewise.
    """
    panels, tables, twins = [], [], []
    for metric in _shown(comparison.metrics, logs):
        curves = {
            (name, seed): curve_of(logs.get((name, seed), []), starts.get((name, seed), []), metric)
            for name in marks
            for seed in comparison.summary["seeds"]
        }
        rows = [n for n in marks if all(curves[n, s] for s in comparison.summary["seeds"])]
        levels = _levels([curves[n, s] for n in rows for s in comparison.summary["seeds"]], metric)
        if not levels:
            continue
        found = {
            name: [
                Reached(
                    [
                        first_step(curves[name, seed], at, higher_is_better=metric.higher_is_better)
                        for seed in comparison.summary["seeds"]
                    ]
                )
                for at in levels
            ]
            for name in rows
        }
        panels.append(_panel(metric, levels, marks, found))
        html, twin = _tables(metric, levels, marks, found)
        tables.append(html)
        twins.append(twin)
    if not panels:
        return None
    note = (
        "Steps behind the warm start to the first evaluation on the way that is as good: the mean "
        f"over seeds and its interval, from drawing seeds again. {_pace(logs)} A level that a "
        "seed does not reach has no mean: the line ends before it."
    )
    return Section(
        anchor="reached",
        title="Steps to a given figure",
        html=f'<p class="note">{html_text(note, 600)}</p>{legend(marks, list(marks))}'
        f'<div class="panels">{"".join(panels)}</div>{"".join(tables)}',
        markdown="\n\n".join([note, *twins]),
    )


def curve_of(
    log: Sequence[Mapping[str, Any]], start: Sequence[Mapping[str, Any]], metric: Metric
) -> list[tuple[int, float]]:
    """Return the figures of a run's evaluations, its warm start's last one first."""
    before, curve = _evaluations(start, metric), _evaluations(log, metric)
    return [*((0, figure) for _, figure in before[-1:]), *curve] if curve else []


def _evaluations(log: Sequence[Mapping[str, Any]], metric: Metric) -> list[tuple[int, float]]:
    pairs = [(row["step"], row["eval"].get(metric.name)) for row in log if row.get("eval")]
    return [(int(step), float(figure)) for step, figure in pairs if figure is not None]


def _shown(metrics: Sequence[Metric], logs: Runs) -> list[Metric]:
    """Return the first metric that was evaluated, and the first that is a distance and no share.

    Figures of categories of rows are not evaluated on the way, and may come first in a table.
    """
    evaluated = {name for log in logs.values() for row in log for name in row.get("eval") or ()}
    metrics = [metric for metric in metrics if metric.name in evaluated]
    far = [m for m in metrics[1:] if not m.higher_is_better and m.unit != "%"]
    return [*metrics[:1], *far[:1]]


def _levels(curves: Sequence[Curve], metric: Metric) -> list[float]:
    """Return round figures between the worst and the best that was seen, the easiest first."""
    figures = [figure for curve in curves for _, figure in curve]
    if not figures:
        return []
    ticks = nice_ticks(metric.scale * min(figures), metric.scale * max(figures), _LEVELS)
    return [tick / metric.scale for tick in ticks][:: 1 if metric.higher_is_better else -1]


def _pace(logs: Runs) -> str:
    """Say how often was evaluated, and how many steps are an epoch where that is one number."""
    found = [[row for row in log if row.get("eval")] for log in logs.values()]
    firsts = {log[0]["step"] for log in found if log}
    told = f"Evaluated every {firsts.pop():,} steps." if len(firsts) == 1 else ""
    paces = {row["step"] / row["epoch"] for log in found for row in log if row.get("epoch")}
    if paces and max(paces) < 1.02 * min(paces):
        told += f" {number(max(paces), 0)} steps are one epoch."
    return told


def _panel(
    metric: Metric,
    levels: Sequence[float],
    marks: Mapping[str, Mark],
    found: Mapping[str, Sequence[Reached]],
) -> str:
    """Draw mean steps by level, harder levels on the right, with intervals."""
    reach = (max(levels) - min(levels)) * metric.scale or 1.0
    ends = [metric.scale * levels[0], metric.scale * levels[-1]]
    way = 1 if ends[-1] >= ends[0] else -1
    lines, most = [], 1.0
    for place, (name, row) in enumerate(reversed(list(found.items()))):
        mark = marks[name]
        aside = reach * 0.012 * (place - (len(found) - 1) / 2)  # rows often take as many steps
        points = []
        for level, at in zip(levels, row, strict=True):
            if at.mean is None:
                break
            x = metric.scale * level + aside
            low, high = at.interval()
            most = max(most, high)
            points.append((x, at.mean))
            cap = [(x - 0.012 * reach, at.mean), (x + 0.012 * reach, at.mean)]
            lines.append(Line(points=cap, colour=mark.colour, width=5))
            lines.append(Line(points=[(x, low), (x, high)], colour=mark.colour, opacity=0.5))
        if len(points) > 1:
            lines.append(Line(points=points, colour=mark.colour, dash=mark.dash))
    texts = [(metric.scale * level, metric.value(level)) for level in levels]
    axis = Axis(
        low=ends[0] - way * 0.07 * reach,
        high=ends[1] + way * 0.07 * reach,
        ticks=texts,
        label=metric.label,
    )
    chart = line_chart(
        lines,
        axis,
        plain_axis(0, 1.06 * most),
        spoken=f"Steps to a given {metric.label} for {', '.join(found)}; see the table.",
    )
    caption = f'<span class="name">steps to {html_text(metric.label, 60)} of</span>'
    return f"<figure><figcaption>{caption}</figcaption>{chart}</figure>"


def _tables(
    metric: Metric,
    levels: Sequence[float],
    marks: Mapping[str, Mark],
    found: Mapping[str, Sequence[Reached]],
) -> tuple[str, str]:
    """Write steps by row and level, as HTML and as Markdown."""
    header = [f"steps to {metric.label} of", *map(metric.value, levels)]
    body = "".join(
        f"<tr><th>{who(marks[name])}</th>"
        + "".join(f"<td>{html_text(at.written())}</td>" for at in row)
        + "</tr>"
        for name, row in found.items()
    )
    twin = [[markdown_name(name), *(at.written() for at in row)] for name, row in found.items()]
    return html_table(map(html_text, header), body), markdown_table(header, twin)
