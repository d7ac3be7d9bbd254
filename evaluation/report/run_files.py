"""Read the files of a single run for its report; all but config.yaml may be missing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.report.results import SCORED, ReportedMetric, ScoredRow
from mm_numeric.evaluation.report.summary_file import read_lines
from mm_numeric.evaluation.report.task_sections import may_import
from mm_numeric.evaluation.results import section_of
from mm_numeric.evaluation.score import score
from mm_numeric.io.files import read_json
from mm_numeric.runs.folder import (
    CONFIG,
    EVALUATION,
    FINISHED,
    LOG,
    PREDICTIONS,
    RESULTS,
    decoded_name,
    stored_settings,
)
from mm_numeric.runs.results import TASK, ProtocolResults, read_sections, scores_path

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

    results: Mapping[str, ProtocolResults]
    """Maps each decoding rule to the results of the task's own scorer or, without these, of another
    protocol; {} if nothing was scored."""

    protocols: Mapping[str, ProtocolResults]
    """The results of all other protocols, greedy decoding first."""

    rows: Sequence[ScoredRow]
    """The lines of scores.jsonl, decoded greedily if there are several rules."""

    rows_file: Path
    """The file of the rows."""

    during_training: bool
    """Whether the results are those of the last evaluation during training."""

    protocol: str
    """Protocol of the results and the rows; ``task`` is the task's own scorer."""

    task_is_trusted: bool
    """Whether the module of the task may be imported."""

    @property
    def task(self) -> str:
        """Return the name or import path of the task."""
        return task_of(self.settings)

    @property
    def metrics(self) -> list[ReportedMetric]:
        """Return the metrics of the results; [] if nothing was scored."""
        return [metric for own in list(self.results.values())[:1] for metric in metrics_of(own)]


def metrics_of(section: ProtocolResults) -> list[ReportedMetric]:
    """Return the metrics of a section of results.json, with arrows that point to better values."""
    found = []
    for name, entry in section["metrics"].items():
        shown = {key: entry[key] for key in ("label", "unit", "higher_is_better")}
        metric = ReportedMetric(name=name, **shown)
        found.append(replace(metric, label=f"{metric.label} {metric.direction}"))
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
    sections = read_results(folder)
    results = {rule: next(iter(own.values())) for rule, own in sections.items()}
    first = next(iter(sections), GREEDY)
    protocol = next(iter(sections.get(first, ())), TASK)
    path = scores_path(folder / decoded_name(PREDICTIONS, first), protocol)
    rows: Sequence[ScoredRow] = read_lines(path, SCORED, cure=_SCORE_AGAIN) if results else []
    answers = folder / EVALUATION / PREDICTIONS
    during_training = not results and is_trusted and answers.is_file()
    if during_training:
        scores = score(answers, task_name=task, write=False)
        results, rows, path = {GREEDY: section_of(scores)}, scores.rows, answers
    return RunFiles(
        folder=folder,
        settings=settings,
        log=read_lines(folder / LOG, cure="Delete the line."),
        finished=read_json(finished) if finished.is_file() else None,
        results=results,
        protocols=dict(_other_protocols(sections)),
        rows=rows,
        rows_file=path,
        during_training=during_training,
        protocol=protocol,
        task_is_trusted=is_trusted,
    )


def read_results(folder: Path) -> dict[str, dict[str, ProtocolResults]]:
    """Read results.json of each decoding rule; those of greedy decoding come first."""
    others = sorted(path.name.split(".")[1] for path in folder.glob("results.*.json"))
    paths = {rule: folder / decoded_name(RESULTS, rule) for rule in (GREEDY, *others)}
    return {rule: read_sections(path) for rule, path in paths.items() if path.is_file()}


def _other_protocols(
    sections: Mapping[str, Mapping[str, ProtocolResults]],
) -> Iterator[tuple[str, ProtocolResults]]:
    """Yield the name and the results of each protocol but the first of each decoding rule."""
    for rule, own in sections.items():
        for name in list(own)[1:]:
            yield (name if rule == GREEDY else f"{name}, decoded by {rule}"), own[name]
