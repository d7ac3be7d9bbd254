"""The report says what the files say, in two forms, and keeps strangers' text harmless."""

import json
import re

import pytest
from browser import drawn_in_a_browser
from clock_reports import (
    HOSTILE,
    METRICS,
    cell,
    compare_folder,
    html_cells,
    markdown_cells,
    written,
)
from result_files import write_lines

from mm_numeric.cli.main import main
from mm_numeric.evaluation.metrics.intervals import correct_p_values
from mm_numeric.evaluation.report import charts
from mm_numeric.evaluation.report import clock_gallery as dials
from mm_numeric.evaluation.report.report import FORMATS, write_report
from mm_numeric.evaluation.report.results import ReportedMetric, read_comparison
from mm_numeric.evaluation.report.verdict import verdict
from mm_numeric.evaluation.table import number
from mm_numeric.io.escaping import markdown_text


def said(folder, summary):
    """Return the verdict as one text."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return " ".join(verdict(read_comparison(folder)))


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


def test_the_best_of_more_trials_than_its_reference_has_is_not_called_better(tmp_path):
    def tuned(folder, *trials):
        summary = compare_folder(tmp_path / folder, objectives=("ce", "emd"), seeds=range(5))
        metric = METRICS[0]
        own = [
            {"objective": name, "settings": {"trainer.learning_rate": rate}, "chosen": rate == 1,
             "folder": f"{name}_{rate}", "value": 0.7, "seeds": [0.7] * 5}
            for name, count in zip(("ce", "emd"), trials, strict=True)
            for rate in range(1, count + 1)
        ]  # fmt: skip
        tuning = {"settings": ["trainer.learning_rate"], "select_on": "8", "metric": metric}
        summary["tuning"] = {**tuning, "trials": own}
        text = said(tmp_path / folder, summary)
        return text, written(tmp_path / folder, summary)[0]

    text, page = tuned("same", 3, 3)
    assert text.startswith("emd beats ce: ")
    assert 'class="better"' in page
    assert "The results on test rows are those of the chosen trial." in page
    text, page = tuned("more", 1, 3)
    assert "beats" not in text
    assert text.startswith("No objective is clearly better than ce")
    assert "0 of 1 objectives are better than ce and 0 worse" in text
    assert "The number of trials differs: emd has 3 and ce has 1. The best of more trials" in text
    assert 'class="better"' not in page
    assert "Nor are differences between different numbers of trials coloured." in page


def test_curves_start_and_end_where_the_logs_do(tmp_path):
    _, twin = written(tmp_path, compare_folder(tmp_path))
    assert "| `ce` | `ce` | 1.0050 (step 1) | 0.1300 (step 8) | 0.1300 |" in twin
    assert "| `emd` | `emd` | 0.5050 (step 1) | 0.0675 (step 8) | 0.0675 |" in twin
    assert "| `emd` | `ce` | 0" not in twin


def test_a_component_that_was_never_finite_is_named_and_not_drawn(tmp_path):
    summary = compare_folder(tmp_path)
    for seed in (0, 1):  # log.jsonl has null in place of NaN
        lines = [{"step": k, "parts": {"ce": 1.0 / k, "emd": None}} for k in (1, 2)]
        write_lines(tmp_path / f"seed{seed}" / "run1" / "log.jsonl", lines)
    page, twin = written(tmp_path, summary)
    assert "Not drawn, because no finite value was logged: emd." in twin
    assert "ce by training step for" in page
    assert "emd by training step" not in page


def test_the_share_of_clipped_steps_is_a_mean_over_the_log_and_seeds(tmp_path):
    summary = compare_folder(tmp_path)
    for seed, shares in ((0, (0.2, 0.4)), (1, (0.0, 0.2))):
        lines = [{"step": k, "parts": {"ce": 1.0}, "clipping": {"share_of_steps": share}}
                 for k, share in enumerate(shares, 1)]  # fmt: skip
        write_lines(tmp_path / f"seed{seed}" / "run0" / "log.jsonl", lines)
    _, twin = written(tmp_path, summary)
    section = twin.split("## Learning curves")[1].split("\n## ")[0]
    assert "*Steps with clipped gradient*\n\n| objective | clipped |" in section
    assert section.rstrip().endswith("| `ce` | 20.0% |")  # emd did not log it


def test_a_row_begins_with_the_warm_start_that_it_went_on_from(tmp_path):
    """Each of two seeds has a line of the shared warm start, and one of the row's own."""
    summary = compare_folder(tmp_path, objectives=("ce", "emd", "xval"))
    for run in summary["runs"]:
        run["warm_start"] = f"seed{run['seed']}/warm_start" + "_xval" * (run["objective"] == "xval")
    page, _ = written(tmp_path, summary)
    assert page.count('stroke="var(--warm)"') == 2  # of the panel of ce
    assert "have the colour of the first of these" not in page
    for seed in (0, 1):
        lines = [{"step": 10 * k, "parts": {"ce": 3 - 0.1 * k, "xval": k}} for k in range(1, 11)]
        own = tmp_path / f"seed{seed}" / "warm_start_xval"
        own.mkdir()
        write_lines(own / "log.jsonl", lines)
    with_own, _ = written(tmp_path, summary)
    assert with_own.count('stroke="var(--warm)"') == 2
    assert with_own.count('stroke-width="1.2"') == page.count('stroke-width="1.2"') + 4
    assert "have the colour of the first of these" in with_own


def test_a_thinned_curve_averages_neighbours_and_keeps_its_end():
    points = [(float(step), 2.0 * step) for step in range(6)]
    assert charts.thinned(points, most=3) == [(0.5, 1.0), (2.5, 5.0), (4.5, 9.0)]
    assert charts.thinned(points) == points


def test_late_and_early_answers_are_on_their_own_side_of_the_dial():
    answers = ("7:00", "7:05", "7:06", "6:54", "8:00", "6:00", "1:00", None)
    rows = [{"target": "7:00", "parsed": parsed} for parsed in answers]
    assert dials.sector_shares(rows) == {
        0: 0.25,
        1: 0.125,
        6: 0.125,
        36: 0.125,
        66: 0.125,
        71: 0.125,
    }


def test_verdict_of_a_clear_gain(tmp_path):
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["facts"]["varied"] = "each seed draws its own order"
    text = said(tmp_path, summary)
    assert text.startswith(
        "emd beats ce: 75.0% within 5 min against 70.0%, a paired difference of "
        "+5.0 points (+3.0 to +7.0; corrected p 0.012). 1 of 1 objectives"
    )
    assert "There is no control" in text
    assert text.endswith("Each seed draws its own order.")


def test_verdict_of_a_gain_that_may_be_chance(tmp_path):
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["table"]["emd"]["within"]["difference"]["p_holm"] = 0.06
    assert said(tmp_path, summary).startswith(
        "No objective is clearly better than ce; of the others, emd has the best mean: 75.0% "
        "within 5 min against 70.0%, a paired difference of +5.0 points (+3.0 to +7.0; corrected p"
        " 0.060)."
    )


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 1, 2, 3)])
def test_few_seeds_have_no_winner_and_no_colour(tmp_path, seeds):
    """Not in any form, although each seed gains and the interval excludes 0."""
    summary = compare_folder(tmp_path, objectives=("ce", "ce_times", "emd"), seeds=seeds,
                             control="ce_times")  # fmt: skip
    rules = dict.fromkeys(("greedy", "median"), summary["table"]["emd"])
    summary["decoding"] = {"ce": rules, "emd": rules}
    page, twin = written(tmp_path, summary)
    shown = page.split("</style>")[1]
    for word in ("beat", 'class="better"', 'class="worse"', 'class="best"', "is best", "**75.0%**"):
        assert word not in shown
        assert word not in twin
    count = "One seed is" if len(seeds) == 1 else f"{len(seeds)} seeds are"
    said = f"{count} too few to state which objective is better; that takes 5."
    assert said in page
    assert said in twin
    if len(seeds) > 1:
        assert "+10.0 points (+8.0 to +12.0; seeds +8.0 points, +12.0 points)" in page


def test_only_the_first_metric_is_highlighted(tmp_path):
    page, twin = written(tmp_path, compare_folder(tmp_path, seeds=range(5)))
    assert page.split("</style>")[1].count('class="best"') == 1
    assert page.count('<small class="better">') == 1
    assert "**75.0%**" in twin
    assert "**18.5 min**" not in twin


def test_verdict_without_a_paired_difference(tmp_path):
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["table"]["emd"]["within"]["difference"] = None
    assert "5 min, ce 70.0%: without a paired difference." in said(tmp_path, summary)


def test_without_p_values_there_is_no_winner(tmp_path):
    """Of a single image, no difference has an interval or a p-value."""
    summary = compare_folder(tmp_path, seeds=range(5))
    for metrics in summary["table"].values():
        for own in filter(None, metrics.values()):
            (own["difference"] or {}).pop("p_holm", None)
    page, _ = written(tmp_path, summary)
    assert "There are no p-values, which show whether an objective is better: the test" in page
    assert "Without corrected p-values (5 seeds or more), nothing is coloured." in page
    assert "beats" not in page


def test_verdict_when_nothing_beats_the_baseline(tmp_path):
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["table"]["emd"]["within"] = cell(0.6, 0.5, 0.7, (-0.1, -0.2, -0.05), 0.01)
    text = said(tmp_path, summary)
    assert text.startswith("No objective is clearly better than ce; of the others, emd has the ")
    assert "0 of 1 objectives are better than ce and 1 worse" in text


def test_verdict_when_less_is_better(tmp_path):
    summary = compare_folder(tmp_path, seeds=range(5)) | {"metrics": METRICS[::-1]}
    summary["table"]["emd"]["deviation"]["difference"]["p_holm"] = 0.0001
    text = said(tmp_path, summary)
    assert text.startswith("emd beats ce: 18.5 min mean deviation against 20.0 min, a paired")
    assert "−1.5 min (−2.0 to −1.0; corrected p < 0.001)" in text


def test_verdict_compares_each_row_with_its_own_reference(tmp_path):
    """ntil_0 has the best mean, but only ntil_20 is better than the row that it is paired with."""
    names = ("ce_0", "ntil_0", "ce_20", "ntil_20")
    summary = compare_folder(tmp_path, objectives=names, seeds=range(5))
    summary["references"] = {"ce_0": None, "ntil_0": "ce_0", "ce_20": None, "ntil_20": "ce_20"}
    for name, mean, p in (("ntil_0", 0.9, 0.2), ("ce_20", 0.5, None), ("ntil_20", 0.6, 0.02)):
        pair = (0.1, 0.08, 0.12) if p else None
        summary["table"][name]["within"] = cell(mean, mean - 0.1, mean + 0.1, pair, p)
    text = said(tmp_path, summary)
    assert text.startswith("ntil_20 beats ce_20: 60.0% within 5 min against 50.0%, a paired diff")
    assert "1 of 2 objectives are better than its reference and 0 worse" in text
    summary["table"]["ntil_20"]["within"]["difference"]["p_holm"] = 0.3
    assert said(tmp_path, summary).startswith(
        "No objective is clearly better than its reference; of the others, ntil_0 has the best"
    )


@pytest.mark.parametrize(
    ("difference", "p", "words"),
    [
        ((0.01, -0.01, 0.03), 0.5, "has a paired difference of +1.0 points (−1.0 to +3.0; "),
        ((0.03, 0.01, 0.05), 0.04, "p 0.040, not corrected: a gain of this size is not an effect "),
        ((-0.03, -0.05, -0.01), 0.04, "p 0.040, not corrected. Ce_times is ce."),
        (None, None, "The control ce_times has no paired difference."),
    ],
)
def test_verdict_states_what_the_control_did(tmp_path, difference, p, words):
    names = ("ce", "ce_times", "emd")
    summary = compare_folder(tmp_path, objectives=names, control="ce_times", seeds=range(5))
    summary["table"]["ce_times"]["within"] = cell(0.71, 0.66, 0.76, difference)
    if difference:
        summary["table"]["ce_times"]["within"]["difference"]["p"] = p
    summary["facts"]["control"] = "Ce_times is ce"
    text = said(tmp_path, summary)
    assert text.startswith("emd beats ce")
    assert words in text
    assert ("Ce_times is ce." in text) == (difference is not None)


def test_the_control_and_warm_starts_are_in_no_family_of_p_values(tmp_path):
    """Three objectives with a median: the families have 2, 3 and 3 hypotheses."""
    names = ("ce", "ce_times", "emd", "ntil")
    summary = compare_folder(tmp_path, objectives=names, control="ce_times", seeds=range(5))
    p_values = dict(zip((*names, "warm_start"), (0.02, 1e-9, 0.03, 0.01, 1e-9), strict=True))
    summary["decoding"] = {}
    for name, p in p_values.items():
        pair = {"value": 0.1, "low": 0.05, "high": 0.2, "p": p, "seeds": [0.1] * 5}
        summary["decoding"][name] = {
            "greedy": {"within": cell(0.7, 0.6, 0.8)},
            "median": {
                "within": {**cell(0.8, 0.7, 0.9), "difference": pair, "from_reference": {**pair}}
            },
        }
        if name in ("ce_times", "emd", "ntil"):
            summary["table"][name]["within"]["difference"] = {**pair}
    correct_p_values(summary)
    for family in ("difference", "from_reference"):
        found = {
            name: own["median"]["within"][family].get("p_holm")
            for name, own in summary["decoding"].items()
        }
        expected = {"ce": 0.04, "ce_times": None, "emd": 0.04, "ntil": 0.03, "warm_start": None}
        assert found == pytest.approx(expected)
    table = {name: summary["table"][name]["within"]["difference"] for name in names[1:]}
    assert table["ntil"]["p_holm"] == 0.02
    assert table["emd"]["p_holm"] == 0.03
    assert "p_holm" not in table["ce_times"]
    page, twin = written(tmp_path, summary)
    for text in (page, twin):
        assert text.count("correction over 2 differences between objectives and their refe") == 2
        assert "correction over 3 differences between decoding rules and greedy decoding of" in text
        assert (
            "corrected over 3 differences between decoding rules and greedy decoding of t" in text
        )
        assert "for the number of" not in text


def test_one_objective_one_seed_and_no_runs(tmp_path):
    summary = compare_folder(tmp_path, objectives=("ce",), seeds=(3,))
    summary |= {"runs": [], "warm_start": None}
    page, twin = written(tmp_path, summary)
    assert "with no objective to compare" in page
    assert "warm start" not in twin
    assert "Answers on the dial" not in page
    assert "No scored answers were found" in twin


def test_a_missing_number_is_a_dash(tmp_path):
    summary = compare_folder(tmp_path)
    summary["table"]["emd"]["deviation"] = cell(float("nan"), float("nan"), float("nan"))
    del summary["table"]["ce"]["deviation"]
    summary["table"]["emd"]["within"]["difference"]["value"] = None
    summary["table"]["emd"]["within"]["seeds"] = [0.7, None]
    _, twin = written(tmp_path, summary)
    assert [row[2] for row in markdown_cells(twin, "All metrics")[1:3]] == [["–"], ["–"]]


def test_an_image_that_is_gone_is_said_to_be(tmp_path):
    summary = compare_folder(tmp_path)
    (tmp_path / "images" / "2.png").unlink()
    (tmp_path / "images" / "3.png").write_bytes(b"not an image")
    page, twin = written(tmp_path, summary)
    for text in (page, twin):
        assert "2 of the 12 images could not be opened" in text
    assert page.count(">no image<") == 2
    assert ">2.png<" in page


def test_worst_images_come_first(tmp_path):
    summary = compare_folder(tmp_path, objectives=("ce",), seeds=(0,))
    page, _ = written(tmp_path, summary)
    offs = [int(off) for off in re.findall(r"(\d+) min off</p>", page)]
    assert offs == sorted(offs, reverse=True) == [360] * 4 + [60] * 4 + [0] * 4
    assert "7:05 read as 8:05, 60 min</title>" in page
    assert "7:05 read as 7:05, right" in page


def test_the_answers_of_the_worst_seed_of_each_image_are_shown_first(tmp_path):
    """``score`` makes row 0 right with seed 0, and an hour late with seed 1."""
    page, twin = written(tmp_path, compare_folder(tmp_path, objectives=("ce",), seeds=(0, 1)))
    cases = page.split('<article class="case">')[1:]
    shown = {
        re.search(r"test-\d+", case)[0]: re.findall(r'class="tile (s\d)( s0)?', case)
        for case in cases
    }
    assert shown["test-00000"] == [("s1", ""), ("s2", " s0")]
    assert shown["test-00002"] == [("s1", " s0"), ("s2", "")]
    assert "<br>test-00000<br>60 min off, seed 1</p>" in page
    assert page.count('type="radio"') == 3
    assert "| test-00002 (seed 0) | 7:05 | “" in twin


@pytest.mark.slow
def test_the_page_stays_small_with_many_rows(tmp_path):
    summary = compare_folder(tmp_path, seeds=(0,), rows=1_000)
    page, twin = written(tmp_path, summary)
    assert len(page.encode()) < 5_000_000
    assert len(twin.encode()) < 20_000
    assert page.count('<article class="case">') == dials.WORST + dials.TYPICAL


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": []}, r"metrics: expected a non-empty list, found \[\]"),
        ({"objectives": ["ce", "rps"]}, "no row for the objective 'rps'"),
        ({"baseline": "mse"}, r"baseline: expected one of the objectives \(ce, emd\), found 'mse'"),
        ({"metrics": [{"nmae": "x"}]}, "metrics: .*nmae"),
        (
            {"table": {"ce": {"within": {"value": 1}}, "emd": {}}},
            "expected value, low and high, found",
        ),
        ({"runs": [{"seed": 0}]}, "runs.0: expected objective, seed, folder, warm_start, found"),
    ],
)
def test_a_wrong_summary_is_refused_in_one_sentence(tmp_path, change, words):
    summary = compare_folder(tmp_path) | change
    with pytest.raises(ValueError, match=words + ".*Run `mm-numeric compare`"):
        written(tmp_path, summary)


def test_a_mean_without_an_interval_is_shown(tmp_path):
    """A metric may be undefined in nearly all resamples of the rows, such as that of one row."""
    summary = compare_folder(tmp_path, seeds=range(5))
    for name in ("ce", "emd"):
        found = summary["table"][name]["within"]
        for own in filter(None, (found, found["difference"])):
            own |= {"low": None, "high": None}
    page, twin = written(tmp_path, summary)
    assert "no interval" in twin
    assert "None" not in page


def test_no_summary_and_broken_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"contains neither summary.json of a comparison"):
        write_report(tmp_path)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary.json: not JSON .*Run `mm-numeric compare`"):
        write_report(tmp_path)
    summary = compare_folder(tmp_path)
    with (tmp_path / "seed0" / "run1" / "scores.jsonl").open("a") as scores:
        scores.write('{"id": 1}\n')
    with pytest.raises(
        ValueError, match=r"scores.jsonl, line 13: image, target, text, parsed, reason missing"
    ):
        written(tmp_path, summary)


def test_deviations_are_signed_the_short_way_round():
    def row(target, parsed):
        return {"target": target, "parsed": parsed}

    assert dials.signed_deviation(row("11:50", "12:10")) == 20
    assert dials.signed_deviation(row("12:10", "11:50")) == -20
    assert dials.signed_deviation(row("1:00", "7:00")) == 360
    assert dials.signed_deviation(row("1:00", None)) is None
    assert dials.minutes_of("13:00") is None


@pytest.mark.slow
def test_a_browser_shows_it_without_errors_or_sideways_scrolling(tmp_path):
    summary = compare_folder(
        tmp_path, objectives=("ce", "ce_times", "emd", "an_objective_with_a_long_name", "x")
    )
    page, _ = written(tmp_path, summary)
    for drawn in drawn_in_a_browser(page, tmp_path):
        assert drawn > 40
