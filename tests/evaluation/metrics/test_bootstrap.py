"""Intervals equal a plain loop, cover what they say, and pair what is compared."""

import math

import numpy as np
import pytest

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics import bootstrap
from mm_numeric.evaluation.metrics.base import (
    MetricOnRows,
    mean_of,
    median_of,
    percentage,
    share_of,
)
from mm_numeric.evaluation.metrics.bootstrap import interval, metric_interval, run_draws
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.numbers import NUMBERS
from mm_numeric.evaluation.metrics.seed_intervals import seed_interval


def columns(seed, rows=40):
    """Return columns as a scorer does."""
    rng = np.random.default_rng(seed)
    return {"share": (rng.random(rows) < 0.7).astype(float), "minutes": rng.gamma(2, 9, rows)}


@pytest.mark.parametrize("chunk", [1, 250, 4_000_000])
@pytest.mark.parametrize("value", [mean_of("share"), median_of("minutes")])
def test_an_interval_equals_the_loop(monkeypatch, chunk, value):
    monkeypatch.setattr(bootstrap, "_MAX_ELEMENTS", chunk)
    rng, drawn = np.random.default_rng(5), []
    for _ in range(300):
        at = rng.integers(40, size=40)
        drawn.append(value({name: v[at] for name, v in columns(1).items()}))
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert interval(columns(1), value, resamples=300, seed=5) == pytest.approx((low, high))


def test_the_same_seed_gives_the_same_interval():
    first = interval(columns(1), mean_of("minutes"))
    assert interval(columns(1), mean_of("minutes")) == first
    assert interval(columns(1), mean_of("minutes"), seed=1) != first


@pytest.mark.parametrize("name", ["share", "minutes"])
def test_the_value_lies_inside(name):
    for seed in range(5):
        low, high = interval(columns(seed), mean_of(name), resamples=500)
        assert low < columns(seed)[name].mean() < high


def test_rows_that_are_all_alike_have_no_width():
    assert interval({"share": np.ones(7)}, mean_of("share"), resamples=50) == (1.0, 1.0)
    assert interval({"share": np.zeros(1)}, mean_of("share"), resamples=50) == (0.0, 0.0)


def test_an_interval_of_nothing_is_nan():
    parsed_only = next(m for m in TIMES.metrics if m.name.endswith("_parsed_only"))
    none = {"unreadable": np.ones(3), "deviation_minutes": np.full(3, 360.0)}
    assert all(map(math.isnan, interval(none, parsed_only.value, resamples=50)))
    one = {"unreadable": np.array([1.0, 1, 0]), "deviation_minutes": np.array([360.0, 360, 4])}
    assert interval(one, parsed_only.value, resamples=50) == (4.0, 4.0)


def test_an_interval_covers_as_often_as_it_says():
    """Of 300 samples of 100 rows, 95 % hold the true share; 91 to 98 % is four standard errors."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        sample = {"share": (rng.random(100) < 0.7).astype(float)}
        low, high = interval(sample, mean_of("share"), resamples=400)
        covered += low <= 0.7 <= high
    assert 0.91 <= covered / 300 <= 0.98


GROUPS = np.array([7, 3, 3, 9, 7, 3, 1, 9, 8, 7] * 4, dtype=np.uint64)


def test_rows_of_a_group_are_drawn_together():
    """The loop draws group by group; the order of the rows within a resample does not matter."""
    members = [np.flatnonzero(group == GROUPS) for group in dict.fromkeys(GROUPS)]
    assert sorted(map(len, members)) == [4, 4, 8, 12, 12]
    rng, drawn = np.random.default_rng(5), []
    runs = {"ce": [columns(1), columns(2)], "emd": [columns(3), columns(4)]}
    for _ in range(200):
        at = np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])
        drawn.append([[np.median(own["minutes"][at]) for own in runs[name]] for name in runs])
    value = median_of("minutes")
    found = run_draws(runs, value, groups=GROUPS, resamples=200, seed=5)
    assert np.stack(list(found.values())) == pytest.approx(np.moveaxis(drawn, 0, -1))
    low, high = np.percentile(np.array(drawn)[:, 0, 0], [2.5, 97.5])
    alone = interval(columns(1), value, groups=GROUPS, resamples=200, seed=5)
    assert alone == pytest.approx((low, high))


def test_groups_of_single_rows_are_as_no_groups():
    names = np.random.default_rng(0).permutation(40).astype(np.uint64)
    assert interval(columns(1), mean_of("share"), groups=names) == interval(
        columns(1), mean_of("share")
    )


def test_the_names_of_groups_do_not_change_an_interval():
    """They are hashes of paths, and the images may be in another folder on another machine."""
    value = mean_of("minutes")
    found = interval(columns(1), value, groups=GROUPS)
    assert interval(columns(1), value, groups=10 - GROUPS) == found


def test_an_interval_over_groups_covers_as_often_as_it_says():
    """100 images with 1 to 5 rows, half of whose variance is that of the image."""
    rng, covered = np.random.default_rng(0), np.zeros(2)
    for _ in range(300):
        groups = np.repeat(np.arange(100, dtype=np.uint64), rng.integers(1, 6, size=100))
        rows = {"share": rng.normal(size=100)[groups] + rng.normal(size=len(groups))}
        for i, known in enumerate((groups, None)):
            low, high = interval(rows, mean_of("share"), groups=known, resamples=200)
            covered[i] += low <= 0 <= high
    of_groups, of_rows = covered / 300
    assert 0.91 <= of_groups <= 0.98
    assert of_rows < 0.85


def test_a_metric_of_chosen_rows_draws_their_groups():
    chosen, rows = np.arange(0, 40, 3), columns(1)
    part = {name: values[chosen] for name, values in rows.items()}
    metric = percentage("share", "share")
    found = metric_interval(MetricOnRows(metric, chosen), rows, GROUPS)
    assert found[1:] == interval(part, metric.value, groups=GROUPS[chosen])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_exact_interval_of_a_share_counts_groups(value):
    rows, groups = {"a": np.full(40, value)}, np.repeat(np.arange(10, dtype=np.uint64), 4)
    ten = metric_interval(MetricOnRows(percentage("a", "a"), None), {"a": np.full(10, value)})
    assert metric_interval(MetricOnRows(percentage("a", "a"), None), rows, groups) == ten


def test_a_single_group_has_no_interval():
    found = metric_interval(
        MetricOnRows(percentage("share", "share"), None), columns(1), np.zeros(40, dtype=np.uint64)
    )
    assert found == pytest.approx((columns(1)["share"].mean(), math.nan, math.nan), nan_ok=True)


RUNS = {"ce": [columns(1), columns(2), columns(3)], "emd": [columns(4), columns(5), columns(6)]}


@pytest.mark.parametrize("chunk", [90, 4_000_000])
def test_draws_of_runs_equal_the_loop(monkeypatch, chunk):
    monkeypatch.setattr(bootstrap, "_MAX_ELEMENTS", chunk)
    found = run_draws(RUNS, median_of("minutes"), resamples=60, seed=7)
    row_rng = np.random.default_rng(7)
    for draw in range(60):
        at = row_rng.integers(40, size=40)
        for name, by_seed in RUNS.items():
            values = [np.median(columns["minutes"][at]) for columns in by_seed]
            assert found[name][:, draw] == pytest.approx(values)


def test_runs_on_a_single_group_have_no_draws():
    one = np.zeros(40, dtype=np.uint64)
    draws = run_draws(RUNS, mean_of("minutes"), groups=one)
    assert np.isnan(list(draws.values())).all()


def test_an_objective_does_not_differ_from_itself():
    draws = run_draws({**RUNS, "again": RUNS["ce"]}, mean_of("minutes"), resamples=200)
    apart = draws["again"] - draws["ce"]
    assert not apart.any()
    assert seed_interval([0.0] * 3, apart)[:2] == (0.0, 0.0)
    assert (draws["emd"] - draws["ce"]).any()


def test_a_difference_is_narrower_where_the_same_rows_are_hard():
    rng = np.random.default_rng(0)
    hard = [rng.gamma(2, 9, 200) for _ in range(3)]
    runs = {
        "ce": [{"minutes": row} for row in hard],
        "emd": [{"minutes": row - 1 + rng.normal(0, 0.1, 200)} for row in hard],
    }
    draws = run_draws(runs, mean_of("minutes"))
    means = {name: [run["minutes"].mean() for run in own] for name, own in runs.items()}
    apart = np.subtract(means["emd"], means["ce"])
    low, high, _ = seed_interval(apart, draws["emd"] - draws["ce"])
    alone = np.subtract(*seed_interval(means["ce"], draws["ce"])[1::-1])
    assert -1.05 < low < -1 < high < -0.95
    assert high - low < 0.1 * alone


def test_a_single_seed_has_as_many_resamples_as_its_percentiles_need():
    assert run_draws({"ce": RUNS["ce"][:1]}, mean_of("minutes"))["ce"].shape == (1, 2000)
    assert run_draws(RUNS, mean_of("minutes"))["ce"].shape == (3, 500)


@pytest.mark.parametrize(("rows", "end"), [(1, 0.025), (10, 0.6915), (100, 0.9638)])
def test_a_share_at_its_limit_has_the_interval_of_clopper_and_pearson(rows, end):
    """The ends are those of scipy.stats.binomtest(n, n).proportion_ci(method="exact")."""
    share = MetricOnRows(percentage("a", "a"), None)
    for value, ends in ((1.0, (end, 1)), (0.0, (0, 1 - end))):
        found = metric_interval(share, {"a": np.full(rows, value)})
        assert found == pytest.approx((value, *ends), abs=5e-5)
    digits = MetricOnRows(percentage("b", "b", share_of("right", "digits", nothing=np.nan)), None)
    of_one = {"right": np.eye(1, rows)[0], "digits": np.eye(1, rows)[0]}
    assert metric_interval(digits, of_one) == pytest.approx((1, 0.025, 1))  # one row has digits


def test_a_percentage_that_may_exceed_100_has_no_exact_interval():
    (mape,) = (m for m in NUMBERS.metrics if m.name == "mape")
    columns = NUMBERS.columns([Number("3")] * 4, [Number("3")] * 4)
    assert metric_interval(MetricOnRows(mape, None), columns) == pytest.approx(
        (0, math.nan, math.nan), nan_ok=True
    )


@pytest.mark.parametrize(
    ("answers", "targets", "names"),
    [
        (["5"], ["3"], "mae median_absolute_error rmse log_mae mape mae_parsed_only"),
        (["4", "5", "6"], ["3", "4", "5"], "mae median_absolute_error rmse"),
        (["3", "4", "5"], ["3", "4", "5"], "mae r2"),
        (["5", None], ["3", "4"], "mae_parsed_only"),
    ],
)
def test_rows_that_do_not_differ_have_no_interval(answers, targets, names):
    """One row, or several of the same error, do not show how much errors vary."""
    columns = NUMBERS.columns([text and Number(text) for text in answers], [*map(Number, targets)])
    metrics = {metric.name: MetricOnRows(metric, None) for metric in NUMBERS.metrics}
    for name in names.split():
        value, *ends = metric_interval(metrics[name], columns)
        assert math.isfinite(value), name
        assert all(map(math.isnan, ends)), name


def test_a_median_of_many_equal_rows_has_an_interval_of_one_point():
    metric = percentage("minutes", "minutes", median_of("minutes"))
    rows = {"minutes": np.array([*[2.0] * 95, *[30.0] * 5])}
    assert metric_interval(MetricOnRows(metric, None), rows) == (2, 2, 2)
