"""Report section on decoding rules: metrics of the same models, decoded by several rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.metrics.intervals import family_text
from mm_numeric.evaluation.report.charts import (
    Axis,
    Chart,
    SeriesStyle,
    axis_around,
    figure,
    line_chart,
    styled_line,
)
from mm_numeric.evaluation.report.page import Content, Section, fold, note
from mm_numeric.evaluation.report.results import Comparison, ReportedMetric, best_of, chart_ends
from mm_numeric.evaluation.table import Cell, Column, Table, TableRow

_METRICS = 6
"""Tables by decoding rule are shown for this number of metrics."""

_MOST_DRAWN = 8
"""A figure has at most this many objectives, because their names must fit below it."""

_RULES = {
    GREEDY: "the most likely token at each step",
    "mean": "the mean of the numbers",
    "median": "the median of the numbers",
    "mbr": "the candidate of least expected risk (minimum Bayes risk)",
    "raft": "the sum of each number times its probability, which is not normalised",
}


_ENSEMBLES = (
    "An ensemble combines the runs of all seeds of an objective: the distributions of their "
    "answers are averaged, and the rule chooses from the result. Its interval is over test rows "
    "alone. Δ is the paired difference to the mean of its single runs under the same rule. It has "
    "the compute of all its runs: a fair control is one run with as many steps."
)


def decoding_section(comparison: Comparison) -> Section | None:
    """Return the section with a table for each metric; None if all answers are greedy."""
    decoding = comparison.summary["decoding"]
    if not decoding:
        return None
    rules = list(next(iter(decoding.values())))
    meanings = "; ".join(f"{rule}: {_RULES[rule]}" for rule in rules if rule in _RULES)
    text = (
        "Each column decodes the answers of the same trained models by another rule, from the same "
        f"candidates ({meanings}). Δ is the paired difference to {GREEDY} decoding of the same "
        f"objective with its interval. {comparison.colours('decoding')}"
    )
    first, *others = comparison.metrics[:_METRICS]
    blocks: list[Content] = [note(text)]
    if seen := comparison.summary.get("coverage"):
        entries = [own for rules in seen.values() for own in rules.values()]
        covered, drawn = (
            " to ".join(
                dict.fromkeys(
                    f"{f(own[name]['median'] for own in entries):.3f}" for f in (min, max)
                )
            )
            for name in ("covered", "drawn")
        )
        least = min(own["covered"]["tenth_percentile"] for own in entries)
        blocks.append(
            note(
                "The parseable candidates have a probability (median over rows, for all "
                f"objectives and rules) of {covered} that was explored exactly (tenth percentile "
                f"at least {least:.3f}), and {drawn} that was estimated from samples."
            )
        )
    for title, chart in decoding_charts(comparison, first):
        blocks.append(figure(chart, Cell(content=title) if title else None, css="panels wide"))
    blocks.append(_table(comparison, decoding, rules, first))
    cells = (cells.get(first.name) for own in decoding.values() for cells in own.values())
    if any(cell and cell["from_reference"] for cell in cells):
        if corrected := family_text(comparison.summary, "from_reference"):
            blocks.append(note(f"The p-values of the next table are corrected over {corrected}."))
        blocks.append(_from_reference(comparison, rules[1:], first))
    if together := comparison.summary["ensembles"]:
        blocks.append(note(_ENSEMBLES))
        blocks += [
            _table(comparison, together, rules[1:], metric, title=f"{metric.label}, of ensembles")
            for metric in comparison.metrics[:_METRICS]
        ]
    if others:
        tables = [_table(comparison, decoding, rules, metric) for metric in others]
        blocks.append(fold("Other metrics", tables))
    return Section.of("decoding", "Decoding", *blocks)


def decoding_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of the first metric: for single runs and, if there are any, ensembles."""
    found, metric = comparison.summary, comparison.metrics[0]
    rules = list(next(iter(found["decoding"].values()), {}))
    tables = []
    if rules:
        title = f"{metric.label}, by decoding rule; Δ to {GREEDY} decoding"
        tables.append(_table(comparison, found["decoding"], rules, metric, title=title))
    if found["ensembles"]:
        title = f"{metric.label}, of ensembles; Δ to their single runs"
        tables.append(_table(comparison, found["ensembles"], rules[1:], metric, title=title))
    return tables


def decoding_charts(comparison: Comparison, metric: ReportedMetric) -> list[tuple[str, Chart]]:
    """Draw the mean of a metric, with its interval, for each objective and decoding rule.

    Returns pairs (title, figure). There is one figure without a title. If it would have too many
    objectives, there is one figure for each setting of the other grid axes instead. Figures that
    still have too many objectives are left out.
    """
    decoding, axes = comparison.summary["decoding"], comparison.summary["axes"]
    ranked = [name for name in comparison.ranked() if name in decoding]
    names = [name for name in ranked if decoding[name][GREEDY].get(metric.name)]
    if len(names) <= _MOST_DRAWN:
        figures = {"": {name: comparison.styles[name] for name in names}}
    else:
        styles: dict[str, SeriesStyle] = {}  # an objective has the same style in all figures
        figures = {}
        for name in filter(names.__contains__, axes):
            objective, *others = map(str, axes[name].values())
            own = replace(comparison.styles[name], name=objective)
            figures.setdefault(", ".join(others), {})[name] = styles.setdefault(objective, own)
    return [
        (title, _chart(comparison, metric, {name: own[name] for name in names if name in own}))
        for title, own in figures.items()
        if 0 < len(own) <= _MOST_DRAWN
    ]


def _chart(
    comparison: Comparison, metric: ReportedMetric, styles: Mapping[str, SeriesStyle]
) -> Chart:
    """Draw the rows of a comparison whose names are the keys of ``styles``."""
    decoding, names = comparison.summary["decoding"], list(styles)
    rules = list(decoding[names[0]])
    lines, values = [], []
    for index, name in enumerate(names):
        style = styles[name]
        for column, rule in enumerate(rules):
            cell = decoding[name][rule].get(metric.name)
            if cell is None:  # the metric has no value, such as the mean IoU of no pairs
                continue
            at = index + 0.14 * (column - (len(rules) - 1) / 2)
            ends = [metric.scale * end for end in chart_ends(cell)]
            mean = styled_line(style, [(at, metric.scale * cell["value"])])
            lines.append(styled_line(replace(style, dash=""), [(at, end) for end in ends]))
            lines.append(replace(mean, marker=style.drawn()))
            values += [metric.scale * cell["value"], *ends]
    y = axis_around(values)
    rule_order = f"{', '.join(rules[:-1])} and {rules[-1]}"
    unit = f", {metric.unit}" if metric.unit else ""
    label = f"{metric.label}{unit} {metric.direction}, from left to right decoded by {rule_order}"
    ticks = [(index, style.name) for index, style in enumerate(styles.values())]
    x = Axis(low=-0.5, high=len(names) - 0.5, ticks=ticks, label=label)
    description = f"{metric.label} of {', '.join(names)}, decoded by {rule_order}."
    data = _table(comparison, {name: decoding[name] for name in names}, rules, metric)
    return line_chart(lines, x, y, description=description, data=data, width=820, height=400)


def _table(
    comparison: Comparison,
    decoding: Mapping[str, Mapping[str, Any]],
    rules: Sequence[str],
    metric: ReportedMetric,
    *,
    title: str = "",
    notes: Mapping[str, str] | None = None,
) -> Table:
    rows = []
    objectives = [name for name in comparison.ranked() if name in decoding]
    for name in [*objectives, *(own for own in decoding if own not in objectives)]:
        found = {rule: decoding[name].get(rule, {}).get(metric.name) for rule in rules}
        best = best_of(found, metric) if comparison.highlights(metric) and notes is None else ()
        cells = [metric.cell(found[rule], best=rule in best) for rule in rules]
        if name in comparison.styles:
            label = comparison.styles[name].cell((notes or {}).get(name, ""))
            rows.append(TableRow(cells=[label, *cells]))
        else:
            rows.append(TableRow(cells=[Cell(content=name, limit=60), *cells], kind="aside"))
    columns = [Column(header=Cell(content=rule), direction=metric.direction) for rule in rules]
    title = title or f"{metric.label}, by decoding rule"
    return Table.of(["objective", *columns], rows, title=title)


def _from_reference(comparison: Comparison, rules: Sequence[str], metric: ReportedMetric) -> Table:
    """Return a table of differences to greedy decoding of each objective's reference.

    An objective without a reference is compared with its own greedy answers.
    """
    decoding, notes = {}, {}
    for name, own in comparison.summary["decoding"].items():
        if name not in comparison.styles:
            continue
        cells = {rule: own[rule].get(metric.name) for rule in rules}
        decoding[name] = {
            rule: {metric.name: cell and {**cell, "difference": cell["from_reference"]}}
            for rule, cell in cells.items()
        }
        reference = comparison.reference(name) or name
        notes[name] = f"against {reference}" * (reference != comparison.summary["baseline"])
    title = (
        f"{metric.label}, by decoding rule; Δ to {GREEDY} decoding of {comparison.compared_with}"
    )
    return _table(comparison, decoding, rules, metric, title=title, notes=notes)
