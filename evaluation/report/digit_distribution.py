"""The mean predicted digit distribution around the right digit, from the digits.json of the runs.

Figure of NTL (arXiv 2411.02083); ``mm_numeric.inference.digit_distribution`` writes the files.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mm_numeric.evaluation.report.charts import Axis, Line, Mark, legend, line_chart, who
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    number,
)
from mm_numeric.evaluation.report.results import COMPARE_AGAIN, Comparison
from mm_numeric.run_folder import DIGITS

_LEAST = 1e-5  # what is less probable is drawn at the foot of the chart
_DIFFERENCES = range(-9, 10)

Means = list[float | None]
"""By difference, from -9 to 9."""


def read_beliefs(comparison: Comparison) -> dict[str, list[Means]]:
    """Return, by row, the mean probabilities of each seed; rows without digits are left out."""
    found: dict[str, list[Means]] = {}
    for run in comparison.summary["runs"]:
        path = comparison.folder / run["folder"] / DIGITS
        if run["objective"] not in comparison.marks or not path.is_file():
            continue
        try:
            means = json.loads(path.read_text(encoding="utf-8"))["means"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: damaged ({error!r}); delete it. {COMPARE_AGAIN}") from error
        if any(mean is not None for mean in means):
            found.setdefault(run["objective"], []).append(means)
    return found


def mean_of_seeds(seeds: Sequence[Means]) -> Means:
    """Return the mean over the seeds that have one, by difference."""
    means: Means = []
    for column in zip(*seeds, strict=True):
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def beliefs_section(comparison: Comparison, marks: Mapping[str, Mark]) -> Section | None:
    """Write the chapter, None where no run has looked at digits."""
    found = read_beliefs(comparison)
    rows = {name: found[name] for name in marks if name in found}
    if not rows:
        return None
    note = (
        "What the models believe of each digit of the right answers of the test rows, when they "
        "are given the digits before it: the mean probability, among the ten digits, of the digit "
        "that is so far from the right one, over the digits where there is one. The axis is "
        f"logarithmic; what is below {100 * _LEAST:g}% is drawn there. Bold: mean over seeds; "
        "thin: single seeds."
    )
    means = {name: mean_of_seeds(seeds) for name, seeds in rows.items()}
    header = ["digit minus the right one", *(f"{d:+d}" if d else "0" for d in _DIFFERENCES)]
    cells = {name: [_written(value) for value in row] for name, row in means.items()}
    body = "".join(
        f"<tr><th>{who(marks[name])}</th>{''.join(f'<td>{c}</td>' for c in row)}</tr>"
        for name, row in cells.items()
    )
    table = html_table(map(html_text, header), body)
    twin = markdown_table(header, [[markdown_name(name), *row] for name, row in cells.items()])
    return Section(
        anchor="digits",
        title="What is believed of a digit",
        html=f'<p class="note">{html_text(note, 600)}</p>{legend(marks, list(rows))}'
        f'<div class="panels">{_chart(marks, rows, means)}</div>'
        f"<details><summary>The same in numbers</summary>{table}</details>",
        markdown=f"{note}\n\n{twin}",
    )


def _written(value: float | None) -> str:
    """Write a probability in percent, with more digits where there is little."""
    if value is None:
        return NOTHING
    return number(100 * value, 1 if value >= 0.01 else 3) + "%"


def _chart(
    marks: Mapping[str, Mark], rows: Mapping[str, Sequence[Means]], means: Mapping[str, Means]
) -> str:
    thin, bold = [], []
    for name in reversed(list(rows)):
        mark = marks[name]
        if len(rows[name]) > 1:
            thin += [
                Line(points=_points(seed), colour=mark.colour, width=1, opacity=0.28)
                for seed in rows[name]
            ]
        points = _points(means[name])
        bold.append(Line(points=points, colour=mark.colour, width=2.2, dash=mark.dash))
    floor = math.floor(min(y for line in (*thin, *bold) for _, y in line.points))
    ticks = [(float(power), f"{100 * 10.0**power:g}%") for power in range(floor, 1)]
    across = [
        (float(d), f"{d:+d}".replace("-", "\N{MINUS SIGN}") if d else "0") for d in range(-9, 10, 3)
    ]
    chart = line_chart(
        [*thin, *bold],
        Axis(low=-9.3, high=9.3, ticks=across, label="digit minus the right one"),
        Axis(low=floor - 0.1, high=0.12, ticks=ticks),
        spoken=f"Mean probability by distance from the right digit for {', '.join(rows)}; the "
        "table has the numbers.",
        height=260,
    )
    return f"<figure>{chart}</figure>"


def _points(means: Means) -> list[tuple[float, float]]:
    pairs: list[tuple[int, Any]] = list(zip(_DIFFERENCES, means, strict=True))
    return [(float(d), math.log10(max(m, _LEAST))) for d, m in pairs if m is not None]
