"""What a comparison has written into its folder, read back and checked."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.report.charts import Mark, choose_marks
from mm_numeric.evaluation.report.html import Metric
from mm_numeric.run_folder import LOG, RESULTS, SCORES, WARM_START

COMPARE_AGAIN = "Run `mm-numeric compare` to write it."

Row = dict[str, Any]
SCORED = ("id", "image", "target", "text", "parsed", "reason")
Runs = dict[tuple[str, int], list[Row]]  # by objective and seed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What ``summary.json`` says, checked."""

    folder: Path
    summary: Row
    metrics: Sequence[Metric]
    marks: Mapping[str, Mark]

    def cell(self, objective: str, metric: Metric) -> Row | None:
        """Return mean, low, high, seeds and difference, or ``None`` where there is no mean."""
        found: Row | None = self.summary["table"][objective].get(metric.name)
        return found

    def ranked(self) -> list[str]:
        """Return the objectives, best headline first, the control and those without it last."""
        metric = self.metrics[0]

        def key(name: str) -> tuple[bool, bool, float]:
            cell = self.cell(name, metric)
            mean = cell["mean"] if cell else 0.0
            worse = -mean if metric.higher_is_better else mean
            return name == self.summary["control"], cell is None, worse

        return sorted(self.marks, key=key)


def read_comparison(folder: Path) -> Comparison:
    """Read and check ``summary.json``, or say in one sentence what is wrong with it."""
    summary = read_summary(folder)
    try:
        metrics = [Metric(**metric) for metric in summary["metrics"]]
    except TypeError as error:
        raise ValueError(f"{folder / 'summary.json'}, metrics: {error}. {COMPARE_AGAIN}") from error
    marks = choose_marks(summary["objectives"], summary["baseline"], summary["control"])
    return Comparison(folder=folder, summary=summary, metrics=metrics, marks=marks)


def read_runs(comparison: Comparison) -> tuple[Runs, Runs, dict[str, Counter[str]]]:
    """Return logs and scores by objective and seed, and parse failures by objective."""
    logs: Runs = {}
    scores: Runs = {}
    failures: dict[str, Counter[str]] = {}
    for run in comparison.summary["runs"]:
        name, seed, folder = run["objective"], run["seed"], comparison.folder / run["folder"]
        if name not in comparison.marks:
            continue
        logs[name, seed] = read_lines(folder / LOG)
        scores[name, seed] = read_lines(folder / SCORES, SCORED)
        reasons = [row["reason"] for row in scores[name, seed] if row["parsed"] is None]
        failures.setdefault(name, Counter()).update(str(r or "unreadable") for r in reasons)
        results = folder / RESULTS
        if not scores[name, seed] and results.is_file():
            counted = json.loads(results.read_text(encoding="utf-8")).get("failures") or {}
            failures[name].update({str(reason): int(n) for reason, n in counted.items()})
    return logs, scores, failures


def read_starts(comparison: Comparison) -> Runs:
    """Return the log of the warm start that each row went on from, by row and seed."""
    starts: Runs = {}
    for run in comparison.summary["runs"]:
        if run["objective"] in comparison.marks:
            # where the summary does not say, there is only one
            own = run.get("warm_start", Path(run["folder"]).parent / WARM_START)
            starts[run["objective"], run["seed"]] = read_lines(comparison.folder / own / LOG)
    return starts


def read_summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json``, or say in one sentence what is wrong with it."""
    path = folder / "summary.json"
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file. {COMPARE_AGAIN}")
    try:
        text = path.read_text(encoding="utf-8")
        summary = json.loads(text, parse_constant=lambda _: None)  # NaN is a missing number
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}). {COMPARE_AGAIN}") from error
    if not isinstance(summary, dict):
        kind_found = type(summary).__name__
        raise ValueError(f"{path}: a {kind_found} where a mapping belongs. {COMPARE_AGAIN}")
    kinds = {"title": str, "task": str, "baseline": str, "objectives": list, "seeds": list}
    kinds |= {"metrics": list, "table": dict}
    for name, kind in kinds.items():
        found = summary.get(name)
        if not isinstance(found, kind) or not found:
            what = f"a filled {kind.__name__} belongs here, not {found!r}"
            raise ValueError(f"{path}, {name}: {what}. {COMPARE_AGAIN}")
    for name in summary["objectives"]:
        if not isinstance(summary["table"].get(name), dict):
            raise ValueError(f"{path}, table: no row for the objective {name!r}. {COMPARE_AGAIN}")
    for index, run in enumerate(summary.get("runs") or []):
        if not {"objective", "seed", "folder"} <= set(run):
            what = "objective, seed and folder belong here"
            raise ValueError(f"{path}, runs.{index}: {what}, not {run!r}. {COMPARE_AGAIN}")
    if summary["baseline"] not in summary["objectives"]:
        known = ", ".join(map(str, summary["objectives"]))
        what = f"{summary['baseline']!r} is none of the objectives ({known})"
        raise ValueError(f"{path}, baseline: {what}. {COMPARE_AGAIN}")
    others = summary.get("other_warm_starts") or {}
    tables = {**summary["table"], "warm start": summary.get("warm_start") or {}, **others}
    for name, cells in tables.items():
        for metric, cell in cells.items():
            cells[metric] = _checked_cell(cell, f"{path}, table, {name}, {metric}")
    filled: dict[str, Any] = {"description": "", "control": None, "warm_start": None}
    filled |= {"other_warm_starts": {}, "facts": {}, "runs": [], "published": None}
    return filled | {name: value for name, value in summary.items() if value is not None}


def _checked_cell(cell: Any, where: str) -> dict[str, Any] | None:
    """Return a cell whose numbers are there, or ``None`` if it has no mean."""
    if cell is None or (isinstance(cell, dict) and cell.get("mean") is None):
        return None
    ends = [cell.get(end) for end in ("mean", "low", "high")] if isinstance(cell, dict) else [None]
    if not all(isinstance(end, int | float) for end in ends):
        raise ValueError(f"{where}: mean, low and high belong here, not {cell!r}. {COMPARE_AGAIN}")
    return {
        **cell,
        "seeds": [value for value in cell.get("seeds") or [] if value is not None],
        "difference": _checked_cell(cell.get("difference"), f"{where}, difference"),
    }


def read_lines(path: Path, needed: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Read JSON lines and check their keys; a file that is not there has none."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open(encoding="utf-8") as lines:
        for index, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}, line {index}"
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{where}: not JSON ({error}). {COMPARE_AGAIN}") from error
                absent = [name for name in needed if name not in row]
                if absent:
                    what = f"there is no {' and no '.join(absent)}"
                    raise ValueError(f"{where}: {what}. {COMPARE_AGAIN}")
                rows.append(row)
    return rows
