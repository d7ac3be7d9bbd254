"""Let a distilled row start from the finished run of another row, if that is its teacher."""

import os
import shutil
from pathlib import Path

from mm_numeric.comparison.plan import training_settings
from mm_numeric.config.schema import Config
from mm_numeric.runs.folder import (
    FINISHED,
    LOG,
    MODEL,
    claim,
    read_run,
    stored_settings,
    write_config,
)
from mm_numeric.runs.trust import named_code
from mm_numeric.training.distil import teacher_of


def link_teacher(config: Config) -> None:
    """Make a finished run of the same seed the teacher of a run with ``distil``, if it is equal.

    A teacher is trained like a run without ``distil``. Such a run is often another row of the
    comparison, and training it again would give the same weights. Its files are hard links, or
    copies where the file system has no hard links. Nothing is done if there is no such run, or if
    the training of the teacher has begun.
    """
    teacher = teacher_of(config)
    if teacher.output_dir.exists():
        return
    for other in sorted(path.parent for path in config.output_dir.parent.glob(f"*/{FINISHED}")):
        if not _is_equal(other, teacher):
            continue
        claim(config.output_dir, config)
        unfinished = teacher.output_dir.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(other / MODEL, unfinished / MODEL, copy_function=_link)
        for name in (LOG, FINISHED):
            _link(other / name, unfinished / name)
        write_config(unfinished, teacher)
        unfinished.rename(teacher.output_dir)
        return


def _is_equal(folder: Path, teacher: Config) -> bool:
    """Return True if the run in a folder is trained like the teacher; False if it is unreadable."""
    try:
        # First, because reading a config imports the modules that it names.
        if named_code(stored_settings(folder)) != named_code(teacher.to_dict()):
            return False
        own = read_run(folder, trust_remote_code=True)
    except ValueError:
        return False
    return training_settings(own) == training_settings(teacher)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
