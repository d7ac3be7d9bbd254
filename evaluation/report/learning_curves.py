"""Learning curves in a report: each component of the loss by training step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.charts import Chart, Line, Points, figure, styled_line, thinned
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, group, heading, note
from mm_numeric.evaluation.report.results import Styles
from mm_numeric.evaluation.table import Cell, Quantity, Table, number, percent

Log = Sequence[Mapping[str, Any]]
"""The lines of a log.jsonl, the training log of a run."""

_Logs = Mapping[tuple[str, int], Log]
_Curve = list[tuple[float, float]]
_Curves = Mapping[str, Sequence[_Curve]]
"""Objective -> the curves of one logged value, one curve for each seed."""

_EVALUATED = 3  # number of metrics of evaluations during training that are not folded
_OTHERS = ("loss", "learning_rate", "grad_norm")  # logged values that are no loss components
_FEW = 9  # curves with fewer points have markers


def curves_section(styles: Styles, logs: _Logs, starts: _Logs, baseline: str) -> Section | None:
    """Return the section with a chart for each logged value; None if nothing was logged.

    ``logs`` has the training log of each (objective, seed). ``starts`` has the log of the warm
    start: the earlier training that this run continues. The warm start of ``baseline`` is grey.
    """
    if not any(logs.values()):
        return None
    seeds = list(dict.fromkeys(seed for _, seed in logs))
    warm = {baseline: [starts.get((baseline, seed), []) for seed in seeds]}
    for name in styles:
        own = [starts.get((name, seed), []) for seed in seeds]
        if any(own) and own not in warm.values():
            warm[name] = own
    found = {key: _logged_curves(log) for key, log in logs.items()}
    curves = [
        {
            name: _by_objective(styles, {key: own[kind].get(name) for key, own in found.items()})
            for name in dict.fromkeys(name for own in found.values() for name in own[kind])
        }
        for kind in (0, 1)
    ]
    # A run may have diverged before the first log: then its curve has no points.
    lost = [name for kind in curves for name, own in kind.items() if not own]
    trained, evaluated = ({n: own for n, own in kind.items() if own} for kind in curves)
    figures = {
        n: _figure(_chart(styles, n, own, warm, is_clipped=True), n) for n, own in trained.items()
    }
    metrics = [
        _figure(_chart(styles, n, own, {}, is_clipped=False), n) for n, own in evaluated.items()
    ]
    is_run = len(logs) == 1
    others = [figures.pop(name) for name in _OTHERS[is_run:] if name in figures]
    drawn: list[Content] = [group("panels", figures.values())]
    if first := metrics[:_EVALUATED]:
        drawn += [heading("Evaluations during training"), group("panels", first)]
    if others := [*others, *metrics[_EVALUATED:]]:
        drawn.append(fold("Other values", [group("panels", others)]))
    text = _explanation(warm, baseline, is_run=is_run)
    if lost:
        text += f" Not drawn, because no finite value was logged: {', '.join(lost)}."
    lines = [
        [Cell(content=name, is_name=True, limit=60), styles[objective].cell(), *_table_cells(own)]
        for name, of_name in (*trained.items(), *evaluated.items())
        for objective, own in of_name.items()
    ]
    header = ["curve", "objective", "first logged", "last logged", "lowest"]
    table = Table.of(header, lines, title="Logged values, mean over seeds")
    clipped = [(styles[name].cell(), share) for name, share in _clipped(styles, logs).items()]
    keys = [] if is_run else [charts.legend(styles.values())]
    blocks = [note(text), *keys, *drawn, fold("The same in numbers", [table])]
    if clipped:
        title = "Steps with clipped gradient"
        blocks.append(Table.of(["objective", "clipped"], clipped, title=title))
    return Section.of("curves", "Learning curves", *blocks)


def _figure(chart: Chart, name: str) -> Block:
    return figure(chart, Cell(content=name, is_name=True, limit=60))


def _by_objective(styles: Styles, curves: Mapping[tuple[str, int], _Curve | None]) -> _Curves:
    found: dict[str, list[_Curve]] = {}
    for name in styles:
        own = [curve for (objective, _), curve in curves.items() if objective == name and curve]
        if own:
            found[name] = own
    return found


def _clipped(styles: Styles, logs: _Logs) -> dict[str, Quantity | None]:
    found: dict[str, list[float]] = {}
    for (name, _), log in logs.items():
        shares = [row["clipping"]["share_of_steps"] for row in log if "clipping" in row]
        found.setdefault(name, []).extend(shares)
    return {name: percent(float(np.mean(found[name]))) for name in styles if found.get(name)}


def _logged_curves(log: Log) -> tuple[dict[str, _Curve], dict[str, _Curve]]:
    """Return two dictionaries from name to curve: training (the loss first) and evaluation.

    A curve has no points if the log has no finite value.
    """
    training: dict[str, _Curve] = {}
    evaluation: dict[str, _Curve] = {}
    for line in log:
        logged = {name: line[name] for name in _OTHERS if line.get(name) is not None}
        for curves, values in (
            (training, {**logged, **(line.get("components") or {})}),
            (evaluation, line.get("eval") or {}),
        ):
            for name, value in values.items():
                own = curves.setdefault(name, [])
                if isinstance(value, int | float) and math.isfinite(value):
                    own.append((float(line["step"]), float(value)))
    return training, evaluation


def _mean_curve(curves: Sequence[Points]) -> _Curve:
    """Average the curves of several seeds, at the steps that all curves contain."""
    tables = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, tables)))
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in steps]


def _table_cells(curves: Sequence[Points]) -> list[str]:
    mean = _mean_curve(curves) or [(math.nan, math.nan)]
    texts = [f"{_logged(y)} (step {x:,.0f})" for x, y in (mean[0], mean[-1])]
    return [*texts, _logged(min(value for _, value in mean))]


def _logged(value: float) -> str:
    """Format a logged value; a value below 0.001 has three significant digits."""
    return f"{value:.3g}" if 0 < value < 0.001 else number(value, 4)


def _explanation(warm: Mapping[str, Sequence[Log]], baseline: str, *, is_run: bool) -> str:
    text = "Each component of the loss on the training rows, before its weight"
    text += "; the loss is their weighted sum" if is_run else ""
    text += ". Bold: smoothed over neighbouring steps"
    text += "." if is_run else ", mean over seeds; thin: single seeds."
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
    name: str,
    found: _Curves,
    starts: Mapping[str, Sequence[Log]],
    *,
    is_clipped: bool,
) -> Chart:
    """Draw one logged value by training step, for each objective.

    If the runs continue an earlier training, the end of the earlier curve is drawn left of step 0.
    With ``is_clipped``, the highest 0.5 % of the values may be outside the chart.
    """
    every = [curve for curves in found.values() for curve in curves]
    last = max(x for curve in every for x, _ in curve)
    warm, colours = [], ["var(--warm)", *(styles[own].colour for own in [*starts][1:])]
    for colour, start in zip(colours, starts.values(), strict=False):
        for log in start:
            points = [(x - _last_step(log), y) for x, y in _logged_curves(log)[0].get(name, [])]
            points = thinned([point for point in points if point[0] >= -last / 3])
            warm.append(Line(points=points, colour=colour, width=1.2))
    first = min(
        (x for line in warm for x, _ in line.points), default=min(curve[0][0] for curve in every)
    )
    values = [y for curve in (*every, *(line.points for line in warm)) for _, y in curve]
    low, high = min(values), max(values)
    if is_clipped:  # a spike must not flatten the rest of the curve
        high = float(np.quantile(values, 0.995))
    margin = 0.06 * (high - low)
    thin, bold = [], []
    for own in reversed(list(found)):
        style, curves = styles[own], found[own]
        mean = styled_line(style, thinned(_mean_curve(curves), 40))
        bold.append(replace(mean, marker=style.drawn()) if len(mean.points) < _FEW else mean)
        thin += [
            Line(points=thinned(c), colour=style.colour, name=f"{own}, run {i}", width=0.7)
            for i, c in enumerate(curves, start=1)
        ]
    return charts.line_chart(
        [line for line in (*warm, *thin, *bold) if line.points],
        charts.plain_axis(first, last, "step", 5),
        charts.plain_axis(low - margin, high + margin),
        description=f"{name} by training step for {', '.join(found)}.",
        shaded_to=0 if first < 0 else None,
    )
