"""Score the predictions of the runs of a comparison."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from mm_numeric.comparison.rows import ComparisonRow
from mm_numeric.comparison.tables import Runs
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.schema import Config
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.scores import Scores
from mm_numeric.runs.folder import PREDICTIONS, decoded_name
from mm_numeric.runs.results import PartialError, results_path


def read_runs(
    config: Config, entries: Sequence[ComparisonRow], folder: Path, *, partial: bool = False
) -> Runs:
    """Score the runs of all rows and then of their warm starts, each with the task of its row.

    Raises ValueError if runs answer different rows, or lack columns of the first one, or if those
    of equal tasks have different targets, or if answers are missing and ``partial`` is False.
    """
    assert config.compare is not None
    own = {row.name: (row.folder, row.config) for row in entries}
    for row in entries:
        own.setdefault(row.warm_start, (row.warm_start, row.config))
    runs: dict[tuple[str, str], list[Scores]] = {}
    known: dict[str, tuple[str, list[Any]]] = {}
    for (name, (run, trained)), rule, seed in product(
        own.items(), config.compare.decode, config.compare.seeds
    ):
        place, task = f"seed{seed}/{run}", trained.task
        scores = read_run_scores(folder / place, trained.task_name, rule=rule, partial=partial)
        runs.setdefault((name, rule), []).append(scores)
        first = runs[entries[0].name, GREEDY][0]
        if missing := sorted(first.columns.keys() - scores.columns.keys()):
            raise ValueError(
                f"{folder}: answers of {name} (task {scores.task}) have no {missing[0]}, and those "
                f"of {entries[0].name} (task {first.task}) have it; list {name} first, or compare "
                "it on its own."
            )
        # Another task may have other targets: boxes in place of polygons.
        for kind, key in (("id", "id"), ("target", repr(task))):
            asked = [row[kind] for row in scores.rows]
            before, others = known.setdefault(key, (place, asked))
            if asked != others:
                raise ValueError(
                    f"{folder}: {place} and {before} answer different rows, or rows with different "
                    "targets; delete the outdated runs, or of each of them predictions*, results* "
                    "and digits.json, and compare again."
                )
    return runs


def read_run_scores(
    folder: Path, task_name: str | None = None, *, rule: str = GREEDY, partial: bool = False
) -> Scores:
    """Score the predictions of one run, and sort the scored samples by id.

    ``task_name`` is the task to score with. If it is None, it is read from the predictions file.
    ``rule`` is the decoding rule of the predictions. Missing answers are an error without
    ``partial``.
    """
    predictions = folder / decoded_name(PREDICTIONS, rule)
    try:
        scores = score(predictions, task_name=task_name, partial=partial, write=False)
    except PartialError as error:
        cure = (
            f"{predictions} has no answer to the others; delete {results_path(predictions)} and "
            "run `mm-numeric compare` again to get them"
        )
        raise PartialError(error.counts, cure) from error
    order = sorted(range(len(scores.rows)), key=lambda i: scores.rows[i]["id"])
    return replace(
        scores,
        kept_rows=[scores.rows[i] for i in order],
        columns={name: values[order] for name, values in scores.columns.items()},
        groups=scores.groups[order],
        bucket_labels={},
        categories=[scores.categories[i] for i in order],
    )
