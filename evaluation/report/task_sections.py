"""The report sections that a task names in its attribute ``report_sections``."""

import warnings
from pathlib import Path

from mm_numeric.config.trust import FLAG
from mm_numeric.evaluation.report.results import Scores, Styles
from mm_numeric.evaluation.report.sections import Section
from mm_numeric.registry import REPORT_SECTIONS, TASKS, choose
from mm_numeric.run_folder import CONFIG, import_plugins, stored_settings
from mm_numeric.tasks.base import task_class


def may_import(name: str, file: Path, *, trust_remote_code: bool) -> bool:
    """Return True if the module of a task may be imported; otherwise warn and return False.

    ``name`` is the name of a built-in task, or an import path such as ``my_tasks:Thermometer`` in
    ``file``. A stored import path is imported only with ``trust_remote_code``, which also puts the
    folder ``plugins`` of the stored config on the import path.
    """
    if name in TASKS or ":" not in name:
        return True
    if trust_remote_code:
        if (file.parent / CONFIG).is_file():
            import_plugins(stored_settings(file.parent))
        return True
    warnings.warn(
        f"{file}: the task {name!r} is an import path, and a stored result may not import code. "
        f"The chapters of the task are left out; if you trust the module, add {FLAG}.",
        stacklevel=4,
    )
    return False


def task_sections(name: str, folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections of a task, by calling the functions in its ``report_sections``.

    If the module of the task cannot be imported, warn and return no sections.
    """
    try:
        names = task_class(name, "the report").report_sections
    except ValueError as error:
        warnings.warn(f"{error} The chapters of the task are left out.", stacklevel=4)
        return []
    functions = [
        choose(n, REPORT_SECTIONS, "report section", f"{name}.report_sections") for n in names
    ]
    return [section for write in functions for section in write(folder, styles, scores)]
