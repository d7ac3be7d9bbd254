"""Tuning: the same number of trials for every row, chosen on rows that are not test rows."""

import csv
import json
import math
from contextlib import nullcontext

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import small_config

from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.run import compare, seed_runs
from mm_numeric.comparison.selection import SelectionResults, chosen_rows, write_source
from mm_numeric.comparison.summary import write_summary
from mm_numeric.comparison.tune import Trial, _between
from mm_numeric.config.data import DataSource
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.report.report import write_report
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.score import score
from mm_numeric.inference import generate
from mm_numeric.training import run as training

TARGETS = {"a": "7:05", "b": "12:58", "c": "3:00", "d": "6:30"}
GOOD = TARGETS | {"d": "6:50"}
POOR = TARGETS | {"a": "1:00", "b": "2:00"}
BAD = dict.fromkeys(TARGETS, "?")
RATES = "tune: {trainer.learning_rate: [1.0e-3, 2.0e-3]}"
ON = "select_on: {render: 8, seed: 3}"


def tuned(folder, compare=f"{RATES}, {ON}", *more):
    """Return a comparison of ce and ntl_was with a section ``compare``."""
    objectives = "objectives: [ce, ntl_was], control: null, seeds: [0, 1]"
    start = "warm_start: {max_steps: 2}"
    where = f"output_dir: {folder / 'compare'}"
    config = small_config(folder, f"compare={{{where}, {objectives}, {start}, {compare}}}", *more)
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
        write_source(folder / "selection", DataSource(render=8, seed=3))
        write_answers(folder / "selection", selection)
    if test:
        write_answers(folder, test)


def test_every_row_has_the_same_number_of_trials_from_one_warm_start(tmp_path):
    tune = (
        "{trainer.learning_rate: [1.0e-4, 1.0e-3, 1.0e-2], objective.numeric_weight: [0.1, 0.3, 1]}"
    )
    config = tuned(tmp_path, f"tune: {tune}, {ON}")
    ce, ntl = compared_rows(config)
    assert len(ce.trials) == len(ntl.trials) == 9
    rates = [trial.config.trainer["learning_rate"] for trial in ce.trials]
    assert rates == pytest.approx(
        [1.0e-4, 1.78e-4, 3.16e-4, 5.62e-4, 1.0e-3, 1.78e-3, 3.16e-3, 5.62e-3, 1.0e-2]
    )
    assert [list(trial.settings) for trial in ce.trials] == [["trainer.learning_rate"]] * 9
    pairs = {
        (t.config.trainer["learning_rate"], t.config.objective.spec.numeric_weight)
        for t in ntl.trials
    }
    assert pairs == {(rate, weight) for rate in (1e-4, 1e-3, 1e-2) for weight in (0.1, 0.3, 1.0)}
    assert ntl.trials[1].name == "ntl_was_learning_rate_0.0001_numeric_weight_0.3"
    assert {trial.config.objective.name for trial in ntl.trials} == {"ntl_was"}
    warm, *trials = seed_runs(config, 1)
    assert len(trials) == 18
    assert {trial.model.name for trial in trials} == {str(warm.output_dir / "model")}
    assert warm.trainer["learning_rate"] == config.trainer["learning_rate"]
    only_weight = tuned(tmp_path, f"tune: {{objective.numeric_weight: [0.1, 0.3]}}, {ON}")
    assert [len(row.trials) for row in compared_rows(only_weight)] == [1, 2]


@examples(50)
@given(
    values=st.lists(st.integers(-20, 5000), min_size=2, max_size=5, unique=True),
    scale=st.sampled_from([1, 0.001]),
    wanted=st.integers(2, 40),
)
def test_values_between_contain_the_given_ones(values, scale, wanted):
    values = sorted(value * scale for value in values)
    found = _between(values, wanted)
    assert found == sorted(set(found))
    assert set(values) <= set(found)
    assert (found[0], found[-1]) == (values[0], values[-1])
    assert len(found) >= wanted or (scale == 1 and len(found) >= len(values))
    assert {type(value) for value in found} == {type(scale)}


def test_settings_are_chosen_on_the_selection_rows_where_the_test_rows_disagree(tmp_path):
    """On the selection rows 0.001 is better, on the test rows 0.002 would be."""
    folder = tmp_path / "compare"
    config = tuned(tmp_path)
    assert chosen_rows(config) == []
    slow, fast = "learning_rate_0.001", "learning_rate_0.002"
    for seed in (0, 1):
        write_run(folder / f"seed{seed}" / "warm_start", test=POOR)
        write_run(folder / f"seed{seed}" / f"ce_{slow}", GOOD, BAD)
        write_run(folder / f"seed{seed}" / f"ce_{fast}", (POOR, GOOD)[seed], TARGETS)
        write_run(folder / f"seed{seed}" / f"ntl_was_{slow}", (TARGETS, BAD)[seed], BAD)
        write_run(folder / f"seed{seed}" / f"ntl_was_{fast}", POOR, GOOD)
    ce, ntl = chosen_rows(config)
    assert (ce.folder, ce.config.trainer["learning_rate"]) == (f"ce_{slow}", 1.0e-3)
    assert ntl.folder == f"ntl_was_{fast}"  # equal means, and also within 1 minute, and exact
    summary = write_summary(config, folder)
    assert summary["table"]["ce"]["within_5_minutes"]["seeds"] == [0.0, 0.0]
    assert summary["table"]["ntl_was"]["within_5_minutes"]["seeds"] == [0.75, 0.75]
    assert summary["runs"][0]["folder"] == f"seed0/ce_{slow}"
    tuning = summary["tuning"]
    assert tuning["select_on"] == "4 (rendered, seed 3)"
    assert tuning["metric"]["name"] == "within_5_minutes"
    found = [(t["objective"], t["chosen"], t["value"], t["seeds"]) for t in tuning["trials"]]
    assert found == [
        ("ce", True, 0.75, [0.75, 0.75]),
        ("ce", False, 0.625, [0.5, 0.75]),
        ("ntl_was", False, 0.5, [1.0, 0.0]),
        ("ntl_was", True, 0.5, [0.5, 0.5]),
    ]
    assert summary["facts"]["training time"].endswith("for 10 runs, 1 at a time")
    page, twin, data = (path.read_text("utf-8") for path in write_report(folder))
    assert "Chosen at an end of the tried values: ntl_was (trainer.learning_rate 0.002)" in page
    assert "| `ce` | 0.001 | 2 | 75.0% | 0.0% (0.0 to 60.2) |" in twin
    assert "Several trials have the best mean: ntl_was." in page
    assert "within 5 min by trainer.learning_rate for" in page
    rows = list(csv.DictReader(data.splitlines()))
    assert rows[0]["objective"] == "ntl_was"
    assert len(rows) == 4


def test_a_row_without_the_tuned_setting_has_one_trial(tmp_path):
    config = tuned(
        tmp_path, f"tune: {{objective.numeric_weight: [0.1, 0.3]}}, {ON}", "compare.seeds=[0]"
    )
    folder = tmp_path / "compare" / "seed0"
    write_run(folder / "warm_start", test=POOR)
    write_run(folder / "ce", GOOD, GOOD)
    write_run(folder / "ntl_was_numeric_weight_0.1", BAD)
    write_run(folder / "ntl_was_numeric_weight_0.3", POOR, GOOD)
    write_summary(config, folder.parent)
    page = write_report(folder.parent)[0].read_text("utf-8")
    assert "objective.numeric_weight has no effect on ce." in page
    assert "The number of trials differs: ce has 1, others have 2." in page


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
        answered.append((run.name, source and source.seed))
        return predict(run, source, out, **more)

    def count_train(config, **more):
        trained.append(config.output_dir.name)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return train(config, **more)

    monkeypatch.setattr(generate, "predict", count_predict)
    monkeypatch.setattr(training, "train", count_train)
    short = ("compare.seeds=[0]", "compare.objectives=[ce]", "trainer.max_steps=2")
    config = tuned(tmp_path, f"{RATES}, {ON}", *short)
    with pytest.raises(KeyboardInterrupt):
        compare(config)
    trials = ["ce_learning_rate_0.001", "ce_learning_rate_0.002"]
    assert trained == ["warm_start", *trials]
    folder = compare(config)
    assert trained[3:] == trials[1:]
    assert answered[:3] == [("warm_start", None), *((name, 3) for name in trials)]
    tuning = read_summary(folder)["tuning"]
    (chosen,) = [trial["folder"] for trial in tuning["trials"] if trial["chosen"]]
    assert answered[3:] == [(chosen, None)]
    found = {path.parent.name for path in folder.glob("seed0/*/results.json")}
    assert found == {"warm_start", chosen}
    count = len(answered)
    compare(config)
    assert len(answered) == count
    compare(tuned(tmp_path, f"{RATES}, select_on: {{render: 6, seed: 4}}", *short))
    assert answered[count : count + 2] == [(name, 4) for name in trials]
    assert len(trained) == 4
    rows = (folder / "seed0" / trials[0] / "selection" / "predictions.jsonl").read_text("utf-8")
    assert rows.count("\n") == 6


def test_trials_that_are_all_within_5_minutes_are_chosen_by_the_next_metric(tmp_path):
    """Half of the answers of the first trials are a minute off, so they are not exact."""
    folder = tmp_path / "compare"
    near = {"a": "7:04", "b": "12:57", "c": "3:00", "d": "6:30"}
    config = tuned(tmp_path, f"{RATES}, {ON}", "compare.seeds=[0]")
    write_run(folder / "seed0" / "warm_start", test=POOR)
    for name in ("ce", "ntl_was"):
        write_run(folder / "seed0" / f"{name}_learning_rate_0.001", near)
        write_run(folder / "seed0" / f"{name}_learning_rate_0.002", TARGETS, TARGETS)
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
    rates = f"tune: {{trainer.learning_rate: [1.0e+30, 1.0e-3]}}, {ON}"
    short = ("compare.seeds=[0]", "trainer.max_steps=2", "trainer.warmup_steps=0")
    short += ("predict={max_new_tokens: 2, branches: 4}", "compare.jobs=1")
    folder = compare(tuned(tmp_path, rates, *short, "compare.objectives=[ce]"))
    failed, chosen = read_summary(folder)["tuning"]["trials"]
    assert (failed["chosen"], failed["value"], failed["seeds"]) == (False, None, [None])
    assert failed["failed"].startswith("seed 0: step 2: ce is not finite, in a batch with")
    assert (chosen["chosen"], chosen["failed"]) == (True, None)
    assert not list(folder.rglob("checkpoint-*"))
    facts = read_summary(folder)["facts"]
    assert "for 2 runs and not counting 1 that failed, 1 at" in facts["training time"]
    page, twin, _ = (path.read_text("utf-8") for path in write_report(folder))
    assert "| failed |" in twin
    assert "step 2: ce is not finite, in a batch with" in page
    rows = list(csv.DictReader((folder / "trials.csv").read_text("utf-8").splitlines()))
    assert [row["why it failed"][:23] for row in rows] == ["seed 0: step 2: ce is n", ""]

    distilled = "{name: own, preset: ce, with: {distil: {decode: median, rows: 8}}}"
    both = tuned(tmp_path, rates, *short, f"compare.objectives=[ce, {distilled}]")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"all trials of own failed, the first .*; try other"):
            compare(both)
    assert len(trained) == 5
    for rate, why in (("1e+30", "is not finite"), ("0.001", "has no answer to keep for any of")):
        file = folder / "seed0" / f"own_learning_rate_{rate}" / "selection" / "failed.json"
        assert why in json.loads(file.read_text("utf-8"))["reason"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (RATES, r"compare: tune and select_on are set together; set both or none\."),
        (ON, r"compare: tune and select_on are set together"),
        (f"{RATES}, select_on: {{render: 9, seed: 2}}", r"be chosen on rows of data\.test; choose"),
        (f"{RATES}, select_on: {{render: 9, seed: 1}}", r"would be chosen on rows of data\.train"),
        (f"{RATES}, select_on: {{render: 9, seed: 1001}}", r"be chosen on rows of data\.train"),
        (f"tune: {{model.dtype: [auto]}}, {ON}", r"tune: 'model\.dtype' cannot be tuned; tune"),
        (f"tune: {{trainer.seed: [1]}}, {ON}", r"tune: 'trainer\.seed' cannot be tuned"),
        (f"tune: {{trainer.learning_rate: 1}}, {ON}", r"learning_rate: expected a list of values"),
        (f"tune: {{trainer.learning_rat: [1]}}, {ON}", r"no setting of tr.* 'learning_rat'"),
        (f"tune: {{objective.numeric_weight: [-1]}}, {ON}", "objective: numeric_weight must"),
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
