"""Choose the best trial of each comparison row by its answers to ``compare.select_on``.

The run folder of a trial has these answers, or the reason why it failed, in ``selection/``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.comparison.rows import ComparisonRow, compared_rows
from mm_numeric.comparison.tables import headline_first
from mm_numeric.comparison.tune import Trial
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import Config, plain
from mm_numeric.evaluation.metrics.base import Metric, MetricOnRows
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.scores import finite
from mm_numeric.io.files import read_json, write_json
from mm_numeric.runs.folder import PREDICTIONS, RESULTS
from mm_numeric.runs.results_file import TASK, read_sections

SELECTION = "selection"
"""Folder in the run folder of a trial, with its answers to the rows of ``compare.select_on``."""

_SOURCE = "source.json"  # file in this folder: the data source of the rows
_FAILED = "failed.json"  # file in this folder: the reason why the trial could not be trained


def selected_on(folder: Path, source: DataSource) -> bool:
    """Return True if a folder is for answers to the rows of ``source``."""
    path = folder / _SOURCE
    return path.is_file() and _given(read_json(path)) == _given(plain(asdict(source)))


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are null, which a later release may add."""
    return {name: value for name, value in settings.items() if value is not None}


def write_source(folder: Path, source: DataSource) -> None:
    """Create the folder for answers to the rows of ``source``."""
    folder.mkdir(parents=True)
    write_json(folder / _SOURCE, plain(asdict(source)), indent=1)


def write_failure(folder: Path, reason: str) -> None:
    """Write the reason why a trial could not be trained into its folder for answers."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _FAILED, {"reason": reason}, indent=1)


def failure(folder: Path) -> str | None:
    """Return the reason why a trial could not be trained; None if it has not failed."""
    path = folder / _FAILED
    return str(read_json(path)["reason"]) if path.is_file() else None


@dataclass(frozen=True)
class SelectionResults:
    """The metrics of all trials on the rows of ``compare.select_on``."""

    metrics: Sequence[Metric]
    """The first metric is ``compare.metric`` or, if this is not set, the main metric of the task.
    If that is near its limit for all trials, it is the next metric that shows differences."""

    rows: int
    """Number of rows of ``compare.select_on``."""

    values: Mapping[str, NDArray[np.float64]]
    """Maps the name of a trial to its metrics, [seeds, metrics]; nan if undefined or failed."""

    failures: Mapping[str, str]
    """Maps the name of a trial that failed for some seed to this seed and the reason."""

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the trial with the best mean of the first metric over the seeds.

        Failed trials are excluded. The next metric decides between equal means, and so on; of equal
        trials, the first is chosen. Means are compared by 12 digits, because further digits depend
        on the order of the seeds.
        """
        signs = np.array([1 if metric.higher_is_better else -1 for metric in self.metrics])

        def goodness(trial: Trial) -> list[float]:
            means = signs * self.values[trial.name].mean(axis=0)
            rounded = [float(f"{mean:.12g}") for mean in means]
            return [-math.inf if math.isnan(mean) else mean for mean in rounded]

        return max((t for t in trials if t.name not in self.failures), key=goodness)


def read_selection(config: Config, rows: Sequence[ComparisonRow]) -> SelectionResults | None:
    """Read the results of all trials of a comparison.

    Returns None if nothing is tuned, or if a trial neither has results nor failed for some seed.
    Raises ValueError if all trials of a row failed.
    """
    seeds = config.comparison.tune_seeds
    if not config.comparison.tune:
        return None
    folders = {
        trial.name: [
            Path(config.comparison.output_dir) / f"seed{seed}" / trial.name / SELECTION
            for seed in seeds
        ]
        for row in rows
        for trial in row.trials
    }
    every = [folder for own in folders.values() for folder in own]
    source = config.comparison.select_on
    assert source is not None
    answered = [
        folder for folder in every if selected_on(folder, source) and (folder / RESULTS).is_file()
    ]
    failures = {
        name: f"seed {seed}: {reason}"
        for name, own in folders.items()
        for seed, folder in reversed(list(zip(seeds, own, strict=True)))
        if (reason := failure(folder)) is not None
    }
    if not all(folder in answered or failure(folder) is not None for folder in every):
        return None
    for row in rows:
        if all(trial.name in failures for trial in row.trials):
            reason = failures[row.trials[0].name]
            raise ValueError(
                f"compare.tune: all trials of {row.name} failed, the first one with {reason!r}; "
                "try other values in a new compare.output_dir."
            )
    scores = score(
        answered[0] / PREDICTIONS,
        task_name=config.task_name,
        scorer=config.task.scorer,
        write=False,
    )
    metrics = _ordered(scores.metrics_on_rows, folders, failures, config.comparison.metric)
    values = {
        name: np.array([_values(folder, metrics) for folder in own])
        for name, own in folders.items()
    }
    return SelectionResults(metrics, scores.count, values, failures)


def _ordered(
    reported: Sequence[MetricOnRows],
    folders: Mapping[str, Sequence[Path]],
    failures: Mapping[str, str],
    wanted: str | None,
) -> list[Metric]:
    """Return the metrics; the first one that can show differences between trials comes first.

    Metrics over other rows than the main metric, such as those of a small category, come last.
    """
    main_rows = reported[0].rows
    reported = sorted(reported, key=lambda own: own.rows is not main_rows)
    metrics = [metric for metric, _ in reported]
    trials = [
        np.mean([_values(folder, metrics) for folder in own], axis=0).tolist()
        for name, own in folders.items()
        if name not in failures
    ]
    names = [metric.name for metric in metrics]
    columns = zip(names, zip(*trials, strict=True), strict=True)
    return headline_first(
        reported, {name: [finite(m) for m in own] for name, own in columns}, wanted
    )


def _values(folder: Path, metrics: Sequence[Metric]) -> list[float]:
    if failure(folder) is not None:
        return [math.nan] * len(metrics)
    found = read_sections(folder / RESULTS, "delete it and compare again")[TASK]["metrics"]
    values = (found[metric.name]["value"] for metric in metrics)
    return [math.nan if value is None else float(value) for value in values]


def chosen_rows(config: Config) -> list[ComparisonRow]:
    """Return the rows of a comparison with the config and the settings of their chosen trials.

    Returns [] if settings are tuned and trials are unfinished.
    """
    rows = compared_rows(config)
    if not config.comparison.tune:
        return rows
    selection = read_selection(config, rows)
    if selection is None:
        return []
    best = [selection.best(row.trials) for row in rows]
    return [
        replace(row, config=trial.config, chosen=trial.settings)
        for row, trial in zip(rows, best, strict=True)
    ]
