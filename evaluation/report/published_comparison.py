"""The chapter that sets a published table beside the comparison's own figures, never mixed.

A row and a metric are matched by their names; what only one side has is shown as missing on the
other. Differences to the baseline stand beside each other too: two experiments that differ in model
and data can still agree on those.
"""

from mm_numeric.config.published_results import PUBLISHED, PublishedTable
from mm_numeric.evaluation.report.charts import who
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Metric,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
)
from mm_numeric.evaluation.report.results import Comparison


def published_section(comparison: Comparison) -> Section | None:
    """Write the chapter, None where the comparison names no published table.

    Raises:
        ValueError: If it names one that does not exist.
    """
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
    rows = [*table.rows, *(row for row in comparison.marks if row not in table.rows)]
    header = ["row"]
    for metric in shown:
        header += [f"{metric.label}, published", f"{metric.label}, ours"]
    html, twin = [], []
    for row in rows:
        cells = [cell for m in shown for cell in _pair(comparison, table, row, m)]
        mark = comparison.marks.get(row)
        label = who(mark) if mark else f'<span class="name">{html_text(row, 60)}</span>'
        html.append(f"<tr><th>{label}</th>{''.join(f'<td>{one}</td>' for one, _ in cells)}</tr>")
        twin.append([markdown_name(row), *(text for _, text in cells)])
    facts = comparison.summary["facts"]
    ours = "; ".join(f"{key}: {facts[key]}" for key in ("model", "training rows") if key in facts)
    lines = [
        f"Published: {table.source}; {table.of}. Quoted from public notes on the paper, and not "
        "complete.",
        f"Ours: task {comparison.summary['task']}; {ours}. Model, data and training differ unless "
        "they are the same in every one of these; the figures then cannot be compared row by row, "
        f"only which way they move from {comparison.summary['baseline']} (Δ).",
    ]
    absent = [m for m in table.metrics if m not in metrics]
    if absent:
        lines.append(f"Published too, and not scored here: {', '.join(absent)}.")
    return Section(
        anchor="published",
        title="Beside what is published",
        html="".join(f'<p class="note">{html_text(line, 900)}</p>' for line in lines)
        + (html_table(map(html_text, header), "".join(html)) if shown else ""),
        markdown="\n\n".join(
            [*(markdown_text(line, 900) for line in lines)]
            + ([markdown_table([markdown_text(h) for h in header], twin)] if shown else [])
        ),
    )


def _pair(
    comparison: Comparison, table: PublishedTable, row: str, metric: Metric
) -> list[tuple[str, str]]:
    """Return the published cell and ours, each as HTML and as Markdown."""
    baseline = comparison.summary["baseline"]
    value, base = (table.figures.get((name, metric.name)) for name in (row, baseline))
    change = value - base if value is not None and base is not None and row != baseline else None
    published = _cell(metric.value(value), [] if change is None else [metric.change(change)])
    cell = comparison.cell(row, metric) if row in comparison.marks else None
    if cell is None:
        return [published, _cell(NOTHING, [])]
    told = []
    if cell["difference"]:
        difference = cell["difference"]
        told = [metric.change(difference["mean"]), metric.interval(difference, sign=True)]
    return [published, _cell(metric.value(cell["mean"]), told, metric.interval(cell))]


def _cell(value: str, change: list[str], around: str = "") -> tuple[str, str]:
    """Write a value, the interval around it, and the difference with its own if it has one."""
    small = ([around] if around else []) + ([f"Δ {'<br>'.join(change)}"] if change else [])
    html = value + "".join(f"<small>{line}</small>" for line in small)
    text = value + (f" ({around})" if around else "")
    if change:
        text += f"; Δ {change[0]}" + "".join(f" ({reach})" for reach in change[1:])
    return html, markdown_text(text, 200)
