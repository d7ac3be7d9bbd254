"""The optimum of each loss for noisy labels: which are proper, and what the others answer."""

import pytest
from optimum import (
    TIMES,
    error_of,
    exponential,
    gaussian,
    label_table,
    minutes_of,
    optimum,
    times_with,
    without_ratio,
)

from mm_numeric.losses.presets import PRESETS

pytestmark = pytest.mark.slow

SHOWN = 7 * 60 + 58
LABELS = {
    "bimodal": {"29": 0.65, "39": 0.35},
    "lengths": {"98": 0.25, "99": 0.35, "100": 0.3, "101": 0.1},
    "gaussian": times_with(SHOWN, gaussian(5)),
    "exponential": times_with(SHOWN, exponential(5)),
    "circular": times_with(1, gaussian(3)),  # 11:53 to 12:09, most of them
    "hours": times_with(9 * 60 + 58, gaussian(3)),  # 9:58, and 10:02
}


def difference(answers, labels):
    """Return the total variation between the distribution of answers and that of the labels."""
    return sum(abs(answers.probs.get(text, 0.0) - p) for text, p in labels.items()) / 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "noise"),
    [*(("rps", noise) for noise in ("bimodal", "lengths", "circular", "hours")), ("ce", "lengths")],
)
def test_a_proper_loss_gives_the_distribution_of_the_labels(name, noise):
    labels = LABELS[noise]
    answers, true = optimum(PRESETS[name], labels), label_table(labels)
    assert difference(answers, labels) < 1e-3
    assert (answers.greedy, answers.median) == (true.greedy, true.median)
    assert answers.share_within(true.greedy, 5) == pytest.approx(
        true.share_within(true.greedy, 5), abs=1e-3
    )


@pytest.mark.parametrize(("name", "least"), [
    ("ntl_was", 0.019), ("emd", 0.019), ("gce", 0.3),
])  # fmt: skip
def test_an_improper_loss_does_not(name, least):
    assert difference(optimum(without_ratio(name), LABELS["bimodal"]), LABELS["bimodal"]) > least


def test_digit_ce_is_proper_for_numbers_of_one_length_only():
    """Its weight of a first digit depends on the length of the label."""
    assert difference(optimum(PRESETS["digit_ce"], LABELS["gaussian"]), LABELS["gaussian"]) < 1e-3
    assert difference(optimum(PRESETS["digit_ce"], LABELS["lengths"]), LABELS["lengths"]) > 0.01


@pytest.mark.parametrize("name", ["ce", "ntl_was", "rps", "emd"])
def test_two_labels(name):
    """The most likely label is the answer, and also the one of the least expected distance."""
    found = optimum(without_ratio(name), LABELS["bimodal"])
    assert found.greedy == found.median == "29"


@pytest.mark.full
@pytest.mark.parametrize(("name", "noise", "greedy", "median", "confidence", "share"), [
    ("ce", "gaussian", 0, 0, 0.729, 0.729),
    ("ntl_was", "gaussian", -2, 0, 0.721, 0.691),
    ("ce", "exponential", 2, 3, 0.777, 0.777),
    ("ntl_was", "exponential", 2, 4, 0.828, 0.777),
])  # fmt: skip
def test_times(name, noise, greedy, median, confidence, share):
    """Minutes by which 7:58 is missed, and the probability of the greedy answer within 5 minutes.

    ``confidence`` is what the model says, ``share`` is the part of the labels. The most likely
    exponential label is the true time, but its digits are not the most likely ones.
    """
    labels = LABELS[noise]
    found, true = optimum(without_ratio(name), labels), label_table(labels)
    errors = [error_of(text, TIMES[SHOWN]) for text in (found.greedy, found.median)]
    assert errors == [greedy, median]
    assert found.share_within(found.greedy, 5) == pytest.approx(confidence, abs=0.002)
    assert true.share_within(found.greedy, 5) == pytest.approx(share, abs=0.002)


def test_the_labels_are_what_their_names_say():
    assert all(sum(labels.values()) == pytest.approx(1) for labels in LABELS.values())
    mean = sum(p * error_of(text, TIMES[SHOWN]) for text, p in LABELS["exponential"].items())
    assert mean == pytest.approx(5, abs=0.1)
    square = sum(p * error_of(text, TIMES[SHOWN]) ** 2 for text, p in LABELS["gaussian"].items())
    assert square == pytest.approx(25, abs=0.3)
    assert {text: minutes_of(text) for text in ("12:00", "1:00", "11:59")} == {
        "12:00": 0, "1:00": 60, "11:59": 719,
    }  # fmt: skip
