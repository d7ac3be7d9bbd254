"""Learning curves: each component of the loss by training step, in a report or as curves.svg."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.charts import (
    Chart,
    Line,
    Points,
    SeriesStyle,
    figure,
    styled_line,
    thinned,
)
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, group, heading, note
from mm_numeric.evaluation.report.results import Styles
from mm_numeric.evaluation.report.summary_file import read_lines
from mm_numeric.evaluation.table import Cell, Quantity, Table, number, percent
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import write_text
from mm_numeric.io.markup import element
from mm_numeric.runs.folder import CURVES, LOG

Log = Sequence[Mapping[str, Any]]
"""The lines of a log.jsonl, the training log of a run."""

_EVALUATED = 3  # metrics of the evaluations during training that are not folded
_SMOOTHED = 80  # curves with more points have a smoothed curve too
_WIDTH, _HEIGHT, _COLUMNS = 340, 250, 3  # of a panel of curves.svg, in pixels; panels of a row


def curves_section(
    styles: Styles,
    baseline: str,
    seeds: Sequence[int],
    logs: Mapping[tuple[str, int], Log],
    starts: Mapping[tuple[str, int], Log],
) -> Section:
    """Return the section with a chart for each component of the loss, such as cross-entropy.

    ``logs`` are the training logs by (objective, seed), and ``starts`` those of the warm starts
    that they continue. The warm start of ``baseline`` is drawn in grey.
    """
    warm = {baseline: [starts.get((baseline, seed), []) for seed in seeds]}
    for name in styles:
        own = [starts.get((name, seed), []) for seed in seeds]
        if any(own) and own not in warm.values():
            warm[name] = own
    rows = [row for name in styles for seed in seeds for row in logs.get((name, seed), [])]
    components = list(dict.fromkeys(name for row in rows for name in row.get("components") or {}))
    figures, lines, lost = [], [], []
    for component in components:
        found = {n: [_values(logs.get((n, s), []), component) for s in seeds] for n in styles}
        found = {name: curves for name, curves in found.items() if any(curves)}
        if not found:  # of runs that diverged before the first log
            lost.append(component)
            continue
        figures.append(_chart(styles, component, found, warm))
        for name, curves in found.items():
            lines.append([Cell(content=component, is_name=True, limit=60), styles[name].cell()])
            lines[-1] += _table_cells(_mean_curve(curves))
    header = ["component", "objective", "first logged", "last logged", "lowest"]
    table = fold(
        "The same in numbers, mean over seeds",
        [Table.of(header, lines, title="Components of the loss")],
    )
    text = _explanation(warm, baseline)
    if lost:
        text += f" Not drawn, because no finite value was logged: {', '.join(lost)}."
    about, legend = note(text), charts.legend(styles.values())
    clipped = [(styles[name].cell(), share) for name, share in _clipped(styles, logs).items()]
    clips = (
        [Table.of(["objective", "clipped"], clipped, title="Steps with clipped gradient")]
        if clipped
        else []
    )
    panels = group("panels", figures)
    return Section.of("curves", "Learning curves", about, legend, panels, table, *clips)


def _clipped(styles: Styles, logs: Mapping[tuple[str, int], Log]) -> dict[str, Quantity | None]:
    found: dict[str, list[float]] = {}
    for (name, _), log in logs.items():
        shares = [row["clipping"]["share_of_steps"] for row in log if "clipping" in row]
        found.setdefault(name, []).extend(shares)
    return {name: percent(float(np.mean(found[name]))) for name in styles if found.get(name)}


def _values(log: Log, component: str, shift: float = 0) -> list[tuple[float, float]]:
    """Return the points (step + ``shift``, value) of one loss component in a training log."""
    pairs = [
        (row["step"] + shift, row["components"].get(component))
        for row in log
        if row.get("components")
    ]
    finite = ((x, y) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y))
    return [(float(x), float(y)) for x, y in finite]


def _mean_curve(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """Average the curves of several seeds, at the steps that all curves contain."""
    tables = [dict(curve) for curve in curves if curve]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in steps]


def _table_cells(mean: Points) -> list[Cell]:
    mean = mean or [(math.nan, math.nan)]
    texts = [f"{_logged(y)} (step {x:,.0f})" for x, y in (mean[0], mean[-1])]
    texts.append(_logged(min(value for _, value in mean)))
    return [Cell(content=text) for text in texts]


def _logged(value: float) -> str:
    """Format a logged value; a small one, such as a learning rate, has three significant digits."""
    return f"{value:.3g}" if 0 < value < 0.001 else number(value, 4)


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
    return [
        Line(points=c, colour=style.colour, name=f"{style.name}, run {i}", width=0.7)
        for i, c in enumerate(curves, start=1)
    ]


def run_curves_section(style: SeriesStyle, log: Log) -> Section | None:
    """Return the section with the learning curves of a single run; None if nothing was logged."""
    training, evaluation = _logged_curves(log)
    if not training and not evaluation:
        return None
    text = (
        "The loss is the weighted sum of its components, which are drawn before their weights. "
        "Bold: smoothed over neighbouring steps."
    )
    blocks: list[Content] = [note(text), _run_panels(style, training)]
    if evaluation:
        blocks.append(heading("Evaluations during training"))
        first = dict(list(evaluation.items())[:_EVALUATED])
        rest = dict(list(evaluation.items())[_EVALUATED:])
        blocks.append(_run_panels(style, first))
        blocks += [fold("Other metrics", [_run_panels(style, rest)])] if rest else []
    rows = [
        [Cell(content=name, is_name=True, limit=60), *_table_cells(points)]
        for name, points in (*training.items(), *evaluation.items())
    ]
    table = Table.of(
        ["curve", "first logged", "last logged", "lowest"], rows, title="Logged values"
    )
    return Section.of("curves", "Learning curves", *blocks, fold("The same in numbers", [table]))


def _logged_curves(log: Log) -> tuple[dict[str, Points], dict[str, Points]]:
    """Return the curves of the training, the loss first, and those of its evaluations, by name."""
    training: dict[str, list[tuple[float, float]]] = {}
    evaluation: dict[str, list[tuple[float, float]]] = {}
    for line in log:
        shown = {name: line.get(name) for name in ("loss", "learning_rate", "grad_norm")}
        loss = {"loss": shown.pop("loss")}
        for curves, values in (
            (training, {**loss, **(line.get("components") or {}), **shown}),
            (evaluation, line.get("eval") or {}),
        ):
            for name, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    curves.setdefault(name, []).append((float(line["step"]), float(value)))
    return dict(training), dict(evaluation)


def _run_chart(style: SeriesStyle, name: str, points: Points) -> Chart:
    """Draw one curve of a single run."""
    steps, values = [x for x, _ in points], [y for _, y in points]
    smooth = [styled_line(style, thinned(points, 40))] if len(points) > _SMOOTHED else []
    own = seed_lines(style, [thinned(points)]) if smooth else [styled_line(style, points)]
    marked = [replace(line, marker=style.drawn()) for line in own] if len(points) < 9 else own
    x = charts.plain_axis(min(steps), max(steps), "step", 5)
    text = f"{name} by training step."
    return charts.line_chart([*marked, *smooth], x, charts.axis_around(values), description=text)


def _run_panels(style: SeriesStyle, curves: Mapping[str, Points]) -> Block:
    figures = [
        figure(_run_chart(style, name, points), Cell(content=name, is_name=True, limit=60))
        for name, points in curves.items()
    ]
    return group("panels", figures)


def write_curves(folder: Path) -> None:
    """Draw the loss, its components and three metrics of a run as curves.svg, if any is logged."""
    training, evaluation = _logged_curves(read_lines(folder / LOG))
    metrics = dict(list(evaluation.items())[:_EVALUATED])
    losses = {n: own for n, own in training.items() if n not in ("learning_rate", "grad_norm")}
    style = charts.choose_styles(["run"], "", None)["run"]
    parts = []
    for i, (name, points) in enumerate([*losses.items(), *metrics.items()]):
        left, top = _WIDTH * (i % _COLUMNS), _HEIGHT * (i // _COLUMNS)
        parts.append(element("text", plain(name, 40), x=left + 48, y=top + 14, class_="name"))
        size = {"width": _WIDTH - 12, "height": _HEIGHT - 20}
        parts.append(
            element("svg", _run_chart(style, name, points).svg, x=left, y=top + 20, **size)
        )
    if parts:
        count = len(parts) // 2
        width, height = _WIDTH * min(_COLUMNS, count), _HEIGHT * -(-count // _COLUMNS)
        drawn = element("svg", *parts, viewBox=f"0 0 {width} {height}", role="img")
        chart = Chart(drawn, "Learning curves", Table.of([], []))
        write_text(folder / CURVES, charts.standalone_svg(chart))
