"""Tuning: the same trials for every row, chosen on other seeds and rows than the results."""

import csv
import json
import math
from contextlib import nullcontext

import numpy as np
import pytest
from planned import seed_configs
from synthetic_rows import rows_for
from tiny_models import small_config

from mm_numeric.comparison.plan import open_runs
from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.run import compare
from mm_numeric.comparison.selection import SelectionResults, chosen_rows, write_source
from mm_numeric.comparison.summary import write_summary
from mm_numeric.comparison.tune import Trial
from mm_numeric.config.data import DataSource
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.score import score
from mm_numeric.inference import generate
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.training import run as training

TARGETS = {"a": "7:05", "b": "12:58", "c": "3:00", "d": "6:30"}
GOOD = TARGETS | {"d": "6:50"}
POOR = TARGETS | {"a": "1:00", "b": "2:00"}
BAD = dict.fromkeys(TARGETS, "?")
RATES = "tune_seeds: [7], tune: {trainer.learning_rate: [1.0e-3, 2.0e-3]}"
ON = f"select_on: {rows_for('clock', 8, 3)}"


def tuned(folder, compare=f"{RATES}, {ON}", *more):
    """Return a comparison of ce and ntl_was with a section ``compare``."""
    objectives = "objectives: [ce, ntl_was], control: null, seeds: [0, 1]"
    where = f"output_dir: {folder / 'compare'}"
    config = small_config(folder, f"compare={{{where}, {objectives}, {compare}}}", *more)
    compared_rows(config, "clock_tiny.yaml")
    return config


def write_answers(folder, answers):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": key, "task": "clock", "text": text, "target": TARGETS[key], "image": None}
        for key, text in answers.items()
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    score(folder / "predictions.jsonl")


def write_run(folder, selection=None, test=None):
    """Write the folder of a trained run with answers to the selection rows and to the test rows."""
    folder.mkdir(parents=True)
    facts = {"parameters": 1, "rows": 8, "steps": 5, "machine": "Linux", "batch_rows": 4}
    facts |= {"seconds": 9, "resumed": False, "versions": {}}
    (folder / "run.json").write_text(json.dumps(facts), "utf-8")
    if selection:
        write_source(folder / "selection", DataSource(synthetic=Clocks(rows=8, seed=3)))
        write_answers(folder / "selection", selection)
    if test:
        write_answers(folder, test)


def test_every_row_has_the_same_trials_of_the_tuning_seeds(tmp_path):
    tune = "{trainer.learning_rate: [1.0e-4, 1.0e-3, 1.0e-2], trainer.warmup_steps: [0, 2]}"
    config = tuned(tmp_path, f"tune: {tune}, tune_seeds: [7, 8], {ON}")
    rows = compared_rows(config)
    for row in rows:
        settings = [tuple(trial.settings.values()) for trial in row.trials]
        assert settings == [(rate, steps) for rate in (1e-4, 1e-3, 1e-2) for steps in (0, 2)]
        assert {trial.config.objective.name for trial in row.trials} == {row.name}
    assert rows[1].trials[1].name == "ntl_was_learning_rate_0.0001_warmup_steps_2"
    trials, others = seed_configs(config, 7), seed_configs(config, 1)
    assert [run.output_dir.name for run in trials] == [t.name for row in rows for t in row.trials]
    assert {run.trainer["seed"] for run in trials} == {7}
    assert [run.output_dir.name for run in others] == ["ce", "ntl_was"]
    assert {run.model.name for run in (*trials, *others)} == {"tiny"}


@pytest.mark.slow
def test_settings_are_chosen_on_the_selection_rows_of_other_seeds(tmp_path):
    """On the selection rows 0.001 is better."""
    folder = tmp_path / "compare"
    rates = RATES.replace("[7]", "[7, 8]")
    config = tuned(tmp_path, f"{rates}, {ON}")
    with pytest.raises(ValueError, match=r"seeds \[7, 8\] choose .* not finished .* with --seeds"):
        open_runs(config, [0])
    assert chosen_rows(config) == []
    slow, fast = "learning_rate_0.001", "learning_rate_0.002"
    for at, seed in enumerate((7, 8)):
        write_run(folder / f"seed{seed}" / f"ce_{slow}", GOOD)
        write_run(folder / f"seed{seed}" / f"ce_{fast}", (POOR, GOOD)[at])
        write_run(folder / f"seed{seed}" / f"ntl_was_{slow}", (TARGETS, BAD)[at])
        write_run(folder / f"seed{seed}" / f"ntl_was_{fast}", POOR)
    runs = open_runs(config, [0, 1])
    assert [(run.name, run.config.trainer["learning_rate"]) for run in runs] == [
        ("seed0/ce", 1.0e-3),
        ("seed0/ntl_was", 2.0e-3),
        ("seed1/ce", 1.0e-3),
        ("seed1/ntl_was", 2.0e-3),
    ]  # fmt: skip  (the means of ntl_was are equal, and also within 1 minute, and exact)
    for seed in (0, 1):
        write_run(folder / f"seed{seed}" / "ce", test=BAD)
        write_run(folder / f"seed{seed}" / "ntl_was", test=GOOD)
    summary = write_summary(config, folder)
    assert summary["table"]["ce"]["within_5_minutes"]["seeds"] == [0.0, 0.0]
    assert summary["table"]["ntl_was"]["within_5_minutes"]["seeds"] == [0.75, 0.75]
    assert summary["runs"][0] == {
        "objective": "ce", "seed": 0, "folder": "seed0/ce", "warm_start": None
    }  # fmt: skip
    tuning = summary["tuning"]
    assert tuning["select_on"] == "4 (synthetic clocks, seed 3)"
    assert tuning["seeds"] == [7, 8]
    assert tuning["metric"]["name"] == "within_5_minutes"
    found = [(t["objective"], t["chosen"], t["value"], t["seeds"]) for t in tuning["trials"]]
    assert found == [
        ("ce", True, 0.75, [0.75, 0.75]),
        ("ce", False, 0.625, [0.5, 0.75]),
        ("ntl_was", False, 0.5, [1.0, 0.0]),
        ("ntl_was", True, 0.5, [0.5, 0.5]),
    ]
    assert summary["facts"]["training time"].endswith("for 12 runs, 1 at a time")
    assert summary["facts"]["warm start"] == "none: each objective acts from the first step"
    page, twin, data = (path.read_text("utf-8") for path in write_report(folder))
    assert "Chosen at an end of the tried values: ntl_was (trainer.learning_rate 0.002)" in page
    assert "| `ce` | 0.001 | 2 | 75.0% | 0.0% (0.0 to 60.2) |" in twin
    assert "Several trials have the best mean: ntl_was." in page
    assert "within 5 min by trainer.learning_rate for" in page
    rows = list(csv.DictReader(data.splitlines()))
    assert rows[0]["objective"] == "ntl_was"
    assert len(rows) == 4


@pytest.mark.parametrize("metric", [None, "mean_deviation_minutes"])
def test_the_metric_of_the_comparison_chooses_and_comes_first(tmp_path, metric):
    """Two answers that are 6 minutes late have the smaller mean, and fewer within 5 minutes."""
    late = TARGETS | {"a": "7:11", "c": "3:06"}
    config = tuned(tmp_path, f"{RATES}, {ON}, metric: {metric or 'null'}")
    folder = tmp_path / "compare"
    for name in ("ce", "ntl_was"):
        write_run(folder / "seed7" / f"{name}_learning_rate_0.001", GOOD)
        write_run(folder / "seed7" / f"{name}_learning_rate_0.002", late)
        for seed in (0, 1):
            write_run(folder / f"seed{seed}" / name, test={"ce": GOOD, "ntl_was": late}[name])
    summary = write_summary(config, folder)
    rates = {run.trainer["learning_rate"] for run in seed_configs(config, 0)}
    first = summary["metrics"][0]["name"]
    assert summary["tuning"]["metric"]["name"] == first
    assert (rates, first) == (({1e-3}, "within_5_minutes") if metric is None else ({2e-3}, metric))
    best = {None: "ce", "mean_deviation_minutes": "ntl_was"}[metric]
    rows = list(csv.DictReader(write_report(folder)[2].read_text("utf-8").splitlines()))
    assert rows[0]["objective"] == best


def test_equal_means_do_not_depend_on_the_order_of_the_seeds():
    """The mean of 0.9, 0.8 and 0.7 is 0.8000000000000002, and of 0.7, 0.8 and 0.9 it is less."""
    values = {"first": [[0.9, 5], [0.8, 5], [0.7, 5]], "next": [[0.7, 4], [0.8, 4], [0.9, 4]],
              "nan": [[0.9, 1], [0.9, 1], [math.nan, 1]]}  # fmt: skip
    metrics = [
        metric for metric in TIMES.metrics if metric.name in ("exact", "mean_deviation_minutes")
    ]
    found = SelectionResults(metrics, 9, {n: np.array(own) for n, own in values.items()}, {})
    trials = [Trial(name=name, config=None, settings={}) for name in ("nan", "first", "next")]
    assert found.best(trials).name == "next"


@pytest.mark.slow
def test_a_killed_tuning_is_resumed_and_other_selection_rows_are_answered_anew(
    tmp_path, monkeypatch
):
    predict, train, answered, trained = generate.predict, training.train, [], []

    def count_predict(run, source, out, **more):
        answered.append((run.name, source and source.synthetic.seed))
        return predict(run, source, out, **more)

    def count_train(config, **more):
        trained.append(config.output_dir.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(config, **more)

    monkeypatch.setattr(generate, "predict", count_predict)
    monkeypatch.setattr(training, "train", count_train)
    short = ("compare.seeds=[0]", "compare.objectives=[ce]", "trainer.max_steps=2")
    short += ("data.train.synthetic.rows=8", "data.test.synthetic.rows=4")
    config = tuned(tmp_path, f"{RATES}, {ON}", *short)
    with pytest.raises(KeyboardInterrupt):
        compare(config)
    trials = ["ce_learning_rate_0.001", "ce_learning_rate_0.002"]
    assert trained == trials
    folder = compare(config)
    assert trained[2:] == [trials[1], "ce"]
    assert answered == [*((name, 3) for name in trials), ("ce", None)]
    (result,) = folder.glob("seed*/*/results.json")
    assert result.parent == folder / "seed0" / "ce"
    assert sum(trial["chosen"] for trial in read_summary(folder)["tuning"]["trials"]) == 1
    compare(config)
    assert (len(answered), len(trained)) == (3, 4)
    other = tuned(tmp_path, f"{RATES}, select_on: {rows_for('clock', 6, 4)}", *short)
    assert [run.name for run in open_runs(other, [7, 0])] == [f"seed7/{name}" for name in trials]
    compare(other)
    assert answered[3:5] == [(name, 4) for name in trials]
    assert trained[4:] == []
    rows = (folder / "seed7" / trials[0] / "selection" / "predictions.jsonl").read_text("utf-8")
    assert rows.count("\n") == 6


def test_trials_that_are_all_within_5_minutes_are_chosen_by_the_next_metric(tmp_path):
    """Half of the answers of the first trials are a minute off, so they are not exact."""
    folder = tmp_path / "compare"
    near = {"a": "7:04", "b": "12:57", "c": "3:00", "d": "6:30"}
    config = tuned(tmp_path, f"{RATES}, {ON}", "compare.seeds=[0]")
    for name in ("ce", "ntl_was"):
        write_run(folder / "seed7" / f"{name}_learning_rate_0.001", near)
        write_run(folder / "seed7" / f"{name}_learning_rate_0.002", TARGETS)
        write_run(folder / "seed0" / name, test=TARGETS)
    tuning = write_summary(config, folder)["tuning"]
    assert tuning["metric"]["name"] == "exact"
    found = [(t["chosen"], t["value"]) for t in tuning["trials"]]
    assert found == [(False, 0.5), (True, 1.0)] * 2


@pytest.mark.slow
def test_a_failed_trial_is_the_worst_of_its_row_and_is_not_repeated(tmp_path, monkeypatch):
    """At a learning rate of 1e30 the loss diverges; an untrained teacher writes no times."""
    train, trained = training.train, []

    def count_train(config, **more):
        trained.append(config.output_dir.name)
        return train(config, **more)

    monkeypatch.setattr(training, "train", count_train)
    rates = f"{RATES}, {ON}".replace("[1.0e-3, 2.0e-3]", "[1.0e+30, 1.0e-3]")
    short = ("compare.seeds=[0]", "trainer.max_steps=2", "trainer.warmup_steps=0")
    short += ("data.train.synthetic.rows=8", "data.test.synthetic.rows=4")
    short += ("predict={max_new_tokens: 2, branches: 4}", "compare.jobs=1")
    folder = compare(tuned(tmp_path, rates, *short, "compare.objectives=[ce]"))
    failed, chosen = read_summary(folder)["tuning"]["trials"]
    assert (failed["chosen"], failed["value"], failed["seeds"]) == (False, None, [None])
    assert failed["failed"].startswith("seed 7: step 2: ce is not finite, in a batch with")
    assert (chosen["chosen"], chosen["failed"]) == (True, None)
    assert not list(folder.rglob("checkpoint-*"))
    facts = read_summary(folder)["facts"]
    assert "for 2 runs and not counting 1 that failed, 1 at" in facts["training time"]
    page, twin, _ = (path.read_text("utf-8") for path in write_report(folder))
    assert "| failed |" in twin
    assert "step 2: ce is not finite, in a batch with" in page
    rows = list(csv.DictReader((folder / "trials.csv").read_text("utf-8").splitlines()))
    assert [row["why it failed"][:23] for row in rows] == ["seed 7: step 2: ce is n", ""]

    distilled = "{name: own, preset: ce, with: {distil: {decode: median, rows: 8}}}"
    both = tuned(tmp_path, rates, *short, f"compare.objectives=[ce, {distilled}]")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"all trials of own failed, the first .*; try other"):
            compare(both)
    assert len(trained) == 5
    for rate, why in (("1e+30", "is not finite"), ("0.001", "has no answer to keep for any of")):
        file = folder / "seed7" / f"own_learning_rate_{rate}" / "selection" / "failed.json"
        assert why in json.loads(file.read_text("utf-8"))["reason"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (RATES, r"compare: tune and select_on are set together; set both or none\."),
        (ON, r"compare: tune and select_on are set together"),
        (f"{RATES}, select_on: {rows_for('clock', 9, 2)}",
         r"be chosen on rows of data\.test; choose"),
        (f"{RATES}, select_on: {rows_for('clock', 9, 1)}",
         r"would be chosen on rows of data\.train"),
        (f"{RATES}, select_on: {rows_for('clock', 9, 7001)}",
         r"be chosen on rows of data\.train"),
        (f"tune: {{model.dtype: [auto]}}, {ON}", r"tune: 'model\.dtype' cannot be tuned; tune"),
        (f"tune: {{trainer.seed: [1]}}, {ON}", r"tune: 'trainer\.seed' cannot be tuned"),
        (f"tune: {{trainer.learning_rate: 1}}, {ON}", r"learning_rate: expected a list of values"),
        (f"tune: {{trainer.learning_rat: [1]}}, {ON}", r"no setting of tr.* 'learning_rat'"),
        (f"tune: {{objective.numeric_weight: [1]}}, {ON}", r"cannot be tuned; .* others in a grid"),
        (f"{RATES.replace('7', '1')}, {ON}", r"tune_seeds lists .* not in seeds, \[0, 1\], not"),
        (
            f"{RATES}, {ON}, grid: {{trainer.learning_rate: [1.0e-3]}}",
            r"tune: 'trainer\.learning_rate' is also set by a row or the grid; remove one\.",
        ),
    ],
)  # fmt: skip
def test_wrong_tuning_is_one_sentence(tmp_path, section, message):
    with pytest.raises(ValueError, match=message) as caught:
        tuned(tmp_path, section)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["'{}/*.jsonl'", "'{}/**/b.jsonl'", "['{}/c.jsonl', '{}/[ab]*']"])
def test_patterns_that_match_the_test_rows_are_noticed(tmp_path, path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text("{}", "utf-8")
    test = f"data.test={{path: '{tmp_path / 'b.jsonl'}'}}"
    path = path.replace("{}", str(tmp_path))
    with pytest.raises(ValueError, match=r"would be chosen on rows of data\.test"):
        tuned(tmp_path, f"{RATES}, select_on: {{path: {path}}}", test)
    tuned(tmp_path, f"{RATES}, select_on: {{path: '{tmp_path}/[ac].jsonl'}}", test)


@pytest.mark.parametrize(
    ("split", "name"),
    [("train[:500]", "train"), ("test[:50%] + dev", "test"), ("val", "train"), ("val[50:]", None)],
)
def test_slices_of_the_other_splits_are_noticed(tmp_path, split, name):
    data = ("data.train={dataset: clocks, split: 'train + val[:50]'}",
            "data.test={dataset: clocks, split: test}")  # fmt: skip
    section = f"{RATES}, select_on: {{dataset: clocks, split: '{split}'}}"
    error = pytest.raises(ValueError, match=rf"chosen on rows of data\.{name}; choose other rows")
    with error if name else nullcontext():
        tuned(tmp_path, section, *data)
