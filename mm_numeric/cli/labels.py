"""``mm-numeric labels``: how good the labels of a data set are."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_numeric.io.files import write_text
from mm_numeric.io.log import show

if TYPE_CHECKING:
    from mm_numeric.evaluation.answers.source import PreparedRows
    from mm_numeric.tasks.base import Task


def add_labels_options(labels: argparse.ArgumentParser) -> None:
    """Add the options of ``labels``."""
    labels.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="rows as .jsonl or .csv"
    )
    labels.add_argument(
        "--again",
        type=Path,
        required=True,
        metavar="FILE",
        help="rows of --data with a second label, 50 or more, with the same ids: estimate the "
        "errors of the labels in --data, and print which loss and rule fit them",
    )
    task = labels.add_mutually_exclusive_group()
    task.add_argument("--task", help="name of the task, such as clock, or an import path")
    task.add_argument("--config", metavar="CONFIG", help="config with the task, in place of --task")
    labels.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the task, such as shape=polygon; may be repeated",
    )
    labels.add_argument(
        "--log", action="store_true", help="compare numbers by their ratio, not their difference"
    )
    labels.add_argument(
        "--same-care",
        action="store_true",
        help="the second labels have errors of the same distribution; then the bias is unknown "
        "(default: the second labels are correct)",
    )
    labels.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=".jsonl file to write the rows with different labels to, the most different first",
    )


def labels(arguments: argparse.Namespace) -> None:
    """Compare the labels of rows with a second labelling, and print the errors and the advice."""
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
