"""Sentences on which training loss is best in a comparison, and what limits this conclusion."""

from typing import Any

from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS, family_text
from mm_numeric.evaluation.report.results import SIGNIFICANT, Comparison, ReportedMetric
from mm_numeric.evaluation.table import p_value


def verdict(comparison: Comparison) -> list[str]:
    """Return sentences: first which objective is best, then each limit of this conclusion.

    Without corrected p-values, as with few seeds, no objective is called better than another, nor
    is one with another number of trials than its reference.
    """
    summary, metric = comparison.summary, comparison.metrics[0]
    baseline, control = summary["baseline"], summary["control"]
    ranked = [n for n in comparison.ranked() if comparison.cell(n, metric) and n != control]
    rivals = [name for name in ranked if comparison.reference(name)]
    base = comparison.cell(baseline, metric)
    if base is None:
        return [f"{baseline} has no {metric.label}, so there is nothing to compare with."]
    if not rivals:
        value = metric.estimate(base)
        result = f"{value} {metric.label} ({value.interval or 'no interval'})"
        lines = [f"{baseline}: {result}, with no objective to compare it to."]
    elif comparison.has_p_values:
        lines = [_conclusion(comparison, rivals), _count(comparison, rivals)]
        lines += _trials(comparison, rivals)
    else:
        lines = _observation(comparison, rivals[0])
    if rivals:
        lines.append(_control(comparison))
    found = (summary["facts"].get(name) for name in ("headline", "varied"))
    return lines + [f"{fact[0].upper()}{fact[1:]}." for fact in found if fact]


def _observation(comparison: Comparison, best: str) -> list[str]:
    """Describe the best mean of a comparison that has no corrected p-values for a conclusion."""
    metric, reference = comparison.metrics[0], comparison.reference(best)
    own, base = _pair(comparison, best)
    count = len(comparison.summary["seeds"])
    seeds = f"{count} seeds are" if count > 1 else "One seed is"
    limit = f"{seeds} too few to state which objective is better; that takes {ENOUGH_SEEDS}."
    if count >= ENOUGH_SEEDS:
        limit = (
            "There are no p-values, which show whether an objective is better: the test rows are "
            "one group, or all the same."
        )
    return [
        f"{best} has {metric.estimate(own)} {metric.label}, {reference} {base}: "
        f"{_difference(own, metric)}.",
        limit,
    ]


def _conclusion(comparison: Comparison, rivals: list[str]) -> str:
    """Name the best objective that is better than its reference, or state that there is none."""
    metric = comparison.metrics[0]
    cells = {name: comparison.cell(name, metric) for name in rivals}
    better = [name for name in rivals if _trend(cells[name], metric) == "better"]
    best = (better or rivals)[0]
    own, base = _pair(comparison, best)
    values = f"{metric.estimate(own)} {metric.label} against {base}, {_difference(own, metric)}"
    if better:
        return f"{best} beats {comparison.reference(best)}: {values}."
    return (
        f"No objective is clearly better than {_references(comparison, rivals)}; of the others, "
        f"{best} has the best mean: {values}."
    )


def _pair(comparison: Comparison, name: str) -> tuple[dict[str, Any], str]:
    """Return the result of an objective, and that of its reference as a text."""
    metric = comparison.metrics[0]
    own, base = (comparison.cell(n, metric) for n in (name, comparison.reference(name)))
    assert own is not None
    return own, str(metric.estimate(base)) if base else "without a value"


def _count(comparison: Comparison, rivals: list[str]) -> str:
    metric = comparison.metrics[0]
    trends = [_trend(comparison.cell(name, metric), metric) for name in rivals]
    return (
        f"{trends.count('better')} of {len(rivals)} objectives are better than "
        f"{_references(comparison, rivals)} and {trends.count('worse')} worse, at p "
        f"≤ {SIGNIFICANT} after Holm's correction over {family_text(comparison.summary, 'table')}. "
        "The best of several is chosen after seeing the results, so its gain is slightly "
        "overestimated."
    )


def _trials(comparison: Comparison, rivals: list[str]) -> list[str]:
    """Explain why objectives with another number of trials than their reference are undecided."""
    uneven = list(filter(None, map(comparison.uneven_trials, rivals)))
    if not uneven:
        return []
    return [
        f"The number of trials differs: {', '.join(uneven)}. The best of more trials looks better "
        "even if no objective is, so these are called neither better nor worse."
    ]


def _references(comparison: Comparison, rivals: list[str]) -> str:
    found = list(dict.fromkeys(comparison.reference(name) for name in rivals))
    return found[0] if len(found) == 1 else "its reference"


def _trend(cell: dict[str, Any] | None, metric: ReportedMetric) -> str:
    return metric.trend(cell["difference"] if cell else None)


def _difference(cell: dict[str, Any], metric: ReportedMetric) -> str:
    """Describe a difference to the baseline: its mean, interval, and seeds or p-value."""
    if not cell["difference"]:
        return "without a paired difference"
    change = metric.change(cell["difference"])
    evidence = metric.evidence(cell["difference"])
    interval = change.interval or "no interval"
    return f"a paired difference of {change} ({interval}{evidence and f'; {evidence}'})"


def _control(comparison: Comparison) -> str:
    """Describe the result of the control, an objective that should change nothing."""
    control, metric = comparison.summary["control"], comparison.metrics[0]
    cell = comparison.cell(control, metric) if control in comparison.styles else None
    if cell is None:
        return "There is no control, which would show how much two runs of one objective differ."
    if not cell["difference"]:
        return f"The control {control} has no paired difference."
    difference, p = cell["difference"], None
    line = f"The control {control} has {_difference(cell, metric)}"
    if len(comparison.summary["seeds"]) >= ENOUGH_SEEDS:
        p = difference.get("p")
    if p is not None:
        line += f", {p_value(p)}, not corrected"
        if p <= SIGNIFICANT and (difference["value"] > 0) == metric.higher_is_better:
            line += ": a gain of this size is not an effect of the objective"
    fact = comparison.summary["facts"].get("control")
    return f"{line}. {fact}." if fact else f"{line}."
