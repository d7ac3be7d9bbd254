"""Write the results of a comparison to summary.json."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from mm_numeric.comparison.hypotheses import Hypothesis, tested_hypotheses, withdrawn_fact
from mm_numeric.comparison.plan import all_seeds, ensemble_folder, planned_runs
from mm_numeric.comparison.rows import ComparisonRow, decoding_rules, stated_hypotheses
from mm_numeric.comparison.seeds import describe_seeds, run_of_seed
from mm_numeric.comparison.selection import chosen_rows, read_selection
from mm_numeric.comparison.tables import (
    Runs,
    calibration_table,
    coverage_table,
    ensemble_tables,
    headline_fact,
    metric_tables,
    test_sets,
)
from mm_numeric.config.data import DataConfig, Sources, listed
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.schema import Config
from mm_numeric.evaluation.guesses import Guesses, guess_metrics
from mm_numeric.evaluation.metrics.base import Metric
from mm_numeric.evaluation.metrics.intervals import ENOUGH_SEEDS, correct_p_values, families_text
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import drawn_units, in_unit, training_rows
from mm_numeric.evaluation.scores import Scores, finite
from mm_numeric.io.files import read_json, write_json
from mm_numeric.runs.folder import CONFIG, FINISHED, PREDICTIONS, WARM_START, decoded_name
from mm_numeric.runs.results_file import VERSION, PartialError, is_partial, results_path

SUMMARY = "summary.json"


def write_summary(config: Config, folder: Path, *, partial: bool = False) -> dict[str, Any]:
    """Score all runs of a comparison folder, write summary.json and return its content.

    Metrics are averaged over seeds. Their confidence intervals account for the variation between
    seeds and between test samples (``metric_interval``). Every objective is compared with its
    reference (``ComparisonRow.reference``) on the same seeds and samples. If ``compare.decode`` has
    several rules, each is compared with greedy decoding of the same weights. ``partial`` allows
    runs without the answers to some test rows.
    """
    entries, seeds = chosen_rows(config), config.comparison.seeds
    runs = read_runs(config, entries, folder, partial=partial)
    ensembles = read_ensembles(config, entries, folder, partial=partial)
    tested = _test_rows(runs[entries[0].name, GREEDY])
    stated = stated_hypotheses(config)
    layout = _rows(config, entries)
    layout |= {"seeds": list(seeds), "metric": config.comparison.metric}
    summary: dict[str, Any] = {
        "version": VERSION,
        "title": config.title,
        "task": config.task_name,
        "description": _description(config, entries),
        "rows_due": tested.due,
        **summary_results(layout, runs, ensembles, stated, folder),
        "tuning": _tuning(config, entries),
        "runs": _runs(entries, seeds),
    }
    summary["facts"] = {
        **headline_fact(summary, runs),
        **_facts(config, entries, folder, tested),
        **withdrawn_fact(stated, folder),
    }
    if families := families_text(summary):
        summary["facts"]["interval"] += (
            f", p-values of {summary['metrics'][0]['label']} corrected by Holm's method over "
            f"{families}; other metrics, the control and warm starts are in no family"
        )
    write_json(folder / SUMMARY, summary, indent=1)
    return summary


def summary_results(
    layout: Mapping[str, Any],
    runs: Runs,
    ensembles: Runs,
    stated: Sequence[Hypothesis],
    folder: Path,
) -> dict[str, Any]:
    """Return ``layout`` with the part of summary.json that is computed from answers.

    ``layout`` has the names of the rows, the row that each is compared with, and the seeds. All
    other names in ``runs`` are warm starts. ``folder`` records when the hypotheses were stated.
    """
    baseline = runs[layout["baseline"], GREEDY]
    tables = metric_tables(runs, layout["references"], stated, layout["metric"])
    starts = [name for name in tables.table if name not in layout["references"]]
    warms = [tables.table.pop(name) for name in starts]
    found = {
        **layout,
        "rows": _test_rows(baseline).rows,
        "metrics": [_metric(metric) for metric in tables.metrics],
        "of_categories": sum(rows is not None for _, rows in baseline[0].metrics_on_rows),
        "table": tables.table,
        "guesses": _guesses(baseline),
        "warm_start": warms[0] if warms else None,
        "other_warm_starts": dict(zip(starts[1:], warms[1:], strict=True)),
        "decoding": tables.decoding,
        "ensembles": ensemble_tables(runs, ensembles),
        "hypotheses": tested_hypotheses(tables.hypotheses, folder),
        "calibration": calibration_table(runs),
        "coverage": coverage_table(runs),
    }
    correct_p_values(found)
    return found


class _TestRows(NamedTuple):
    """The test rows of all seeds: those of one test set or, with folds, of several."""

    rows: int
    groups: int
    due: int | None
    """Number of rows of the data; None if the predictions do not say it."""


def _test_rows(runs: Sequence[Scores]) -> _TestRows:
    sets = [runs[seeds[0]] for seeds in test_sets(runs)]
    dues = [own.rows_due for own in sets]
    return _TestRows(
        rows=sum(own.count for own in sets),
        groups=sum(own.group_count for own in sets),
        due=None if None in dues else sum(filter(None, dues)),
    )


def _guesses(runs: Sequence[Scores]) -> Guesses:
    """Compute the metrics of guesses, of folds on the test rows of all seeds together."""
    first, *others = (runs[seeds[0]] for seeds in test_sets(runs))
    if not others or first.guessed is None:
        return first.guesses
    return guess_metrics(first.guessed.spread(*filter(None, (own.guessed for own in others))))


def _runs(rows: Sequence[ComparisonRow], seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "objective": row.name,
            "seed": seed,
            "folder": f"seed{seed}/{row.name}",
            "warm_start": row.warm_start and f"seed{seed}/{row.warm_start}",
        }
        for seed in seeds
        for row in rows
    ]


def _rows(config: Config, rows: Sequence[ComparisonRow]) -> dict[str, Any]:
    return {
        "baseline": rows[0].name,
        "control": rows[1].name if config.comparison.control else None,
        "objectives": [row.name for row in rows],
        "references": {row.name: row.reference for row in rows},
        "axes": {row.name: dict(row.axes) for row in rows if row.axes},
    }


def _tuning(config: Config, rows: Sequence[ComparisonRow]) -> dict[str, Any] | None:
    """Describe the trials of tuned rows, with their first metric; None if nothing is tuned."""
    selection = read_selection(config, rows)
    if selection is None or config.comparison.select_on is None:
        return None
    seeds = {name: values[:, 0].tolist() for name, values in selection.values.items()}
    return {
        "settings": list(config.comparison.tune),
        "seeds": list(config.comparison.tune_seeds),
        "select_on": f"{selection.rows:,} ({_source(config.comparison.select_on)})",
        "metric": _metric(selection.metrics[0]),
        "trials": [
            {
                "objective": row.name,
                "settings": dict(trial.settings),
                "chosen": trial.settings == row.chosen,
                "folder": trial.name,
                "failed": selection.failures.get(trial.name),
                "value": finite(fmean(seeds[trial.name])),
                "seeds": [finite(value) for value in seeds[trial.name]],
            }
            for row in rows
            for trial in row.trials
        ],
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "higher_is_better": metric.higher_is_better,
    }


def _description(config: Config, rows: Sequence[ComparisonRow]) -> str:
    described = {_synthetic(row.config.data) for row in rows}
    data = described.pop() if len(described) == 1 else ""
    model = f"{config.model.family} ({config.model.name})"
    question = f"Which objective teaches {model} the task {config.task_name} best?"
    return f"{question} {data}".rstrip()


def _synthetic(data: DataConfig) -> str:
    """Describe synthetic rows in a sentence; empty if any training or test rows are real."""
    made = [source.synthetic for source in (*listed(data.train), data.test)]
    *trained, tested = [own.describe() if own else "" for own in made]
    if not (tested and all(trained)):
        return ""
    if set(trained) == {tested}:
        return f"Trained and tested on {tested}."
    return f"Trained on {' and '.join(dict.fromkeys(trained))}, tested on {tested}."


def _facts(
    config: Config, rows: Sequence[ComparisonRow], folder: Path, tested: _TestRows
) -> dict[str, str]:
    seeds = config.comparison.seeds
    # A row with its own settings, such as more steps or a larger model, is not typical.
    typical = min(rows, key=lambda row: (bool(row.settings), row.warm_start != WARM_START))
    planned = [run.config.output_dir for run in planned_runs(config, all_seeds(config))]
    runs = {
        (own.parent.name, own.name): read_json(own / FINISHED)
        for own in planned
        if (own / FINISHED).is_file()  # a failed trial has no such file
    }
    failed = len(planned) - len(runs)
    drawn = [run_of_seed(typical.config, seed, config.comparison.vary, folder) for seed in seeds]
    seed, model = f"seed{seeds[0]}", typical.config.model
    run = runs[seed, typical.name]
    warm = runs[seed, typical.warm_start] if typical.warm_start else None
    trained = run.get("teacher", run)  # the training on the labels
    sources = _source(*(seed_run.data.train for seed_run in drawn))
    minutes = sum(r["seconds"] for r in runs.values()) / 60
    resumed = any(r["resumed"] for r in runs.values())
    last = " (the last session of those that were resumed)" if resumed else ""
    others = _other_settings(rows)
    of = f" of {tested.due:,}" if is_partial(tested.rows, tested.due) else ""
    return {
        "command": f"mm-numeric compare {folder / CONFIG}",
        "model": f"{model.family} {model.name}, {run['parameters']:,} parameters",
        "training rows": f"{training_rows(trained['rows'])} ({sources})",
        "test rows": f"{tested.rows:,}{of} ({_source(*(own.data.test for own in drawn))})",
        "warm start": _warm_start(warm, trained["steps"]),
        "each objective": f"{trained['steps']:,} steps of {run['batch_rows']} rows, the same rows "
        "in the same order",
        **_own_answers({row.name: runs[seed, row.name] for row in rows}),
        **({"other settings": others} if others else {}),
        **_control(config, rows),
        "seeds": ", ".join(map(str, seeds)),
        "varied": describe_seeds(
            config,
            has_noise=any(
                source.synthetic is not None and source.synthetic.has_noise
                for row in rows
                for source in listed(row.config.data.train)
            ),
        ),
        "interval": _interval(len(seeds), drawn_units(tested.rows, tested.groups)),
        "training time": f"{minutes:.0f} min for {len(runs)} runs{last}"
        + (f" and not counting {failed} that failed" if failed else "")
        + f", {config.comparison.jobs} at a time",
        **origin_facts(runs.values()),
    }


def _warm_start(warm: Mapping[str, Any] | None, steps: int) -> str:
    """Describe the warm start, given its run.json and the number of steps that follow it."""
    if warm is None:
        return "none: each objective acts from the first step"
    share = in_unit(warm["steps"] / (warm["steps"] + steps), "%")
    return (
        f"{warm['steps']:,} steps of {warm['batch_rows']} rows, with CE, each seed: {share} of all "
        "steps"
    )


def _own_answers(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    distilled = [
        f"{name}: {run['steps']:,} more steps on {training_rows(run['rows'])} of its own answers"
        for name, run in runs.items()
        if "teacher" in run
    ]
    return {"distillation": "; ".join(distilled)} if distilled else {}


def origin_facts(runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the machines, commits and versions of runs, given their run.json."""
    found: dict[str, dict[str, None]] = {"machine": {}, "commit": {}, "versions": {}}
    for run in runs:
        found["machine"][run["machine"]] = None
        found["commit"][run.get("commit") or "not recorded"] = None
        versions = ", ".join(f"{name} {v}" for name, v in run["versions"].items())
        found["versions"][versions] = None
    origin = {name: "; ".join(values) for name, values in found.items()}
    return {
        **origin,
        "repeatability": "the same seed on another machine, with another number of threads or "
        "other versions gives another run, whose metrics differ like those of another seed",
    }


def _control(config: Config, rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """Explain a control that only scales the loss of the first objective; {} for other controls."""
    if not config.comparison.control:
        return {}
    first, control = (row.config.objective for row in rows[:2])
    is_scaled = control.spec == replace(first.spec, ce_weight=control.spec.ce_weight)
    if first.spec.terms or not is_scaled or "adam" not in config.trainer.get("optim", "adamw"):
        return {}
    return {
        "control": f"{control.name} is {first.name} with its loss times "
        f"{control.spec.ce_weight:g}, which Adam hardly notices except where gradients are "
        "clipped; their difference shows how much two runs of the same objective differ"
    }


def _interval(seeds: int, drawn: str) -> str:
    if seeds == 1:
        return f"95 %, bootstrap over {drawn}; one seed does not show how runs vary"
    kind = f"95 %, Student's t over seeds and {drawn}; differences are paired"
    if seeds >= ENOUGH_SEEDS:
        return kind
    return f"{kind}; fewer than {ENOUGH_SEEDS} seeds do not show which objective is better"


def _other_settings(rows: Sequence[ComparisonRow]) -> str:
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.settings:
            text = ", ".join(f"{path}: {json.dumps(value)}" for path, value in row.settings.items())
            text += f", from {row.warm_start}" * bool(row.warm_start)
            found.setdefault(text, []).append(row.name)
    return "; ".join(f"{', '.join(names)} ({text})" for text, names in found.items())


def _source(*draws: Sources) -> str:
    """Describe data sources: file names or, for synthetic rows, the generator and the seeds.

    ``draws`` has the sources for each training seed, which differ only in the generator's seed.
    """
    texts = []
    for source, *others in zip(*map(listed, draws), strict=True):
        made = [own.synthetic for own in (source, *others) if own.synthetic is not None]
        if made:
            seeds = list(dict.fromkeys(str(own.seed) for own in made))
            text = f"synthetic {made[0].name}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
        else:
            folds = dict.fromkeys(own.fold for own in others if own.fold != source.fold)
            text = "; ".join([Path(source.name).name, *filter(None, folds)])
        answers = f", with the answers in {Path(source.answers).name}" if source.answers else ""
        texts.append(text + answers)
    return ", ".join(texts)


def read_runs(
    config: Config, entries: Sequence[ComparisonRow], folder: Path, *, partial: bool = False
) -> Runs:
    """Score the runs of all rows and then of their warm starts, each with the task of its row.

    Raises ValueError if runs answer different rows, lack columns of the first run, or have
    different targets with the same task, or if answers are missing and ``partial`` is False.
    """
    own = {row.name: row.config for row in entries}
    for row in entries:
        if row.warm_start:
            own.setdefault(row.warm_start, row.config)
    runs: dict[tuple[str, str], list[Scores]] = {}
    known: dict[str, tuple[str, list[Any]]] = {}
    keys = (
        (name, trained, rule)
        for name, trained in own.items()
        for rule in decoding_rules(config, trained)
    )
    vary = config.comparison.vary
    for (name, trained, rule), seed in product(keys, config.comparison.seeds):
        place, task = f"seed{seed}/{name}", trained.task
        scores = read_run_scores(folder / place, trained, rule=rule, partial=partial)
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
            key = f"{key}{run_of_seed(trained, seed, vary, folder).data.test.fold}"
            asked = [row[kind] for row in scores.rows]
            before, others = known.setdefault(key, (place, asked))
            if asked != others:
                raise ValueError(
                    f"{folder}: {place} and {before} answer different rows, or rows with different "
                    "targets; delete the outdated runs, or of each of them predictions* and "
                    "results*, and compare again."
                )
    return runs


def read_ensembles(
    config: Config, rows: Sequence[ComparisonRow], folder: Path, *, partial: bool = False
) -> Runs:
    """Score the answers of all ensembles; the keys are (name of the row, decoding rule)."""
    found = {}
    for row in rows if config.comparison.ensemble else ():
        own = ensemble_folder(row, config, folder)
        for rule in decoding_rules(config, row.config)[1:]:
            found[row.name, rule] = [read_run_scores(own, row.config, rule=rule, partial=partial)]
    return found


def read_run_scores(
    folder: Path, config: Config | None = None, *, rule: str = GREEDY, partial: bool = False
) -> Scores:
    """Score the predictions of one run under a decoding rule, and sort the samples by id.

    ``config`` has the task and the scorer. If it is None, the predictions file names the task.
    Without ``partial``, missing answers are an error.
    """
    predictions = folder / decoded_name(PREDICTIONS, rule)
    name, scorer = (config.task_name, config.task.scorer) if config else (None, None)
    try:
        scores = score(predictions, task_name=name, scorer=scorer, partial=partial, write=False)
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
