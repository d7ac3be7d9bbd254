"""Report section on the hypotheses that a comparison states in its config: what became of each."""

from collections.abc import Mapping
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS
from mm_numeric.evaluation.report.page import Section, note
from mm_numeric.evaluation.report.results import SIGNIFICANT, Comparison, ReportedMetric
from mm_numeric.evaluation.table import Table, p_value


def hypotheses_section(comparison: Comparison) -> Section:
    """Return the section with a table for each family of ``compare.hypotheses``."""
    tables = hypotheses_tables(comparison)
    if not tables:
        text = (
            "The config states no hypotheses (compare.hypotheses), so no result here was planned: "
            "a clear difference is one that was found among many."
        )
        return Section.of("hypotheses", "Planned results", note(text))
    text = (
        "Each row is a hypothesis of the config: the first answers are better than the second. "
        f"It is confirmed if its p-value is at most {SIGNIFICANT} after Holm's correction over its "
        f"table, which takes {ENOUGH_SEEDS} seeds. Findable is the smallest difference that 80 % "
        "of such comparisons confirm: one that is not clear may be as large. Results that are in "
        "no table were not planned."
    )
    return Section.of("hypotheses", "Planned results", note(text), *tables)


def hypotheses_tables(comparison: Comparison) -> list[Table]:
    """Return a table for each family of hypotheses."""
    families: dict[str, list[dict[str, Any]]] = {}
    for own in comparison.summary["hypotheses"]:
        families.setdefault(own["family"], []).append(own)
    tables = []
    for name, members in families.items():
        rows = [_row(comparison, own) for own in members]
        header = [
            "hypothesis",
            "metric",
            "difference",
            "findable",
            "corrected p",
            "result",
            "stated",
        ]
        title = f"Family {name}: {len(members)} hypotheses"
        tables.append(Table.of(header, rows, title=title, align="left"))
    return tables


def _row(comparison: Comparison, own: Mapping[str, Any]) -> list[str]:
    metric = next(m for m in comparison.metrics if m.name == own["metric"])
    before, difference = own["runs_before"], own["difference"]
    stated = "not recorded" if before is None else f"after {before:,} finished runs"
    change = p = findable = "-"
    if difference and difference["value"] is not None:
        quantity = metric.change(difference)
        change = f"{quantity} ({quantity.interval})" if quantity.interval else str(quantity)
        findable = metric.findable(difference) or "-"
    if difference and difference.get("p_holm") is not None:
        p = p_value(difference["p_holm"]).removeprefix("p ")
    return [
        f"{_answers(own['better'])} against {_answers(own['other'])}",
        metric.label,
        change,
        findable,
        p,
        _result(metric, difference),
        "before the first run" if before == 0 else stated,
    ]


def _answers(answers: list[str]) -> str:
    row, rule = answers
    return row if rule == GREEDY else f"{row}, {rule}"


def _result(metric: ReportedMetric, difference: Mapping[str, Any] | None) -> str:
    names = {"better": "confirmed", "worse": "the opposite is clear", "unclear": "not clear"}
    return names[metric.trend(difference)]
