"""The chapter of learning curves: each raw part of the losses by training step, from log.jsonl."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mm_numeric.evaluation.report.charts import Line, Mark, legend, line_chart, plain_axis, thinned
from mm_numeric.evaluation.report.html import (
    Section,
    html_text,
    markdown_name,
    markdown_table,
    number,
)

Log = Sequence[Mapping[str, Any]]  # lines of log.jsonl: step, parts


def _part(log: Log, part: str, shift: float = 0) -> list[tuple[float, float]]:
    """Return (step, value) of one raw part of the loss."""
    pairs = [(row["step"] + shift, row["parts"].get(part)) for row in log if row.get("parts")]
    finite = ((x, y) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y))
    return [(float(x), float(y)) for x, y in finite]


def _mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Average curves over seeds at the steps that all of them have."""
    tables = [dict(curve) for curve in curves if curve]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in steps]


def curves_section(
    marks: Mapping[str, Mark],
    baseline: str,
    seeds: Sequence[int],
    logs: Mapping[tuple[str, int], Log],
    starts: Mapping[tuple[str, int], Log],
) -> Section:
    """Write the chapter with a panel for each raw part of the losses.

    Args:
        marks: The objectives.
        baseline: The one whose warm start is drawn in grey.
        seeds: The seeds that are averaged.
        logs: By objective and seed.
        starts: Of their warm starts, likewise.
    """
    warm = {baseline: [starts.get((baseline, seed), []) for seed in seeds]}
    for name in marks:
        own = [starts.get((name, seed), []) for seed in seeds]
        if any(own) and own not in warm.values():
            warm[name] = own
    rows = [row for name in marks for seed in seeds for row in logs.get((name, seed), [])]
    parts = list(dict.fromkeys(part for row in rows for part in row.get("parts") or {}))
    panels, twin = [], []
    for part in parts:
        found = {n: [_part(logs.get((n, s), []), part) for s in seeds] for n in marks}
        found = {name: curves for name, curves in found.items() if any(curves)}
        panels.append(_panel(marks, part, found, warm))
        for name, curves in found.items():
            mean = _mean_curve(curves) or [(math.nan, math.nan)]
            ends = [f"{number(y, 4)} (step {x:,.0f})" for x, y in (mean[0], mean[-1])]
            low = number(min(value for _, value in mean), 4)
            twin.append([markdown_name(part), markdown_name(name), *ends, low])
    end = max(map(_last_step, warm[baseline]), default=0)
    before = f" On grey ground: the end of the warm start of {end:,} steps." if end else ""
    if len(warm) > 1:
        before += " Those of rows with settings of their own have the colour of the first of them."
    note = (
        "Each raw part of the losses on the training rows, before its weight; a part is logged by "
        f"the objectives that use it. Bold: mean over seeds, smoothed over "
        f"neighbouring steps; thin: single seeds.{before}"
    )
    table = markdown_table(["part", "objective", "first logged", "last logged", "lowest"], twin)
    return Section(
        anchor="curves",
        title="Learning curves",
        html=f'<p class="note">{note}</p>{legend(marks, list(marks))}'
        f'<div class="panels">{"".join(panels)}</div>',
        markdown=f"Raw parts of the losses on the training rows, mean over seeds.\n\n{table}",
    )


def _last_step(log: Log) -> int:
    """Return the last step of a log, 0 if it is empty."""
    return max((int(row.get("step", 0)) for row in log), default=0)


def _panel(
    marks: Mapping[str, Mark],
    part: str,
    found: Mapping[str, list[list[tuple[float, float]]]],
    starts: Mapping[str, Sequence[Log]],
) -> str:
    """Draw one part: the end of the warm starts, the first in grey, a line for each objective."""
    every = [curve for curves in found.values() for curve in curves if curve]
    last = max(x for curve in every for x, _ in curve)
    warm, colours = [], ["var(--warm)", *(marks[name].colour for name in [*starts][1:])]
    for colour, start in zip(colours, starts.values(), strict=True):
        for log in start:
            points = [p for p in _part(log, part, -_last_step(log)) if p[0] >= -last / 3]
            warm.append(Line(points=thinned(points), colour=colour, width=1.2))
    first = min((x for line in warm for x, _ in line.points), default=0.0)
    values = [y for curve in (*every, *(line.points for line in warm)) for _, y in curve]
    low, high = min(values), float(np.quantile(values, 0.995))  # one spike must not flatten all
    margin = 0.06 * (high - low)
    thin, bold = [], []
    for name in reversed(list(found)):
        mark, curves = marks[name], [curve for curve in found[name] if curve]
        thin += [Line(points=thinned(c), colour=mark.colour, width=1, opacity=0.28) for c in curves]
        mean = thinned(_mean_curve(curves), 40)
        bold.append(Line(points=mean, colour=mark.colour, width=2.2, dash=mark.dash))
    chart = line_chart(
        [line for line in (*warm, *thin, *bold) if line.points],
        plain_axis(first, last, "step", 5),
        plain_axis(low - margin, high + margin),
        spoken=f"{part} by training step for {', '.join(found)}.",
        shaded_to=0 if first < 0 else None,
    )
    caption = f'<figcaption><span class="name">{html_text(part, 60)}</span></figcaption>'
    return f"<figure>{caption}{chart}</figure>"
