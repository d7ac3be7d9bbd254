"""Read and validate summary.json, which ``compare`` writes, and JSON Lines files of a run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mm_numeric.io.files import read_json, stored_content
from mm_numeric.runs.results_file import check_version

SUMMARY = "summary.json"

COMPARE_AGAIN = "Run `mm-numeric compare` to write it."
DAMAGED = "run `mm-numeric compare` again to write it"


def read_summary(folder: Path) -> dict[str, Any]:
    """Read ``summary.json`` of a comparison; a table cell without a value becomes None."""
    path = folder / SUMMARY
    try:
        summary: dict[str, Any] = read_json(path)
    except ValueError as error:
        raise ValueError(f"{str(error).removesuffix('.')}; {DAMAGED}.") from error
    check_version(summary, path, DAMAGED)
    with stored_content(path, DAMAGED):
        optional = ("decoding", "ensembles", "calibration", "coverage", "tuning", "guesses")
        summary |= {name: summary.get(name) or {} for name in optional}
        cells = [*summary["table"].values(), summary["warm_start"] or {}]
        cells += summary["other_warm_starts"].values()
        for kind in ("decoding", "ensembles"):
            cells += (own for rules in summary[kind].values() for own in rules.values())
        for own in cells:
            own |= {metric: _known(cell) for metric, cell in own.items()}
        for own in summary["hypotheses"]:
            own["difference"] = _known(own["difference"])
        _ = summary["rows"], summary["rows_due"]
    return summary


def _known(cell: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a table cell without its null entries; None if ``value`` is null.

    ``low`` and ``high`` are null if the metric had a value on too few resamples of the rows.
    """
    if cell is None or cell["value"] is None:
        return None
    return {
        **{key: own for key, own in cell.items() if own is not None},
        "seeds": [value for value in cell.get("seeds") or [] if value is not None],
        "difference": _known(cell.get("difference")),
        "from_reference": _known(cell.get("from_reference")),
    }


def read_lines(
    path: Path, required: Iterable[str] = (), *, cure: str = COMPARE_AGAIN
) -> list[dict[str, Any]]:
    """Read a JSON Lines file whose rows have the keys ``required``; [] if it does not exist.

    A last line without a line break is omitted if it is not JSON, because a run may just be writing
    it. Error messages end with ``cure``, which says what the user can do.
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
