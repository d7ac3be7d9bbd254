"""Write a section of results.json, and format scores as a table for a terminal.

``mm_numeric.runs.results_file`` describes the format of results.json.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.scores import Scores, finite
from mm_numeric.evaluation.table import Cell, Column, Table
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.escaping import plain
from mm_numeric.registry import PROTOCOLS
from mm_numeric.runs.results_file import ProtocolResults, rows_text, scores_path

MOST_LABELS_SHOWN = 20
"""With more labels, a terminal shows none of their scores, a report only the most frequent ones."""

_LABEL_COUNTS = ("name", "truths", "detections")
LABEL_COLUMNS = {
    "truths": "truths", "detections": "detections", "f1_at_0.5": "F1@0.5", "ap": "AP"
}  # fmt: skip
"""Maps the values of a label that are shown to their names."""


def write_rows(
    parts: Iterable[Sequence[Mapping[str, Any]]],
    predictions: Path,
    protocol: str,
    folder: Path | None,
) -> None:
    """Write the file scores.jsonl of a protocol part by part; an error in a part leaves no file."""
    parts = iter(parts)
    first = next(parts)
    path = scores_path(predictions, protocol, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for rows in chain([first], parts):
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def section_of(scores: Scores) -> ProtocolResults:
    """Return the section of results.json for a predictions file under one protocol."""
    values = scores.metrics()
    metrics = {
        m.name: {
            **values[m.name],
            "label": m.label,
            "unit": m.unit,
            "higher_is_better": m.higher_is_better,
        }
        for m, _ in scores.metrics_on_rows
    }
    return {
        **scores.source,
        "rows": scores.count,
        "rows_due": scores.rows_due,
        "groups": scores.group_count,
        "rules": {
            **scores.scorer.protocols,
            **(scores.scorer.ranked.protocol if scores.scorer.ranked and scores.ranking else {}),
            **({"answer": dict(scores.text_rules)} if scores.text_rules else {}),
        },
        "counts": scores.counts(),
        "metrics": metrics,
        "guesses": scores.guesses,
        **(scores.coverage.results() if scores.coverage else {}),
        **({"calibration": scores.confidences.results()} if scores.confidences else {}),
        **({"labels": label_entries(scores.label_rows())} if scores.has_labels else {}),
        "failures": dict(scores.failures),
        "buckets": scores.buckets(),
    }


def label_entries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Format the counts and metrics of each label as entries of results.json."""
    return [
        {
            **{name: row[name] for name in _LABEL_COUNTS if name in row},
            "metrics": {
                name: {"value": None if value is None else finite(value)}
                for name, value in row.items()
                if name not in _LABEL_COUNTS
            },
        }
        for row in rows
    ]


def results_table(scores: Scores) -> str:
    """Format metrics, counts, guesses, labels, confidences and parse failures for a terminal."""
    metrics = {metric.name: metric for metric, _ in scores.metrics_on_rows}
    what = "protocol" if scores.task in PROTOCOLS else "task"
    number = rows_text(scores.count, scores.rows_due)
    drawn = drawn_units(scores.count, scores.group_count)
    lines = [f"{number}, {what} {scores.task}; 95 % bootstrap intervals over {drawn}"]
    if counts := scores.counts():
        lines.append(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    if scores.coverage:
        lines.append(scores.coverage.line())
    rows, missing = [], []
    is_grouped = scores.group_count < scores.count
    reason = f"the rows do not differ{' or are one group' * is_grouped}"
    for name, found in scores.metrics().items():
        label, unit = metrics[name].label, metrics[name].unit
        value = in_unit(found["value"], unit)
        if found["value"] is None:
            missing.append(label)
        else:
            rows.append([label, value, interval_text(found, unit, reason)])
    if rows:
        lines.append(indented_table(rows))
    if missing:
        lines.append(f"metrics without a value: {'; '.join(map(plain, missing))}")
    if scores.text_rules:
        read = (f"{plain(rule)} {count:,}" for rule, count in scores.text_rules.items())
        lines.append(f"answers selected from a longer text: {', '.join(read)}")
    lines += guess_lines(scores)
    lines += label_lines(scores)
    if scores.confidences:
        lines.append(scores.confidences.line())
    if scores.failures:
        lines.append("answers that could not be parsed:")
        lines.append(indented_table([[r, str(count)] for r, count in scores.failures.items()]))
    return "\n".join(lines)


def guess_lines(scores: Scores) -> list[str]:
    """Return one line with the main metric of each kind of guess; [] without guesses."""
    metric = scores.metrics_on_rows[0][0]
    known = [
        f"{in_unit(value, metric.unit)} ({kind})"
        for kind, own in scores.guesses.items()
        if (value := own.get(metric.name)) is not None
    ]
    return [f"guessing has {metric.label} {', '.join(known)}"] if known else []


def label_lines(scores: Scores) -> list[str]:
    """Format the rules of AP and the scores of each label for a terminal; [] without labels."""
    rows = scores.label_rows()
    if not scores.has_labels:
        return []
    if scores.ranking is None:
        unranked = ", because it ranks objects by confidence, and all are equal or missing"
        other = " by this protocol; --protocol coco_ap computes it"
        lines = [f"AP: not computed{other if 'truth' in scores.source else unranked}"]
    else:
        lines = [f"AP by the rules of {scores.ranking.title}, of objects ranked by confidence"]
    if len(rows) > MOST_LABELS_SHOWN:
        lines.append(f"results.json has the scores of each of the {len(rows)} labels")
    elif rows:
        shown = [name for name in LABEL_COLUMNS if any(name in row for row in rows)]
        columns = [
            Column(header=Cell(content=header), min_width=8, align="right" if i else "left")
            for i, header in enumerate(["label", *(LABEL_COLUMNS[name] for name in shown)])
        ]
        cells = [
            [
                row["name"] or "(no label)",
                *(f"{row[n]:,}" if n in _LABEL_COUNTS else in_unit(row.get(n), "%") for n in shown),
            ]
            for row in rows
        ]
        lines.append(Table.of(columns, cells).to_terminal(indent=2))
    if scores.labels is not None and (found := similar_labels(rows)):
        named = (f"{plain(own)} (of {count:,} objects) for {plain(true)}"
                 for own, (true, count) in found.items())  # fmt: skip
        lines.append(f"labels that no row has and that count as wrong: {', '.join(named)}")
    return lines


def similar_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
    """Find predicted labels that differ from a true label only in case, plural, spaces or hyphens.

    Each of ``rows`` has the ``name`` of a label and its number of ``truths`` and ``detections``.
    Returns a dictionary: predicted label -> (similar true label, number of detections).
    """
    true: dict[str, str] = {}
    for row in rows:
        for form in _forms(row["name"]) if row["truths"] else ():
            true.setdefault(form, row["name"])
    found = {}
    for row in rows:
        near = next((true[form] for form in _forms(row["name"]) if form in true), None)
        if near is not None and row["detections"] and not row["truths"]:
            found[row["name"]] = (near, row["detections"])
    return found


def _forms(label: str) -> list[str]:
    """Return a label in lower case without spaces, "_" and "-", then its possible singulars."""
    bare = re.sub(r"[\s_-]+", "", label.casefold())
    endings = {"ies": "y", "es": "", "s": ""}
    return [bare, *(bare.removesuffix(end) + own for end, own in endings.items()
                    if bare.endswith(end) and bare != end)]  # fmt: skip


def indented_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of one to three cells as an indented table without a header."""
    columns = [
        Column(header=Cell(), align="left", min_width=28),
        Column(header=Cell(), min_width=8),
        Column(header=Cell(), align="left"),
    ]
    return Table.of(columns[: len(rows[0])], rows).to_terminal(header=False, indent=2)


def in_unit(value: float | None, unit: str) -> str:
    """Format a value with its unit: ``81.25 %``, ``3.46 min``, ``0.973``; ``-`` for None."""
    if value is None:
        return "-"
    if not unit:
        return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.2g}"
    shown = 100 * value if unit == "%" else value
    return f"{shown:.2f} {unit}" if abs(shown) < 1e6 else f"{shown:.2g} {unit}"


def interval_text(
    found: Mapping[str, float | None], unit: str, reason: str = "the rows do not differ"
) -> str:
    """Format the interval from ``low`` to ``high``, or the ``reason`` why there is no interval."""
    if found["low"] is None:
        return "" if found["value"] is None else f"no interval: {reason}"
    return f"{in_unit(found['low'], unit)} to {in_unit(found['high'], unit)}"


def drawn_units(rows: int, groups: int) -> str:
    """Name the units that a bootstrap draws: rows or, if some share an image, groups of rows."""
    if groups == rows:
        return "test rows"
    plural = "s" if groups > 1 else ""
    return f"{groups:,} group{plural} of test rows that share an image or a question"


def training_rows(count: int | None) -> str:
    """Format the number of training rows in run.json, which is null if they are streamed."""
    return "a stream" if count is None else f"{count:,}"
