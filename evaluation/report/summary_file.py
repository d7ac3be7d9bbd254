"""Read and validate summary.json, which ``compare`` writes, and JSON Lines files of a run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mm_numeric.io.files import stored_content
from mm_numeric.runs.results import check_version

SUMMARY = "summary.json"

COMPARE_AGAIN = "Run `mm-numeric compare` to write it."

_KEYS = (
    "description", "control", "references", "axes", "rows", "rows_due", "warm_start",
    "other_warm_starts", "decoding", "hypotheses", "calibration", "tuning", "facts", "runs",
)  # fmt: skip


def read_summary(folder: Path) -> dict[str, Any]:
    """Read and validate ``summary.json`` in the folder of a comparison."""
    path = folder / SUMMARY
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file. {COMPARE_AGAIN}")
    # The only NaN are missing numbers.
    with stored_content(path):
        text = path.read_text("utf-8")
    try:
        summary = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}). {COMPARE_AGAIN}") from error
    if isinstance(summary, dict):
        check_version(summary, path, "run `mm-numeric compare` again to write it")
    problem = _problem(summary)
    if problem:
        raise ValueError(f"{path}{problem}. {COMPARE_AGAIN}")
    optional = ("decoding", "ensembles", "calibration", "tuning", "guesses")
    summary |= {name: summary.get(name) or {} for name in optional}
    found: dict[tuple[str, ...], dict[str, Any]] = {
        ("table", name): cells for name, cells in summary["table"].items()
    }
    found["table", "warm start"] = summary["warm_start"] or {}
    found |= {("table", name): cells for name, cells in summary["other_warm_starts"].items()}
    for kind in ("decoding", "ensembles"):
        for name, rules in summary[kind].items():
            found |= {(kind, name, rule): cells for rule, cells in rules.items()}
    for index, own in enumerate(summary["hypotheses"]):
        where = f"{path}, hypotheses.{index}"
        own["difference"] = _checked_cell(own["difference"], where)
    for keys, cells in found.items():
        for metric, cell in cells.items():
            cells[metric] = _checked_cell(cell, ", ".join((str(path), *keys, metric)))
    return dict(summary)


def _problem(summary: Any) -> str | None:
    """Describe the first invalid entry of summary.json for an error message, or return None."""
    if not isinstance(summary, dict):
        return f": expected a mapping, found a {type(summary).__name__}"
    missing = [name for name in _KEYS if name not in summary]
    if missing:
        return f": {', '.join(missing)} missing"
    kinds = {"title": str, "task": str, "baseline": str, "objectives": list, "seeds": list}
    kinds |= {"metrics": list, "table": dict}
    for name, kind in kinds.items():
        found = summary.get(name)
        if not isinstance(found, kind) or not found:
            return f", {name}: expected a non-empty {kind.__name__}, found {found!r}"
    for name in summary["objectives"]:
        if not isinstance(summary["table"].get(name), dict):
            return f", table: no row for the objective {name!r}"
    for index, run in enumerate(summary["runs"]):
        if not {"objective", "seed", "folder", "warm_start"} <= set(run):
            return f", runs.{index}: expected objective, seed, folder, warm_start, found {run!r}"
    if summary["baseline"] not in summary["objectives"]:
        known, found = ", ".join(map(str, summary["objectives"])), summary["baseline"]
        return f", baseline: expected one of the objectives ({known}), found {found!r}"
    return None


def _checked_cell(cell: Any, where: str) -> dict[str, Any] | None:
    """Validate a value and its interval in summary.json; return None without a value.

    If low and high are null, they are removed: too few resamples of the rows had a value.
    """
    if cell is None or (isinstance(cell, dict) and cell.get("value") is None):
        return None
    keys = ["value", "low", "high"]
    if isinstance(cell, dict) and all(key in cell and cell[key] is None for key in keys[1:]):
        cell = {key: value for key, value in cell.items() if key not in keys[1:]}
        keys = ["value"]
    ends = [cell.get(key) for key in keys] if isinstance(cell, dict) else [None]
    if not all(isinstance(end, int | float) for end in ends):
        raise ValueError(f"{where}: expected value, low and high, found {cell!r}. {COMPARE_AGAIN}")
    return {
        **cell,
        "seeds": [value for value in cell.get("seeds") or [] if value is not None],
        **{
            key: _checked_cell(cell.get(key), f"{where}, {key}")
            for key in ("difference", "from_reference")
        },
    }


def read_lines(
    path: Path, required: Iterable[str] = (), *, cure: str = COMPARE_AGAIN
) -> list[dict[str, Any]]:
    """Read a JSON Lines file whose rows have the keys ``required``; [] if it does not exist.

    A last line without a line break is omitted if it is not JSON: a run may be writing it. ``cure``
    ends the error messages.
    """
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open(encoding="utf-8") as lines, stored_content(path):
        for index, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {index}"
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                if isinstance(error, ValueError) and not line.endswith("\n"):
                    break
                raise ValueError(f"{where}: not JSON ({error}). {cure}") from error
            if not isinstance(rows[-1], dict):
                raise ValueError(f"{where}: expected an object, found {rows[-1]!r:.40}.")
            missing = [name for name in required if name not in rows[-1]]
            if missing:
                raise ValueError(f"{where}: {', '.join(missing)} missing. {cure}")
    return rows
