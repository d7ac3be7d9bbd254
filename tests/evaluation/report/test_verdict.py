"""The verdict calls an objective better only with enough seeds and a corrected p-value."""

import json

import pytest
from clock_reports import METRICS, cell, compare_folder, written

from mm_numeric.evaluation.metrics.intervals import correct_p_values
from mm_numeric.evaluation.report.results import read_comparison
from mm_numeric.evaluation.report.verdict import verdict


def said(folder, summary):
    """Return the verdict as one text."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return " ".join(verdict(read_comparison(folder)))


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


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            cell(0.75, 0.7, 0.8, (0.05, 0.03, 0.07), 0.06),
            "No objective is clearly better than ce; of the others, emd has the best mean: 75.0% "
            "within 5 min against 70.0%, a paired difference of +5.0 points (+3.0 to +7.0; "
            "corrected p 0.060).",
        ),
        (cell(0.75, 0.7, 0.8), "5 min, ce 70.0%: without a paired difference."),
        (
            cell(0.6, 0.5, 0.7, (-0.1, -0.2, -0.05), 0.01),
            "0 of 1 objectives are better than ce and 1 worse",
        ),
    ],
    ids=["may be chance", "no difference", "worse"],
)
def test_verdict_without_a_clear_gain(tmp_path, own, words):
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["table"]["emd"]["within"] = own
    text = said(tmp_path, summary)
    assert words in text
    assert "beats" not in text


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
