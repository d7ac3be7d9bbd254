"""The sections of the report of a comparison."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import DotRow, dot_chart
from mm_numeric.evaluation.report.confidence_section import confidence_section
from mm_numeric.evaluation.report.decoding_section import decoding_section, decoding_tables
from mm_numeric.evaluation.report.learning_curves import curves_section
from mm_numeric.evaluation.report.page import Block, Page, Section, fact_list, fold, heading, note
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric, best_of
from mm_numeric.evaluation.report.summary_file import SUMMARY
from mm_numeric.evaluation.report.sweeps import (
    grid_sweeps,
    sweeps_data,
    sweeps_section,
    trials_table,
    tuning_section,
)
from mm_numeric.evaluation.report.task_sections import may_import, task_sections
from mm_numeric.evaluation.report.verdict import hypotheses_section, hypotheses_tables, verdict
from mm_numeric.evaluation.table import Cell, Column, Table, TableRow
from mm_numeric.io.escaping import markdown_text, plain
from mm_numeric.io.markup import element
from mm_numeric.runs.folder import SCORES

SWEEPS, TRIALS = "sweeps.csv", "trials.csv"

_COLUMNS = 4  # metrics per table
_TABLES = 2  # number of tables that are not folded


def comparison_page(comparison: Comparison, *, trust_remote_code: bool) -> Page:
    """Return the report page; ``trust_remote_code`` allows importing a task by its import path."""
    summary = comparison.summary
    first, *caveats = verdict(comparison)
    counts = [_count(summary["objectives"], "objective"), _count(summary["seeds"], "seed")]
    data: dict[str, Table] = {}
    if sweeps := grid_sweeps(comparison):
        data[SWEEPS] = sweeps_data(sweeps, comparison.metrics)
    if summary["tuning"]:
        data[TRIALS] = trials_table(comparison)
    return Page(
        title=summary["title"],
        kicker=f"{', '.join(counts)}, task {summary['task']}",
        about=summary["description"],
        verdict=first,
        caveats=caveats,
        sections=_sections(comparison, trust_remote_code=trust_remote_code),
        metrics=metrics_table(comparison, comparison.metrics),
        data_files=data,
    )


def _sections(comparison: Comparison, *, trust_remote_code: bool) -> list[Section]:
    summary = comparison.summary
    logs, scores, failures = results.read_runs(comparison)
    styles = {name: comparison.styles[name] for name in comparison.ranked()}
    found = [sweeps_section(comparison), _headline(comparison), hypotheses_section(comparison)]
    found.append(_metrics_section(comparison))
    found += [decoding_section(comparison), tuning_section(comparison)]
    found.append(curves_section(styles, logs, results.read_starts(comparison), summary["baseline"]))
    file = comparison.folder / SUMMARY
    found.append(confidence_section(comparison))
    if may_import(summary["task"], file, trust_remote_code=trust_remote_code):
        files = {
            (run["objective"], run["seed"]): comparison.folder / run["folder"] / SCORES
            for run in summary["runs"]
        }
        found += task_sections(summary["task"], comparison.folder, styles, scores, files)
    counted = {
        styles[name].cell(): failures[name] for name in comparison.styles if name in failures
    }
    found += [results.failures_section(counted, ", over all seeds"), _facts(comparison)]
    return [section for section in found if section is not None]


def _count(items: Sequence[Any], noun: str) -> str:
    return f"one {noun}" if len(items) == 1 else f"{len(items)} {noun}s"


def _headline(comparison: Comparison) -> Section:
    metric, baseline = comparison.metrics[0], comparison.summary["baseline"]
    rows = [row for name in comparison.ranked() for row in _dot_rows(comparison, name, metric)]
    side = "right" if metric.higher_is_better else "left"
    text = (
        f"Filled symbols are means with their {comparison.drawn_ends}, rings are single seeds, the "
        f"dashed line is {baseline}; better is further {side}. The axis does not start at 0."
    )
    if any(row.band for row in rows):
        text += (
            " In the grey band, differences are too small for this comparison: it finds four of "
            "five that reach the end of the band."
        )
    base = comparison.cell(baseline, metric)
    blocks = [note(text)]
    if rows:
        mean = base["value"] if base else None
        chart = dot_chart(rows, mean, metric.scale, metric.unit, metric.label)
        lines = "\n".join(f"- {markdown_text(row.description)}" for row in rows)
        blocks.append(Block(chart.html, lines))
    title = metric.label[:1].upper() + metric.label[1:]
    return Section.of("result", plain(title), *blocks)


def _dot_rows(comparison: Comparison, name: str, metric: ReportedMetric) -> list[DotRow]:
    """Return the row of an objective in the dot chart, in a list; [] if it has no such metric."""
    cell = comparison.cell(name, metric)
    if cell is None:
        return []
    baseline, is_control = comparison.summary["baseline"], name == comparison.summary["control"]
    mean = metric.estimate(cell)
    description = f"{name}: {mean} {metric.label}, {mean.interval or 'no interval'}"
    remark = "baseline" if name == baseline else ""
    if cell["difference"] and not remark:
        role = ", control" if is_control else ""
        reference = comparison.reference(name)
        against = f" against {reference}"
        remark = f"{metric.change(cell['difference'])}{against * (reference != baseline)}{role}"
        description += f", {metric.change(cell['difference'])}{against}{role}"
        if evidence := metric.evidence(cell["difference"]):
            description += f" ({evidence})"
    low, high = results.chart_ends(cell)
    band = None
    if cell["difference"] and (findable := metric.known_findable(cell["difference"])):
        middle = cell["value"] - cell["difference"]["value"]  # mean of the objective's reference
        band = middle - findable, middle + findable
    row = DotRow(
        style=comparison.styles[name],
        mean=cell["value"],
        low=low,
        high=high,
        seeds=cell["seeds"],
        value=str(mean),
        remark=remark,
        trend=metric.trend(cell["difference"]),
        description=description,
        separated=is_control,
        band=band,
    )
    return [row]


def _metrics_section(comparison: Comparison) -> Section:
    seeds = _count(comparison.summary["seeds"], "seed")
    reference = comparison.compared_with
    text = (
        f"Mean over {seeds} and its interval; Δ is the paired difference, with its interval, to "
        f"{reference}. {comparison.colours('table')} ↑ higher is better, ↓ lower is better."
    )
    metrics = comparison.metrics
    groups = [metrics[i : i + _COLUMNS] for i in range(0, len(metrics), _COLUMNS)]
    tables = []
    for group in groups:
        first = metrics.index(group[0]) + 1
        title = f"Metrics {first} to {first + len(group) - 1} of {len(metrics)}"
        tables.append(metrics_table(comparison, group, title))
    shown, rest = tables[:_TABLES], tables[_TABLES:]
    count = len(metrics) - _TABLES * _COLUMNS
    folded = [fold(f"{count} more metric{'s' * (count > 1)}", rest)] if rest else []
    return Section.of("metrics", "All metrics", note(text), *shown, *folded)


def metrics_table(
    comparison: Comparison, metrics: Sequence[ReportedMetric], title: str = "All metrics"
) -> Table:
    """Return a table with a row for each objective and a column for each of the metrics."""
    rivals = [name for name in comparison.styles if name != comparison.summary["control"]]
    best = {
        m: best_of({name: comparison.cell(name, m) for name in rivals}, m)
        for m in metrics
        if comparison.highlights(m)
    }
    rows = []
    for name in comparison.ranked():
        is_control = name == comparison.summary["control"]
        note = "control" if is_control else comparison.against(name)
        label = comparison.styles[name].cell(note)
        cells = [m.cell(comparison.cell(name, m), best=name in best.get(m, ())) for m in metrics]
        rows.append(TableRow(cells=[label, *cells], kind="separated" if is_control else ""))
    others = comparison.summary["other_warm_starts"]
    first = "warm start" if others else "warm start, before all of them"
    for name, warm in {first: comparison.summary["warm_start"] or {}, **others}.items():
        if warm:
            cells = [m.cell(warm.get(m.name)) for m in metrics]
            rows.append(TableRow(cells=[Cell(content=name, limit=60), *cells], kind="aside"))
    for kind, values in comparison.summary["guesses"].items():
        known = [None if (v := values.get(m.name)) is None else m.value(v) for m in metrics]
        cells = [Cell(content=kind), *(Cell(content=own) for own in known)]
        rows.append(TableRow(cells=cells, kind="aside"))
    columns = [Column(header=Cell(content=m.label), direction=m.direction) for m in metrics]
    return Table.of(["objective", *columns], rows, title=title)


def terminal_text(comparison: Comparison) -> str:
    """Return the most important tables of a comparison as plain text.

    The columns are the first five metrics. With more than four metrics per category, they are the
    first metric and all metrics per category. Only the first has intervals and differences.
    """
    summary, metrics = comparison.summary, comparison.metrics
    first = metrics[0]
    count = max(5, 1 + summary.get("of_categories", 0))
    table = metrics_table(comparison, metrics[:count], "Metrics")
    lines = []
    for row in table.rows:
        label, head, *others = row.cells
        own = summary["table"].get(label.content, {}).get(first.name) or {}
        values = [Cell(content=cell.text) for cell in others]
        difference = first.difference_text(own.get("difference"))
        lines.append([label, replace(head, change=None), *values, difference])
    header = [*table.columns, f"Δ of {first.label} to {comparison.compared_with}"]
    tables = [Table.of(header, lines, title=table.title)]
    tables += [*decoding_tables(comparison), *hypotheses_tables(comparison)]
    facts = summary["facts"]
    notes = [f"Mean of {_count(summary['seeds'], 'seed')}"]
    notes += [facts[name] for name in ("interval", "varied", "headline") if name in facts]
    texts = (f"{own.title}\n{own.to_terminal()}\n" for own in tables)
    return "\n".join([*texts, f"{plain('; '.join(notes), 1000)}."])


def _facts(comparison: Comparison) -> Section:
    facts = comparison.summary["facts"]
    command = facts.get("command") or f"mm-numeric compare {comparison.summary['title']}"
    code = Block(element("pre", plain(command, 600)), f"    {plain(command, 600)}")
    table, title = fact_list(list(facts.items())), heading("Repeat the comparison")
    text = "Finished runs are not repeated:"
    return Section.of("facts", "How this was measured", table, title, text, code)
