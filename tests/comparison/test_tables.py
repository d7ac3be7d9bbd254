"""Decoding rules are compared with greedy on the same weights; calibration is that of all seeds."""

import json

import numpy as np
import pytest

from mm_numeric.answers import Number
from mm_numeric.api import report
from mm_numeric.comparison.summary import write_summary
from mm_numeric.comparison.tables import metric_tables
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.answers.source import AnswerRows
from mm_numeric.evaluation.metrics import calibration
from mm_numeric.evaluation.metrics.intervals import seed_interval
from mm_numeric.evaluation.metrics.number_errors import NUMBERS
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.score import scores_of
from mm_numeric.runs.folder import PREDICTIONS, decoded_name


def decoded_rows(answers, targets, rule):
    """Return rows of a predictions file. ``answers`` maps an id to (text, confidence)."""
    return [
        {
            "id": key,
            "task": "clock",
            "text": text,
            "target": targets[key],
            "image": f"{key}.png",
            "greedy": text,
            "decode": {"rule": rule, "for": "within_5_minutes", "covered": 0.99, "candidates": 9,
                       "interval": None, "confidence": confidence},
        }
        for key, (text, confidence) in answers.items()
    ]  # fmt: skip


def write_decoded(folder, answers, targets, rule):
    """Write the predictions of one rule into a run folder."""
    lines = [json.dumps(row) + "\n" for row in decoded_rows(answers, targets, rule)]
    (folder / decoded_name(PREDICTIONS, rule)).write_text("".join(lines), encoding="utf-8")


TARGETS = {"a": "7:05", "b": "12:58", "c": "3:00", "d": "6:30"}
# Deviations in minutes          0              4              60             6
POOR = dict(zip("abcd", [("7:05", 0.9), ("1:02", 0.55), ("4:00", 0.7), ("6:36", 0.2)], strict=True))
# Deviations in minutes          0              0              3              20
GOOD = dict(zip("abcd", [("7:05", 1.0), ("12:58", 0.8), ("3:03", 0.6), ("6:50", 0.4)], strict=True))
MINUTES = {id(POOR): [0, 4, 60, 6], id(GOOD): [0, 0, 3, 20]}
FACTS = {"parameters": 1, "rows": 8, "steps": 5, "machine": "Linux", "batch_rows": 4,
         "seconds": 9, "resumed": False, "versions": {}}  # fmt: skip


def comparison(folder, runs, rules=("greedy", "median"), ensembles=()):
    """Write a comparison; ``runs[name][rule]`` has the answers of seed 3 and of seed 5.

    ``ensembles`` maps names to the answers of both runs together.
    """
    config = read_config(
        "clock_tiny",
        [
            f"compare.output_dir={folder}",
            f"compare.objectives=[{', '.join(name for name in runs if name != 'warm_start')}]",
            "compare.control=null",
            "compare.seeds=[3, 5]",
            f"compare.decode=[{', '.join(rules)}]",
            f"compare.ensemble={bool(ensembles)}",
        ],
    )
    for name in ensembles:
        own = folder / "ensembles" / name / "3_5"
        own.mkdir(parents=True)
        write_decoded(own, ensembles[name], TARGETS, "median")
    for place, seed in enumerate((3, 5)):
        for name, by_rule in runs.items():
            run = folder / f"seed{seed}" / name
            run.mkdir(parents=True)
            (run / "run.json").write_text(json.dumps(FACTS), "utf-8")
            for rule, seeds in by_rule.items():
                write_decoded(run, seeds[place], TARGETS, rule)
    return config


WARM = {"greedy": (POOR, POOR), "median": (POOR, POOR)}
RUNS = {
    "warm_start": WARM,
    "ce": {"greedy": (POOR, GOOD), "median": (GOOD, GOOD)},
    "emd": {"greedy": (GOOD, POOR), "median": (POOR, POOR)},
}


@pytest.mark.slow
def test_each_rule_is_compared_with_greedy_of_the_same_objective(tmp_path):
    config = comparison(tmp_path, RUNS)
    summary = write_summary(config, tmp_path)
    decoding = summary["decoding"]
    assert list(decoding) == ["ce", "emd", "warm_start"]
    for name in ("ce", "emd"):
        for metric, found in summary["table"][name].items():
            greedy = decoding[name]["greedy"][metric]
            assert greedy == {**found, "difference": None}
    rows = np.random.default_rng(0)
    drawn = [rows.integers(4, size=4) for _ in range(500)]
    for name in ("ce", "emd"):
        minutes = {
            rule: np.array([MINUTES[id(own)] for own in RUNS[name][rule]], dtype=float)
            for rule in ("greedy", "median")
        }
        found = decoding[name]["median"]["mean_deviation_minutes"]["difference"]
        apart = minutes["median"] - minutes["greedy"]
        own = apart.mean(axis=1)
        assert found["seeds"] == pytest.approx(own.tolist())
        assert found["value"] == pytest.approx(own.mean())
        draws = np.array([[seed[at].mean() for at in drawn] for seed in apart])
        low, high, p = seed_interval(own, draws)
        assert (found["low"], found["high"], found["p"]) == pytest.approx((low, high, p))
    assert read_summary(tmp_path)["decoding"]["ce"]["median"]["exact"]["seeds"] == [0.5, 0.5]


@pytest.mark.slow
def test_calibration_is_averaged_over_seeds_and_charts_pool_them(tmp_path):
    summary = write_summary(comparison(tmp_path, RUNS), tmp_path)
    found = summary["calibration"]["ce"]["greedy"]
    seeds = [
        np.array([[0.9, 0.55, 0.7, 0.2], [1, 1, 0, 0]]),
        np.array([[1.0, 0.8, 0.6, 0.4], [1, 1, 1, 0]]),
    ]
    confidence, right = (np.concatenate(values) for values in zip(*seeds, strict=True))
    assert found["count"] == 8
    assert found["correct"] == "within 5 minutes"
    for name, function in (
        ("ece", calibration.expected_calibration_error),
        ("auroc", calibration.auroc),
        ("aurc", calibration.aurc),
    ):
        assert found[name] == pytest.approx(np.mean([function(*own) for own in seeds]))
    bins = calibration.reliability(confidence, right)
    assert found["reliability"] == [list(own) for own in bins]
    coverage, risk = calibration.risk_coverage(confidence, right)
    points = np.stack([coverage, risk], axis=1)
    assert found["risk_coverage"] == points.tolist()
    given, right_shares = found["thresholds"]["coverage"], found["thresholds"]["right"]
    assert [own["wanted"] for own in given] == [1.0, 0.9, 0.8, 0.5]
    assert given[0] == {"wanted": 1.0, "threshold": 0.2, "coverage": 1.0, "right": 5 / 8}
    assert given[3] == {"wanted": 0.5, "threshold": 0.7, "coverage": 0.5, "right": 0.75}
    assert [own["wanted"] for own in right_shares] == [0.9, 0.95, 0.99]
    assert right_shares[2]["coverage"] == 3 / 8
    assert json.loads((tmp_path / "summary.json").read_text("utf-8")) == summary


def test_a_seed_without_an_auroc_is_not_in_its_mean(tmp_path):
    right = {key: (text, 0.5) for key, text in TARGETS.items()}
    runs = {"warm_start": WARM, "ce": {"greedy": (right, POOR), "median": (right, right)}}
    found = write_summary(comparison(tmp_path, runs), tmp_path)["calibration"]["ce"]
    assert found["greedy"]["auroc"] == calibration.auroc(
        np.array([0.9, 0.55, 0.7, 0.2]), np.array([1.0, 1.0, 0.0, 0.0])
    )
    assert found["median"]["auroc"] is None


@pytest.mark.slow
def test_the_interval_of_mape_may_exceed_100_percent():
    answers, targets = ([Number(text) for text in texts] for texts in (("4", "9"), ("1", "3")))
    rows = [{"id": own, "reason": None} for own in "ab"]
    read = AnswerRows("numbers", "p.jsonl", rows=rows, answers=answers, targets=targets)
    scores = scores_of(read, NUMBERS)
    found = metric_tables({("ce", "greedy"): [scores]}, {"ce": None}).table["ce"]["mape"]
    assert (found["low"], found["value"], found["high"]) == (2, 2.5, 3)


@pytest.mark.slow
def test_greedy_alone_has_no_decoding_table(tmp_path):
    runs = {name: {"greedy": by_rule["greedy"]} for name, by_rule in RUNS.items()}
    summary = write_summary(comparison(tmp_path, runs, rules=["greedy"]), tmp_path)
    assert summary["decoding"] == {}
    assert list(summary["calibration"]) == ["ce", "emd", "warm_start"]
    assert "decoded by" not in terminal_text(read_comparison(tmp_path))


@pytest.mark.slow
def test_the_terminal_has_a_second_table_of_rules(tmp_path):
    write_summary(comparison(tmp_path, RUNS), tmp_path)
    second = terminal_text(read_comparison(tmp_path)).split("\n\n")[1].splitlines()
    words = [" ".join(line.split()) for line in second]
    title = "within 5 min, by decoding rule; Δ to greedy decoding"
    assert words[:2] == [title, "objective greedy ↑ median ↑"]
    assert words[3].startswith("ce 62.5% (")
    assert "75.0% (" in words[3]
    assert "; Δ +12.5 points (" in words[3]


@pytest.mark.slow
def test_an_ensemble_is_compared_with_its_single_runs(tmp_path):
    runs = {**RUNS, "emd": {"greedy": (GOOD, POOR), "median": (POOR, GOOD)}}
    config = comparison(tmp_path, runs, ensembles={"ce": GOOD, "emd": GOOD})
    summary = write_summary(config, tmp_path)
    found = summary["ensembles"]
    assert {name: list(rules) for name, rules in found.items()} == {
        "ce": ["median"], "emd": ["median"]
    }  # fmt: skip
    name = summary["metrics"][0]["name"]
    same, better = (found[own]["median"][name] for own in ("ce", "emd"))
    single = summary["decoding"]["emd"]["median"][name]
    assert same["value"] == better["value"] == 0.75
    assert same["difference"]["seeds"] == [0.0, 0.0]
    assert better["difference"]["seeds"] == [0.75 - value for value in single["seeds"]]
    assert better["difference"]["value"] == pytest.approx(0.75 - single["value"])
    third = terminal_text(read_comparison(tmp_path)).split("\n\n")[2].splitlines()
    words = [" ".join(line.split()) for line in third]
    title = "within 5 min, of ensembles; Δ to their single runs"
    assert words[:2] == [title, "objective median ↑"]
    assert [line.partition(";")[2][:10] for line in words[3:5]] == [" Δ 0.0 poi", " Δ +12.5 p"]
    report(tmp_path)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "within 5 min, of ensembles" in page
    assert "An ensemble combines the runs of all seeds" in page


@pytest.mark.parametrize("change", ["compare.seeds=[1]", "compare.decode=[greedy]"])
def test_an_ensemble_needs_seeds_and_a_rule(change):
    words = ["compare.ensemble=true", "compare.decode=[greedy, median]", change]
    with pytest.raises(ValueError, match="list two seeds, and a rule other than greedy in decode"):
        read_config("clock_tiny", words)


@pytest.mark.slow
def test_decoded_answers_are_also_compared_with_the_greedy_ones_of_the_reference(tmp_path):
    decoding = write_summary(comparison(tmp_path, RUNS), tmp_path)["decoding"]
    for metric in decoding["ce"]["median"]:
        greedy = decoding["ce"]["greedy"][metric]["seeds"]
        for name in ("ce", "emd"):
            found = decoding[name]["median"][metric]
            changes = [own - its for own, its in zip(found["seeds"], greedy, strict=True)]
            assert found["from_reference"]["seeds"] == pytest.approx(changes)
        assert decoding["ce"]["median"][metric]["from_reference"] == pytest.approx(
            decoding["ce"]["median"][metric]["difference"]
        )
    first = next(iter(decoding["emd"]["median"].values()))
    assert first["from_reference"]["value"] == -0.125
    without = [decoding["emd"]["greedy"], *decoding["warm_start"].values()]
    assert not any("from_reference" in cell for cells in without for cell in cells.values())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("[median]", r"decode lists greedy first, and each rule once, not \['median'\]"),
        ("[]", "decode lists greedy first"),
        ("[greedy, median, median]", "decode lists greedy first, and each rule once"),
        ("[greedy, medain]", "there is no rule 'medain'. Did you mean 'median'?"),
    ],
)
def test_an_invalid_list_of_rules_is_one_sentence(rules, message):
    with pytest.raises(ValueError, match=message):
        read_config("clock_tiny", [f"compare.decode={rules}"])
