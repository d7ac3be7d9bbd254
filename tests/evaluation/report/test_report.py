"""The report says what the files say, in two forms, and keeps strangers' text harmless."""

import json
import re

import pytest
from browser import drawn_in_a_browser
from clock_reports import HOSTILE, compare_folder, html_cells, markdown_cells, written

from mm_numeric.cli.main import main
from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report.report import FORMATS, write_report
from mm_numeric.evaluation.report.results import ReportedMetric
from mm_numeric.evaluation.table import number
from mm_numeric.io.escaping import markdown_text

CHAPTERS = {"metrics": "All metrics", "deviations": "Deviations", "failures": "Parse failures"}


@pytest.mark.parametrize("anchor", CHAPTERS)
def test_both_forms_have_the_same_numbers(tmp_path, anchor):
    summary = compare_folder(tmp_path, objectives=("ce", "ce_times", "emd"), control="ce_times")
    page, twin = written(tmp_path, summary)
    numbers = []
    for rows in (html_cells(page, anchor), markdown_cells(twin, CHAPTERS[anchor])):
        words = [word for row in rows for text in row for word in text]
        numbers.append(sorted(word for word in words if re.search(r"\d", word)))
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) >= 3


def test_the_twin_lists_every_chapter_of_the_page(tmp_path):
    page, twin = written(tmp_path, compare_folder(tmp_path))
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == re.findall("^## (.*)$", twin, flags=re.MULTILINE)
    assert "Answers on the dial" in titles
    assert "mm-numeric compare tiny" in page
    assert "mm-numeric compare tiny" in twin


def test_text_of_a_model_cannot_leave_its_place(tmp_path):
    name = 'a"b|<i>`x`'
    summary = compare_folder(tmp_path, objectives=("ce", name))
    summary |= {"title": HOSTILE, "facts": {HOSTILE: HOSTILE, "command": "mm-numeric compare x"}}
    page, twin = written(tmp_path, summary)
    code = "`a\"b\\|<i>'x'`"
    assert code in twin
    for text in (page, twin.replace(code, "")):
        assert "<script" not in text
        assert "<i>" not in text
        assert "\x00" not in text
        assert "\u202e" not in text
    assert "&lt;script&gt;alert(&#39;7:05&#39;)" in page
    assert not re.search(r"(?<!\\)\]\(", twin)
    rows = markdown_cells(twin, "All metrics")
    assert {len(row) for row in rows} == {3}


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("html", "<!doctype html>", "<h2>All metrics</h2>"),
        ("md", "# tiny", "## All metrics"),
        ("latex", "% tiny. Needs \\usepackage{booktabs}.", "% --table metrics"),
        ("csv", "objective,within 5 min (%),within 5 min low,", "\nemd,75,70,80,5,3,7,18.5,"),
    ],
)
def test_one_format_is_one_file(tmp_path, capsys, name, first, count):
    summary = compare_folder(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    before = set(tmp_path.iterdir())
    assert main(["report", str(tmp_path), "--format", name]) == 0
    (path,) = set(tmp_path.iterdir()) - before
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {path.resolve()}"
    assert path.name == FORMATS[name]
    text = path.read_text(encoding="utf-8")
    assert text.startswith(first)
    assert count in text


def test_each_table_is_printed_by_its_name(tmp_path, capsys):
    """``report.tex`` has the names; the CSV of the metrics has a column for each value."""
    _, twin = written(tmp_path, compare_folder(tmp_path))
    (path,) = write_report(tmp_path, ["latex"])
    names = re.findall("% --table (.*)", path.read_text(encoding="utf-8"))
    assert {"metrics", "deviations-1", "deviations-2", "gallery", "failures", "curves"} <= {*names}
    capsys.readouterr()
    for name in names:
        assert main(["report", str(tmp_path), "--table", name, "--format", "md"]) == 0
        assert capsys.readouterr().out in twin
    assert main(["report", str(tmp_path), "--table", "failures", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "reason,ce,emd\nno time,8,8\n"
    assert main(["report", str(tmp_path), "--table", "metric", "--format", "csv"]) == 2
    assert "no table 'metric'. Did you mean 'metrics'?" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--table", "metrics"]) == 2
    assert "add --format md, latex or csv" in capsys.readouterr().err


def test_a_summary_has_ten_lines_of_markdown(tmp_path, capsys):
    names = ("ce", "ce_times", "emd", "ntil", "ntl")
    summary = compare_folder(tmp_path, objectives=names, control="ce_times", seeds=range(5))
    _, twin = written(tmp_path, summary)
    before = set(tmp_path.iterdir())
    assert main(["report", str(tmp_path), "--summary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(tmp_path.iterdir()) == before
    assert len(lines) == 10
    assert lines[0].startswith("**tiny: ntl beats ce: 90.0% within 5 min against 70.0%, a paired ")
    assert lines[0].removeprefix("**tiny: ") in twin
    assert lines[2] == "| objective | within 5 min ↑ | mean deviation ↓ |"
    assert [line.split("`")[1] for line in lines[4:7]] == ["ntl", "ntil", "emd"]
    assert all(line in twin for line in lines[8:])


@pytest.mark.parametrize(("findable", "known"), [(0.03, True), (9.0, True), (None, False)])
def test_differences_that_are_too_small_to_be_found_are_a_grey_band(tmp_path, findable, known):
    """It lies around the mean of ce, 70 %, and ends at the axis; emd is 75 %."""
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["table"]["emd"]["within"]["difference"]["findable"] = findable
    page, _ = written(tmp_path, summary)
    figure = page.partition("Filled symbols")[2].partition("</figure>")[0]
    bands = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%" y="0" height="100%"', figure)
    assert len(bands) == known == ("In the grey band" in page)
    if known:
        (base,) = set(re.findall(r'x1="([\d.]+)%"[^>]*stroke-dasharray="3 3"', figure))
        left, width = map(float, bands[0])
        assert left + width / 2 == pytest.approx(float(base), abs=0.02) or width == 100
        assert (width == 100) == (findable == 9.0)


def test_every_tabular_of_latex_is_closed(tmp_path):
    summary = compare_folder(tmp_path, objectives=("ce", "a_b%"), seeds=range(5))
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (path,) = write_report(tmp_path, ["latex"])
    text = path.read_text(encoding="utf-8")
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}")
    assert text.count("\\toprule") == text.count("\\bottomrule") >= 4
    assert r"\texttt{a\_b\%} & \begin{tabular}[t]{@{}r@{}}\textbf{75.0\%} \\ \scriptsize" in text


def test_markdown_text_keeps_names_readable():
    assert markdown_text("ce_times_1.3") == "ce_times_1.3"
    assert markdown_text("a|b *c* _d_") == r"a\|b \*c\* \_d\_"


def test_numbers_have_a_real_minus_and_no_negative_zero():
    assert number(-0.04) == "0.0"
    assert number(-1234.56, sign=True) == "−1,234.6"
    assert number(2, sign=True) == "+2.0"
    assert number(-3.5e200, 3) == "−3.5e+200"  # not two hundred digits


@pytest.mark.parametrize(
    ("higher_is_better", "mean", "p_holm", "trend"),
    [
        (True, 1.5, 0.05, "better"),
        (False, 1.5, 0.01, "worse"),
        (False, -1.5, 0.0, "better"),
        (True, 1.5, 0.051, "unclear"),
        (True, 1.5, None, "unclear"),
    ],
)
def test_a_difference_is_better_worse_or_unclear(higher_is_better, mean, p_holm, trend):
    metric = ReportedMetric(name="m", label="m", higher_is_better=higher_is_better)
    found = {"value": mean, "low": 1.0, "high": 2.0, "seeds": [], "p_holm": p_holm}
    assert metric.trend(found) == trend
    assert metric.trend({name: found[name] for name in ("value", "low", "high")}) == "unclear"


def test_a_thinned_curve_averages_neighbours_and_keeps_its_end():
    points = [(float(step), 2.0 * step) for step in range(6)]
    assert charts.thinned(points, most=3) == [(0.5, 1.0), (2.5, 5.0), (4.5, 9.0)]
    assert charts.thinned(points) == points


def test_one_objective_one_seed_and_no_runs(tmp_path):
    summary = compare_folder(tmp_path, objectives=("ce",), seeds=(3,))
    summary |= {"runs": [], "warm_start": None}
    page, twin = written(tmp_path, summary)
    assert "with no objective to compare" in page
    assert "warm start" not in twin
    assert "Answers on the dial" not in page
    assert "No scored answers were found" in twin


@pytest.mark.slow
def test_a_browser_shows_it_without_errors_or_sideways_scrolling(tmp_path):
    summary = compare_folder(
        tmp_path, objectives=("ce", "ce_times", "emd", "an_objective_with_a_long_name", "x")
    )
    page, _ = written(tmp_path, summary)
    for drawn in drawn_in_a_browser(page, tmp_path):
        assert drawn > 40
