"""Write the report of a comparison as an HTML page, Markdown, LaTeX or CSV.

Reads    summary.json, and if they exist log.jsonl, scores.jsonl, results.json and digits.json of
         each run
Writes   report.html   self-contained: no script, no network request
         report.md     the same numbers as Markdown
         report.tex    all tables
         report.csv    the table of all metrics
         sweeps.csv    with report.html: the data of the figures of grid axes
         trials.csv    with report.html: all trials of ``compare.tune``

A task adds sections of its own: its attribute ``report_sections`` names functions that return them.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_numeric.config.trust import FLAG
from mm_numeric.escaping import latex_text, markdown_text, plain
from mm_numeric.evaluation.markup import element
from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.charts import DotRow, dot_chart
from mm_numeric.evaluation.report.confidence_section import confidence_section
from mm_numeric.evaluation.report.decoding_section import decoding_section
from mm_numeric.evaluation.report.digit_distribution import digits_section
from mm_numeric.evaluation.report.html import render
from mm_numeric.evaluation.report.learning_curves import curves_section
from mm_numeric.evaluation.report.published_comparison import published_section
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric, Scores, Styles
from mm_numeric.evaluation.report.sections import Block, Content, Section, fact_list, heading, note
from mm_numeric.evaluation.report.steps_to_target import steps_section
from mm_numeric.evaluation.report.sweeps import grid_sweeps, sweeps_csv, sweeps_section
from mm_numeric.evaluation.report.tuning_section import trials_table, tuning_section
from mm_numeric.evaluation.report.verdict import verdict
from mm_numeric.evaluation.table import Cell, Column, Table, TableRow
from mm_numeric.files import write_text
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose
from mm_numeric.run_folder import CONFIG, import_plugins, stored_settings
from mm_numeric.tasks.base import task_class

FORMATS = {"html": "report.html", "md": "report.md", "latex": "report.tex", "csv": "report.csv"}
"""Maps each format of a report to the name of the file."""

SWEEPS, TRIALS = "sweeps.csv", "trials.csv"

_COLUMNS = 6  # of a table: more do not fit on a laptop


def write_report(
    folder: Path, formats: Sequence[str] = ("html", "md"), *, trust_remote_code: bool = False
) -> tuple[Path, ...]:
    """Write the report of a comparison, and return the paths of the written files.

    Args:
        folder: The output folder of ``compare``, with ``summary.json``. The report is saved there.
        formats: Any of ``html``, ``md``, ``latex`` and ``csv``.
        trust_remote_code: Import the task of the comparison if ``summary.json`` has an import path,
            such as ``my_tasks:Thermometer``. Otherwise the sections of that task are left out.
    """
    folder = Path(folder)
    comparison = results.read_comparison(folder)
    sections = []
    if set(formats) - {"csv"}:
        sections = _sections(comparison, trust_remote_code=trust_remote_code)
    paths = []
    for name in formats:
        if name == "csv":
            text = _metrics_table(comparison, comparison.metrics).to_csv()
        elif name == "latex":
            text = _latex(comparison, sections)
        else:
            text = (_page if name == "html" else _markdown)(comparison, sections)
        paths.append(folder / FORMATS[name])
        write_text(paths[-1], text)
    if "html" in formats and (sweeps := grid_sweeps(comparison)):
        paths.append(folder / SWEEPS)
        write_text(paths[-1], sweeps_csv(sweeps, comparison.metrics))
    if "html" in formats and comparison.summary["tuning"]:
        paths.append(folder / TRIALS)
        write_text(paths[-1], trials_table(comparison).to_csv())
    return tuple(paths)


def _sections(comparison: Comparison, *, trust_remote_code: bool) -> list[Section]:
    summary = comparison.summary
    logs, scores, failures = results.read_runs(comparison)
    starts = results.read_starts(comparison)
    styles = {name: comparison.styles[name] for name in comparison.ranked()}
    found = [_headline(comparison), sweeps_section(comparison), _metrics_section(comparison)]
    found += [decoding_section(comparison), tuning_section(comparison)]
    found.append(published_section(comparison))
    if any(logs.values()):
        found.append(curves_section(styles, summary["baseline"], summary["seeds"], logs, starts))
    found.append(steps_section(comparison, styles, logs, starts))
    found += [digits_section(comparison, styles), confidence_section(comparison)]
    if trust_remote_code or _is_shipped(summary["task"], comparison.folder):
        found += _task_sections(summary["task"], comparison.folder, styles, scores)
    found += [_failures(comparison, failures), _facts(comparison)]
    return [section for section in found if section is not None]


def _is_shipped(name: str, folder: Path) -> bool:
    """Return True for a built-in task. For an import path to user code, warn and return False."""
    if name in TASKS or ":" not in name:
        return True
    warnings.warn(
        f"{folder}/summary.json: the task {name!r} is an import path, and a stored comparison may "
        "not import code. The chapters of the task are left out; if you trust the module, add "
        f"{FLAG}.",
        stacklevel=4,
    )
    return False


def _task_sections(name: str, folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections of a task, by calling the functions in its ``report_sections``.

    If the module of the task cannot be imported, warn and return no sections.
    """
    if ":" in name and (folder / CONFIG).is_file():  # the user trusts the module
        import_plugins(stored_settings(folder))
    try:
        names = task_class(name, "the report").report_sections
    except ValueError as error:
        warnings.warn(f"{error} The chapters of the task are left out.", stacklevel=4)
        return []
    functions = [
        choose(n, REPORT_SECTIONS, "report section", f"{name}.report_sections") for n in names
    ]
    return [section for write in functions for section in write(folder, styles, scores)]


def _page(comparison: Comparison, sections: Sequence[Section]) -> str:
    summary = comparison.summary
    first, *caveats = verdict(comparison)
    counts = [_count(summary["objectives"], "objective"), _count(summary["seeds"], "seed")]
    return render(
        "page.html",
        title=plain(summary["title"]),
        kicker=plain(f"{', '.join(counts)}, task {summary['task']}"),
        about=plain(summary["description"], 600),
        verdict=plain(first, 600),
        caveats=[plain(line, 600) for line in caveats],
        sections=sections,
    )


def _markdown(comparison: Comparison, sections: Sequence[Section]) -> str:
    first, *caveats = verdict(comparison)
    parts = [
        f"# {markdown_text(comparison.summary['title'])}",
        f"**{markdown_text(first, 600)}**",
        "\n".join(f"- {markdown_text(line, 600)}" for line in caveats),
        markdown_text(comparison.summary["description"], 600),
        *(
            f"## {markdown_text(section.title)}\n\n{section.content.markdown}"
            for section in sections
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _latex(comparison: Comparison, sections: Sequence[Section]) -> str:
    lines = [f"% {latex_text(comparison.summary['title'])}. Needs \\usepackage{{booktabs}}."]
    for section in sections:
        for table in section.content.tables:
            lines += ["", f"% {latex_text(section.title)}", table.to_latex()]
    return "\n".join(lines) + "\n"


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
    base = comparison.cell(baseline, metric)
    blocks = [note(text)]
    if rows:
        chart = dot_chart(rows, base["mean"] if base else None, metric.scale, metric.unit)
        lines = "\n".join(f"- {markdown_text(row.description)}" for row in rows)
        blocks.append(Block(chart, lines))
    title = metric.label[:1].upper() + metric.label[1:]
    return Section.of("result", plain(title), *blocks)


def _dot_rows(comparison: Comparison, name: str, metric: ReportedMetric) -> list[DotRow]:
    """Return the dot chart's row for one training loss, in a list; [] if the metric is missing."""
    cell = comparison.cell(name, metric)
    if cell is None:
        return []
    baseline, is_control = comparison.summary["baseline"], name == comparison.summary["control"]
    mean = metric.estimate(cell)
    description = f"{name}: {mean} {metric.label}, {mean.interval}"
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
    row = DotRow(
        style=comparison.styles[name],
        mean=cell["mean"],
        low=low,
        high=high,
        seeds=cell["seeds"],
        value=str(mean),
        remark=remark,
        trend=metric.trend(cell["difference"]),
        description=description,
        separated=is_control,
    )
    return [row]


def _metrics_section(comparison: Comparison) -> Section:
    seeds = _count(comparison.summary["seeds"], "seed")
    baseline = comparison.summary["baseline"]
    reference = baseline
    if {*comparison.summary["references"].values()} - {baseline, None}:
        reference = f"the objective named in the first column, or {baseline},"
    text = (
        f"Mean over {seeds} and its interval; Δ is the paired difference to {reference} with its "
        f"interval. {comparison.colours('objectives')} ↑ higher is better, ↓ lower is better."
    )
    metrics = comparison.metrics
    groups = [metrics[i : i + _COLUMNS] for i in range(0, len(metrics), _COLUMNS)]
    tables = [_metrics_table(comparison, group) for group in groups]
    return Section.of("table", "All metrics", note(text), *tables)


def _metrics_table(comparison: Comparison, metrics: Sequence[ReportedMetric]) -> Table:
    best = {m.name: _best(comparison, m) for m in metrics}
    baseline = comparison.summary["baseline"]
    rows = []
    for name in comparison.ranked():
        is_control = name == comparison.summary["control"]
        reference = comparison.reference(name)
        note = f"against {reference}" if reference not in ("", baseline) else ""
        label = comparison.styles[name].cell("control" if is_control else note)
        cells = [m.cell(comparison.cell(name, m), best=name in best[m.name]) for m in metrics]
        rows.append(TableRow(cells=[label, *cells], kind="separated" if is_control else ""))
    others = comparison.summary["other_warm_starts"]
    first = "warm start" if others else "warm start, before all of them"
    for name, warm in {first: comparison.summary["warm_start"] or {}, **others}.items():
        if warm:
            cells = [m.cell(warm.get(m.name)) for m in metrics]
            rows.append(TableRow(cells=[Cell(content=name, limit=60), *cells], kind="aside"))
    columns = [Column(header=Cell(content=m.label), direction=m.direction) for m in metrics]
    return Table.of(["objective", *columns], rows)


def _best(comparison: Comparison, metric: ReportedMetric) -> set[str]:
    """Return the training losses with the best mean of ``metric``, if it is highlighted.

    The control experiment (by default cross-entropy times 1.3) is never returned.
    """
    if not comparison.highlights(metric):
        return set()
    names = [n for n in comparison.styles if n != comparison.summary["control"]]
    means = {n: cell["mean"] for n in names if (cell := comparison.cell(n, metric))}
    if len(means) < 2:
        return set()
    top = (max if metric.higher_is_better else min)(means.values())
    return {name for name, mean in means.items() if mean == top}


def _failures(comparison: Comparison, failures: Mapping[str, Counter[str]]) -> Section:
    reasons = [r for r, _ in sum(failures.values(), Counter[str]()).most_common()]
    if not failures:
        text = "No scored answers were found, so parse failures are not known."
    elif not reasons:
        text = "Every answer could be parsed."
    else:
        text = "Answers that could not be parsed, over all seeds. They score as the worst answer."
    blocks: list[Content] = [text]
    if reasons:
        names = [name for name in comparison.styles if name in failures]
        rows = [
            [Cell(content=reason, limit=80), *(f"{failures[n][reason]:,}" for n in names)]
            for reason in reasons
        ]
        blocks.append(Table.of(["reason", *(comparison.styles[n].cell() for n in names)], rows))
    return Section.of("failures", "Parse failures", *blocks)


def _facts(comparison: Comparison) -> Section:
    """Return the section with the settings of the comparison and the command to repeat it."""
    facts = comparison.summary["facts"]
    command = facts.get("command") or f"mm-numeric compare {comparison.summary['title']}"
    code = Block(element("pre", plain(command, 600)), f"    {plain(command, 600)}")
    table, title = fact_list(list(facts.items())), heading("Repeat the comparison")
    text = "Finished runs are not repeated:"
    return Section.of("facts", "How this was measured", table, title, text, code)
