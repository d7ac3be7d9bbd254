"""Write a comparison down as one HTML page and its Markdown twin, from the files of a folder.

Reads    summary.json, and of every run in it log.jsonl, scores.jsonl, results.json and digits.json
         where there
Writes   report.html (self-contained: no script, no request) and report.md (the same numbers)

Chapters for a kind of task are functions that the task names in ``report_sections``.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mm_numeric.evaluation.report.charts import DotRow, Mark, dot_chart, who
from mm_numeric.evaluation.report.clock_gallery import Scores
from mm_numeric.evaluation.report.digit_distribution import beliefs_section
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Metric,
    Section,
    html_page,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
    plain,
)
from mm_numeric.evaluation.report.learning_curves import curves_section
from mm_numeric.evaluation.report.published_comparison import published_section
from mm_numeric.evaluation.report.results import (
    Comparison,
    Row,
    read_comparison,
    read_runs,
    read_starts,
)
from mm_numeric.evaluation.report.steps_to_target import reached_section
from mm_numeric.registry import REPORT_SECTIONS, choose
from mm_numeric.tasks.base import task_class

_COLUMNS = 6  # of a table, as many as are seen at once on a laptop


def write_report(folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` into a folder that ``compare`` has filled.

    Args:
        folder: Where ``summary.json`` is.

    Returns:
        The page and its Markdown twin.

    Raises:
        ValueError: If a file is missing or cannot be understood.
    """
    folder = Path(folder)
    comparison = read_comparison(folder)
    summary = comparison.summary
    logs, scores, failures = read_runs(comparison)
    marks = {name: comparison.marks[name] for name in comparison.ranked()}
    sections = [_headline(comparison), _table(comparison)]
    sections += filter(None, [published_section(comparison)])
    starts = read_starts(comparison)
    if any(logs.values()):
        sections.append(curves_section(marks, summary["baseline"], summary["seeds"], logs, starts))
    more = (
        reached_section(comparison, marks, logs, starts),
        beliefs_section(comparison, marks),
    )
    sections += filter(None, more)
    sections += _task_sections(summary["task"], folder, marks, scores)
    sections += [_failures(comparison, failures), _facts(comparison)]
    first, *caveats = verdict(comparison)
    count = len(summary["objectives"])
    objectives = "one objective" if count == 1 else f"{count} objectives"
    kicker = f"{objectives}, {_seeds(summary)}, task {summary['task']}"
    header = (
        f'<p class="kicker">{html_text(kicker)}</p><h1>{html_text(summary["title"])}</h1>'
        f'<p class="about">{html_text(summary["description"], 600)}</p>'
        f'<p class="verdict">{html_text(first, 600)}</p><ul class="caveats">'
        + "".join(f"<li>{html_text(line, 600)}</li>" for line in caveats)
        + "</ul>"
    )
    twin = [
        f"# {markdown_text(summary['title'])}",
        f"**{markdown_text(first, 600)}**",
        "\n".join(f"- {markdown_text(line, 600)}" for line in caveats),
        markdown_text(summary["description"], 600),
        *(f"## {section.title}\n\n{section.markdown.strip()}" for section in sections),
    ]
    page, markdown = folder / "report.html", folder / "report.md"
    page.write_text(html_page(summary["title"], header, sections), encoding="utf-8")
    markdown.write_text("\n\n".join(part for part in twin if part) + "\n", encoding="utf-8")
    return page, markdown


def _task_sections(
    name: str, folder: Path, marks: Mapping[str, Mark], scores: Scores
) -> list[Section]:
    """Return the chapters that a task names in ``report_sections``.

    A report needs no other part of the task: without the module of a task the rest is written.
    """
    try:
        names = task_class(name, "the report").report_sections
    except ValueError as error:
        warnings.warn(f"{error} The chapters of the task are left out.", stacklevel=3)
        return []
    functions = [
        choose(n, REPORT_SECTIONS, "report section", f"{name}.report_sections") for n in names
    ]
    return [section for write in functions for section in write(folder, marks, scores)]


def _seeds(summary: Row) -> str:
    count = len(summary["seeds"])
    return "one seed" if count == 1 else f"{count} seeds"


def verdict(comparison: Comparison) -> list[str]:
    """Say what the comparison shows in one sentence, and then what it does not show."""
    summary, metric = comparison.summary, comparison.metrics[0]
    baseline, control = summary["baseline"], summary["control"]
    cells = {name: comparison.cell(name, metric) for name in comparison.marks}
    ranked = [name for name in comparison.ranked() if cells[name] and name != control]
    rivals = [name for name in ranked if name != baseline]
    base = cells[baseline]
    if base is None:
        return [f"{baseline} has no {metric.label}, so there is nothing to compare with."]
    told = f"{metric.value(base['mean'])} {metric.label}"
    best = cells[ranked[0]] or base
    wins = best["mean"] != base["mean"]
    if not rivals:
        lines = [
            f"{baseline}: {told} ({metric.interval(base)}), with no objective to compare it to."
        ]
    elif not wins:
        rival = cells[rivals[0]] or base
        lines = [
            f"No objective beat {baseline}, which has {told}; {rivals[0]} comes next with "
            f"{metric.value(rival['mean'])}, {_difference(rival, metric)}."
        ]
    else:
        lines = [
            f"{ranked[0]} is best: {metric.value(best['mean'])} {metric.label} against "
            f"{metric.value(base['mean'])} for {baseline}, {_difference(best, metric)}."
        ]
    if len(rivals) > 1:
        clear = sum(_moved(cells[name], metric) == "better" for name in rivals)
        lines.append(
            f"{clear} of {len(rivals)} objectives beat {baseline} with an interval that excludes "
            "0. Naming the best after seeing them all flatters it a little."
        )
    if rivals:
        lines.append(_control(comparison, ranked[0] if wins else None))
    few = {1: "One seed: the interval", 2: "Two seeds: the interval"}.get(len(summary["seeds"]))
    if few:
        lines.append(f"{few} says little about how much another training run would differ.")
    elif len(summary["seeds"]) < 5:
        lines.append(f"{len(summary['seeds'])} seeds are few: the intervals may be too narrow.")
    return lines


def _moved(cell: Row | None, metric: Metric) -> str:
    """Return better, worse or unclear; unclear if there is no difference."""
    return metric.moved(cell["difference"]) if cell and cell["difference"] else "unclear"


def _difference(cell: Row, metric: Metric) -> str:
    """Say how a difference lies to 0."""
    difference = cell["difference"]
    if not difference:
        return "without a paired difference, so chance is not ruled out"
    told = f"{metric.change(difference['mean'])} ({metric.interval(difference, sign=True)})"
    if metric.moved(difference) == "unclear":
        return f"a paired difference of {told}; its interval includes 0, so this may be chance"
    return f"a paired difference of {told}; its interval excludes 0"


def _control(comparison: Comparison, best: str | None) -> str:
    """Say whether the control moved, and what that takes from the best objective."""
    control, metric = comparison.summary["control"], comparison.metrics[0]
    cell = comparison.cell(control, metric) if control in comparison.marks else None
    if cell is None:
        return (
            "There is no control: a gain that comes from a larger loss alone would look the same."
        )
    moved = _moved(cell, metric)
    if not cell["difference"]:
        line = f"The control {control} has no paired difference"
    elif moved == "unclear":
        line = f"The control {control} did not measurably move: {_difference(cell, metric)}"
    else:
        way = "moved too" if moved == "better" else "got worse"
        line = f"The control {control} {way}: {_difference(cell, metric)}"
    top = comparison.cell(best, metric) if best else None
    if top is None:
        return line + "."
    if (cell["mean"] - top["mean"]) * (1 if metric.higher_is_better else -1) >= 0:
        return f"{line}. It did at least as well as {best}: the gain is no merit of the objective."
    if moved == "better":
        return f"{line}. Part of the gain of {best} may be the size of the loss alone."
    return line + "."


def _headline(comparison: Comparison) -> Section:
    """Write the chart of the first metric; its numbers are those of the table."""
    metric = comparison.metrics[0]
    rows, spoken = [], []
    for name in comparison.ranked():
        cell = comparison.cell(name, metric)
        if cell is None:
            continue
        told = f"<b>{metric.value(cell['mean'])}</b>"
        words = f"{name}: {metric.value(cell['mean'])} {metric.label}, {metric.interval(cell)}"
        if name == comparison.summary["baseline"]:
            told += '<br><span class="unclear"> baseline</span>'
        elif cell["difference"]:
            change = metric.change(cell["difference"]["mean"])
            role = ", control" if name == comparison.summary["control"] else ""
            told += f'<br><span class="{_moved(cell, metric)}"> {html_text(change)}{role}</span>'
            words += f", {change} against {comparison.summary['baseline']}{role}"
        rows.append(
            DotRow(
                mark=comparison.marks[name],
                mean=cell["mean"],
                low=cell["low"],
                high=cell["high"],
                seeds=cell["seeds"],
                told=told,
                spoken=words,
                apart=name == comparison.summary["control"],
            )
        )
        spoken.append(f"- {markdown_text(words)}")
    base = comparison.cell(comparison.summary["baseline"], metric)
    chart = dot_chart(rows, base["mean"] if base else None, metric.scale, metric.unit)
    better = "further right" if metric.higher_is_better else "further left"
    html = (
        f'<p class="note">Filled marks are means with their interval, rings are single seeds, the '
        f"dashed line is {html_text(comparison.summary['baseline'])}; better is {better}. The axis "
        f"does not start at 0.</p>{chart if rows else ''}"
    )
    title = metric.label[:1].upper() + metric.label[1:]
    return Section(anchor="headline", title=title, html=html, markdown="\n".join(spoken))


def _table(comparison: Comparison) -> Section:
    """Write every metric of every objective, with the difference to the baseline."""
    note = (
        f"Mean over {_seeds(comparison.summary)}, its interval, and Δ: the paired difference to "
        f"{comparison.summary['baseline']} with its interval. ↑ more is better, ↓ less is better; "
        "the best of each column is marked, the control left out."
    )
    metrics = comparison.metrics
    groups = [metrics[i : i + _COLUMNS] for i in range(0, len(metrics), _COLUMNS)]
    tables = [_metrics_table(comparison, group) for group in groups]
    html = (
        f'<p class="note">{html_text(note)} A difference is coloured when its interval excludes 0.'
        f"</p>{''.join(html for html, _ in tables)}"
    )
    return Section(
        anchor="table",
        title="Every metric",
        html=html,
        markdown="\n\n".join([markdown_text(note), *(table for _, table in tables)]),
    )


def _metrics_table(comparison: Comparison, metrics: Sequence[Metric]) -> tuple[str, str]:
    """Return some columns of the table, as HTML and as Markdown."""
    best = {m.name: _best(comparison, m) for m in metrics}
    body, twin = [], []
    for name in comparison.ranked():
        cells = [_cell(m, comparison.cell(name, m), name in best[m.name]) for m in metrics]
        control = name == comparison.summary["control"]
        shown = "".join(f"<td>{html}</td>" for html, _ in cells)
        body.append(
            ('<tr class="apart"><th>' if control else "<tr><th>")
            + f"{who(comparison.marks[name])}</th>{shown}</tr>"
        )
        note = " (control)" if control else ""
        twin.append([markdown_name(name) + note, *(text for _, text in cells)])
    others = comparison.summary["other_warm_starts"]
    first = "warm start" if others else "warm start, before all of them"
    for name, warm in {first: comparison.summary["warm_start"] or {}, **others}.items():
        if not warm:
            continue
        cells = [_cell(m, warm.get(m.name), False) for m in metrics]
        shown = "".join(f"<td>{html}</td>" for html, _ in cells)
        body.append(f'<tr class="aside"><th>{html_text(name, 60)}</th>{shown}</tr>')
        twin.append([markdown_text(name, 60), *(text for _, text in cells)])
    labels = [f"{m.label} {'↑' if m.higher_is_better else '↓'}" for m in metrics]
    html = html_table(["objective", *map(html_text, labels)], "".join(body))
    return html, markdown_table(["objective", *map(markdown_text, labels)], twin)


def _best(comparison: Comparison, metric: Metric) -> set[str]:
    """Return the objectives with the best mean, ties included, the control left out."""
    names = [n for n in comparison.marks if n != comparison.summary["control"]]
    means = {n: cell["mean"] for n in names if (cell := comparison.cell(n, metric))}
    if len(means) < 2:
        return set()
    top = (max if metric.higher_is_better else min)(means.values())
    return {name for name, mean in means.items() if mean == top}


def _cell(metric: Metric, cell: Row | None, is_best: bool) -> tuple[str, str]:
    """Write a cell of the table as HTML and as Markdown."""
    if cell is None:
        return NOTHING, NOTHING
    value, around = metric.value(cell["mean"]), metric.interval(cell)
    shown = f'<span class="{"best" if is_best else "plain"}">{value}</span><small>{around}</small>'
    text = f"{f'**{value}**' if is_best else value} ({around})"
    difference = cell["difference"]
    if difference:
        change = f"Δ {metric.change(difference['mean'])}"
        reach = metric.interval(difference, sign=True)
        shown += f'<small class="{metric.moved(difference)}">{change}<br>{reach}</small>'
        text += f"; {change} ({reach})"
    return shown, markdown_text(text, 400).replace("\\*\\*", "**")


def _failures(comparison: Comparison, failures: Mapping[str, Counter[str]]) -> Section:
    """Write how many answers could not be read, and why."""
    reasons = [r for r, _ in sum(failures.values(), Counter[str]()).most_common()]
    if not failures:
        text = "No scored answers were found, so failures are not known."
    elif not reasons:
        text = "Every answer could be read."
    else:
        text = "Answers that could not be read, over all seeds. They score as the worst answer."
    html, markdown = f"<p>{text}</p>", text
    if reasons:
        names = [name for name in comparison.marks if name in failures]
        rows = [(reason, [f"{failures[n][reason]:,}" for n in names]) for reason in reasons]
        body = "".join(
            f"<tr><th>{html_text(reason, 80)}</th>{''.join(f'<td>{c}</td>' for c in counts)}</tr>"
            for reason, counts in rows
        )
        html += html_table(["reason", *(who(comparison.marks[name]) for name in names)], body)
        twin = [[markdown_text(reason, 80), *counts] for reason, counts in rows]
        markdown += "\n\n" + markdown_table(["reason", *map(markdown_name, names)], twin)
    return Section(anchor="failures", title="Unreadable answers", html=html, markdown=markdown)


def _facts(comparison: Comparison) -> Section:
    """Write how it was measured, and the command that does it again."""
    facts = comparison.summary["facts"]
    command = facts.get("command") or f"mm-numeric compare {comparison.summary['title']}"
    pairs = "".join(
        f"<dt>{html_text(name)}</dt><dd>{html_text(text, 600)}</dd>" for name, text in facts.items()
    )
    rows = [[markdown_text(name), markdown_text(text, 600)] for name, text in facts.items()]
    again = "The same again; runs that are finished are not repeated:"
    table = markdown_table(["", ""], rows).replace("---:", "---") if rows else ""
    return Section(
        anchor="facts",
        title="How this was measured",
        html=f"<dl>{pairs}</dl><h3>Do it again</h3><p>{again}</p>"
        f"<pre>{html_text(command, 600)}</pre>",
        markdown=f"{table}\n\n{again}\n\n    {plain(command, 600)}",
    )
