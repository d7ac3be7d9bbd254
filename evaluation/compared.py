"""What a comparison has written into its folder, read back and checked."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMPARE_AGAIN = "Run `mm-numeric compare` to write it."


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
    tables = {**summary["table"], "warm start": summary.get("warm_start") or {}}
    for name, cells in tables.items():
        for metric, cell in cells.items():
            cells[metric] = _checked_cell(cell, f"{path}, table, {name}, {metric}")
    filled: dict[str, Any] = {"description": "", "control": None, "warm_start": None}
    filled |= {"facts": {}, "runs": []}
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
