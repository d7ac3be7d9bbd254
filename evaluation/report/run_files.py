"""Read the files of a single run for its report; all but config.yaml may be missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.report.results import SCORED, ReportedMetric, ScoredRow
from mm_numeric.evaluation.report.summary_file import read_lines
from mm_numeric.evaluation.report.task_sections import may_import
from mm_numeric.evaluation.score import read_scores, results_body
from mm_numeric.files import read_json
from mm_numeric.run_folder import (
    CONFIG,
    EVALUATION,
    FINISHED,
    LOG,
    PREDICTIONS,
    RESULTS,
    SCORES,
    decoded_name,
    stored_settings,
)

_SCORE_AGAIN = "Run `mm-numeric score` to write it."


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of a run, as far as they exist."""

    folder: Path
    settings: Mapping[str, Any]
    """The settings in config.yaml."""

    log: Sequence[Mapping[str, Any]]
    """The lines of log.jsonl."""

    finished: Mapping[str, Any] | None
    """run.json, which is written when training ends."""

    results: Mapping[str, Mapping[str, Any]]
    """Maps each decoding rule to its results.json; {} if nothing was scored."""

    rows: Sequence[ScoredRow]
    """The lines of scores.jsonl, decoded greedily if there are several rules."""

    during_training: bool
    """Whether the results are those of the last evaluation during training."""

    task_is_trusted: bool
    """Whether the module of the task may be imported."""

    @property
    def task(self) -> str:
        """Return the name or import path of the task."""
        return task_of(self.settings)

    @property
    def metrics(self) -> list[ReportedMetric]:
        """Return the metrics of the results.

        Results of earlier versions have no units, and no arrows that point to better values.
        """
        first = next(iter(self.results.values()), {})
        labels: Mapping[str, Mapping[str, Any]] = first.get("metric_labels") or {}
        found = []
        for name in first.get("metrics", {}):
            known = labels.get(name)
            metric = ReportedMetric(name=name, **(known or {"label": name}))
            title = f"{metric.label} {metric.direction}" if known else name
            found.append(replace(metric, label=title))
        return found


def task_of(settings: Mapping[str, Any]) -> str:
    """Return the name or import path of the task in the settings of a run."""
    task = settings["task"]
    return str(task["name"] if isinstance(task, Mapping) else task)


def read_run_files(folder: Path, *, trust_remote_code: bool) -> RunFiles:
    """Read the files of a run.

    If the answers to the test rows were not scored yet, those of the last evaluation during
    training are scored here, if there are any.
    """
    settings = stored_settings(folder)
    finished = folder / FINISHED
    task = task_of(settings)
    is_trusted = may_import(task, folder / CONFIG, trust_remote_code=trust_remote_code)
    results = _results(folder)
    rows: Sequence[ScoredRow] = []
    if results:
        path = folder / decoded_name(SCORES, next(iter(results)))
        rows = read_lines(path, SCORED, cure=_SCORE_AGAIN)
    answers = folder / EVALUATION / PREDICTIONS
    during_training = not results and is_trusted and answers.is_file()
    if during_training:
        scores = read_scores(answers, task_name=task)
        results, rows = {GREEDY: results_body(scores)}, scores.rows
    return RunFiles(
        folder=folder,
        settings=settings,
        log=read_lines(folder / LOG, cure="Delete the line."),
        finished=read_json(finished) if finished.is_file() else None,
        results=results,
        rows=rows,
        during_training=during_training,
        task_is_trusted=is_trusted,
    )


def _results(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Read results.json of each decoding rule; those of greedy decoding come first."""
    others = sorted(path.name.split(".")[1] for path in folder.glob("results.*.json"))
    paths = {rule: folder / decoded_name(RESULTS, rule) for rule in (GREEDY, *others)}
    return {rule: read_json(path) for rule, path in paths.items() if path.is_file()}
