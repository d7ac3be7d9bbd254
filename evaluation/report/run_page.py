"""The report page of a single run: progress, metrics, answers, parse failures, learning curves."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mm_numeric.config.decoding import DECODE_RULES, GREEDY
from mm_numeric.evaluation.guesses import Guesses, best_guess
from mm_numeric.evaluation.report.charts import choose_styles
from mm_numeric.evaluation.report.confidence_section import run_confidence_section
from mm_numeric.evaluation.report.gallery import row_names, spread_evenly
from mm_numeric.evaluation.report.learning_curves import curves_section
from mm_numeric.evaluation.report.page import Block, Content, Page, Section, fact_list, fold, note
from mm_numeric.evaluation.report.results import (
    SCORED,
    ReportedMetric,
    ScoredRow,
    failures_section,
    unparseable,
)
from mm_numeric.evaluation.report.summary_file import read_lines
from mm_numeric.evaluation.report.task_sections import may_import, task_sections
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import (
    LABEL_COLUMNS,
    MOST_LABELS_SHOWN,
    drawn_units,
    section_of,
    training_rows,
)
from mm_numeric.evaluation.table import Cell, Quantity, Table, percent
from mm_numeric.inference.calibrate import read_calibration
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import read_json, stored_content
from mm_numeric.io.markup import element, joined
from mm_numeric.runs.folder import (
    CONFIG,
    EVALUATION,
    FINISHED,
    LOG,
    PREDICTIONS,
    PROGRESS,
    RESULTS,
    decoded_name,
    stored_settings,
)
from mm_numeric.runs.results_file import (
    TASK,
    ProtocolResults,
    is_partial,
    read_sections,
    rows_text,
    scores_path,
)

_SCORE_AGAIN = "Run `mm-numeric score` to write it."


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of a run, as far as they exist."""

    folder: Path
    settings: Mapping[str, Any]
    """The settings in config.yaml."""

    task: str
    """Name or import path of the task."""

    log: Sequence[Mapping[str, Any]]
    """The lines of log.jsonl."""

    finished: Mapping[str, Any] | None
    """The content of run.json, which is written when training ends."""

    answering: Mapping[str, Any] | None
    """The content of progress.json while an evaluation or ``predict`` is running."""

    results: Mapping[str, ProtocolResults]
    """Maps each decoding rule to the results of the task's own scorer. If there are none, the
    results of another protocol are used; {} if nothing was scored."""

    protocols: Mapping[str, ProtocolResults]
    """Maps the names of all other protocols to their results, greedy decoding first."""

    rows: Sequence[ScoredRow]
    """The lines of scores.jsonl; if there are several decoding rules, the greedy answers."""

    rows_file: Path
    """The scores.jsonl file with the rows."""

    during_training: bool
    """True if the results are from the last evaluation during training."""

    protocol: str
    """Protocol of ``results`` and ``rows``; ``task`` means the task's own scorer."""

    task_is_trusted: bool
    """True if the module of the task may be imported."""

    @property
    def metrics(self) -> list[ReportedMetric]:
        """Return the metrics of the results; [] if nothing was scored."""
        return [metric for own in list(self.results.values())[:1] for metric in metrics_of(own)]


def metrics_of(section: ProtocolResults) -> list[ReportedMetric]:
    """Return the metrics of a section of results.json; labels end with ``↑`` or ``↓`` (better)."""
    found = []
    for name, entry in section["metrics"].items():
        shown = {key: entry[key] for key in ("label", "unit", "higher_is_better")}
        metric = ReportedMetric(name=name, **shown)
        found.append(replace(metric, label=f"{metric.label} {metric.direction}"))
    return found


def read_run_files(folder: Path, *, trust_remote_code: bool) -> RunFiles:
    """Read the files of a run.

    If no test answers were scored yet, but an evaluation during training has saved answers, the
    answers of the last evaluation are scored.
    """
    settings = stored_settings(folder)
    finished = folder / FINISHED
    own = settings["task"]
    own = own if isinstance(own, Mapping) else {"name": own}
    task, scorer = str(own["name"]), own.get("scorer")
    is_trusted = may_import(task, folder / CONFIG, trust_remote_code=trust_remote_code)
    sections = read_results(folder)
    results = {rule: next(iter(own.values())) for rule, own in sections.items()}
    first = next(iter(sections), GREEDY)
    protocol = next(iter(sections.get(first, ())), TASK)
    path = scores_path(folder / decoded_name(PREDICTIONS, first), protocol)
    rows: Sequence[ScoredRow] = read_lines(path, SCORED, cure=_SCORE_AGAIN) if results else []
    answers = folder / EVALUATION / PREDICTIONS
    if scorer is not None:
        trusts = may_import(scorer, folder / CONFIG, trust_remote_code=trust_remote_code)
        is_trusted = is_trusted and trusts
    during_training = not results and is_trusted and answers.is_file()
    if during_training:
        scores = score(answers, task_name=task, scorer=scorer, write=False)
        results, rows, path = {GREEDY: section_of(scores)}, scores.rows, answers
    return RunFiles(
        folder=folder,
        settings=settings,
        task=task,
        log=read_lines(folder / LOG, cure="Delete the line."),
        finished=read_json(finished) if finished.is_file() else None,
        answering=_read_answering(folder),
        results=results,
        protocols={
            name if rule == GREEDY else f"{name}, decoded by {rule}": section
            for rule, of_rule in sections.items()
            for name, section in list(of_rule.items())[1:]
        },
        rows=rows,
        rows_file=path,
        during_training=during_training,
        protocol=protocol,
        task_is_trusted=is_trusted,
    )


def _read_answering(folder: Path) -> Mapping[str, Any] | None:
    """Return the progress of answers; None if none are generated, or the process was killed."""
    path = folder / PROGRESS
    try:
        text, age = path.read_text(encoding="utf-8"), time.time() - path.stat().st_mtime
    except FileNotFoundError:  # the file is deleted after the last answer
        return None
    with stored_content(path, "delete it"):
        found = json.loads(text)
        values = {name: int(found[name]) for name in ("rows", "answered", "tokens")}
        more = {name: found[name] and float(found[name]) for name in ("step", "seconds_left")}
        return None if age > _STALLED_S else {**values, **more}


def read_results(folder: Path) -> dict[str, dict[str, ProtocolResults]]:
    """Read the results.json of each decoding rule, greedy decoding first."""
    others = sorted(path.name.split(".")[1] for path in folder.glob("results.*.json"))
    paths = {rule: folder / decoded_name(RESULTS, rule) for rule in (GREEDY, *others)}
    return {rule: read_sections(path) for rule, path in paths.items() if path.is_file()}


_SHOWN = 8  # number of metrics that are not folded
_BUCKET_METRICS = 3  # number of metrics in the tables of categories
_TEXTS = 24  # number of unparseable answers that are shown
_STALLED_S = 120.0  # an older progress file is ignored: it is written every few seconds
_PACE_LINES = 20  # number of the last log lines from which the time left is estimated
_ANSWERS = 16  # number of answers that are shown if a task has no report sections


def run_page(folder: Path, *, trust_remote_code: bool) -> Page:
    """Return the report page; ``trust_remote_code`` allows importing a task by its import path."""
    run = read_run_files(folder, trust_remote_code=trust_remote_code)
    name = folder.resolve().name
    style = choose_styles([name], "", None)[name]
    metrics = _metrics_table(run)
    seed = int(run.settings["trainer"].get("seed", 0))
    curves = curves_section({name: style}, {(name, seed): run.log}, {}, name)
    measured = _metrics_section(run, metrics) if run.results else None
    is_training = run.finished is None
    # During training, progress and curves come first, because they change most.
    sections = [_progress_section(run), curves if is_training else measured]
    if run.rows:
        own = []
        if run.task_is_trusted and run.protocol == TASK:
            key = name, seed
            scores, files = {key: run.rows}, {key: run.rows_file}
            own = task_sections(run.task, folder, {name: style}, scores, files)
        shown = spread_evenly(run.rows, _ANSWERS)
        text = f"{len(shown)} of {len(run.rows):,}, spread evenly over the rows."
        answers = Section.of("answers", "Answers", note(text), _texts_table(shown, "Answers"))
        sections += own or [answers]
    sections += [measured] * is_training
    sections += [_failures_section(run) if run.results else None]
    fitted = {rule: found for rule in DECODE_RULES if (found := read_calibration(folder, rule))}
    sections.append(run_confidence_section(run.results, fitted))
    sections += [None if is_training else curves, _facts_section(run)]
    return Page(
        title=name,
        kicker=f"one run, task {run.task}, objective {_objective(run)}",
        about="",
        verdict=_verdict(run),
        caveats=list(_progress(run)),
        sections=[section for section in sections if section is not None],
        metrics=metrics,
    )


def _steps(run: RunFiles) -> tuple[int, int | None]:
    """Return the last logged step and the total number of steps (None if not known)."""
    trainer = run.settings["trainer"]
    step = max((line["step"] for line in run.log), default=0)
    most = trainer.get("max_steps") or 0
    if most > 0:
        return step, int(most)
    epochs = trainer.get("num_train_epochs") or 0
    known = [line for line in run.log if line.get("epoch")]
    if not known or not epochs:
        return step, None
    return step, max(step, round(known[-1]["step"] / known[-1]["epoch"] * epochs))


def _progress_section(run: RunFiles) -> Section | None:
    """Return the section with the progress of training and of answers; None without progress."""
    bars = []
    step, total = _steps(run)
    if run.finished is None and total is not None and step:
        text = f"Step {step:,} of {total:,} ({100 * step / total:.0f}%)"
        pace = _seconds_per_step(run.log)
        if pace is not None:
            text += f", about {_duration(pace * (total - step))} left"
        bars.append((step, total, f"{text}."))
    if run.answering is not None:
        bars.append((run.answering["answered"], run.answering["rows"], _answering_text(run)))
    blocks: list[Content] = []
    for value, most, text in bars:
        blocks += [Block(joined(element("progress", max=most, value=value, aria_label=text))), text]
    return Section.of("steps", "Progress", *blocks) if blocks else None


def _answering_text(run: RunFiles) -> str:
    assert run.answering is not None
    own, left = run.answering, run.answering["seconds_left"]
    what = "Answering the test rows"
    if run.finished is None:
        what = f"Evaluating at step {own['step'] or 0:,.0f}"
    return (
        f"{what}: {own['answered']:,} of {own['rows']:,} rows are answered, {own['tokens']:,} "
        f"tokens generated{'' if left is None else f', about {_duration(left)} left'}."
    )


def _seconds_per_step(log: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean time of a step in the last log lines of one session; None if not known."""
    timed = [
        (line["step"], line["speed"]["seconds"])
        for line in log
        if "seconds" in line.get("speed", {})
    ][-_PACE_LINES:]
    # In the log, the seconds start at 0 again when training is resumed.
    starts = [i for i in range(1, len(timed)) if timed[i][1] < timed[i - 1][1]]
    timed = timed[starts[-1] if starts else 0 :]
    if len(timed) < 2 or timed[-1][0] <= timed[0][0]:
        return None
    return float((timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0]))


def _verdict(run: RunFiles) -> str:
    if not run.results:
        return "No answers have been scored yet."
    metric, results = run.metrics[0], next(iter(run.results.values()))
    value = _value(metric, results)
    count = f"{len(run.rows):,} answers" if run.rows else "the answers"
    if run.during_training:
        steps = [line["step"] for line in run.log if "eval" in line]
        count += f" of the evaluation at step {steps[-1]:,}" if steps else " of an evaluation"
    interval = f" (95% interval {value.interval})" if value and value.interval else ""
    label = metric.label.rstrip(" ↑↓")
    rows, due = results["rows"], results["rows_due"]
    partial = f"{rows_text(rows, due)}. " if is_partial(rows, due) else ""
    shown = f"{label} {value or 'no value'}{interval}"
    better = metric.higher_is_better
    guess = best_guess(results["guesses"], metric.name, higher_is_better=better)
    if guess is None or value is None:
        return f"{partial}{shown[0].upper()}{shown[1:]}, on {count}."
    lead = "Not clearly better than guessing" if _is_at_guess(run) else "Better than guessing"
    return (
        f"{partial}{lead}: {shown}, on {count}; guessing has {metric.value(guess.value)} (the best "
        f"{guess.kind})."
    )


def _is_at_guess(run: RunFiles) -> bool:
    """Return True if the first metric has a value that is not clearly better than guessing."""
    metric, results = run.metrics[0], next(iter(run.results.values()))
    better, found = metric.higher_is_better, results["metrics"][metric.name]
    guess = best_guess(results["guesses"], metric.name, higher_is_better=better)
    cell = {key: own for key, own in found.items() if own is not None} | {"seeds": []}
    return guess is not None and "value" in cell and not metric.beats(cell, guess.value)


def _progress(run: RunFiles) -> Iterator[str]:
    if run.finished is not None:
        steps, seconds = run.finished["steps"], run.finished.get("seconds")
        took = f" in {_duration(seconds)}" if seconds is not None else ""
        if own := steps - run.finished.get("resumed_after", 0):
            last = f"; after the resume, {own:,} steps" if own < steps else ""
            yield f"Training finished: {steps:,} steps{last}{took}."
        else:
            yield f"Training finished: {steps:,} steps."
    if run.answering is not None:
        return  # the section on the progress says the rest
    if run.finished is None:
        step, total = _steps(run)
        of = "" if total is None else f" of {total:,}"
        yield (
            f"Not finished: the log ends at step {step:,}{of}. If nothing is training it, resume "
            "it with `mm-numeric train CONFIG --resume`."
        )
    if run.results and not run.during_training:
        if _is_at_guess(run):
            yield (
                "Next: train for more steps or on more rows. If the loss is near 0, more steps do "
                "not help: add rows, `data.augment`, or start from a pretrained model."
            )
        return
    answers = run.folder / PREDICTIONS
    if answers.is_file():
        rows = read_lines(answers, cure="Delete the line.")
        due = rows[-1].get("rows_due") if rows else None
        if is_partial(len(rows), due):
            predict = f"`mm-numeric predict --model {run.folder}`"
            yield f"{rows_text(len(rows), due)} are answered: {predict} answers the others."
            return
        yield f"The test rows are answered, not scored: `mm-numeric score {answers}` scores them."
    elif run.finished is not None:
        yield (
            f"The test rows are not answered: `mm-numeric predict --model {run.folder}` answers "
            "them."
        )
    else:
        yield "After the training, `mm-numeric predict` answers the test rows."


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _value(metric: ReportedMetric, results: Mapping[str, Any]) -> Quantity | None:
    found = results["metrics"].get(metric.name, {"value": None})
    return None if found["value"] is None else metric.estimate(found)


def _metrics_table(run: RunFiles) -> Table:
    guesses: Guesses = next((own["guesses"] for own in run.results.values()), {})
    rows = [
        [
            metric.label,
            *(_value(metric, own) for own in run.results.values()),
            *(
                None if (value := own.get(metric.name)) is None else metric.value(value)
                for own in guesses.values()
            ),
        ]
        for metric in run.metrics
    ]
    names = [*(run.results if len(run.results) > 1 else ["value"]), *guesses]
    of = "on the test rows" if run.protocol == TASK else f"of the protocol {run.protocol}"
    return Table.of(["metric", *names], rows, title=f"Metrics {of}")


def _metrics_section(run: RunFiles, table: Table) -> Section:
    results = next(iter(run.results.values()))
    rows = int(results["rows"])
    drawn = int(results.get("groups", rows))
    text = (
        f"95% bootstrap intervals over {drawn_units(rows, drawn)}, which do not include the "
        "variation of training; there is none if the rows do not differ"
        f"{' or are one group' * (drawn < rows)}."
    )
    if results["guesses"]:
        text += (
            " Guesses are computed without the image and the question. The constant answer is "
            "another one for each metric: the best for it."
        )
    if len(run.results) > 1:
        text += " There is a column for each decoding rule."
    text += " ↑ higher is better, ↓ lower is better."
    if run.during_training:
        text = f"Of the last evaluation during training. {text}"
    counts = [(name, f"{count:,}") for name, count in (results.get("counts") or {}).items()]
    shown, rest = (replace(table, rows=own) for own in (table.rows[:_SHOWN], table.rows[_SHOWN:]))
    blocks: list[Content] = [note(text), shown]
    if rest.rows:
        blocks.append(fold(f"{len(rest.rows)} more", [replace(rest, title="Other metrics")]))
    blocks += [fact_list(counts)] if counts else []
    blocks += [_label_table(results["labels"])] if results.get("labels") else []
    for name, own in run.protocols.items():
        lines = [[metric.label, _value(metric, own)] for metric in metrics_of(own)]
        title = f"Metrics of the protocol {name}, on {own['rows']:,} rows"
        blocks.append(Table.of(["metric", "value"], lines, title=title))
    groups = [
        _bucket_table(kind, own, run.metrics)
        for kind, own in (results.get("buckets") or {}).items()
    ]
    return Section.of(
        "metrics", "Metrics", *blocks, *([fold("By category", groups)] * bool(groups))
    )


def _label_table(labels: Sequence[Mapping[str, Any]]) -> Table:
    """Return the counts and scores of each label, the most frequent labels first."""
    values = [
        {**own, **{name: percent(found["value"]) for name, found in own["metrics"].items()}}
        for own in labels
    ]
    values.sort(key=lambda own: (-own.get("truths", 0), own["name"]))
    names = [name for name in LABEL_COLUMNS if any(name in own for own in values)]
    rows = [
        [
            Cell(content=own["name"] or "(no label)", limit=60),
            *(f"{own[n]:,}" if isinstance(own.get(n), int) else own.get(n) for n in names),
        ]
        for own in values[:MOST_LABELS_SHOWN]
    ]
    title = "Metrics by label"
    if len(values) > len(rows):
        title += f": the {len(rows)} most frequent of {len(values):,} (results.json has all)"
    return Table.of(["label", *(LABEL_COLUMNS[name] for name in names)], rows, title=title)


def _bucket_table(kind: str, buckets: Mapping[str, Any], metrics: list[ReportedMetric]) -> Table:
    known = (m for m in metrics if any(m.name in own["metrics"] for own in buckets.values()))
    shown = list(islice(known, _BUCKET_METRICS))
    rows = [
        [label, f"{own['rows']:,}", *(_value(metric, own) for metric in shown)]
        for label, own in buckets.items()
    ]
    return Table.of([kind, "rows", *(m.label for m in shown)], rows, title=f"Metrics by {kind}")


def _failures_section(run: RunFiles) -> Section:
    counts = unparseable(run.rows) or next(iter(run.results.values())).get("failures")
    failed = [row for row in run.rows if row["parsed"] is None]
    shown = failed[:_TEXTS]
    title = f"{len(shown)} of {len(failed):,} unparseable texts"
    texts = [_texts_table(shown, title)] if failed else []
    return failures_section({Cell(content="answers"): counts or {}}, "", *texts)


def _texts_table(rows: Sequence[ScoredRow], title: str) -> Table:
    lines = [
        [
            Cell(content=name, limit=60, note=plain(id_[0], 60) if id_ else ""),
            Cell(content=str(row["target"]), limit=80),
            Cell(content=f"“{row['text']}”", note=str(row["reason"] or ""), css="unread"),
        ]
        for row in rows
        for name, *id_ in [row_names(row)]
    ]
    header = ["row", "true", "text of the model"]
    return Table.of(header, lines, title=title, css="texts", align="left")


def _objective(run: RunFiles) -> str:
    objective = run.settings["objective"]
    name = objective.get("name") if isinstance(objective, Mapping) else objective
    return str(name or "of its own")


def _batch(run: RunFiles) -> str:
    trainer = run.settings["trainer"]
    size = trainer.get("per_device_train_batch_size", 8)
    accumulated = trainer.get("gradient_accumulation_steps", 1)
    text = f"{size} per device × {accumulated} of gradient accumulation"
    rows = (run.finished or {}).get("batch_rows", 0)
    if not rows or rows % (size * accumulated):  # the run was resumed on another number of ranks
        return f"{rows:,}" if rows else text
    devices = rows // (size * accumulated)
    return f"{rows:,} = {text} × {devices} device{'s' * (devices != 1)}"


def _facts_section(run: RunFiles) -> Section:
    settings, finished = run.settings, run.finished or {}
    model, trainer = settings["model"], settings["trainer"]
    facts = [("model", f"{model.get('name')} ({model.get('family')})")]
    facts += [("objective", _objective(run))]
    if lora := settings.get("lora"):
        kind = "DoRA" if lora.get("dora") else "LoRA"
        facts.append(("adapters", f"{kind}, rank {lora['rank']}, alpha {lora['alpha']}"))
    facts.append(("rows per step", _batch(run)))
    facts += [
        (name.replace("_", " "), str(trainer[name]))
        for name in ("learning_rate", "num_train_epochs", "max_steps", "seed")
        if name in trainer
    ]
    if "rows" in finished:
        facts.append(("training rows", training_rows(finished["rows"])))
    facts += [(name, str(finished[name])) for name in ("machine", "commit") if finished.get(name)]
    versions = finished.get("versions") or {}
    if versions:
        facts.append(("versions", ", ".join(f"{name} {own}" for name, own in versions.items())))
    return Section.of("facts", "How this was trained", fact_list(facts))
