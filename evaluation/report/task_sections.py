"""The report sections that a task names in its attribute ``report_sections``."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from mm_numeric.evaluation.report.page import Section
from mm_numeric.evaluation.report.results import Scores, Styles
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose
from mm_numeric.runs.folder import CONFIG, import_plugins, stored_settings
from mm_numeric.runs.trust import FLAG
from mm_numeric.tasks.base import task_class

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors that are raised if a stored value has an unexpected type."""


def may_import(name: str, file: Path, *, trust_remote_code: bool) -> bool:
    """Return True if the module of a task may be imported; otherwise warn and return False.

    ``name``, read from ``file``, is a built-in task, or the import path of a task or a scorer, such
    as ``my_tasks:Compass``. An import path is only imported with ``trust_remote_code``. This also
    adds the folder ``plugins`` of the stored config to ``sys.path``.
    """
    if name in TASKS or ":" not in name:
        return True
    if trust_remote_code:
        if (file.parent / CONFIG).is_file():
            import_plugins(stored_settings(file.parent))
        return True
    warnings.warn(
        f"{file}: {name!r} is an import path, and a stored result may not import code. "
        f"The chapters of the task are left out; if you trust the module, add {FLAG}.",
        stacklevel=4,
    )
    return False


def task_sections(
    name: str, folder: Path, styles: Styles, scores: Scores, files: Mapping[tuple[str, int], Path]
) -> list[Section]:
    """Return the report sections of a task, by calling the functions in its ``report_sections``.

    If the module of the task cannot be imported, warn and return no sections. ``files`` has the
    path of each run's scores.jsonl: if a row cannot be displayed, the ValueError names the file.
    """
    try:
        names = task_class(name, "the report").report_sections
    except ValueError as error:
        warnings.warn(f"{error} The chapters of the task are left out.", stacklevel=4)
        return []
    functions = [
        choose(n, REPORT_SECTIONS, "report section", f"{name}.report_sections") for n in names
    ]

    def write(scores: Scores) -> list[Section]:
        return [section for write in functions for section in write(folder, styles, scores)]

    try:
        return write(scores)
    except _DAMAGED as error:
        for run, rows in scores.items():
            bad = (n for n, row in enumerate(rows, start=1) if _fails(write, {run: [row]}))
            if not _fails(write, {run: []}) and (number := next(bad, None)):
                reason = str(error) if isinstance(error, ValueError) else f"{error!r}"
                raise ValueError(
                    f"{files[run]}, line {number}: the row cannot be shown ({reason:.200}); "
                    "`mm-numeric score` writes the file again."
                ) from error
        own = [n for n in names if ":" in n]
        if own and not isinstance(error, ValueError):
            raise ValueError(f"{' or '.join(own)} fails with {error!r:.200}.") from error
        raise


def _fails(write: Callable[[Scores], object], scores: Scores) -> bool:
    try:
        write(scores)
    except _DAMAGED:
        return True
    return False
