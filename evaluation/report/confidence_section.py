"""Report section on confidences: reliability, risk at a given coverage, and thresholds.

The values are read from summary.json. ``evaluation.metrics.calibration`` defines them.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from mm_numeric.evaluation.metrics.calibration import COVERAGES, RIGHT_SHARES, share_interval
from mm_numeric.evaluation.report.charts import (
    Axis,
    Chart,
    Line,
    figure,
    legend,
    line_chart,
    nice_ticks,
    styled_line,
)
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, group, heading, note
from mm_numeric.evaluation.report.results import Comparison, Styles
from mm_numeric.evaluation.table import Cell, Quantity, Table, number, percent
from mm_numeric.inference.calibrate import RAW, Calibration

_SHARES = [(s / 4, f"{25 * s}%") for s in range(5)]
_DIAGONAL = Line(points=[(0, 0), (1, 1)], colour="var(--soft)", dash="3 3", width=1.2)
_HALF_MARK = 0.012  # half the width of a mark, as a share of the axis

Entries = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""``entries[rule][objective]`` is the calibration of an objective, decoded by a rule."""


def confidence_section(comparison: Comparison) -> Section | None:
    """Return the section on confidences; None if no objective has answers with confidences."""
    styles = {name: comparison.styles[name] for name in comparison.ranked()}
    entries = _by_rule(comparison.summary["calibration"], styles)
    if not entries:
        return None
    entry = next(iter(next(iter(entries.values())).values()))
    what = "object" if entry["per_object"] else "answer"
    shown = {
        name: style for name, style in styles.items() if any(name in e for e in entries.values())
    }
    seeds = " These four are means over seeds; charts and thresholds are of all seeds together."
    seeds *= len(comparison.summary["seeds"]) > 1
    blocks: list[Content] = [
        note(_definitions(entry["correct"], per_object=entry["per_object"]) + seeds),
        legend(shown.values()),
        heading("Reliability"),
        note(
            "Share of correct answers over mean confidence, in ten bins of equal width. On the "
            "dashed line, confidences are correct; below it, the model is overconfident."
        ),
        group("panels", [_reliability_chart(rule, own, shown) for rule, own in entries.items()]),
        heading("Risk and coverage"),
        note(
            f"Share of wrong {what}s if only the most confident ones are given. A lower curve is "
            "better."
        ),
        group("panels", [_risk_chart(rule, own, shown) for rule, own in entries.items()]),
        _calibrations(["objective", "decoded by"], _rows(entries, shown)),
        heading("Thresholds"),
        note(
            f"Only {what}s with a confidence of at least a threshold are given. Columns: the share "
            f"of correct {what}s if a certain share of all {what}s is given, and the largest share "
            "that can be given so that a certain share is correct; each with its threshold. "
            "Thresholds are rounded down to six decimals; summary.json has them in full."
        ),
        _thresholds_table(entries, shown),
        fold(
            "The reliability diagrams in numbers",
            [
                _bins(
                    [styles[name].cell() for name in own],
                    list(own.values()),
                    f"Correct by confidence, decoded by {rule}",
                )
                for rule, own in entries.items()
            ],
        ),
    ]
    return Section.of("confidence", "Confidence", *blocks)


def _definitions(correct: str, *, per_object: bool) -> str:
    what = "object" if per_object else "answer"
    unparseable = (
        "Unparseable answers have no objects and are not counted. "
        if per_object
        else "An unparseable answer counts as wrong, with the confidence 0, so that a share of the "
        "answers is one of all rows. "
    )
    return (
        f"A confidence is the probability, 0 to 1, that the model assigns to its {what} being "
        f"correct ({correct}), if labels are like those of its training data. The gap is the mean "
        "confidence minus the share correct, with its 95% interval: above 0, the model is "
        f"overconfident. {unparseable}ECE is the expected calibration error, the "
        "mean difference between confidence and share correct; 0 is best. AUROC is the probability "
        f"that a correct {what} has more confidence than a wrong one; 0.5 is random, 1 is best. "
        f"AURC is the mean share of wrong {what}s over all coverages; lower is better."
    )


def _by_rule(calibration: Mapping[str, Any], styles: Styles) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for name in styles:
        for rule, entry in calibration.get(name, {}).items():
            entries.setdefault(rule, {})[name] = entry
    return entries


def _reliability_chart(rule: str, entries: Mapping[str, Any], styles: Styles) -> Block:
    lines = []
    for name in list(entries)[::-1]:
        points = [(own[3], own[4]) for own in entries[name]["reliability"] if own[2]]
        lines.append(styled_line(styles[name], points))
        for x, y in points:  # a line through a single bin would not be visible
            mark = [(x - _HALF_MARK, y), (x + _HALF_MARK, y)]
            lines.append(Line(points=mark, colour=styles[name].colour, width=5))
    text = f"Share correct over confidence, decoded by {rule}: {', '.join(entries)}."
    x, y = (Axis(low=0, high=1, ticks=_SHARES, label=label) for label in ("confidence", ""))
    return _captioned(
        rule, "share correct", line_chart([_DIAGONAL, *lines], x, y, description=text)
    )


def _risk_chart(rule: str, entries: Mapping[str, Any], styles: Styles) -> Block:
    lines = [
        styled_line(styles[name], [(0, own["risk_coverage"][0][1]), *own["risk_coverage"]])
        for name, own in list(entries.items())[::-1]
    ]
    top = max(risk for line in lines for _, risk in line.points) or 0.01
    ticks = [(tick / 100, f"{tick:g}%") for tick in nice_ticks(0, 105 * top)]
    x = Axis(low=0, high=1, ticks=_SHARES, label="coverage")
    y = Axis(low=0, high=1.05 * top, ticks=ticks)
    text = f"Share wrong over coverage, decoded by {rule}: {', '.join(entries)}."
    return _captioned(rule, "share wrong", line_chart(lines, x, y, description=text))


def _captioned(rule: str, what: str, chart: Chart) -> Block:
    return figure(chart, Cell(content=f"{what}, decoded by {rule}", is_name=True, limit=80))


def _rows(entries: Entries, styles: Styles) -> Sequence[tuple[list[Cell], Mapping[str, Any]]]:
    """Return, for each row of a table, the cells (objective, rule) and the calibration entries."""
    return [
        ([styles[name].cell(), Cell(content=rule)], own[name])
        for name in styles
        for rule, own in entries.items()
        if name in own
    ]


_COLUMNS = {
    "mean_confidence": "mean confidence",
    "right": "correct",
    "gap": "gap",
    "ece": "ECE",
    "log_loss": "log loss",
    "auroc": "AUROC",
    "aurc": "AURC",
    "count": "count",
}
"""Entry of a calibration -> header of its column in tables."""


def _calibrations(
    header: Sequence[str],
    rows: Sequence[tuple[Sequence[str | Cell], Mapping[str, Any]]],
    title: str = "Calibration",
) -> Table:
    """Return a table: the cells of each row, then the values that all calibrations have."""
    shown = [key for key in _COLUMNS if all(key in entry for _, entry in rows)]
    lines = [[*cells, *(_value(key, entry[key]) for key in shown)] for cells, entry in rows]
    return Table.of([*header, *(_COLUMNS[key] for key in shown)], lines, title=title)


def _value(key: str, found: Any) -> Quantity | None:
    if found is None:
        return None
    if key == "gap":
        return Quantity(**found, decimals=3, sign=True)
    return Quantity(value=found, decimals=0 if key == "count" else 3)


def _thresholds_table(entries: Entries, styles: Styles) -> Table:
    rows = []
    for cells, entry in _rows(entries, styles):
        texts: list[str | None] = []
        for own in entry["thresholds"]["coverage"]:
            is_close = abs(own["coverage"] - own["wanted"]) < 0.0005
            given = "" if is_close else f" of {percent(own['coverage'])}"
            texts.append(f"{percent(own['right'])}{given}, from {_rounded_down(own['threshold'])}")
        for own in entry["thresholds"]["right"]:
            reached = own["threshold"] is not None
            text = f"{percent(own['coverage'])}, from "
            texts.append(text + _rounded_down(own["threshold"]) if reached else None)
        rows.append([*cells, *texts])
    header = [f"correct of {percent(coverage, 0)}" for coverage in COVERAGES]
    header += [f"given for {percent(share, 0)} correct" for share in RIGHT_SHARES]
    return Table.of(["objective", "decoded by", *header], rows, title="Thresholds")


def _rounded_down(threshold: float) -> str:
    """Round a threshold down: rounding up would exclude answers with exactly this confidence."""
    return f"{Decimal(str(threshold)).quantize(Decimal('0.000001'), ROUND_FLOOR):f}"


def _bins(names: Sequence[str | Cell], entries: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return a table of the share of correct answers, with interval, for each confidence bin."""
    rows = []
    for name, entry in zip(names, entries, strict=True):
        cells = []
        for _, _, count, _, right in entry["reliability"]:
            share = None
            if count:
                low, high = (100 * end for end in share_interval(right, count))
                share = Quantity(value=100 * right, unit="%", low=low, high=high)
            cells.append(Cell(content=share, note=f"of {count:,}" if count else ""))
        rows.append([name, *cells])
    bins = entries[0]["reliability"]
    header = [f"{number(low)} to {number(high)}" for low, high, *_ in bins]
    return Table.of(["confidence", *header], rows, title=title)


def run_confidence_section(
    results: Mapping[str, Mapping[str, Any]], calibrations: Mapping[str, Calibration]
) -> Section | None:
    """Return the section on the confidences of one run, before and after calibration."""
    entries: dict[str, Mapping[str, Any]] = {}
    for rule, own in results.items():
        if found := own.get("calibration"):
            if "raw" in found:
                entries[f"{rule}, test rows, before calibration"] = found["raw"]
            entries[f"{rule}, test rows" + ", calibrated" * ("raw" in found)] = found
    for rule, fitted in calibrations.items():
        for name, entry in fitted.reliability.items():
            entries[f"{rule}, calibration rows, {name}"] = entry
    if not entries:
        return None
    text = (
        "A confidence is the probability that the model assigns to its answer being correct. The "
        "gap is the mean confidence minus the share correct, with its 95% interval over rows: "
        "above 0, the model is overconfident. The command calibrate fits maps from confidences to "
        "shares; on the calibration rows, each map is evaluated on held-out folds. The intervals "
        "of the shares in the bins assume independent answers."
    )
    return Section.of(
        "confidence",
        "Confidence",
        note(text),
        _calibrations(["answers"], [([name], entry) for name, entry in entries.items()]),
        _bins([*entries], [*entries.values()], "Correct by confidence"),
    )


def calibration_text(found: Calibration) -> str:
    """Format for a terminal the gap before and after calibration, on held-out folds."""
    what = "objects" if found.per_object else "answers"
    lines = [
        f"{found.reliability[RAW]['count']:,} {what} to {found.rows:,} rows, decoded by "
        f"{found.rule} (correct: {found.correct}); each map is fitted without the fifth of the "
        "rows that it is judged on"
    ]
    if found.left_out:
        text = f"{found.left_out:,} rows are left out: training or test questions of the run"
        if found.left_out > found.rows / 4:
            text += "; the others may be harder than those that you will ask"
        lines.append(text)
    rows = [
        ([name + " (applied)" * (name == found.applied)], own)
        for name, own in found.reliability.items()
    ]
    table = _calibrations(["map"], rows, f"Calibration, decoded by {found.rule}")
    return "\n".join([*lines, table.to_terminal(indent=2)])
