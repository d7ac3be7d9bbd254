"""Hypotheses of a comparison: the rows they are about, when they were stated, and results."""

import json

import pytest
from finished_comparison import NONE, TARGETS, comparison
from planned import seed_configs

from mm_numeric.comparison.hypotheses import (
    Hypothesis,
    Row,
    make_hypotheses,
    record_hypotheses,
    recorded_hypotheses,
)
from mm_numeric.comparison.rows import read_comparison, stated_hypotheses
from mm_numeric.comparison.summary import write_summary
from mm_numeric.config.compare import HypothesisGroup
from mm_numeric.evaluation.metrics.intervals import holm
from mm_numeric.evaluation.report import results
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.report import write_report

RULES = ("greedy", "median")
GRID = {
    f"{name}_{noise}": Row({"objective": name, "noise": noise}, RULES)
    for noise in (0, 5)
    for name in ("ce", "emd")
}
PLAIN = {name: Row({}, RULES) for name in ("ce", "emd")} | {"head": Row({}, ("greedy",))}


def made(rows, **settings):
    group = HypothesisGroup(**{"family": "A", "metric": "exact", "objectives": ("emd",)} | settings)
    return make_hypotheses([group], rows, "config, compare")


def test_a_row_is_compared_under_the_same_rule_or_with_itself_under_another():
    assert made(PLAIN, rules=RULES, against="ce") == [
        Hypothesis("A", "exact", ("emd", rule), ("ce", rule)) for rule in RULES
    ]
    (decoding,) = made(PLAIN, rules=("median",), against_rule="greedy")
    assert decoding == ("A", "exact", ("emd", "median"), ("emd", "greedy"))
    (head,) = made(PLAIN, objectives=("head",), against="ce", against_rule="median")
    assert head == ("A", "exact", ("head", "greedy"), ("ce", "median"))


def test_an_objective_of_a_grid_has_a_hypothesis_in_each_cell():
    found = made(GRID, rules=("median",), against="ce", against_rule="greedy")
    assert [(own.better, own.other) for own in found] == [
        ((f"emd_{noise}", "median"), (f"ce_{noise}", "greedy")) for noise in (0, 5)
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objectives": ("edm",)}, "0.objectives: there is no row 'edm'.*Did you mean 'emd'"),
        ({"against": "cd"}, "0.against: there is no row 'cd'"),
        ({"against": "ce", "rules": ("mean",)}, "0, emd: there is no rule 'mean'"),
        ({"objectives": ("head",), "rules": ("median",)}, "0, head: there is no rule 'median'"),
        ({}, "emd, greedy is compared with itself"),
        ({"objectives": ("emd", "emd"), "against": "ce"}, "listed twice"),
    ],
)
def test_a_hypothesis_about_nothing_is_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        made(PLAIN, **settings)


def test_the_config_is_checked_when_it_is_read():
    stated = "compare.hypotheses=[{family: A, metric: exact, objectives: [edm], against: ce}]"
    with pytest.raises(ValueError, match=r"clock_tiny.yaml, compare.hypotheses.0.objectives"):
        read_comparison("clock_tiny", [stated])


def test_the_number_of_runs_before_a_hypothesis_is_kept(tmp_path):
    early, late = made(PLAIN, rules=RULES, against="ce")
    record_hypotheses(tmp_path, [early])
    for run in ("warm_start", "ce", "emd"):
        (tmp_path / "seed0" / run).mkdir(parents=True)
        (tmp_path / "seed0" / run / "results.json").write_text("{}", encoding="utf-8")
    record_hypotheses(tmp_path, [early, late])
    assert recorded_hypotheses(tmp_path) == {early: 0, late: 2}


def right(count):
    return {key: TARGETS[key] if i < count else "?" for i, key in enumerate(TARGETS)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the config and folder of five seeds, in which emd is better than ce, and ntil not."""
    folder = tmp_path_factory.mktemp("planned")
    seeds = (0, 1, 2, 3, 4)
    runs = {"ce": [right(1), NONE] * 3, "emd": [right(4)] * 5, "ntil": [right(2), NONE] * 3}
    stated = [
        {"family": "losses", "metric": "exact", "objectives": ["emd", "ntil"], "against": "ce"},
        {"family": "size", "metric": "mean_deviation_minutes",
         "objectives": ["emd"], "against": "ce"},
    ]  # fmt: skip
    overrides = [f"compare.hypotheses={json.dumps(stated)}"]
    config = comparison(folder, runs, seeds=seeds, overrides=overrides)
    record_hypotheses(folder, made(PLAIN, against="ce"))
    record_hypotheses(folder, stated_hypotheses(config)[:1])
    return folder, write_summary(config, folder)


def test_p_values_are_corrected_in_each_family(finished):
    folder, summary = finished
    emd, ntil, size = (own["difference"] for own in summary["hypotheses"])
    expected = holm({"emd": emd["p"], "ntil": ntil["p"]})
    assert (emd["p_holm"], ntil["p_holm"]) == (expected["emd"], expected["ntil"])
    assert emd["p_holm"] == 2 * emd["p"]
    assert size["p_holm"] == size["p"]
    exact = summary["table"]["emd"]["exact"]
    assert emd["value"] == exact["difference"]["value"]
    assert size["value"] < 0
    assert "losses" in terminal_text(results.read_comparison(folder))
    withdrawn = summary["facts"]["withdrawn hypotheses"]
    assert withdrawn == "emd, greedy against ce, greedy in exact"


def test_the_report_says_what_was_planned_and_confirmed(finished):
    folder, _ = finished
    write_report(folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("## Planned results")[1].split("\n## ")[0].splitlines()
            if " against " in line]  # fmt: skip
    assert [("confirmed" in row, "not clear" in row) for row in rows] == [
        (True, False), (False, True), (True, False)
    ]  # fmt: skip
    assert "not recorded" not in rows[0]
    assert "not recorded" in rows[1]


def test_finished_runs_stay_valid_if_hypotheses_change():
    stated = "compare.hypotheses=[{family: A, metric: exact, objectives: [emd], against: ce}]"
    before, after = (seed_configs(read_comparison("clock_tiny", own), 0) for own in ([], [stated]))
    assert [run.to_dict() for run in before] == [run.to_dict() for run in after]
