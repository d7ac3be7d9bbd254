"""Intervals over seeds cover as often as they say, and p-values are corrected as Holm does."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interval_coverage import SETTINGS, chosen, coverage, family_error, simulated

from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.intervals import (
    ENOUGH_SEEDS,
    FAMILIES,
    correct_p_values,
    holm,
    seed_interval,
    smallest_effect,
    standard_error,
    student_quantile,
)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("seeds", [5, 10])
def test_an_interval_over_seeds_covers_as_often_as_it_says(setting, seeds):
    assert 0.93 <= coverage(chosen, seeds, 600, **setting) <= 0.97


@pytest.mark.parametrize("seeds", [2, 3])
def test_with_few_seeds_it_covers_at_least_as_often(seeds):
    assert coverage(chosen, seeds, 400, **SETTINGS["seeds alone"]) >= 0.94


@pytest.mark.slow
def test_families_without_an_effect_are_wrong_in_about_5_percent():
    """Of 1,000 families; the standard error of .05 is .007."""
    assert 0.03 <= family_error(5, 1000, **SETTINGS["seeds alone"]) <= 0.07


@pytest.mark.slow
def test_the_smallest_findable_effect_is_found_in_80_percent():
    setting = SETTINGS["seeds alone"]
    runs = list(simulated(10, 400, true=0.0, **setting))
    effect = np.mean([smallest_effect(*standard_error(*own)) for own in runs])
    found = [seed_interval(values + effect, draws + effect).p <= 0.05 for values, draws in runs]
    assert 0.74 <= np.mean(found) <= 0.86


def test_the_smallest_effect_grows_with_the_number_of_hypotheses():
    """With 9 degrees of freedom: 2.2622 + .8834, and for three hypotheses 2.9333 + .8834."""
    assert smallest_effect(2.0, 9) == pytest.approx(2 * (2.2622 + 0.8834), abs=2e-3)
    assert smallest_effect(2.0, 9, 3) == pytest.approx(2 * (2.9333 + 0.8834), abs=2e-3)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (1000, 1.9623)]
)
def test_quantiles_are_those_of_published_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, abs=2e-4)


@pytest.mark.parametrize("scale", [1e140, 1e296])
def test_a_metric_whose_square_is_infinite_has_the_scaled_interval(scale):
    draw = np.random.default_rng(0)
    values, draws = draw.normal(-1, 0.1, 5), draw.normal(-1, 0.1, (5, 200))
    low, high, p = seed_interval(values, draws)
    scaled = seed_interval(scale * values, scale * draws)
    assert (scaled.low / scale, scaled.high / scale, scaled.p) == pytest.approx((low, high, p))
    one_bad = seed_interval([scale, *values[1:]], np.vstack([scale * draws[:1], draws[1:]]))
    assert all(map(math.isfinite, one_bad))


def test_without_shared_rows_it_is_students_t():
    """Rows that move no seed leave mean +- t(4) s / sqrt(5), and the p-value of that ratio."""
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    low, high, p = seed_interval(values, np.repeat(values[:, None], 9, axis=1))
    width = 2.776445 * math.sqrt(2.5 / 5)
    assert (low, high) == pytest.approx((3 - width, 3 + width), abs=1e-4)
    assert p == pytest.approx(0.013236, abs=2e-5)  # 2 (1 - T_4(4.2426))


def test_rows_that_move_all_seeds_alike_widen_it():
    """s^2 / n + c with s^2 = 2.5, n = 5 and c = 4, of 4 (4.5 / 0.5)^2 degrees of freedom."""
    values, moves = np.arange(1.0, 6.0), np.array([-2.0, 2.0, -2.0, 2.0])
    draws = values[:, None] + moves * math.sqrt(3 / 4)  # of variance 4 with ddof = 1
    low, high, _ = seed_interval(values, draws)
    assert (high - low) / 2 == pytest.approx(student_quantile(324) * math.sqrt(4.5))


def test_seeds_that_agree_have_the_interval_of_their_rows():
    values, noise = np.full(5, 3.0), np.random.default_rng(0).normal(size=(5, 4000))
    low, high, p = seed_interval(values, values[:, None] + noise)
    assert (high - low) / 2 == pytest.approx(1.96 / math.sqrt(5), rel=0.05)
    assert p < 1e-5
    assert seed_interval([0.0, 0.0], np.zeros((2, 9))) == (0.0, 0.0, 1.0)


def test_one_seed_has_the_percentiles_of_its_rows_and_no_p_value():
    draws = np.linspace(0, 1, 2001)[None]
    low, high, p = seed_interval([0.5], draws)
    assert (low, high) == pytest.approx((0.025, 0.975))
    assert math.isnan(p)


def test_a_seed_without_a_value_has_no_interval():
    assert all(map(math.isnan, seed_interval([math.nan, 1.0], np.ones((2, 9)))))
    assert all(map(math.isnan, seed_interval([1.0, 1.0], np.full((2, 9), math.nan))))


def test_holm_is_that_of_the_definition():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})


@given(st.dictionaries(st.integers(), st.floats(0, 1), min_size=1))
def test_holm_keeps_the_order_and_lies_between_one_and_all_corrections(p_values):
    found = holm(p_values)
    for name, p in p_values.items():
        assert p <= found[name] <= min(1, len(p_values) * p)
    order = sorted(p_values, key=p_values.get)
    assert [found[name] for name in order] == sorted(found.values())


PUBLISHED = sorted(Path(__file__).parents[3].glob("docs/results/*/summary.json"))


def cells_of(summary):
    """Yield each cell of a summary, and the differences in it."""
    tables = [*summary["table"].values(), summary["warm_start"] or {}]
    tables += summary["other_warm_starts"].values()
    tables += [own for rules in summary["decoding"].values() for own in rules.values()]
    for metric, cell in ((m, own) for table in tables for m, own in table.items() if own):
        yield metric, cell, True
        for key in ("difference", "from_reference"):
            if cell.get(key):
                yield metric, cell[key], False


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_p_values_are_those_of_their_families(path):
    summary = json.loads(path.read_text("utf-8"))
    before = [own.pop("p_holm", None) for _, own, _ in cells_of(summary)]
    correct_p_values(summary)
    after = [own.get("p_holm") for _, own, _ in cells_of(summary)]
    assert after == pytest.approx(before, rel=1e-3)
    assert any(after) == (len(summary["seeds"]) >= ENOUGH_SEEDS)
    for kind in FAMILIES.values():
        assert (kind in summary["facts"]["interval"]) <= any(after)


def test_published_intervals_are_within_the_range_of_their_metric():
    limits, seen = {metric.name: metric.limits for metric in TIMES.metrics}, 0
    for path in PUBLISHED:
        summary = json.loads(path.read_text("utf-8"))
        for metric, cell, is_value in cells_of(summary):
            if metric in limits and is_value:
                low, high = limits[metric]
                assert low <= cell["low"] <= cell["high"] <= high, (path, metric)
                width = cell["high"] - cell["low"]
                assert width > 0 or metric == "median_deviation_minutes", (path, metric)
                seen += 1
    assert seen > 1000
