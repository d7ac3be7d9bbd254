"""Report sections on sweeps: a metric is drawn as a line over the values of a numeric setting.

A sweep is drawn for each numeric axis of ``compare.grid``, such as a learning rate or the noise of
the labels, and for each setting of ``compare.tune``. The tuning section also lists all trials.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.report.charts import (
    DASHES,
    Axis,
    Chart,
    SeriesStyle,
    axis_around,
    figure,
    legend,
    line_chart,
    styled_line,
    tick_text,
)
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, group, heading, note
from mm_numeric.evaluation.report.results import (
    Comparison,
    ReportedMetric,
    chart_ends,
    numeric_axes,
)
from mm_numeric.evaluation.table import Cell, Table, TableRow

_METRICS = 6
"""Maximum number of metrics that are drawn."""

Cells = Mapping[str, dict[str, Any] | None]
"""Maps the name of a metric to its mean, interval and difference."""


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """The results of one objective, decoded by one rule, at each value of the axis."""

    style: SeriesStyle
    rule: str
    rows: Mapping[float, str]
    """Value of the axis -> name of the row of the comparison."""

    cells: Mapping[float, Cells]

    @property
    def label(self) -> Cell:
        """Return the objective's name as a table cell, with the decoding rule unless greedy."""
        return self.style.cell("" if self.rule == GREEDY else self.rule)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Lines over the values of ``axis``, a dotted setting such as ``trainer.learning_rate``."""

    axis: str
    lines: Sequence[SweepLine]
    level: tuple[SeriesStyle, Cells] | None = None
    """The row that all lines are compared with, if this row has no value on the axis; else None."""

    @property
    def values(self) -> list[float]:
        """Return the values of the axis, the smallest first."""
        return sorted({value for line in self.lines for value in line.cells})


def grid_sweeps(comparison: Comparison) -> list[Sweep]:
    """Return a sweep for each numeric axis of the grid."""
    axes = comparison.summary["axes"]
    return [_grid_sweep(comparison, axis) for axis in numeric_axes(axes.values())]


def _grid_sweep(comparison: Comparison, axis: str) -> Sweep:
    summary = comparison.summary
    names: dict[str, dict[float, str]] = {}
    for row, values in summary["axes"].items():
        names.setdefault(line_name(values, axis), {})[float(values[axis])] = row
    references = {summary["references"].get(row) for own in names.values() for row in own.values()}
    styles = _line_styles(comparison, names)
    tables: dict[str, Mapping[str, Cells]] = {GREEDY: summary["table"]}
    for rule in next(iter(summary["decoding"].values()), {}):
        tables[rule] = {name: rules[rule] for name, rules in summary["decoding"].items()}
    lines = [
        SweepLine(
            style=styles[name],
            rule=rule,
            rows=own,
            cells={value: table[row] for value, row in own.items()},
        )
        for name, own in names.items()
        for rule, table in tables.items()
    ]
    level = None
    if len(references) == 1 and (base := references.pop()) and base not in summary["axes"]:
        level = comparison.styles[base], summary["table"][base]
    return Sweep(axis=axis, lines=lines, level=level)


def _line_styles(
    comparison: Comparison, names: Mapping[str, Mapping[float, str]]
) -> dict[str, SeriesStyle]:
    """Return a style per line: the objective's style, with hollow markers for every second line."""
    styles: dict[str, SeriesStyle] = {}
    for name, own in names.items():
        style = comparison.styles[next(iter(own.values()))]
        known = sum(other.colour == style.colour and other.shape == style.shape
                    for other in styles.values())  # fmt: skip
        styles[name] = replace(style, name=name, dash="", hollow=known % 2 == 1)
    return styles


def line_name(values: Mapping[str, Any], axis: str) -> str:
    """Return the name of a line: the objective, and the values of the axes other than ``axis``."""
    return ", ".join(
        value if isinstance(value, str) else f"{name.rpartition('.')[2]} {value}"
        for name, value in values.items()
        if name != axis
    )


def sweeps_section(comparison: Comparison) -> Section | None:
    """Return the section with a figure for each numeric grid axis; None without such an axis."""
    sweeps = grid_sweeps(comparison)
    if not sweeps:
        return None
    text = (
        f"Means over the seeds, with their {comparison.drawn_ends} as bands. Δ is the paired "
        "difference to the row that an objective is compared with, or of other decoding rules to "
        "greedy decoding."
    )
    rules = list(dict.fromkeys(line.rule for sweep in sweeps for line in sweep.lines))
    if len(rules) > 1:
        text += f" Solid lines are decoded greedily, dashed lines by {' and '.join(rules[1:])}."
    blocks: list[Content] = [note(text)]
    for sweep in sweeps:
        blocks.append(heading(sweep.axis))
        blocks += sweep_blocks(sweep, comparison.metrics[:_METRICS])
    return Section.of("sweeps", "Sweeps", *blocks)


def sweep_blocks(sweep: Sweep, metrics: Sequence[ReportedMetric]) -> list[Content]:
    """Return a figure and a table for each metric; all but the first metric are folded."""
    styles = dict.fromkeys(line.style for line in sweep.lines)
    if sweep.level:
        styles[sweep.level[0]] = None
    drawn = [
        group(None, [_captioned(chart, metric), sweep_table(sweep, metric)])
        for metric in metrics
        if (chart := sweep_chart(sweep, metric))
    ]
    others = [fold("Other metrics", drawn[1:])] if drawn[1:] else []
    return [legend(styles), *drawn[:1], *others]


def _captioned(chart: Chart, metric: ReportedMetric) -> Block:
    unit = f", {metric.unit}" if metric.unit else ""
    return figure(chart, Cell(content=f"{metric.label}{unit} {metric.direction}"), "panels wide")


def sweep_chart(sweep: Sweep, metric: ReportedMetric) -> Chart | None:
    """Draw a metric over the values of the axis; return None if no row has this metric."""
    x, position = _value_axis(sweep.values, sweep.axis)
    rules = list(dict.fromkeys(line.rule for line in sweep.lines))
    drawn = []
    for own in sweep.lines:
        cells = {value: own.cells[value].get(metric.name) for value in sorted(own.cells)}
        scaled = [
            (position(value), *(metric.scale * end for end in (cell["value"], *chart_ends(cell))))
            for value, cell in cells.items()
            if cell
        ]
        line = styled_line(own.style, [(at, mean) for at, mean, _, _ in scaled])
        band = [(at, low, high) for at, _, low, high in scaled]
        dash = DASHES[rules.index(own.rule) % len(DASHES)]
        name = own.style.name if own.rule == GREEDY else f"{own.style.name}, {own.rule}"
        drawn.append(replace(line, name=name, dash=dash, band=band, marker=own.style.drawn()))
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return None
    level = sweep.level and sweep.level[1].get(metric.name)
    if sweep.level and level:
        ends = [(at, metric.scale * level["value"]) for at in (x.low, x.high)]
        level_line = styled_line(sweep.level[0], ends)
        drawn.insert(0, replace(level_line, width=1.25, dash="3 3"))
    values = [end for line in drawn for _, *ends in (*line.points, *line.band) for end in ends]
    y = axis_around(values)
    names = ", ".join(dict.fromkeys(line.style.name for line in sweep.lines))
    description = f"{metric.label} by {sweep.axis} for {names}."
    return line_chart(drawn, x, y, description=description, width=820, height=400)


def _value_axis(values: Sequence[float], label: str) -> tuple[Axis, Callable[[float], float]]:
    """Return the axis, logarithmic from a factor of 10 on, and a function: value -> position."""
    logarithmic = values[0] > 0 and values[-1] >= 10 * values[0]
    position: Callable[[float], float] = math.log10 if logarithmic else float
    low, high = position(values[0]), position(values[-1])
    margin = 0.04 * (high - low)
    ticks: list[tuple[float, str]] = []
    for value in values:
        if not ticks or position(value) - ticks[-1][0] >= 0.08 * (high - low):
            ticks.append((position(value), tick_text(value)))
    title = f"{label} (logarithmic)" if logarithmic else label
    axis = Axis(low=low - margin, high=high + margin, ticks=ticks, label=title)
    return replace(axis, value=lambda at: 10**at) if logarithmic else axis, position


def sweep_table(sweep: Sweep, metric: ReportedMetric) -> Table:
    """Return the numbers of a figure as a table: a row for each line, a column for each value."""
    lines = [
        [line.label, *(metric.cell(line.cells.get(v, {}).get(metric.name)) for v in sweep.values)]
        for line in sweep.lines
    ]
    title = f"{metric.label} {metric.direction}, by {sweep.axis}"
    return Table.of(["objective", *map(tick_text, sweep.values)], lines, title=title)


def sweeps_data(sweeps: Sequence[Sweep], metrics: Sequence[ReportedMetric]) -> Table:
    """Return all metrics as a table: a row for each axis, value, line and decoding rule."""
    rows = [
        TableRow(
            cells=[
                *(Cell(content=text) for text in (sweep.axis, f"{value:.10g}", line.style.name)),
                *(Cell(content=text) for text in (line.rows[value], line.rule)),
                *(metric.cell(line.cells[value].get(metric.name)) for metric in metrics),
            ]
        )
        for sweep in sweeps
        for line in sweep.lines
        for value in sorted(line.cells)
    ]
    header = ["axis", "value", "line", "row", "decoded by", *(metric.label for metric in metrics)]
    return Table.of(header, rows)


Trials = Mapping[str, Sequence[Mapping[str, Any]]]
"""Maps each objective to its trials, as in summary.json."""


def tuning_section(comparison: Comparison) -> Section | None:
    """Return the section with the trials of each objective; None if nothing was tuned."""
    tuning = comparison.summary["tuning"]
    if not tuning:
        return None
    metric, trials = ReportedMetric(**tuning["metric"]), trials_by_objective(comparison)
    blocks: list[Content] = [note(_explanation(comparison, metric)), _chosen_table(comparison)]
    blocks += [note(line) for line in _remarks(trials)]
    for sweep in tuning_sweeps(comparison):
        chart = sweep_chart(sweep, metric)
        if chart:
            text = "On the selection rows; other settings as chosen. Bands: range of the seeds."
            styles = [line.style for line in sweep.lines]
            blocks += [heading(sweep.axis), note(text), legend(styles), _captioned(chart, metric)]
    blocks.append(fold("All trials", [trials_table(comparison)]))
    return Section.of("tuning", "Tuned settings", *blocks)


def trials_by_objective(comparison: Comparison) -> Trials:
    """Group the trials of summary.json by objective."""
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in comparison.ranked()}
    for trial in comparison.summary["tuning"]["trials"]:
        found[trial["objective"]].append(trial)
    return found


def _chosen(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next(trial for trial in trials if trial["chosen"])


def _explanation(comparison: Comparison, metric: ReportedMetric) -> str:
    tuning = comparison.summary["tuning"]
    return (
        f"Each objective was trained with several values of {' and '.join(tuning['settings'])}. "
        f"The trial with the best mean of {metric.label} over the seeds "
        f"{', '.join(map(str, tuning['seeds']))}, decoded greedily, was chosen; the next metric "
        f"decided between equal means. The selection rows, {tuning['select_on']}, are not test "
        "rows."
    )


def _remarks(trials: Trials) -> list[str]:
    lines = []
    tied = [
        name
        for name, own in trials.items()
        if sum(trial["value"] == _chosen(own)["value"] for trial in own) > 1
    ]
    if tied:
        lines.append(f"Several trials have the best mean: {', '.join(tied)}.")
    at_end = [
        f"{name} ({path} {_text(chosen)})"
        for name, own in trials.items()
        for path in numeric_axes(trial["settings"] for trial in own)
        for chosen in [_chosen(own)["settings"][path]]
        if chosen in (min(values := [t["settings"][path] for t in own]), max(values))
    ]
    if at_end:
        lines.append(
            f"Chosen at an end of the tried values: {', '.join(at_end)}. A value outside of them "
            "may be better."
        )
    return lines


def _chosen_table(comparison: Comparison) -> Table:
    tuning, test = comparison.summary["tuning"], comparison.metrics[0]
    metric = ReportedMetric(**tuning["metric"])
    rows = []
    for name, trials in trials_by_objective(comparison).items():
        chosen = _chosen(trials)
        rows.append(
            [
                comparison.styles[name].cell(),
                *(_text(chosen["settings"].get(path)) for path in tuning["settings"]),
                str(len(trials)),
                _mean(chosen, metric),
                test.cell(comparison.cell(name, test)),
            ]
        )
    columns = ["trials", f"{metric.label}, selection rows", f"{test.label}, test rows"]
    return Table.of(["objective", *tuning["settings"], *columns], rows, title="Chosen settings")


def trials_table(comparison: Comparison) -> Table:
    """Return a table of all trials: the metric on the selection rows, or why the trial failed."""
    tuning = comparison.summary["tuning"]
    metric = ReportedMetric(**tuning["metric"])
    seeds = tuning["seeds"]
    any_failed = any(trial.get("failed") for trial in tuning["trials"])
    rows = [
        [
            comparison.styles[name].cell(),
            "yes" if trial["chosen"] else "",
            *(_text(trial["settings"].get(path)) for path in tuning["settings"]),
            Cell(content="failed") if trial.get("failed") else _mean(trial, metric),
            *(_mean({"value": value}, metric) for value in trial["seeds"]),
            *([Cell(content=trial.get("failed") or "")] if any_failed else []),
        ]
        for name, trials in trials_by_objective(comparison).items()
        for trial in trials
    ]
    columns = [f"{metric.label}, mean", *(f"seed {seed}" for seed in seeds)]
    columns += ["why it failed"] * any_failed
    header = ["objective", "chosen", *tuning["settings"], *columns]
    return Table.of(header, rows, title="All trials")


def tuning_sweeps(comparison: Comparison) -> list[Sweep]:
    """Return a sweep for each tuned setting whose values are numbers.

    A line shows the trials of an objective in which all other settings have their chosen values.
    The band is the range of the seeds.
    """
    tuning, trials = comparison.summary["tuning"], trials_by_objective(comparison)
    sweeps = []
    for axis in numeric_axes(trial["settings"] for trial in tuning["trials"]):
        lines = []
        for name, own in trials.items():
            chosen = _chosen(own)["settings"]
            on_line = [
                t for t in own if axis in chosen and t["settings"] | {axis: 0} == chosen | {axis: 0}
            ]
            if on_line:
                lines.append(
                    SweepLine(
                        style=comparison.styles[name],
                        rule=GREEDY,
                        rows={float(t["settings"][axis]): t["folder"] for t in on_line},
                        cells={
                            float(t["settings"][axis]): {tuning["metric"]["name"]: _cell(t)}
                            for t in on_line
                        },
                    )
                )
        sweeps.append(Sweep(axis=axis, lines=lines))
    return sweeps


def _cell(trial: Mapping[str, Any]) -> dict[str, Any] | None:
    if trial["value"] is None:
        return None
    seeds = trial["seeds"]
    return {"value": trial["value"], "low": min(seeds), "high": max(seeds), "seeds": seeds}


def _mean(trial: Mapping[str, Any], metric: ReportedMetric) -> Cell:
    return Cell() if trial["value"] is None else Cell(content=metric.value(trial["value"]))


def _text(value: Any) -> str:
    if value is None:
        return "\N{EM DASH}"
    return f"{value:g}" if isinstance(value, float) else str(value)
