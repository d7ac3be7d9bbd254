"""Report section on the number of training steps until a metric reaches a given value.

These values are called levels. A level is reached at the first evaluation during training whose
metric is at least as good as the level. The steps of a distilled run include those of its teacher.
The last evaluation of the warm start (the training that a
run continues) is step 0. Figure 4 of NTL (arXiv 2411.02083) shows epochs instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.charts import Line, figure
from mm_numeric.evaluation.report.page import Block, Content, Section, group, note
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric, Runs, Styles
from mm_numeric.evaluation.table import Cell, Table, number

_LEVELS = 6
Curve = Sequence[tuple[int, float]]
"""Evaluations as (step, value); step 0 is the last evaluation of the warm start."""


@dataclass(frozen=True)
class StepsToLevel:
    """The training step at which each seed first reached a given metric value, or None."""

    steps: Sequence[int | None]

    @property
    def reached(self) -> list[int]:
        """Return the steps of all seeds, or [] if one did not reach the metric value."""
        known = [step for step in self.steps if step is not None]
        return known if len(known) == len(self.steps) else []

    @property
    def mean(self) -> float | None:
        """Return the mean number of steps, or None if a seed did not reach the metric value."""
        return fmean(self.reached) if self.reached else None

    def text(self) -> str:
        """Return the mean number of steps and its range over seeds, such as ``120 (100 to 140)``.

        If a seed did not reach the metric value, return ``not reached by 1 of 3 seeds``.
        """
        if self.mean is None:
            missing, seeds = sum(step is None for step in self.steps), len(self.steps)
            return "not reached" + (f" by {missing} of {seeds} seeds" if missing < seeds else "")
        if len(self.steps) == 1:
            return number(self.mean, 0)
        low, high = min(self.reached), max(self.reached)
        return f"{number(self.mean, 0)} ({number(low, 0)} to {number(high, 0)})"


@dataclass(frozen=True, kw_only=True)
class _MetricLevels:
    """Target values of one metric, and the training steps until each objective reaches them."""

    metric: ReportedMetric
    levels: Sequence[float]
    steps: Mapping[str, Sequence[StepsToLevel]]


def first_step(curve: Curve, level: float, *, higher_is_better: bool) -> int | None:
    """Return the first step at which a metric is at least as good as ``level``, or None."""
    sign = 1 if higher_is_better else -1
    return next((step for step, value in curve if sign * value >= sign * level), None)


def steps_section(
    comparison: Comparison, styles: Styles, logs: Runs, starts: Runs
) -> Section | None:
    """Return the section on how many training steps each run needs to reach given metric values.

    Returns None if no metric was evaluated during training. ``logs[objective, seed]`` is the log of
    a run, ``starts[objective, seed]`` the log of the earlier training that this run continues.
    """
    seeds = comparison.summary["seeds"]
    found = [_levels_of(m, styles, seeds, logs, starts) for m in _shown(comparison.metrics, logs)]
    groups = [levels for levels in found if levels.levels]
    if not groups:
        return None
    text = (
        "Steps after the warm start to the first evaluation that is at least as good: the mean "
        f"over seeds and their range. {_pace(logs)} A level that a seed does not reach "
        "has no mean: the line ends before it."
    )
    blocks: list[Content] = [note(text), charts.legend(styles.values())]
    blocks.append(group("panels", [_chart(levels, styles) for levels in groups]))
    blocks += [_table(levels, styles) for levels in groups]
    return Section.of("reached", "Steps to reach a metric value", *blocks)


def _levels_of(
    metric: ReportedMetric, styles: Styles, seeds: Sequence[int], logs: Runs, starts: Runs
) -> _MetricLevels:
    """Choose target values of a metric, and find the step at which each run first reaches them."""
    curves = {
        (name, seed): curve_of(logs.get((name, seed), []), starts.get((name, seed), []), metric)
        for name in styles
        for seed in seeds
    }
    names = [name for name in styles if all(curves[name, seed] for seed in seeds)]
    levels = _levels([curves[name, seed] for name in names for seed in seeds], metric)

    def steps_to(name: str, level: float) -> StepsToLevel:
        better = metric.higher_is_better
        own = (curves[name, seed] for seed in seeds)
        return StepsToLevel([first_step(curve, level, higher_is_better=better) for curve in own])

    steps = {name: [steps_to(name, level) for level in levels] for name in names}
    return _MetricLevels(metric=metric, levels=levels, steps=steps)


def curve_of(
    log: Sequence[Mapping[str, Any]], start: Sequence[Mapping[str, Any]], metric: ReportedMetric
) -> list[tuple[int, float]]:
    """Return (step, value) for each evaluation of a metric in one training run.

    If the run continues an earlier training, the last evaluation of that training is step 0.
    """
    before, curve = _evaluations(start, metric), _evaluations(log, metric)
    return [*((0, value) for _, value in before[-1:]), *curve] if curve else []


def _evaluations(
    log: Sequence[Mapping[str, Any]], metric: ReportedMetric
) -> list[tuple[int, float]]:
    pairs = [(row["step"], row["eval"].get(metric.name)) for row in log if row.get("eval")]
    return [(int(step), float(value)) for step, value in pairs if value is not None]


def _shown(metrics: Sequence[ReportedMetric], logs: Runs) -> list[ReportedMetric]:
    """Choose at most two metrics for the section, from those evaluated during training.

    The first is the task's main metric. The second is an error such as MAE, if there is one.
    """
    evaluated = {name for log in logs.values() for row in log for name in row.get("eval") or ()}
    metrics = [metric for metric in metrics if metric.name in evaluated]
    distances = [m for m in metrics[1:] if not m.higher_is_better and m.unit != "%"]
    return [*metrics[:1], *distances[:1]]


def _levels(curves: Sequence[Curve], metric: ReportedMetric) -> list[float]:
    values = [value for curve in curves for _, value in curve]
    if not values:
        return []
    ticks = charts.nice_ticks(metric.scale * min(values), metric.scale * max(values), _LEVELS)
    return [tick / metric.scale for tick in ticks][:: 1 if metric.higher_is_better else -1]


def _pace(logs: Runs) -> str:
    """Return the steps between evaluations as text, and those of an epoch if all runs agree."""
    found = [[row for row in log if row.get("eval")] for log in logs.values()]
    firsts = {log[0]["step"] for log in found if log}
    text = f"Evaluated every {firsts.pop():,} steps." if len(firsts) == 1 else ""
    paces = {row["step"] / row["epoch"] for log in found for row in log if row.get("epoch")}
    if paces and max(paces) < 1.02 * min(paces):
        text += f" {number(max(paces), 0)} steps are one epoch."
    return text


def _chart(group: _MetricLevels, styles: Styles) -> Block:
    """Draw the mean number of training steps to reach each metric value, a line per objective."""
    metric = group.metric
    levels = [metric.scale * level for level in group.levels]
    reach = (max(levels) - min(levels)) or 1.0
    lines, top = [], 1.0
    for place, (name, row) in enumerate(reversed(list(group.steps.items()))):
        # Objectives often take the same number of steps: shift them, so that all are seen.
        shift = reach * 0.012 * (place - (len(group.steps) - 1) / 2)
        points = []
        for level, at in zip(levels, row, strict=True):
            if at.mean is None:
                break
            x = level + shift
            low, high = min(at.reached), max(at.reached)
            top = max(top, high)
            points.append((x, at.mean))
            cap = [(x - 0.012 * reach, at.mean), (x + 0.012 * reach, at.mean)]
            colour = styles[name].colour
            lines.append(Line(points=cap, colour=colour, width=5))
            lines.append(Line(points=[(x, low), (x, high)], colour=colour, width=1))
        if len(points) > 1:
            lines.append(Line(points=points, colour=styles[name].colour, dash=styles[name].dash))
    margin = (0.07 if levels[-1] >= levels[0] else -0.07) * reach
    ticks = [(at, str(metric.value(level))) for at, level in zip(levels, group.levels, strict=True)]
    chart = charts.line_chart(
        lines,
        charts.Axis(
            low=levels[0] - margin, high=levels[-1] + margin, ticks=ticks, label=metric.label
        ),
        charts.plain_axis(0, 1.06 * top),
        description=f"Steps to a given {metric.label} for {', '.join(group.steps)}; see the table.",
        data=_table(group, styles),
    )
    return figure(chart, Cell(content=f"steps to {metric.label} of", is_name=True, limit=80))


def _table(group: _MetricLevels, styles: Styles) -> Table:
    header = [str(group.metric.value(level)) for level in group.levels]
    return Table.of(
        ["objective", *header],
        [[styles[name].cell(), *(at.text() for at in row)] for name, row in group.steps.items()],
        title=f"Steps to {group.metric.label} of",
    )
