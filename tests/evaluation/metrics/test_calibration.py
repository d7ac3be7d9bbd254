"""Calibration metrics equal slow float64 loops and scikit-learn's formulas, written out."""

import random
from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.evaluation.metrics.calibration import (
    Bin,
    Selection,
    aurc,
    auroc,
    expected_calibration_error,
    gap,
    reliability,
    risk_coverage,
    select_coverage,
    select_right,
    selections,
    share_interval,
)

RANDOM = examples(200)
CONFIDENCES = st.one_of(st.floats(0, 1), st.integers(0, 10).map(lambda tenth: tenth / 10))
ANSWERS = st.lists(st.tuples(CONFIDENCES, st.booleans()), min_size=1, max_size=40)
"""Pairs (confidence, correct), with many equal confidences at the limits of bins."""


def apart(answers):
    return arrays([c for c, _ in answers], [float(right) for _, right in answers])


def arrays(*lists):
    return [np.array(own, dtype=np.float64) for own in lists]


@pytest.mark.slow
@RANDOM
@given(ANSWERS)
def test_the_bins_and_their_error_equal_a_loop(answers):
    bins = reliability(*apart(answers))
    total = 0.0
    for i in range(10):
        low, high = i / 10, (i + 1) / 10
        own = [(c, r) for c, r in answers if low < c <= high or (c == 0 and i == 0)]
        assert bins[i][:3] == (low, high, len(own))
        if own:
            confidence, right = (
                sum(map(float, values)) / len(own) for values in zip(*own, strict=True)
            )
            assert bins[i][3:] == pytest.approx((confidence, right))
            total += len(own) / len(answers) * abs(confidence - right)
        else:
            assert bins[i][3:] == (None, None)
    assert expected_calibration_error(*apart(answers)) == pytest.approx(total, abs=1e-12)


@RANDOM
@given(ANSWERS)
def test_auroc_equals_all_pairs_and_the_area_under_scikit_learns_curve(answers):
    good, bad = ([c for c, right in answers if right is kind] for kind in (True, False))
    found = auroc(*apart(answers))
    if not good or not bad:
        assert found is None
        return
    wins = sum((g > b) + (g == b) / 2 for g in good for b in bad)
    assert found == pytest.approx(wins / len(good) / len(bad))
    # sklearn.metrics.roc_curve: one point for each distinct threshold; auc: trapezoids.
    points = [(0.0, 0.0)]
    for threshold in sorted({c for c, _ in answers}, reverse=True):
        rates = (sum(c >= threshold for c in side) / len(side) for side in (bad, good))
        points.append(tuple(rates))
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))
    assert found == pytest.approx(area)


@pytest.mark.slow
@RANDOM
@given(ANSWERS)
def test_risk_without_ties_equals_a_loop(answers):
    answers = list({c: (c, right) for c, right in answers}.values())
    ordered = sorted(answers, reverse=True)
    risks = [sum(not r for _, r in ordered[:k]) / k for k in range(1, len(ordered) + 1)]
    coverage, risk = risk_coverage(*apart(answers))
    assert coverage.tolist() == pytest.approx([(k + 1) / len(ordered) for k in range(len(ordered))])
    assert risk.tolist() == pytest.approx(risks)
    assert aurc(*apart(answers)) == pytest.approx(sum(risks) / len(risks))


def test_risk_with_ties_is_the_mean_over_all_orders():
    answers = [(0.9, 1), (0.5, 0), (0.5, 1), (0.5, 1), (0.5, 0), (0.1, 0)]
    drawn, areas = random.Random(0), []
    for _ in range(20000):
        order = sorted(answers, key=lambda own: (-own[0], drawn.random()))
        areas.append(np.mean([sum(not r for _, r in order[:k]) / k for k in range(1, 7)]))
    assert aurc(*apart(answers)) == pytest.approx(np.mean(areas), abs=2e-3)
    assert aurc(*apart(answers)) == aurc(*apart(answers[::-1]))


@RANDOM
@given(ANSWERS)
def test_each_selection_equals_a_loop(answers):
    found = selections(*apart(answers))
    assert [own.threshold for own in found] == sorted({c for c, _ in answers}, reverse=True)
    for own in found:
        kept = [right for c, right in answers if c >= own.threshold]
        assert own.coverage == pytest.approx(len(kept) / len(answers))
        assert own.right == pytest.approx(sum(kept) / len(kept))
    assert found[-1].coverage == 1


def test_a_threshold_is_chosen_by_coverage_or_by_share_correct():
    found = selections(*arrays([0.9, 0.8, 0.8, 0.3], [1, 1, 0, 0]))
    assert found == [
        Selection(0.9, 0.25, 1.0),
        Selection(0.8, 0.75, pytest.approx(2 / 3)),
        Selection(0.3, 1.0, 0.5),
    ]
    assert select_coverage(found, 1.0) == found[2]
    assert select_coverage(found, 0.5) == found[1]
    assert select_coverage(found, 0.2) == found[0]
    assert select_right(found, 0.5) == found[2]
    assert select_right(found, 0.6) == found[1]
    assert select_right(found, 0.9) == found[0]
    assert select_right(selections(*arrays([0.9, 0.1], [0, 1])), 0.9) is None


def test_a_table_by_hand():
    bins = reliability(*arrays([0.0, 0.5, 0.55, 1.0], [0, 1, 0, 1]), bins=2)
    assert bins == [Bin(0.0, 0.5, 2, 0.25, 0.5), Bin(0.5, 1.0, 2, pytest.approx(0.775), 0.5)]
    assert expected_calibration_error(*arrays([0.0], [0])) == 0
    error = expected_calibration_error(*arrays([0.0, 0.5, 0.55, 1.0], [0, 1, 0, 1]), bins=2)
    assert error == pytest.approx((0.25 + 0.275) / 2)


@pytest.mark.slow
def test_the_gap_is_the_mean_of_the_runs_and_its_interval_contains_it():
    """60 rows of 1 to 3 answers, which are right or wrong together, and two runs: true gap 0.1."""
    draw, inside, files = np.random.default_rng(0), 0, 60
    for _ in range(files):
        rows = np.repeat(np.arange(60), draw.integers(1, 4, 60))
        rights = [(draw.random(60) < 0.6)[rows].astype(float) for _ in range(2)]
        seeds = [(np.full(len(rows), 0.7), right, rows.astype(np.uint64)) for right in rights]
        value, low, high = gap(seeds)
        assert value == pytest.approx(np.mean([0.7 - right.mean() for right in rights]))
        inside += low <= 0.1 <= high
    assert inside / files >= 0.9


def test_the_gap_of_one_row_has_no_interval():
    one = (np.array([0.5, 0.7]), np.array([1.0, 0.0]), np.zeros(2, np.uint64))
    assert gap([one]) == (pytest.approx(0.1), None, None)


def test_the_interval_of_a_share_contains_it_as_often_as_it_promises():
    draw = np.random.default_rng(0)
    for share, count in ((0.5, 40), (0.9, 40), (0.02, 200)):
        found = draw.binomial(count, share, 2000) / count
        ends = [share_interval(own, count) for own in found.tolist()]
        assert 0.92 < np.mean([low <= share <= high for low, high in ends]) <= 0.99
    assert share_interval(0.0, 100) == (0, pytest.approx(1 - 0.025**0.01))
    assert share_interval(1.0, 100)[1] == 1
