"""The chapters of a report on numbers in text: how far off, where, and the answers themselves.

Rows     as ``scores.jsonl`` has them: id, target, text, parsed, reason, and of the scorer exact,
         absolute_error, relative_error, nonzero and log_error; prompt and buckets where there
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics.numbers import digit_count
from mm_numeric.evaluation.report.charts import Axis, Line, Mark, bar_table, line_chart, who
from mm_numeric.evaluation.report.clock_gallery import Row, Scores, pool
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
    percent,
    plain,
)
from mm_numeric.evaluation.report.results import COMPARE_AGAIN

COLUMNS = ("exact", "absolute_error", "relative_error", "nonzero", "log_error")
WITHIN = {"exact": 0.0, "up to 1% off": 0.01, "up to 10%": 0.1, "up to 50%": 0.5}
WORST, SPREAD = 8, 8
_CSS = """
table.asked td { font-variant-numeric: tabular-nums; }
table.asked th { max-width: 34ch; font-weight: 400; }
table.asked .wrong { color: var(--read); } table.asked .unread { color: var(--soft); }
"""

Found = tuple[str, str]
"""The same, as HTML and as Markdown."""


def sections(folder: Path, marks: Mapping[str, Mark], scores: Scores) -> list[Section]:
    """Return the chapters; none if no answer was scored.

    Raises:
        ValueError: If a row lacks its columns.
    """
    for (name, seed), rows in scores.items():
        if any(not isinstance(row.get(c), int | float) for row in rows for c in COLUMNS):
            where = f"{folder}, scores.jsonl of {name}, seed {seed}"
            raise ValueError(f"{where}: a row has not all of {', '.join(COLUMNS)}. {COMPARE_AGAIN}")
    pooled = pool(marks, scores)
    if not pooled:
        return []
    return [errors_section(marks, pooled), buckets_section(marks, pooled), asked(marks, scores)]


def errors_section(marks: Mapping[str, Mark], pooled: Mapping[str, Sequence[Row]]) -> Section:
    """Write how many answers are how far off, in shares of the true number."""
    shares = {name: _shares(rows) for name, rows in pooled.items()}
    names = [*WITHIN, "farther off", "unreadable"]
    note = (
        "Shares of the true number, all seeds together; where it is 0 every wrong answer is "
        "farther off. The curve shows answers that are off by at most so much."
    )
    html = (
        f'<p class="note">{note}</p><figure class="panels wide">{_curves(marks, pooled)}</figure>'
        + bar_table("the answer is", names, marks, shares)
    )
    twin = markdown_table(
        ["the answer is", *map(markdown_name, shares)],
        [[label, *(percent(s[i]) for s in shares.values())] for i, label in enumerate(names)],
    )
    return Section(anchor="errors", title="How far off", html=html, markdown=f"{note}\n\n{twin}")


def _shares(rows: Sequence[Row]) -> list[float]:
    """Return the share of answers in each range of ``WITHIN``, farther off, and unreadable."""
    counts = [0] * (len(WITHIN) + 2)
    for row in rows:
        if row["parsed"] is None:
            counts[-1] += 1
        elif row["exact"]:
            counts[0] += 1
        else:
            apart = row["relative_error"] if row["nonzero"] else math.inf
            place = (i for i, limit in enumerate(WITHIN.values()) if i and apart <= limit)
            counts[next(place, len(WITHIN))] += 1
    return [count / len(rows) for count in counts]


def _curves(marks: Mapping[str, Mark], pooled: Mapping[str, Sequence[Row]]) -> str:
    """Draw the share of answers with an error of at most so much, errors on a logarithmic axis."""
    errors = {
        name: sorted(math.log10(1 + row["absolute_error"]) for row in rows if row["parsed"])
        for name, rows in pooled.items()
    }
    end = max(1, math.ceil(max((e[-1] for e in errors.values() if e), default=1)))
    end = min(end, 12)  # beyond it answers are no better for being nearer
    lines = []
    for name, found in errors.items():
        steps = [end * step / 120 for step in range(121)]
        points = [(s, sum(e <= s + 1e-9 for e in found) / len(pooled[name])) for s in steps]
        mark = marks[name]
        lines.append(Line(points=points, colour=mark.colour, dash=mark.dash, width=2.2))
    ticks = [(0.0, "0"), *((math.log10(1 + 10**k), f"{10**k:,}") for k in range(end))]
    return line_chart(
        lines[::-1],
        Axis(low=0, high=end, ticks=ticks, label="off by at most"),
        Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)]),
        spoken="Share of answers that are off by at most so much, a curve for each objective.",
        width=460,
        height=290,
    )


def buckets_section(marks: Mapping[str, Mark], pooled: Mapping[str, Sequence[Row]]) -> Section:
    """Write the share of right answers by what rows say of themselves, and by digits."""
    tables = []
    for kind, labels in _buckets(next(iter(pooled.values()))).items():
        shares = {
            name: [
                _mean([row["exact"] for row in rows if _label(row, kind) == label])
                for label in labels
            ]
            for name, rows in pooled.items()
        }
        names = [f"{label} ({count:,})" for label, count in labels.items()]
        html = bar_table(kind, names, marks, shares)
        twin = markdown_table(
            [markdown_text(kind, 60), *map(markdown_name, shares)],
            [
                [markdown_text(label, 60), *(percent(s[i]) for s in shares.values())]
                for i, label in enumerate(names)
            ],
        )
        tables.append((html, twin))
    note = "Right answers, all seeds together; in brackets the rows that were asked of, all seeds."
    return Section(
        anchor="buckets",
        title="Where they are right",
        html=f'<p class="note">{note}</p>' + "".join(html for html, _ in tables),
        markdown="\n\n".join([note, *(twin for _, twin in tables)]),
    )


def _buckets(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Return each way to sort the rows, and how many are in each of its buckets."""
    kinds = dict.fromkeys(kind for row in rows for kind in row.get("buckets") or {})
    found: dict[str, dict[str, int]] = {}
    for kind in (*kinds, "digits"):
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            counts[_label(row, kind)] += 1
        order = sorted(
            counts, key=lambda label: (len(label), label) if kind == "digits" else (0, label)
        )
        found[kind] = {label: counts[label] for label in order}
    return found


def _label(row: Row, kind: str) -> str:
    if kind == "digits":
        return digit_count(Number(str(row["target"])))
    return str((row.get("buckets") or {}).get(kind, "none"))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def asked(marks: Mapping[str, Mark], scores: Scores) -> Section:
    """Write questions with what was answered: the worst, and some spread over the rest."""
    seed = min(seed for _, seed in scores)
    by_id: dict[str, dict[str, Row]] = defaultdict(dict)
    errors: dict[str, list[float]] = defaultdict(list)
    for (name, own), rows in scores.items():
        for row in rows:
            errors[str(row["id"])].append(float(row["log_error"]))
            if own == seed:
                by_id[str(row["id"])][name] = row
    order = sorted(by_id, key=lambda id_: (-fmean(errors[id_]), id_))
    worst, rest = order[:WORST], order[WORST:]
    count = min(SPREAD, len(rest))
    spread = [rest[len(rest) * (k + 1) // count - 1] for k in range(count)]
    names = [name for name in marks if any(name in found for found in by_id.values())]
    body, twin = [], []
    for id_ in worst + spread:
        row = next(iter(by_id[id_].values()))
        question, target = plain(row.get("prompt") or id_, 160), plain(row["target"], 40)
        cells = [_answer(by_id[id_].get(name)) for name in names]
        body.append(
            f"<tr><th>{html_text(question, 160)}</th><td>{html_text(target, 40)}</td>"
            + "".join(html for html, _ in cells)
            + "</tr>"
        )
        twin.append(
            [markdown_text(question, 160), markdown_text(target, 40), *(t for _, t in cells)]
        )
    intro = (
        f"The {len(worst)} worst of {len(order):,}, by the mean error over objectives and seeds "
        f"(as sign log10(1 + abs)), and {len(spread)} spread evenly over the rest. The answers are "
        f"those of seed {seed}; in quotes what could not be read."
    )
    html = html_table(["question", "true", *(who(marks[n]) for n in names)], "".join(body), "asked")
    return Section(
        anchor="questions",
        title="Questions and answers",
        html=f"<p>{intro}</p>{html}",
        markdown=f"{intro}\n\n"
        + markdown_table(["question", "true", *map(markdown_name, names)], twin),
        css=_CSS,
    )


def _answer(row: Row | None) -> Found:
    """Write what was answered."""
    if row is None:
        return f"<td>{NOTHING}</td>", NOTHING
    if row["parsed"] is None:
        words = f"“{plain(row['text'], 40)}”"
        return f'<td class="unread">{html_text(words, 60)}</td>', markdown_text(words, 60)
    words, kind = plain(row["parsed"], 40), "right" if row["exact"] else "wrong"
    text = markdown_text(words, 60)
    return f'<td class="{kind}">{html_text(words, 60)}</td>', f"**{text}**" if row[
        "exact"
    ] else text
