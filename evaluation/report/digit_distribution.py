"""Report section on the probabilities of digits, by their difference from the correct digit.

At each digit of a correct answer, the model predicts the probabilities of the digits 0 to 9. The
chart shows, for example, the mean probability of a digit that is too large by 1. The file
``digits.json`` of a run stores these means. The chart follows the NTL paper (arXiv 2411.02083).
"""

import math
from collections.abc import Mapping, Sequence

from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.charts import Axis, figure, line_chart, styled_line
from mm_numeric.evaluation.report.learning_curves import seed_lines
from mm_numeric.evaluation.report.page import Block, Section, fold, group, note
from mm_numeric.evaluation.report.results import Comparison, Styles
from mm_numeric.evaluation.table import Table, number, percent
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.runs.folder import DIGITS

_FLOOR = 1e-5  # smaller probabilities are drawn at the bottom of the chart
_DIFFERENCES = range(-9, 10)

Means = list[float | None]
"""19 mean probabilities: ``means[i]`` is for digits that are i - 9 above the correct digit."""


def read_digits(comparison: Comparison) -> dict[str, list[Means]]:
    """Read the mean digit probabilities from the ``digits.json`` of each run, by objective."""
    found: dict[str, list[Means]] = {}
    for run in comparison.summary["runs"]:
        path = comparison.folder / run["folder"] / DIGITS
        if run["objective"] not in comparison.styles or not path.is_file():
            continue
        with stored_content(path, "delete it, and compare again"):
            means = read_json(path)["means"]
            if any(mean is not None for mean in means):
                found.setdefault(run["objective"], []).append(means)
    return found


def digits_section(comparison: Comparison, styles: Styles) -> Section | None:
    """Return the section on predicted digit probabilities; None if no run has a digits.json."""
    found = read_digits(comparison)
    seeds = {name: found[name] for name in styles if name in found}
    if not seeds:
        return None
    text = (
        "The probabilities of the ten digits at each digit of the correct answers of the test "
        "rows, given the digits before it. A value is the mean probability of the digit at this "
        "distance from the correct one, over the positions where such a digit exists. The axis is "
        f"logarithmic and ends at {100 * _FLOOR:g}%. Bold: mean over seeds; thin: single seeds."
    )
    means = {name: _mean_of_seeds(own) for name, own in seeds.items()}
    header = ["digit minus the correct one", *(styles[name].cell() for name in means)]
    rows = [
        [
            f"{difference:+d}" if difference else "0",
            *(percent(p, 1 if p is None or p >= 0.01 else 3) for p in row),
        ]
        for difference, row in zip(_DIFFERENCES, zip(*means.values(), strict=True), strict=True)
    ]
    chart = group("panels", [_chart(styles, seeds, means)])
    table = fold(
        "The same in numbers", [Table.of(header, rows, title="Mean probability of a digit")]
    )
    legend = charts.legend(styles[name] for name in seeds)
    return Section.of("digits", "Digit probabilities", note(text), legend, chart, table)


def _mean_of_seeds(seeds: Sequence[Means]) -> Means:
    means: Means = []
    for column in zip(*seeds, strict=True):
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def _chart(
    styles: Styles, seeds: Mapping[str, Sequence[Means]], means: Mapping[str, Means]
) -> Block:
    thin, bold = [], []
    for name in reversed(list(seeds)):
        if len(seeds[name]) > 1:
            thin += seed_lines(styles[name], [_points(own) for own in seeds[name]])
        bold.append(styled_line(styles[name], _points(means[name])))
    floor = math.floor(min(y for line in (*thin, *bold) for _, y in line.points))
    ticks = [(float(power), f"{100 * 10.0**power:g}%") for power in range(floor, 1)]
    across = [(float(d), number(d, 0, sign=True)) for d in range(-9, 10, 3)]
    chart = line_chart(
        [*thin, *bold],
        Axis(low=-9.3, high=9.3, ticks=across, label="digit minus the correct one"),
        Axis(low=floor - 0.1, high=0.12, ticks=ticks, value=lambda at: 10**at),
        description=f"Mean probability by distance from the correct digit for {', '.join(seeds)}; "
        "the table has the numbers.",
        height=260,
    )
    return figure(chart)


def _points(means: Means) -> list[tuple[float, float]]:
    pairs = zip(_DIFFERENCES, means, strict=True)
    return [(float(d), math.log10(max(m, _FLOOR))) for d, m in pairs if m is not None]
