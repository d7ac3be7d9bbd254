"""Sentences on which training loss is best in a comparison, and what limits this conclusion."""

from typing import Any

from mm_numeric.evaluation.report.results import Comparison, ReportedMetric


def verdict(comparison: Comparison) -> list[str]:
    """Return sentences: first which objective is best, then each limit of this conclusion."""
    summary, metric = comparison.summary, comparison.metrics[0]
    baseline, control = summary["baseline"], summary["control"]
    cells = {name: comparison.cell(name, metric) for name in comparison.styles}
    ranked = [name for name in comparison.ranked() if cells[name] and name != control]
    rivals = [name for name in ranked if name != baseline]
    base = cells[baseline]
    if base is None:
        return [f"{baseline} has no {metric.label}, so there is nothing to compare with."]
    best = cells[ranked[0]] or base
    is_beaten = best["mean"] != base["mean"]
    lines = [_conclusion(comparison, ranked, rivals, base)]
    if len(rivals) > 1:
        clear = sum(_trend(cells[name], metric) == "better" for name in rivals)
        lines.append(
            f"{clear} of {len(rivals)} objectives beat {baseline} with an interval that excludes "
            "0. The best of several is chosen after seeing the results, so its gain is slightly "
            "overestimated."
        )
    if rivals:
        lines.append(_control(comparison, ranked[0] if is_beaten else None))
    seeds = len(summary["seeds"])
    few = {1: "One seed: the interval", 2: "Two seeds: the interval"}.get(seeds)
    if few:
        lines.append(f"{few} says little about how much another training run would differ.")
    elif seeds < 5:
        lines.append(f"{seeds} seeds are few: the intervals may be too narrow.")
    return lines


def _conclusion(
    comparison: Comparison, ranked: list[str], rivals: list[str], base: dict[str, Any]
) -> str:
    baseline, metric = comparison.summary["baseline"], comparison.metrics[0]
    value = f"{metric.estimate(base)} {metric.label}"
    if not rivals:
        interval = metric.estimate(base).interval
        return f"{baseline}: {value} ({interval}), with no objective to compare it to."
    best = comparison.cell(ranked[0], metric) or base
    if best["mean"] == base["mean"]:
        rival = comparison.cell(rivals[0], metric) or base
        return (
            f"No objective beat {baseline}, which has {value}; {rivals[0]} comes next with "
            f"{metric.estimate(rival)}, {_difference(rival, metric)}."
        )
    return (
        f"{ranked[0]} is best: {metric.estimate(best)} {metric.label} against "
        f"{metric.estimate(base)} for {baseline}, {_difference(best, metric)}."
    )


def _trend(cell: dict[str, Any] | None, metric: ReportedMetric) -> str:
    return metric.trend(cell["difference"] if cell else None)


def _difference(cell: dict[str, Any], metric: ReportedMetric) -> str:
    """Describe a difference to the baseline, and whether its confidence interval includes 0."""
    if not cell["difference"]:
        return "without a paired difference, so it may be random variation"
    change = metric.change(cell["difference"])
    text = f"a paired difference of {change} ({change.interval})"
    if _trend(cell, metric) == "unclear":
        return f"{text}; its interval includes 0, so it may be random variation"
    return f"{text}; its interval excludes 0"


def _control(comparison: Comparison, best: str | None) -> str:
    """Describe the result of the control, an objective that tests if a larger loss alone helps."""
    control, metric = comparison.summary["control"], comparison.metrics[0]
    cell = comparison.cell(control, metric) if control in comparison.styles else None
    if cell is None:
        return (
            "There is no control: a gain that comes from a larger loss alone would look the same."
        )
    trend = _trend(cell, metric)
    if not cell["difference"]:
        line = f"The control {control} has no paired difference"
    else:
        verb = {"better": "improved too", "worse": "got worse", "unclear": "did not clearly change"}
        line = f"The control {control} {verb[trend]}: {_difference(cell, metric)}"
    top = comparison.cell(best, metric) if best else None
    if top is None:
        return f"{line}."
    if (cell["mean"] - top["mean"]) * (1 if metric.higher_is_better else -1) >= 0:
        return (
            f"{line}. It did at least as well as {best}: the gain is not an effect of the "
            "objective."
        )
    if trend == "better":
        return f"{line}. A part of the gain of {best} may come from the larger loss alone."
    return f"{line}."
