"""Report section on learning curves: each component of the loss by training step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.charts import Line, Points, SeriesStyle, styled_line, thinned
from mm_numeric.evaluation.report.results import Styles
from mm_numeric.evaluation.report.sections import Block, Section, figure, fold, group, note
from mm_numeric.evaluation.table import Cell, Quantity, Table, number, percent

Log = Sequence[Mapping[str, Any]]
"""The lines of a log.jsonl, the training log of a run."""


def curves_section(
    styles: Styles,
    baseline: str,
    seeds: Sequence[int],
    logs: Mapping[tuple[str, int], Log],
    starts: Mapping[tuple[str, int], Log],
) -> Section:
    """Return the section with a chart for each component of the loss, such as cross-entropy.

    ``logs[objective, seed]`` is the training log of a run. ``starts[objective, seed]`` is the log
    of its warm start: an earlier training that the run continues. ``baseline`` is the objective
    that others are compared with; its warm start is drawn in grey.
    """
    warm = {baseline: [starts.get((baseline, seed), []) for seed in seeds]}
    for name in styles:
        own = [starts.get((name, seed), []) for seed in seeds]
        if any(own) and own not in warm.values():
            warm[name] = own
    rows = [row for name in styles for seed in seeds for row in logs.get((name, seed), [])]
    # log.jsonl stores the components of a loss under the key `parts`.
    components = list(dict.fromkeys(part for row in rows for part in row.get("parts") or {}))
    figures, lines = [], []
    for component in components:
        found = {n: [_values(logs.get((n, s), []), component) for s in seeds] for n in styles}
        found = {name: curves for name, curves in found.items() if any(curves)}
        figures.append(_chart(styles, component, found, warm))
        for name, curves in found.items():
            lines.append([Cell(content=component, is_name=True, limit=60), styles[name].cell()])
            lines[-1] += _table_cells(_mean_curve(curves))
    header = ["component", "objective", "first logged", "last logged", "lowest"]
    table = fold("The same in numbers, mean over seeds", [Table.of(header, lines)])
    about, legend = note(_explanation(warm, baseline)), charts.legend(styles.values())
    clipped = [(styles[name].cell(), share) for name, share in _clipped(styles, logs).items()]
    clips = [Table.of(["objective", "steps with clipped gradient"], clipped)] if clipped else []
    panels = group("panels", figures)
    return Section.of("curves", "Learning curves", about, legend, panels, table, *clips)


def _clipped(styles: Styles, logs: Mapping[tuple[str, int], Log]) -> dict[str, Quantity | None]:
    """Return the share of optimiser steps with clipped gradients, for objectives that log it."""
    found: dict[str, list[float]] = {}
    for (name, _), log in logs.items():
        shares = [row["clipping"]["share_of_steps"] for row in log if "clipping" in row]
        found.setdefault(name, []).extend(shares)
    return {name: percent(float(np.mean(found[name]))) for name in styles if found.get(name)}


def _values(log: Log, component: str, shift: float = 0) -> list[tuple[float, float]]:
    """Return the points (step + ``shift``, value) of one loss component in a training log."""
    pairs = [(row["step"] + shift, row["parts"].get(component)) for row in log if row.get("parts")]
    finite = ((x, y) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y))
    return [(float(x), float(y)) for x, y in finite]


def _mean_curve(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """Average the curves of several seeds, at the steps that all curves contain."""
    tables = [dict(curve) for curve in curves if curve]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in steps]


def _table_cells(mean: Points) -> list[Cell]:
    mean = mean or [(math.nan, math.nan)]
    texts = [f"{number(y, 4)} (step {x:,.0f})" for x, y in (mean[0], mean[-1])]
    texts.append(number(min(value for _, value in mean), 4))
    return [Cell(content=text) for text in texts]


def _explanation(warm: Mapping[str, Sequence[Log]], baseline: str) -> str:
    text = (
        "Each component of the losses on the training rows, before its weight; a component is "
        "logged by the objectives that use it. Bold: mean over seeds, smoothed over neighbouring "
        "steps; thin: single seeds."
    )
    end = max(map(_last_step, warm[baseline]), default=0)
    if end:
        text += f" Grey background: the end of the warm start of {end:,} steps."
    if len(warm) > 1:
        text += (
            " The warm starts of objectives with settings of their own have the colour of the "
            "first of these objectives."
        )
    return text


def _last_step(log: Log) -> int:
    return max((int(row.get("step", 0)) for row in log), default=0)


def _chart(
    styles: Styles,
    component: str,
    found: Mapping[str, list[list[tuple[float, float]]]],
    starts: Mapping[str, Sequence[Log]],
) -> Block:
    """Draw one component of the loss by training step, for each objective.

    If the runs continue an earlier training, the end of its curve is drawn left of step 0.
    """
    every = [curve for curves in found.values() for curve in curves if curve]
    last = max(x for curve in every for x, _ in curve)
    warm, colours = [], ["var(--warm)", *(styles[name].colour for name in [*starts][1:])]
    for colour, start in zip(colours, starts.values(), strict=True):
        for log in start:
            points = [p for p in _values(log, component, -_last_step(log)) if p[0] >= -last / 3]
            warm.append(Line(points=thinned(points), colour=colour, width=1.2))
    first = min((x for line in warm for x, _ in line.points), default=0.0)
    values = [y for curve in (*every, *(line.points for line in warm)) for _, y in curve]
    low, high = min(values), float(np.quantile(values, 0.995))  # a spike must not flatten the rest
    margin = 0.06 * (high - low)
    thin, bold = [], []
    for name in reversed(list(found)):
        curves = [curve for curve in found[name] if curve]
        thin += seed_lines(styles[name], [thinned(curve) for curve in curves])
        bold.append(styled_line(styles[name], thinned(_mean_curve(curves), 40)))
    chart = charts.line_chart(
        [line for line in (*warm, *thin, *bold) if line.points],
        charts.plain_axis(first, last, "step", 5),
        charts.plain_axis(low - margin, high + margin),
        description=f"{component} by training step for {', '.join(found)}.",
        shaded_to=0 if first < 0 else None,
    )
    return figure(chart, Cell(content=component, is_name=True, limit=60))


def seed_lines(style: SeriesStyle, curves: Sequence[Points]) -> list[Line]:
    """Return one thin line per seed, in the colour of the objective."""
    return [Line(points=c, colour=style.colour, width=1, opacity=0.28) for c in curves]
