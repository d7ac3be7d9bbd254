"""Report section that shows published results next to the results of the comparison.

Each published result is shown next to our result for the same objective and metric. Differences to
the objective that a row is compared with are shown as well: they can be compared even if the models
and the data differ.
"""

from collections.abc import Iterator

from mm_numeric.config.published_results import PUBLISHED, PublishedTable
from mm_numeric.evaluation.report.page import Content, Section, note
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric
from mm_numeric.evaluation.table import Cell, Table


def published_section(comparison: Comparison) -> Section | None:
    """Return the section on published results; None if ``published`` is empty in summary.json."""
    name = comparison.summary.get("published")
    if not name:
        return None
    if name not in PUBLISHED:
        raise ValueError(
            f"{comparison.folder / 'summary.json'}, published: there is no table {name!r}. Known: "
            f"{', '.join(PUBLISHED)}."
        )
    table = PUBLISHED[name]
    metrics = {metric.name: metric for metric in comparison.metrics}
    shown = [metrics[m] for m in table.metrics if m in metrics]
    blocks: list[Content] = [note(line) for line in _notes(comparison, table)]
    if shown:
        blocks.append(_table(comparison, table, shown))
    return Section.of("published", "Published results", *blocks)


def _notes(comparison: Comparison, table: PublishedTable) -> list[str]:
    facts = comparison.summary["facts"]
    ours = "; ".join(f"{key}: {facts[key]}" for key in ("model", "training rows") if key in facts)
    notes = [
        f"Published: {table.source}; {table.of}. Quoted from public notes on the paper, and not "
        "complete.",
        f"Ours: task {comparison.summary['task']}; {ours}. Unless model, data and training are the "
        "same as in the paper, compare only the direction of the difference (Δ), not the values. "
        f"It is to {comparison.compared_with}.",
    ]
    known = {metric.name for metric in comparison.metrics}
    missing = [m for m in table.metrics if m not in known]
    return notes + ([f"Published, but not scored here: {', '.join(missing)}."] if missing else [])


def _table(comparison: Comparison, table: PublishedTable, metrics: list[ReportedMetric]) -> Table:
    """Return a table with two columns per metric: the published value and the value of our runs."""
    header = [f"{m.label}, {whose}" for m in metrics for whose in ("published", "ours")]
    rows = []
    for name in [*table.rows, *(row for row in comparison.styles if row not in table.rows)]:
        style = comparison.styles.get(name)
        label = (
            style.cell(comparison.against(name))
            if style
            else Cell(content=name, is_name=True, limit=60)
        )
        rows.append([label, *(c for m in metrics for c in _pair(comparison, table, name, m))])
    return Table.of(["row", *header], rows, title="Published results and ours")


def _pair(
    comparison: Comparison, table: PublishedTable, row: str, metric: ReportedMetric
) -> Iterator[Cell]:
    is_ours = row in comparison.styles
    reference = comparison.reference(row) if is_ours else comparison.summary["baseline"]
    value, base = (table.values.get((name, metric.name)) for name in (row, reference))
    if value is None:
        yield Cell()
    else:
        change = None
        if base is not None:
            change = metric.change({"value": value - base})
        yield Cell(content=metric.value(value), change=change)
    yield metric.cell(comparison.cell(row, metric) if is_ours else None)
