"""Steps to a given metric value, and what is believed of a digit, in the report."""

import json

import pytest
from browser import drawn_in_a_browser
from clock_reports import compare_folder, html_cells, markdown_cells, written
from hypothesis import given
from hypothesis import strategies as st
from result_files import write_lines

from mm_numeric.evaluation.report import steps_to_target
from mm_numeric.evaluation.report.results import (
    ReportedMetric,
    choose_styles,
    read_comparison,
    read_runs,
)
from mm_numeric.evaluation.report.steps_to_target import StepsToLevel, curve_of, first_step

STEPS = "Steps to reach a metric value"
DIGITS = "Digit probabilities"


def evaluated(folder, curves, *, start=None):
    """Add evaluations to the logs: by run, [(step, within, deviation)]."""
    for run, curve in curves.items():
        path = folder / run / "log.jsonl"
        lines = [json.loads(line) for line in path.open()]
        for step, within, deviation in curve:
            figures = {"within": within, "deviation": deviation}
            lines.append({"step": step, "epoch": step / 40, "eval": figures})
        write_lines(path, lines)


def figures_folder(folder, **more):
    """Return a comparison of ce and emd on two seeds, each evaluated three times."""
    summary = compare_folder(folder, **more)
    evaluated(folder, {
        "seed0/run0": [(10, 0.20, 40), (20, 0.40, 30), (30, 0.60, 20)],
        "seed1/run0": [(10, 0.30, 40), (20, 0.35, 35), (30, 0.40, 30)],
        "seed0/run1": [(10, 0.40, 30), (20, 0.60, 10), (30, 0.55, 15)],
        "seed1/run1": [(10, 0.30, 35), (20, 0.60, 10), (30, 0.65, 10)],
        "seed0/warm_start": [(90, 0.05, 80), (100, 0.20, 50)],
        "seed1/warm_start": [(100, 0.10, 50)],
    })  # fmt: skip
    return summary


def test_the_steps_of_a_distilled_run_follow_on_those_of_its_teacher(tmp_path):
    summary = figures_folder(tmp_path)
    for seed in (0, 1):
        run = tmp_path / f"seed{seed}" / "run1"
        (run / "teacher").mkdir()
        lines = [
            {"step": 100, "epoch": 2.5, "components": {"emd": 0.25}},
            {"step": 100, "epoch": 2.5, "eval": {"within": 0.35, "deviation": 33}},
        ]
        write_lines(run / "teacher" / "log.jsonl", lines)
    _, twin = written(tmp_path, summary)
    assert (
        "| `emd` | 0 (0 to 0) | 50 (0 to 100) | 100 (100 to 100) | 115 (110 to 120) | "
        "120 (120 to 120) | 120 (120 to 120) |" in twin
    )
    assert "40 steps are one epoch." in twin
    assert "0.2500 (step 100)" in twin
    (first, *_, last) = read_runs(read_comparison(tmp_path))[0]["emd", 0]
    assert (first["step"], last["step"], last["epoch"]) == (100, 130, 2.5 + 0.75)


def test_steps_to_a_figure_are_means_over_seeds_or_said_not_to_be_reached(tmp_path):
    page, twin = written(tmp_path, figures_folder(tmp_path))
    within, deviation = (
        rows
        for rows in twin.split(f"## {STEPS}\n")[1].split("\n## ")[0].split("\n\n")
        if rows.startswith("| objective")
    )
    assert within.splitlines() == [
        "| objective | 10.0% | 20.0% | 30.0% | 40.0% | 50.0% | 60.0% |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| `emd` | 0 (0 to 0) | 5 (0 to 10) | 10 (10 to 10) | 15 (10 to 20) | 20 (20 to 20) | "
        "20 (20 to 20) |",
        "| `ce` | 0 (0 to 0) | 5 (0 to 10) | 15 (10 to 20) | 25 (20 to 30) | "
        "not reached by 1 of 2 seeds | not reached by 1 of 2 seeds |",
    ]
    header = [text.strip() for text in deviation.splitlines()[0].strip("|").split("|")]
    assert "*Steps to mean deviation of*" in twin
    assert header == ["objective", *(f"{m}.0 min" for m in (50, 40, 30, 20, 10))]
    assert deviation.splitlines()[-1].endswith("| not reached |")
    assert "Evaluated every 10 steps. 40 steps are one epoch." in twin
    assert len(html_cells(page, "reached")) == len(markdown_cells(twin, STEPS)) == 6


def test_a_metric_that_is_not_evaluated_is_passed_over(tmp_path):
    summary = figures_folder(tmp_path)
    first = {"name": "within_near", "label": "near", "unit": "%", "higher_is_better": True}
    summary |= {"metrics": [first, *summary["metrics"]]}
    for cells in summary["table"].values():
        cells["within_near"] = cells["within"]
    _, twin = written(tmp_path, summary)
    assert "*Steps to within 5 min of*" in twin
    assert "Steps to near of" not in twin


def test_nothing_evaluated_and_no_digits_have_no_chapter(tmp_path):
    _, twin = written(tmp_path, compare_folder(tmp_path))
    assert not any(title in twin for title in (STEPS, DIGITS, "Published results"))


@given(
    figures=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    level=st.integers(0, 9),
    better=st.booleans(),
)
def test_the_first_step_as_good_is_that_of_a_loop(figures, level, better):
    curve = [(10 * i, float(figure)) for i, figure in enumerate(figures)]
    expected = None
    for step, figure in reversed(curve):
        if (figure >= level) if better else (figure <= level):
            expected = step
    assert first_step(curve, level, higher_is_better=better) == expected


@pytest.mark.parametrize("better", [True, False])
def test_harder_levels_are_on_the_right_with_a_margin_on_both_sides(monkeypatch, better):
    drawn = []
    chart = steps_to_target.charts.line_chart
    monkeypatch.setattr(
        steps_to_target.charts,
        "line_chart",
        lambda lines, x, y, **rest: drawn.append((lines, x)) or chart(lines, x, y, **rest),
    )
    metric = ReportedMetric(name="m", label="m", unit="%", higher_is_better=better)
    logs = {
        ("ce", seed): [
            {"step": 10 * i, "eval": {"m": value}}
            for i, value in enumerate([0.2, 0.5, 0.8] if better else [0.8, 0.5, 0.2], start=1)
        ]
        for seed in (0, 1)
    }
    styles = choose_styles(["ce"], "ce", None)
    levels = steps_to_target._levels_of(metric, styles, [0, 1], logs, {})
    steps_to_target._chart(levels, styles)
    ((lines, axis),) = drawn
    ends = [100 * levels.levels[0], 100 * levels.levels[-1]]
    assert (ends[0] < ends[1]) == better
    margin = 0.07 * (ends[1] - ends[0])
    assert (ends[0] - axis.low, axis.high - ends[1]) == pytest.approx((margin, margin))
    assert (axis.low < axis.high) == better
    places = [x for line in lines for x, _ in line.points]
    assert min(axis.low, axis.high) < min(places) <= max(places) < max(axis.low, axis.high)
    steps = {y for line in lines for _, y in line.points}
    assert max(steps) == 30


def test_one_seed_has_no_interval():
    assert StepsToLevel([30]).text() == "30"
    assert StepsToLevel([None]).text() == "not reached"
    assert StepsToLevel([None, 10, 20]).mean is None


def test_an_evaluation_without_the_figure_is_passed_over():
    log = [{"step": 5, "eval": {"other": 1.0}}, {"step": 6, "eval": {"m": 0.5}}, {"step": 7}]
    assert curve_of(log, log, ReportedMetric(name="m", label="m")) == [(0, 0.5), (6, 0.5)]
    assert curve_of([], log, ReportedMetric(name="m", label="m")) == []


def believed(folder, run, height):
    """Write digits.json: ``height`` at 0, a tenth of it one off, nothing known of ±9."""
    means = [None, *([1e-4] * 7), height / 10, height, height / 10, *([1e-4] * 7), None]
    found = {"differences": list(range(-9, 10)), "means": means, "tokens": [1] * 19}
    (folder / run / "digits.json").write_text(json.dumps(found))


def test_beliefs_are_means_over_seeds(tmp_path):
    summary = compare_folder(tmp_path)
    for run, height in (("seed0/run0", 0.5), ("seed1/run0", 0.7), ("seed0/run1", 0.9)):
        believed(tmp_path, run, height)
    page, twin = written(tmp_path, summary)
    header, *rows = markdown_cells(twin, DIGITS)
    assert header[1:] == [["emd"], ["ce"]]
    assert [rows[i][0] for i in (0, 9, 18)] == [["-9"], ["0"], ["+9"]]
    assert [rows[i][2] for i in (0, 8, 9, 11)] == [["–"], ["6.0%"], ["60.0%"], ["0.010%"]]
    assert rows[9][1] == ["90.0%"]
    assert html_cells(page, "digits")[10][2] == ["60.0%"]
    (tmp_path / "seed0" / "run0" / "digits.json").write_text("{}")
    with pytest.raises(ValueError, match=r"digits\.json: damaged .*delete it"):
        written(tmp_path, summary)


@pytest.mark.slow
def test_a_browser_draws_all_of_it(tmp_path):
    summary = figures_folder(tmp_path) | {"published": "ntil_clock_qwen2_vl_2b"}
    for run in ("seed0/run0", "seed1/run0", "seed0/run1", "seed1/run1"):
        believed(tmp_path, run, 0.6)
    page, _ = written(tmp_path, summary)
    assert page.count("<figure>") > 5
    for drawn in drawn_in_a_browser(page, tmp_path):
        assert drawn > 20
