"""The verdict calls an objective better only with enough seeds and a corrected p-value."""

import json

import pytest
from clock_reports import METRICS, cell, compare_folder, summary_of, written

from mm_numeric.evaluation.metrics.intervals import correct_p_values
from mm_numeric.evaluation.report.results import ReportedMetric, read_comparison
from mm_numeric.evaluation.report.verdict import verdict


def said(folder, summary):
    """Return the verdict as one text."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return " ".join(verdict(read_comparison(folder)))


POINTS = ("within", "%", True)
MINUTES = ("deviation", "min", False)


def trial(kind, means, *, seeds=2, guess=None, decoded=None, changes=None, p=None):
    """Return a summary of objectives with these means (all seeds are within 2 % of them).

    ``changes`` are paired differences, by default those of the means, with an interval of 20 % of
    the mean; ``decoded`` are the means of the rule median.
    """
    metric, unit, higher = kind
    names, base = list(means), next(iter(means.values()))
    summary = summary_of(names, "clock")
    label = "within 5 min" if higher else "mean deviation"
    shown = {"name": metric, "label": label, "unit": unit, "higher_is_better": higher}

    def entry(mean, change):
        own = cell(mean, 0.9 * mean, 1.1 * mean)
        own["seeds"] = [0.98 * mean, 1.02 * mean] + [mean] * (seeds - 2)
        own["difference"] = own["from_reference"] = pair(change)
        return own

    def pair(change):
        if change is None:
            return None
        found = {"value": change, "low": change - 0.1 * base, "high": change + 0.1 * base}
        found |= {"seeds": [0.9 * change, 1.1 * change]}
        return found | ({"p": p, "p_holm": p} if p and seeds >= 5 else {})

    gains = {name: None if name == names[0] else mean - base for name, mean in means.items()}
    gains |= changes or {}
    table = {name: {metric: entry(mean, gains[name])} for name, mean in means.items()}
    rules = {
        name: {
            "greedy": {metric: {**table[name][metric], "difference": None}},
            "median": {
                metric: entry(mean, mean - means[name]) | {"from_reference": pair(mean - base)}
            },
        }
        for name, mean in (decoded or {}).items()
    }
    return summary | {
        "seeds": list(range(seeds)), "metrics": [shown], "table": table, "decoding": rules,
        "facts": {}, "runs": [], "guesses": {"constant answer": {metric: guess}} if guess else {},
    }  # fmt: skip


SENTENCES = [
    pytest.param(
        trial(MINUTES, {"ce": 174, "emd": 182, "ntil": 179}, guess=180),
        [
            "None of the 3 objectives is clearly better than guessing: mean deviation 174.0 to "
            "182.0 min, and guessing has 180.0 min. Train for more steps or on more rows.",
            "2 seeds are too few to state which objective is better; that takes 5.",
            "Guessing has 180.0 min mean deviation: the best constant answer, computed without the "
            "image and the question; not clearly better, decoded greedily: ce, ntil, emd.",
        ],
        id="no better than guessing",
    ),
    pytest.param(
        trial(POINTS, {"ce": 0.02}, guess=0.02, seeds=5),
        [
            "ce is not clearly better than guessing: within 5 min 2.0%, and guessing has 2.0%. "
            "Train for more steps or on more rows.",
        ],
        id="one objective, no better than guessing",
    ),
    pytest.param(
        trial(POINTS, {"ce": 0.02, "emd": 0.7}, guess=0.02),
        [
            "emd has the best mean of 2 seeds: 70.0% within 5 min against 2.0% of ce, a paired "
            "difference of +68.0 points (+67.8 to +68.2; seeds +61.2 points, +74.8 points).",
            "2 seeds are too few to state which objective is better; that takes 5.",
            'Next: compare 5 seeds; add "compare.seeds=[0,1,2,3,4]" to the command.',
            "Next: compare decoding rules, which needs no other training; add "
            '"compare.decode=[greedy,median]" if answers are numbers.',
            "Guessing has 2.0% within 5 min: the best constant answer, computed without the image "
            "and the question; not clearly better, decoded greedily: ce.",
        ],
        id="two seeds, one objective no better than guessing",
    ),
    pytest.param(
        trial(POINTS, {"ce": 0.8, "emd": 0.85}, decoded={"ce": 0.9, "emd": 0.93}),
        [
            "emd decoded by median has the best mean of 2 seeds: 93.0% within 5 min against 80.0% "
            "of ce decoded greedily, a paired difference of +13.0 points (+5.0 to +21.0; seeds "
            "+11.7 points, +14.3 points).",
            "Decoding by median is better than greedy decoding in 4 of 4 runs (+7.2 points to "
            "+11.0 points).",
            "2 seeds are too few to state which objective is better; that takes 5.",
            'Next: compare 5 seeds; add "compare.seeds=[0,1,2,3,4]" to the command.',
        ],
        id="two seeds and a rule",
    ),
    pytest.param(
        trial(POINTS, {"ce": 0.8, "emd": 0.85}, decoded={"ce": 0.9, "emd": 0.93}, seeds=5, p=0.01),
        [
            "emd decoded by median beats ce decoded greedily: 93.0% within 5 min against 80.0%, a "
            "paired difference of +13.0 points (+5.0 to +21.0; corrected p 0.010).",
            "Decoding by median is better than greedy decoding for 2 of 2 objectives and worse for "
            "0, after Holm's correction.",
            "1 of 1 objectives is better than ce and 0 worse, at p ≤ 0.05 after Holm's correction "
            "over 1 difference between objectives and their reference. The best of several is "
            "chosen after seeing the results, so its gain is slightly overestimated.",
        ],
        id="five seeds and a rule, clear",
    ),
    pytest.param(
        trial(MINUTES, {"ce": 20, "emd": 19}, seeds=5, p=0.2),
        [
            "No objective is clearly better than ce; of the others, emd has the best mean: 19.0 "
            "min mean deviation against 20.0 min, a paired difference of −1.0 min (−3.0 to +1.0; "
            "corrected p 0.200).",
            "0 of 1 objectives are better than ce and 0 worse, at p ≤ 0.05 after Holm's correction "
            "over 1 difference between objectives and their reference. The best of several is "
            "chosen after seeing the results, so its gain is slightly overestimated.",
            "Next: about 20 seeds would make a difference as large as that of emd clear, if it is "
            "real.",
            "Next: compare decoding rules, which needs no other training; add "
            '"compare.decode=[greedy,median]" if answers are numbers.',
        ],
        id="five seeds, unclear, more would help",
    ),
    pytest.param(
        trial(MINUTES, {"ce": 20, "emd": 19.9}, decoded={"ce": 21, "emd": 21}, seeds=5, p=0.9),
        [
            "No objective or decoding rule is clearly better than ce; of the others, emd has the "
            "best mean: 19.9 min mean deviation against 20.0 min, a paired difference of −0.1 min "
            "(−2.1 to +1.9; corrected p 0.900).",
            "Next: the difference of emd is small for its interval, so more seeds would hardly "
            "make it clear; compare on more test rows, or choose by cost.",
        ],
        id="five seeds, unclear, more would not help",
    ),
    pytest.param(
        trial(POINTS, {"ce": 0.9, "emd": 0.8}, decoded={"ce": 0.85}),
        [
            "Nothing has a better mean than ce, 90.0% within 5 min; the next is ce decoded by "
            "median, 85.0%: a paired difference of −5.0 points (−14.0 to +4.0; seeds −4.5 points, "
            "−5.5 points).",
            "Decoding by median is better than greedy decoding in 0 of 2 runs (−5.5 points to −4.5 "
            "points).",
            'Next: compare 5 seeds; add "compare.seeds=[0,1,2,3,4]" to the command.',
        ],
        id="the baseline is best",
    ),
]  # fmt: skip
"""Made-up summaries, and the sentences of their verdict: the first one, and others in order."""


@pytest.mark.parametrize(("summary", "sentences"), SENTENCES)
def test_each_sentence_follows_a_rule(tmp_path, summary, sentences):
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    first, *others = verdict(read_comparison(tmp_path))
    assert first == sentences[0]
    assert [line for line in others if line in sentences] == sentences[1:]
    steps = [line for line in others if line.startswith("Next")]
    assert steps == [line for line in sentences if line.startswith("Next")]


@pytest.mark.parametrize(
    ("metric", "own", "guess", "beats"),
    [
        (0, {"value": 0.5, "low": 0.1, "high": 0.9, "seeds": [0.3, 0.7]}, 0.2, True),
        (0, {"value": 0.5, "low": 0.1, "high": 0.9, "seeds": [0.27, 0.7]}, 0.2, False),
        (0, {"value": 0.5, "low": 0.1, "high": 0.9, "seeds": [0.5]}, 0.2, False),
        (0, {"value": 0.5, "low": 0.3, "high": 0.9, "seeds": [0.5]}, 0.2, True),
        (0, {"value": 0.5, "low": 0.1, "high": 0.9, "seeds": [0.3] * 5}, 0.2, False),
        (1, {"value": 150, "low": 90, "high": 190, "seeds": [140, 162]}, 180, True),
        (1, {"value": 150, "low": 90, "high": 190, "seeds": [140, 163]}, 180, False),
        (1, {"value": 150, "low": 90, "high": 179, "seeds": [140, 175]}, 180, True),
        (1, {"value": 150, "seeds": []}, 180, True),
    ],
)
def test_an_objective_beats_a_guess_by_its_interval_or_by_each_of_a_few_seeds(
    metric, own, guess, beats
):
    assert ReportedMetric(**METRICS[metric]).beats(own, guess) == beats


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
        (cell(0.75, 0.7, 0.8), "5 min against 70.0% of ce, without a paired difference."),
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


@pytest.mark.parametrize(
    ("planned", "start"),
    [
        ([], "emd beats ce: "),
        (
            [("ce", "median", None)],
            "None of 1 planned gains is confirmed. Not planned: emd beats",
        ),
        (
            [("emd", "greedy", 0.02), ("ce", "median", 0.2)],
            "1 of 2 planned gains is confirmed: emd over ce (within 5 min). emd beats ce: ",
        ),
        (
            [("emd", "median", 0.02), ("emd", "greedy", 0.03), ("ce", "median", -0.02)],
            "2 of 3 planned gains are confirmed: emd decoded by median over ce (within 5 min), emd "
            "over ce (within 5 min); for 1, the opposite is clear. emd beats ce: ",
        ),
    ],
)
def test_what_was_planned_decides_before_what_was_found(tmp_path, planned, start):
    """The sign of the third value is that of the difference, its size the corrected p-value."""
    summary = compare_folder(tmp_path, seeds=range(5))
    summary["hypotheses"] = [
        {
            "family": "own", "metric": "within", "better": [name, rule], "other": ["ce", "greedy"],
            "runs_before": 0,
            "difference": p and {"value": p, "low": p, "high": p, "p_holm": abs(p)},
        }
        for name, rule, p in planned
    ]  # fmt: skip
    assert said(tmp_path, summary).startswith(start)
    at_guess = trial(POINTS, {"ce": 0.02, "emd": 0.02}, guess=0.02, seeds=5)
    text = said(tmp_path, at_guess | {"hypotheses": summary["hypotheses"]})
    assert text.startswith("None of the 2 objectives is clearly better than guessing")
    assert start.rpartition("emd beats")[0].removesuffix("Not planned: ") in text


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
    assert "1 of 2 objectives is better than its reference and 0 worse" in text
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
