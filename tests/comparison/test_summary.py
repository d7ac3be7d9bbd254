"""The summary of a comparison is what its runs say, and its differences are paired."""

import json

import numpy as np
import pytest
from finished_comparison import GOOD, NONE, POOR, TARGETS, comparison, settings, write_run
from result_files import write_lines

from mm_numeric.comparison import summary as summary_module
from mm_numeric.comparison.rows import compared_rows
from mm_numeric.comparison.summary import _own_answers, read_run_scores, write_summary
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.metrics.intervals import holm, seed_interval, smallest_effect
from mm_numeric.evaluation.report.comparison_page import terminal_text
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.report.verdict import verdict


def test_the_table_holds_the_figures_of_the_runs(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    summary = write_summary(config, tmp_path)
    ce, emd = summary["table"]["ce"], summary["table"]["emd"]
    assert ce["within_5_minutes"]["seeds"] == [0.5, 0.75]
    assert ce["within_5_minutes"]["value"] == 0.625
    assert ce["exact"]["seeds"] == [0.25, 0.5]
    assert ce["mean_deviation_minutes"]["seeds"] == [106.0, 3.0]
    assert ce["mean_deviation_minutes"]["value"] == 54.5
    assert ce["median_deviation_minutes"]["seeds"] == [32.0, 1.0]
    assert ce["mean_deviation_minutes_parsed_only"]["seeds"] == pytest.approx([64 / 3, 3.0])
    assert ce["unreadable"]["seeds"] == [0.25, 0.0]
    assert emd["within_5_minutes"]["seeds"] == [0.75, 0.75]
    assert emd["within_5_minutes"]["difference"]["seeds"] == [0.25, 0.0]
    assert emd["within_5_minutes"]["difference"]["value"] == 0.125
    assert emd["mean_deviation_minutes"]["difference"]["value"] == -51.5
    for figures in (*ce.values(), *emd.values()):
        assert figures["low"] <= figures["value"] <= figures["high"]
    assert all(figures["difference"] is None for figures in ce.values())


def test_intervals_equal_the_loop(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    table = write_summary(config, tmp_path)["table"]
    ce, emd = np.array([[0, 4, 60, 360], [0, 0, 10, 2]]), np.array([[0, 0, 10, 2]] * 2)
    rows = np.random.default_rng(0)
    at = [rows.integers(4, size=4) for _ in range(500)]
    for found, minutes in (
        (table["ce"]["mean_deviation_minutes"], ce),
        (table["emd"]["mean_deviation_minutes"]["difference"], emd - ce),
    ):
        draws = np.array([[own[drawn].mean() for drawn in at] for own in minutes])
        low, high, _ = seed_interval(minutes.mean(axis=1), draws)
        ends = np.clip([low, high], 0 if found["value"] > 0 else -360, 360)
        assert (found["low"], found["high"]) == pytest.approx(ends)


@pytest.mark.slow
def test_rows_of_one_image_are_drawn_together(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    for file in tmp_path.glob("seed*/*/predictions.jsonl"):
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        lines = [json.dumps({**row, "image": "ab.png"} if row["id"] in "ab" else row) + "\n"
                 for row in rows]  # fmt: skip
        file.write_text("".join(lines), "utf-8")
    summary = write_summary(config, tmp_path)
    ce, rng = np.array([[0, 4, 60, 360], [0, 0, 10, 2]]), np.random.default_rng(0)
    groups, images = read_run_scores(tmp_path / "seed3" / "ce").groups, []
    members = [np.flatnonzero(groups == group) for group in dict.fromkeys(groups)]
    assert sorted(map(len, members)) == [1, 1, 2]
    for _ in range(500):
        images.append(np.concatenate([members[g] for g in rng.integers(3, size=3)]))
    draws = np.array([[own[drawn].mean() for drawn in images] for own in ce])
    low, high, _ = seed_interval(ce.mean(axis=1), draws)
    assert low < 0 < 360 < high
    found = summary["table"]["ce"]["mean_deviation_minutes"]
    assert (found["low"], found["high"]) == (0, 360)
    found = summary["table"]["ce"]["median_deviation_minutes"]
    draws = np.array([[np.median(own[drawn]) for drawn in images] for own in ce])
    low, high, _ = seed_interval(np.median(ce, axis=1), draws)
    assert (found["low"], found["high"]) == pytest.approx((max(low, 0), min(high, 360)))
    said = "over seeds and 3 groups of test rows that share an image or a question"
    assert said in summary["facts"]["interval"]


@pytest.mark.parametrize("seeds", [(3,), (3, 5)])
def test_rows_of_a_single_image_have_no_interval(tmp_path, seeds):
    runs = {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)}
    config = comparison(tmp_path, runs, seeds=seeds)
    for file in tmp_path.glob("seed*/*/predictions.jsonl"):
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        lines = [json.dumps({**row, "image": "a.png"}) + "\n" for row in rows]
        file.write_text("".join(lines), "utf-8")
    found = write_summary(config, tmp_path)["table"]["emd"]["exact"]
    for entry in (found, found["difference"]):
        assert (entry["low"], entry["high"], entry.get("p")) == (None,) * 3
    (line,) = (own for own in terminal_text(read_comparison(tmp_path)).splitlines() if "emd" in own)
    assert line.count("(no interval") == 1  # of the difference


def test_the_same_answers_do_not_differ_whatever_their_order(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (POOR, GOOD)})
    table, share = write_summary(config, tmp_path)["table"], 1 - 0.025 ** (1 / 4)
    for figures in table["emd"].values():
        found = figures["difference"]
        assert (found["value"], found["p"], found["seeds"]) == (0, 1, [0, 0])
        assert (found["low"], found["high"]) in ((None, None), (-share, share))


def test_the_label_noise_is_not_described_if_rows_differ_in_it(tmp_path):
    quiet = "{name: quiet, preset: ce, with: {data.train.synthetic.noise_minutes: 0}}"
    config = settings(tmp_path, ["ce", quiet])
    described = summary_module._description(config, compared_rows(config))
    assert described == "Which objective teaches qwen2_vl (tiny) the task clock best?"


def test_five_seeds_have_corrected_p_values_for_the_first_metric_only(tmp_path):
    one, none = {**POOR, "b": "12:58"}, [POOR] * 5
    runs = {"ce": none, "emd": [GOOD] * 5, "ntil": [POOR, POOR, one, one, GOOD]}
    summary = write_summary(comparison(tmp_path, runs, seeds=range(5)), tmp_path)
    found = {name: summary["table"][name]["within_5_minutes"]["difference"] for name in runs}
    assert found.pop("ce") is None
    p_values = {name: own["p"] for name, own in found.items()}
    assert 0 < p_values["emd"] < p_values["ntil"] < 1
    assert {name: own["p_holm"] for name, own in found.items()} == holm(p_values)
    said = (
        "p-values of within 5 min corrected by Holm's method over 2 differences between objectives "
        "and their reference; other metrics, the control and warm starts are in no family"
    )
    assert said in terminal_text(read_comparison(tmp_path))
    for name in found:
        others = [own for m, own in summary["table"][name].items() if m != "within_5_minutes"]
        assert not any("p_holm" in own["difference"] for own in others)
    line = " ".join(terminal_text(read_comparison(tmp_path)).splitlines()[4].split())
    last = found["ntil"]
    assert last["findable"] == smallest_effect(last["error"], last["freedom"], hypotheses=2)
    shown = f"findable {100 * last['findable']:.1f} points)"
    assert line.endswith(f"; corrected p {last['p_holm']:.3f}, {shown}")
    assert "seeds +" not in line


def test_a_metric_at_its_limit_gives_way_to_the_next(tmp_path):
    """All answers are within 5 minutes, but not all are exact: the median deviation differs."""
    near = {key: f"{text[:-1]}{int(text[-1]) - 1}" if key in "ab" else text
            for key, text in TARGETS.items()}  # fmt: skip
    config = comparison(tmp_path, {"ce": [near] * 5, "emd": [TARGETS] * 5}, seeds=range(5))
    summary = write_summary(config, tmp_path)
    names = [metric["name"] for metric in summary["metrics"]]
    assert names[:3] == ["exact", "within_5_minutes", "within_1_minute"]
    assert "p_holm" in summary["table"]["emd"]["exact"]["difference"]
    assert "p_holm" not in summary["table"]["emd"]["within_5_minutes"]["difference"]
    said = (
        "within 5 min is above 98 % for every objective, so close to its limit that it cannot show "
        "differences; the first metric is exact instead"
    )
    assert summary["facts"]["headline"] == said
    assert f"; {said}." in terminal_text(read_comparison(tmp_path))
    assert f"{said[0].upper()}{said[1:]}." in verdict(read_comparison(tmp_path))


def with_categories(folder, kinds):
    """Add a category to the answers of all runs: ``{"a": "aardvark"}``, and ``zebra`` to others."""
    for path in folder.glob("seed*/*/predictions.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row["buckets"] = {"category": kinds.get(row["id"], "zebra")}
        write_lines(path, rows)


def test_a_small_category_that_comes_first_by_name_decides_nothing(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    with_categories(tmp_path, {"d": "aardvark"})
    summary = write_summary(config, tmp_path)
    names = [metric["name"] for metric in summary["metrics"]]
    assert names[:3] == [f"within_5_minutes{own}" for own in ("", "_aardvark", "_zebra")]
    read = read_comparison(tmp_path)
    assert verdict(read)[0].startswith("emd has the best mean of 2 seeds: 75.0% within 5 min ")
    assert not any("aardvark" in line for line in verdict(read))
    assert "aardvark within 5 min" in terminal_text(read).splitlines()[1]


def test_a_metric_at_its_limit_gives_way_to_one_of_the_same_rows(tmp_path):
    """One of 100 answers is within 5 minutes, and it is the only one of its category."""
    config = comparison(tmp_path, {"ce": [NONE] * 2, "emd": [NONE] * 2})
    for path in tmp_path.glob("seed*/*/predictions.jsonl"):
        row = {"task": "clock", "target": "7:05", "text": "1:00"}
        rows = [{**row, "id": str(i), "image": f"{i}.png"} for i in range(100)]
        rows[0]["text"] = "7:05"
        write_lines(path, rows)
    with_categories(tmp_path, {"0": "aardvark", "1": "aardvark"})
    summary = write_summary(config, tmp_path)
    assert summary["table"]["ce"]["within_5_minutes_aardvark"]["value"] == 0.5
    first = summary["metrics"][0]["name"]
    assert first == "mean_deviation_minutes"
    assert f"the first metric is {summary['metrics'][0]['label']}" in summary["facts"]["headline"]


def test_without_a_parseable_answer_the_metric_stays_and_the_reason_is_named(tmp_path):
    """No other metric has a value that differs, and a metric without values never comes first."""
    none = dict.fromkeys(TARGETS, "it is late")
    config = comparison(tmp_path, {"ce": [none] * 2, "emd": [none] * 2})
    summary = write_summary(config, tmp_path)
    first = summary["metrics"][0]["name"]
    assert all(own[first]["value"] is not None for own in summary["table"].values())
    assert summary["facts"]["headline"].startswith("within 5 min is below 2 % for every objective")
    end = (
        "; 100.00 % of the answers could not be parsed, most of them (16) for the reason: "
        f"{config.task.parse('it is late').reason}"
    )
    assert summary["facts"]["headline"].endswith(end)


def test_one_objective_away_from_the_limit_keeps_the_metric(tmp_path):
    summary = write_summary(comparison(tmp_path, {"ce": [NONE] * 2, "emd": [POOR] * 2}), tmp_path)
    assert summary["metrics"][0]["name"] == "within_5_minutes"
    assert "headline" not in summary["facts"]


def test_runs_that_answer_different_rows_are_rejected(tmp_path):
    others = dict.fromkeys("abc", "1:00")
    config = comparison(tmp_path, {"ce": (POOR, POOR), "emd": (POOR, others)})
    with pytest.raises(ValueError, match="seed5/emd and seed3/ce answer different rows, or"):
        write_summary(config, tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_runs_with_other_targets_are_rejected(tmp_path):
    """Labels that were corrected between two runs change the metrics of one of them alone."""
    config = comparison(tmp_path, {"ce": (POOR, POOR), "emd": (POOR, POOR)})
    file = tmp_path / "seed5" / "emd" / "predictions.jsonl"
    file.write_text(file.read_text("utf-8").replace('"target": "3:00"', '"target": "4:00"'))
    with pytest.raises(ValueError, match=r"seed5/emd and seed3/ce answer .* different targets"):
        write_summary(config, tmp_path)


@pytest.mark.parametrize("first", ["arithmetic", "gsm8k"])
def test_each_row_is_scored_with_its_own_task(tmp_path, monkeypatch, first):
    texts = {"arithmetic": "7", "gsm8k": "#### 7\n8"}
    (other,) = texts.keys() - {first}
    rows = [f"{{name: {name}, preset: ce, with: {{task: {task}}}}}"
            for name, task in zip("ab", (first, other), strict=True)]  # fmt: skip
    changes = [
        "compare.seeds=[0]",
        "compare.control=null",
        f"compare.objectives=[{', '.join(rows)}]",
    ]
    config = read_config("arithmetic_tiny", [f"compare.output_dir={tmp_path}", *changes])
    for row, task in zip(compared_rows(config), (first, other), strict=True):
        for name in (row.warm_start, row.name):
            folder = tmp_path / "seed0" / name
            folder.mkdir(parents=True)
            answer = {"id": "1", "task": task, "text": texts[task], "target": "7"}
            (folder / "predictions.jsonl").write_text(json.dumps(answer) + "\n", "utf-8")
    monkeypatch.setattr(summary_module, "_facts", lambda *_: {})
    if first == "gsm8k":
        with pytest.raises(
            ValueError, match=r"b \(task arithmetic\) have no lenient_.* list b first"
        ):
            write_summary(config, tmp_path)
        return
    table = write_summary(config, tmp_path)["table"]
    assert [table[name]["accuracy"]["value"] for name in "ab"] == [1, 1]


def test_rows_come_in_the_order_of_their_ids(tmp_path):
    write_run(tmp_path / "run", GOOD, backwards=True)
    scores = read_run_scores(tmp_path / "run")
    assert [row["id"] for row in scores.rows] == ["a", "b", "c", "d"]
    assert scores.columns["deviation_minutes"].tolist() == [0, 0, 10, 2]


def test_what_the_summary_says_about_the_comparison(tmp_path):
    runs = {"ce": (POOR, GOOD), "ce_times_1.3": (POOR, POOR), "emd": (GOOD, GOOD)}
    config = comparison(tmp_path, runs, control="ce_times_1.3")
    summary = write_summary(config, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8")) == summary
    assert summary["title"] == "clock_tiny"
    assert summary["baseline"] == "ce"
    assert summary["control"] == "ce_times_1.3"
    assert summary["objectives"] == ["ce", "ce_times_1.3", "emd"]
    assert list(summary["table"]) == ["ce", "ce_times_1.3", "emd"]
    assert summary["table"]["ce_times_1.3"]["exact"]["difference"]["seeds"] == [0.0, -0.25]
    assert summary["seeds"] == [3, 5]
    assert summary["warm_start"]["unreadable"]["value"] == 1.0
    assert summary["warm_start"]["exact"]["difference"] is None
    assert summary["metrics"][0] == {
        "name": "within_5_minutes",
        "label": "within 5 min",
        "unit": "%",
        "higher_is_better": True,
    }
    assert [(run["seed"], run["objective"]) for run in summary["runs"]] == [
        (seed, name) for seed in (3, 5) for name in runs
    ]
    assert all((tmp_path / run["folder"] / "run.json").is_file() for run in summary["runs"])
    assert "Gaussian noise of 5 minutes, tested on clean labels." in summary["description"]
    facts = summary["facts"]
    assert facts["model"] == "qwen2_vl tiny, 1,234,567 parameters"
    assert facts["training rows"] == "12,000 (synthetic clocks, seeds 3001, 5001)"
    assert facts["test rows"] == "4 (synthetic clocks, seed 2)"
    assert facts["warm start"].startswith("800 steps of 64 rows, with CE")
    assert facts["each objective"].startswith("500 steps of 64 rows, the same rows")
    assert facts["seeds"] == "3, 5"
    assert facts["varied"].startswith("each seed draws its own random initialisation, data order")
    assert facts["training time"] == "12 min for 8 runs, 2 at a time"
    assert facts["control"].startswith(
        "ce_times_1.3 is ce with its loss times 1.3, which Adam hard"
    )
    assert facts["command"] == f"mm-numeric compare {tmp_path / 'config.yaml'}"


def test_the_facts_are_those_of_a_row_without_settings_of_its_own(tmp_path):
    large = "{name: large, preset: ce, with: {model.name: my/large, trainer.max_steps: 1}}"
    config = settings(tmp_path, [large, "ce"], seeds=(3,))
    for name in ("warm_start", "warm_start_large", "ce", "large"):
        write_run(tmp_path / "seed3" / name, GOOD, steps=1 if name == "large" else 500)
    file = tmp_path / "seed3" / "large" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "parameters": 7_000_000_000}))
    facts = write_summary(config, tmp_path)["facts"]
    assert facts["model"] == "qwen2_vl tiny, 1,234,567 parameters"
    assert facts["each objective"].startswith("500 steps of 64 rows, the same rows")
    assert facts["other settings"].startswith('large (model.name: "my/large", trainer.max_steps: 1')


def test_the_training_rows_of_a_distilled_row_are_those_of_its_teacher(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD)})
    path = tmp_path / "seed3" / "ce" / "run.json"
    run = json.loads(path.read_text("utf-8"))
    teacher = {"rows": 500, "steps": 40}
    path.write_text(json.dumps(run | {"rows": 450, "steps": 7, "teacher": teacher}), "utf-8")
    facts = write_summary(config, tmp_path)["facts"]
    assert facts["training rows"].startswith("500 (synthetic clocks, ")
    assert facts["each objective"].startswith("40 steps of 64 rows")
    assert facts["distillation"] == "ce: 7 more steps on 450 of its own answers"


def test_the_answers_of_a_stream_are_not_counted():
    run = {"teacher": {"rows": None, "steps": 5}, "rows": None, "steps": 7}
    found = _own_answers({"own": run, "few": run | {"rows": 1200}})
    assert found["distillation"] == (
        "own: 7 more steps on a stream of its own answers; "
        "few: 7 more steps on 1,200 of its own answers"
    )


def test_what_is_nothing_is_null(tmp_path):
    config = comparison(tmp_path, {"ce": (NONE, POOR), "emd": (NONE, NONE)})
    summary = write_summary(config, tmp_path)
    assert "NaN" not in (tmp_path / "summary.json").read_text(encoding="utf-8")
    parsed_only = summary["table"]["emd"]["mean_deviation_minutes_parsed_only"]
    nothing = {"value": None, "low": None, "high": None, "seeds": [None, None]}
    unknown = dict.fromkeys(("p", "error", "freedom", "findable"))
    assert parsed_only == {**nothing, "difference": {**nothing, **unknown}}
    half = summary["table"]["ce"]["mean_deviation_minutes_parsed_only"]
    assert half["seeds"] == [None, pytest.approx(64 / 3)]
    assert half["value"] is None
    terminal_text(read_comparison(tmp_path))


def test_a_summary_says_which_times_are_of_a_last_session_only(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    path = tmp_path / "seed3" / "emd" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "resumed": True}))
    time = write_summary(config, tmp_path)["facts"]["training time"]
    assert time == "9 min for 6 runs (the last session of those that were resumed), 2 at a time"


def test_a_summary_names_every_machine_and_commit_of_its_runs(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, GOOD), "emd": (GOOD, GOOD)})
    path = tmp_path / "seed5" / "emd" / "run.json"
    elsewhere = {"machine": "Linux, 1 x H100", "commit": "0123abcd-dirty"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **elsewhere}))
    facts = write_summary(config, tmp_path)["facts"]
    assert facts["machine"] == "Linux, 2 cores; Linux, 1 x H100"
    assert facts["commit"] == "not recorded; 0123abcd-dirty"
    assert facts["versions"] == "torch 2.0"
    assert "the same seed on another machine" in facts["repeatability"]


def test_the_table_of_a_terminal(tmp_path):
    config = comparison(tmp_path, {"ce": (POOR, POOR), "emd": (GOOD, GOOD)})
    write_summary(config, tmp_path)
    lines = terminal_text(read_comparison(tmp_path)).splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert words[:2] == [
        "Metrics",
        "objective within 5 min ↑ within 1 min ↑ exact ↑ mean deviation ↓ median deviation ↓ "
        "Δ of within 5 min to ce",
    ]
    assert words[3] == (
        "emd 75.0% (32.3 to 100.0) 50.0% 50.0% 3.0 min 1.0 min "
        "+25.0 points (−16.4 to +66.4; seeds +25.0 points, +25.0 points)"
    )
    assert words[4] == "ce 50.0% (2.1 to 97.9) 25.0% 25.0% 106.0 min 32.0 min -"
    assert words[5] == (
        "warm start, before all of them 0.0% (0.0 to 60.2) 0.0% 0.0% 360.0 min 360.0 min -"
    )
    assert words[6].startswith("random answer 0.0% 0.0% 0.0% ")
    assert words[7].startswith("constant answer 0.0% ")
    assert words[8:] == [
        "",
        "Mean of 2 seeds; 95 %, Student's t over seeds and test rows; differences are paired; "
        "fewer than 5 seeds do not show which objective is better; each seed draws its own random "
        "initialisation, data order, label noise and training rows; the test rows are the same for "
        "all seeds.",
    ]


def test_a_summary_that_is_not_there_or_broken(tmp_path):
    with pytest.raises(ValueError, match=r"summary\.json: there is no such file; run `mm-num"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json: not valid .*; run `mm-numeric comp"):
        read_summary(tmp_path)
