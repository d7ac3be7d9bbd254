"""DetEval: equal to slow loops written from the scripts, and by hand."""

from itertools import pairwise

import numpy as np
import pytest
from crossing_shapes import instances, split_words
from reference_detection import deteval_total_text, hmean, share
from shape_images import KINDS, made_up

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.evaluation.metrics.deteval import DETEVAL_TOTAL_TEXT, score_total_text

COLUMNS = ("recall_credit", "precision_credit", "truths", "detected")


def words(*shapes):
    return Instances(tuple(map(Instance, shapes)))


def in_parts(count, seed):
    """Words that are found in parts, and words that are found together."""
    draw = np.random.default_rng(seed)
    predictions, targets = [], []
    for _ in range(count):
        found, truths = [], []
        for row in range(draw.integers(1, 5)):
            cuts = np.sort(draw.integers(0, 100, draw.integers(2, 5))).astype(float)
            top, bottom = 30.0 * row, 30.0 * row + 20
            wide = [Box(cuts[0] - draw.integers(0, 9), top, cuts[-1] + draw.integers(0, 9), bottom)]
            parts = [Box(a, top, b - draw.integers(0, 3), bottom - draw.integers(0, 6))
                     for a, b in pairwise(cuts)]  # fmt: skip
            sides = [parts, wide] if draw.random() < 0.5 else [wide, parts]
            found += sides[0]
            truths += [Instance(shape, ignore=draw.random() < 0.1) for shape in sides[1]]
        draw.shuffle(found)
        predictions.append(words(*found) if draw.random() > 0.05 else None)
        targets.append(Instances(tuple(truths)))
    return predictions, targets


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "in parts"])
def test_credits_are_those_of_the_loop(kind):
    predictions, targets = in_parts(80, 1) if kind == "in parts" else made_up(80, 2, kind)
    columns = DETEVAL_TOTAL_TEXT.columns(predictions, targets)
    rows = np.array(deteval_total_text(predictions, targets))
    assert np.stack([columns[c] for c in COLUMNS], axis=1) == pytest.approx(rows, abs=1e-12)
    recall, precision = rows[:, 0].sum() / rows[:, 2].sum(), rows[:, 1].sum() / rows[:, 3].sum()
    figures = {m.name: float(m.value(columns)) for m in DETEVAL_TOTAL_TEXT.metrics}
    assert figures["deteval_recall"] == pytest.approx(recall)
    assert figures["deteval_precision"] == pytest.approx(precision)
    assert figures["deteval_hmean"] == pytest.approx(hmean(precision, recall))
    fractions = {round(float(value) % 1, 1) for value in rows[:, :2].flatten()}
    assert len(fractions) > 1 or kind != "in parts"


def test_total_text_figures_are_those_that_the_script_printed():
    """Figures of Deteval.py since April 2019 for polygons of which 144 of 1,878 cross themselves.

    The script before April 2019 printed P 0.765870, R 0.697674, F 0.730184 for them.
    """
    images = split_words(200, seed=2)
    predictions = [instances(found) for found, _, _ in images]
    targets = [instances(truths, ignored) for _, truths, ignored in images]
    columns = DETEVAL_TOTAL_TEXT.columns(predictions, targets)
    figures = {m.name: float(m.value(columns)) for m in DETEVAL_TOTAL_TEXT.metrics}
    assert figures["deteval_precision"] == pytest.approx(0.7588168373151315, abs=1e-12)
    assert figures["deteval_recall"] == pytest.approx(0.7067319461444312, abs=1e-12)
    assert figures["deteval_hmean"] == pytest.approx(0.7318488558762906, abs=1e-12)
    assert "87f80b2, fb0f371" in DETEVAL_TOTAL_TEXT.protocols["deteval_*"]["variant"]


def test_a_detection_that_covers_two_truths_matches_neither_one_to_one():
    """Two truths, one within the other: before April 2019 the script credited both with 1."""
    inner, outer = Box(0, 0, 80, 20), Box(0, 0, 100, 20)
    columns = score_total_text([words(Box(0, 0, 95, 20))], [words(inner, outer)])
    assert (columns["recall_credit"], columns["precision_credit"]) == (1.6, 0.8)


WORD, LEFT, RIGHT = Box(0, 0, 99, 19), Box(0, 0, 48, 19), Box(50, 0, 99, 19)


@pytest.mark.parametrize(
    ("found", "truths", "expected"),
    [
        ([WORD], [WORD], (1, 1)),
        ([LEFT, RIGHT], [WORD], (0.8, 1.6)),  # in parts
        ([WORD], [LEFT, RIGHT], (1.6, 0.8)),  # together
        ([LEFT], [WORD], (0, 0)),
        ([], [WORD], (0, 0)),
        ([WORD], [], (0, 0)),
        # 0.7 of a truth is just enough where a detection holds another one's corner
        ([Box(30, 0, 130, 9)], [Box(0, 0, 100, 9), Box(120, 0, 200, 9)], (1, 1)),
        # 0.3 and 0.3 of a detection are just enough together
        ([Box(0, 0, 100, 9)], [Box(0, 0, 30, 9), Box(70, 0, 100, 9)], (1.6, 0.8)),
        # 0.79996 of a truth in two parts
        ([Box(0, 0, 9999, 1), Box(15001, 0, 24999, 1)], [Box(0, 0, 24999, 1)], (0.8, 1.6)),
    ],
)
def test_what_is_credited(found, truths, expected):
    columns = score_total_text([words(*found)], [words(*truths)])
    given = columns["recall_credit"][0], columns["precision_credit"][0]
    assert given == pytest.approx(expected)
    assert (columns["detected"], columns["truths"]) == (len(found), len(truths))


def test_a_detection_in_an_ignored_region_does_not_count():
    target = Instances((Instance(Box(0, 0, 10, 10), ignore=True), Instance(Box(50, 50, 60, 60))))
    columns = score_total_text([words(Box(1, 1, 10, 10), Box(50, 50, 60, 60))], [target])
    assert (columns["detected"], columns["truths"]) == (1, 1)
    assert columns["recall_credit"] == 1
    # one pixel more in the denominator: 12 / (23.6 + 1) is less than half, 12 / (22.4 + 1) is more
    region = Instances((Instance(Box(0, 0, 4, 3), ignore=True),))
    assert score_total_text([words(Box(0, 0, 4, 5.9))], [region])["detected"] == 1
    assert score_total_text([words(Box(0, 0, 4, 5.6))], [region])["detected"] == 0


@pytest.mark.parametrize("far", [1e12, float("inf"), float("nan")])
def test_an_absurd_detection_is_wrong(far):
    absurd = [words(Box(0, 0, far, far), Polygon(((far, 0.0), (5.0, far), (0.0, 0.0))))]
    columns = score_total_text(absurd, [words(WORD)])
    assert (columns["recall_credit"], columns["detected"]) == (0, 2)


def test_nothing_is_zero():
    columns = DETEVAL_TOTAL_TEXT.judge([None], [words(WORD)])
    figures = {m.name: float(m.value(columns)) for m in DETEVAL_TOTAL_TEXT.metrics}
    assert figures.pop("unreadable") == 1
    assert set(figures.values()) == {0}
    assert {len(values) for values in DETEVAL_TOTAL_TEXT.judge([], []).values()} == {0}
    assert share(1, 0) == 0
