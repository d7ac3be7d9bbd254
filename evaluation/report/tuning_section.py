"""Report section on tuned settings: the chosen ones of each objective, and all trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.report.charts import legend
from mm_numeric.evaluation.report.page import Content, Section, fold, heading, note
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric, numeric_axes
from mm_numeric.evaluation.report.sweeps import (
    Sweep,
    SweepLine,
    captioned,
    sweep_chart,
)
from mm_numeric.evaluation.table import Cell, Table

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
            blocks += [heading(sweep.axis), note(text), legend(styles), captioned(chart, metric)]
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
    """Return the table of all trials and their metric on the selection rows, or why they failed."""
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
    """Return a sweep for each tuned setting with numbers.

    A line has the trials of an objective whose other settings are the chosen ones. Its band is the
    range of the seeds.
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
