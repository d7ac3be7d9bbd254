"""``mm-numeric labels``: how good the labels of a data set are, and which ones to look at."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from mm_numeric.io.files import write_text
from mm_numeric.io.log import show

if TYPE_CHECKING:
    from mm_numeric.evaluation.answers.source import PreparedRows
    from mm_numeric.tasks.base import Task

_OF_RUN = ("folds", "decode", "keep", "worst", "images", "trust_remote_code")
_OF_AGAIN = ("task", "config", "option", "same_care")


def labels(arguments: argparse.Namespace) -> None:
    """Rank the labels of rows, or print their errors and advice from a second labelling."""
    if (arguments.run is None) == (arguments.again is None):
        raise ValueError(
            "labels: name a run that was not trained on the rows of --data, to rank their labels, "
            "or a second labelling with --again; one of both."
        )
    others = _OF_AGAIN if arguments.again is None else _OF_RUN
    for name in others:
        if getattr(arguments, name) not in (None, False):
            form = "--again FILE" if arguments.again is None else "RUN"
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is an option of `mm-numeric labels {form}`; remove it.")
    if arguments.again is None:
        from mm_numeric.cli.rank_labels import rank

        rank(arguments)
        return
    from mm_numeric.labels.again import compare_labels, read_pairs

    task, files = _read_task(arguments)
    pairs = read_pairs(task, *files)
    found = compare_labels(pairs, log=arguments.log, same_care=arguments.same_care)
    if arguments.out:
        rows = found.different_rows(task)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(arguments.out, "".join(json.dumps(row) + "\n" for row in rows))
    show(found.text(task))


def _read_task(arguments: argparse.Namespace) -> "tuple[Task, list[PreparedRows]]":
    from mm_numeric.evaluation.answers.source import PreparedRows, read_task
    from mm_numeric.settings import with_override

    options: dict[str, Any] = {}
    for option in arguments.option or ():
        options = with_override(options, option)
    paths = arguments.data, arguments.again
    files = [PreparedRows(path=path, options=options) for path in paths]
    if arguments.config is None:
        return read_task(files[0], arguments.task)[1], files
    from mm_numeric.config.reader import read_config

    overrides = [f"task.{option}" for option in arguments.option or ()]
    return read_config(arguments.config, overrides).task, files
