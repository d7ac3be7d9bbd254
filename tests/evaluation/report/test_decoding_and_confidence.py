"""The chapters on decoding and confidence show what summary.json has, in both forms."""

import json
import re

import numpy as np
import pytest
from browser import drawn_in_a_browser
from clock_reports import cell, compare_folder, html_cells, markdown_cells, written

from mm_numeric.comparison.tables import calibration_entry
from mm_numeric.evaluation.metrics import calibration
from mm_numeric.evaluation.metrics.calibration import Confidences
from mm_numeric.evaluation.report.report import write_report

RULES = ("greedy", "median")


def confidences(rule, seed, n=200, per_object=False):
    """Return random confidences that are right as often as they promise."""
    draw = np.random.default_rng(seed)
    confidence = draw.random(n).round(2)
    right = (draw.random(n) < confidence).astype(np.float64)
    return made(rule, "within 5 minutes", confidence, right, per_object=per_object)


def made(rule, correct, confidence, right, *, per_object=False):
    """Return confidences of answers to rows of their own."""
    index, n = np.arange(len(right)), len(right)
    groups = index.astype(np.uint64)
    return Confidences(rule, correct, per_object, n, confidence, right, index, groups)


def decoded_folder(folder, seeds=(0, 1), **more):
    """Write a comparison of two objectives, decoded by two rules."""
    summary = compare_folder(folder, seeds=seeds)
    decoding, table = {}, {}
    for place, name in enumerate(("ce", "emd", "warm_start")):
        gain = (0.1, -0.1, 0.0)[place]
        own = summary["table"].get(name, summary["warm_start"])
        own = {metric: {**found, "difference": None} for metric, found in own.items()}
        p = (0.01, 0.02, 0.9)[place] if len(seeds) >= 5 else None
        changed = cell(0.7 + gain, 0.6 + gain, 0.8 + gain, (gain, gain - 0.05, gain + 0.05), p)
        minutes = cell(20, 18, 22, (5, 4, 6))
        decoding[name] = {"greedy": own, "median": {"within": changed, "deviation": minutes}}
        table[name] = {
            rule: calibration_entry([confidences(rule, 10 * place + s, **more) for s in range(2)])
            for rule in RULES
        }
    summary |= {"decoding": decoding, "calibration": table}
    return summary


@pytest.mark.parametrize("title", ["Decoding", "Confidence"])
def test_both_forms_have_the_same_numbers(tmp_path, title):
    page, twin = written(tmp_path, decoded_folder(tmp_path))
    numbers = []
    for rows in (html_cells(page, title.lower()), markdown_cells(twin, title)):
        words = [re.sub(r"[,()]", "", w) for row in rows for text in row for w in text]
        numbers.append(sorted(word for word in words if re.search(r"\d", word)))
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) > 20


def test_a_rule_without_a_value_is_left_out_of_the_figure(tmp_path):
    summary = decoded_folder(tmp_path)
    summary["decoding"]["emd"]["median"]["within"]["value"] = None
    page, _ = written(tmp_path, summary)
    figure = page.split('<section id="decoding">')[1].split("</figure>")[0]
    assert figure.count('transform="translate(') == 3  # two of ce and one of emd


def test_each_rule_is_marked_as_better_worse_or_unclear(tmp_path):
    page, twin = written(tmp_path, decoded_folder(tmp_path, seeds=range(5)))
    chapter = page.split('<section id="decoding">')[1].split("</section>")[0]
    assert chapter.count("<g transform=") == 4, "a symbol for each of two objectives and two rules"
    rows = re.split("<tr[ >]", chapter.split("<details>")[0])
    marks = [re.findall(r'<small class="(\w+)">', row) for row in rows]
    # emd is first, because it is better when decoded greedily.
    assert marks[2:] == [["worse"], ["better"], ["unclear"]]
    others = chapter.split("<details>")[1]
    assert "mean deviation" in others
    assert others.count('<small class="unclear">') == 3
    assert 'class="best"' not in others
    assert "Δ +10.0 points" in twin.split("## Decoding")[1].split("\n## ")[0]


def test_decoded_answers_are_compared_with_greedy_ones_of_the_reference(tmp_path):
    summary = decoded_folder(tmp_path, seeds=range(5))
    title = "by decoding rule; Δ to greedy decoding of ce"
    assert title not in "".join(written(tmp_path, summary))
    for name, gain in (("ce", 0.1), ("emd", 0.031)):
        found = cell(0.7, 0.6, 0.8, (gain, gain - 0.05, gain + 0.05), 0.01)["difference"]
        summary["decoding"][name]["median"]["within"]["from_reference"] = found
    page, twin = written(tmp_path, summary)
    for text in (page, twin):
        before, _, after = text.partition(title)
        assert "+3.1" in after.split("</table>")[0]
        assert "+3.1" not in before
        assert "against " not in after.split("</table>")[0].split("\n## ")[0]
    summary["references"] = {"ce": None, "emd": None}
    for text in written(tmp_path, summary):
        found = text.partition(title)[2].split("</table>")[0].split("\n## ")[0]
        assert found.count("against ") == 1
        assert "against emd" in found


def test_the_tables_of_confidence_are_those_of_the_metrics(tmp_path):
    page, twin = written(tmp_path, decoded_folder(tmp_path))
    seeds = [confidences("greedy", s) for s in range(2)]
    lines = [[" ".join(text) for text in row] for row in markdown_cells(twin, "Confidence")]
    rows = {(line[0], line[1]): line for line in lines if len(line) == 9 and "from" in line[2]}
    assert len(rows) == 4
    confidence = np.concatenate([own.confidence for own in seeds])
    right = np.concatenate([own.right for own in seeds])
    found = calibration.selections(confidence, right)
    half = calibration.select_coverage(found, 0.5)
    assert rows["ce", "greedy"][2].startswith(f"{100 * right.mean():.1f}%, from 0.0")
    assert f"{100 * half.right:.1f}%" in rows["ce", "greedy"][5]
    assert rows["ce", "greedy"][5].endswith(f"from {half.threshold:.6f}")
    bins = next(line for line in lines if len(line) == 11 and line[0] == "ce")
    inside = (confidence > 0.5) & (confidence <= 0.6)
    assert bins[6].startswith(f"{100 * right[inside].mean():.1f}%")
    assert bins[6].endswith(f"of {inside.sum()}")
    most = calibration.select_right(found, 0.9)
    assert f"| {100 * most.coverage:.1f}%, from {most.threshold:.6f} |" in twin
    ece = np.mean([calibration.expected_calibration_error(o.confidence, o.right) for o in seeds])
    assert f"| {ece:.3f} |" in twin
    assert "confidence, decoded by median: " in page
    assert page.split('<section id="confidence">')[1].split("</section>")[0].count("<figure>") == 4


def test_objects_are_called_objects(tmp_path):
    page, _ = written(tmp_path, decoded_folder(tmp_path, per_object=True))
    assert "Share of wrong objects if only the most confident ones are given" in page


def test_a_comparison_of_greedy_answers_has_no_such_chapters(tmp_path):
    page, twin = written(tmp_path, compare_folder(tmp_path))
    for text in (page, twin):
        assert ">Decoding<" not in text
        assert "## Confidence" not in text


def test_one_confidence_and_no_wrong_answer_are_drawn(tmp_path):
    summary = decoded_folder(tmp_path)
    one = made("greedy", "right", np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    summary["calibration"] = {"ce": {"greedy": calibration_entry([one])}}
    page, twin = written(tmp_path, summary)
    assert "nan" not in page.split('<section id="confidence">')[1].split("</section>")[0].lower()
    assert "100.0%, from 1.000000" in twin


def test_a_threshold_of_the_report_keeps_the_answers_that_have_it(tmp_path):
    summary = decoded_folder(tmp_path)
    values = np.array([0.29, 0.9998765])
    own = made("greedy", "right", values, np.array([0.0, 1.0]))
    summary["calibration"] = {"ce": {"greedy": calibration_entry([own])}}
    _, twin = written(tmp_path, summary)
    assert "100.0%, from 0.999876" in twin
    assert "50.0%, from 0.290000" in twin


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_seeds_are_only_together_if_there_are_several(tmp_path, seeds):
    _, twin = written(tmp_path, decoded_folder(tmp_path, seeds=seeds))
    for text in ("All seeds together.", "charts and thresholds are of all seeds together."):
        assert twin.count(text) == len(seeds) - 1


@pytest.mark.parametrize(
    ("per_object", "text"),
    [
        (False, "An unparseable answer counts as wrong, with the confidence 0, so that a share of"),
        (True, "Unparseable answers have no objects and are not counted."),
    ],
)
def test_the_report_says_how_unparseable_answers_count(tmp_path, per_object, text):
    page, twin = written(tmp_path, decoded_folder(tmp_path, per_object=per_object))
    assert text in page
    assert text in twin


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("decoding", {"ce": {"median": {"within": {"value": 1}}}},
         r"summary\.json: damaged or of another version \(KeyError: 'greedy'\); run `mm"),
        ("calibration", {"ce": {"median": {"ece": 1}}},
         r"summary\.json: damaged or of another version \(KeyError: 'per_object'\); run `mm"),
    ],
)  # fmt: skip
def test_a_damaged_summary_is_one_sentence(tmp_path, key, value, message):
    summary = decoded_folder(tmp_path) | {key: value}
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path)


@pytest.mark.slow
def test_a_browser_draws_the_charts(tmp_path):
    page, _ = written(tmp_path, decoded_folder(tmp_path))
    assert min(drawn_in_a_browser(page, tmp_path)) >= 5
