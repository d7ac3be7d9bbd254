"""Intervals equal a plain loop, cover what they say, and pair what is compared."""

import math

import numpy as np
import pytest
from intervals import any_number, estimate, interval

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics import bootstrap
from mm_numeric.evaluation.metrics.base import (
    MetricOnRows,
    mean_of,
    median_of,
    percentage,
    share_of,
)
from mm_numeric.evaluation.metrics.bootstrap import sample_metrics
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.intervals import metric_interval, seed_interval
from mm_numeric.evaluation.metrics.number_errors import NUMBERS


def run_draws(runs, value, **more):
    """Return the resampled values of a function of columns for each key of ``runs``."""
    figure = MetricOnRows(any_number(value), None)
    (samples,) = sample_metrics([figure], runs, more.pop("groups", None), **more)
    return {name: sample.draws for name, sample in samples.items()}


def columns(seed, rows=40):
    """Return columns as a scorer does."""
    rng = np.random.default_rng(seed)
    return {"share": (rng.random(rows) < 0.7).astype(float), "minutes": rng.gamma(2, 9, rows)}


METRICS = {
    "mean": mean_of("share"),
    "median": median_of("minutes"),
    "share": share_of("share", "minutes"),
    "product": lambda c: (c["minutes"] * (1 - c["share"] / 2)).sum(axis=-1),
    "comparison": lambda c: (c["minutes"] <= 9).mean(axis=-1),
    "maximum": lambda c: np.where(c["share"] > 0, c["minutes"], 0).max(axis=-1),
    "deviation": lambda c: c["minutes"].std(axis=-1) + np.sqrt(c["minutes"])[..., :3].sum(axis=-1),
    "infinite": lambda c: np.divide(1, c["share"]).min(axis=-1) + (c["none"] > 0).sum(axis=-1),
}


@pytest.mark.parametrize("chunk", [1, 250, 4_000_000])
@pytest.mark.parametrize("value", METRICS.values(), ids=METRICS)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_an_interval_equals_the_loop(monkeypatch, chunk, value):
    monkeypatch.setattr(bootstrap, "_MAX_ELEMENTS", chunk)
    rng, drawn = np.random.default_rng(5), []
    rows = {**columns(1), "none": np.where(np.arange(40) % 3, 1.0, np.nan)}
    for _ in range(300):
        at = rng.integers(40, size=40)
        drawn.append(value({name: v[at] for name, v in rows.items()}))
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert interval(rows, value, resamples=300, seed=5) == pytest.approx((low, high))


def test_the_same_seed_gives_the_same_interval():
    first = interval(columns(1), mean_of("minutes"))
    assert interval(columns(1), mean_of("minutes")) == first
    assert interval(columns(1), mean_of("minutes"), seed=1) != first


@pytest.mark.parametrize("name", ["share", "minutes"])
def test_the_value_lies_inside(name):
    for seed in range(5):
        low, high = interval(columns(seed), mean_of(name), resamples=500)
        assert low < columns(seed)[name].mean() < high


def test_an_interval_of_nothing_is_nan():
    parsed_only = next(m for m in TIMES.metrics if m.name.endswith("_parsed_only"))
    none = {"unreadable": np.ones(3), "deviation_minutes": np.full(3, 360.0)}
    assert all(map(math.isnan, interval(none, parsed_only.value, resamples=50)))


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


@pytest.mark.slow
def test_an_interval_over_groups_covers_as_often_as_it_says():
    """100 images with 1 to 5 rows, half of whose variance is that of the image."""
    rng, covered = np.random.default_rng(0), np.zeros(2)
    for _ in range(150):
        groups = np.repeat(np.arange(100, dtype=np.uint64), rng.integers(1, 6, size=100))
        rows = {"share": rng.normal(size=100)[groups] + rng.normal(size=len(groups))}
        for i, known in enumerate((groups, None)):
            low, high = interval(rows, mean_of("share"), groups=known, resamples=100)
            covered[i] += low <= 0 <= high
    of_groups, of_rows = covered / 150
    assert 0.89 <= of_groups <= 0.99
    assert of_rows < 0.85


def test_a_metric_of_chosen_rows_draws_their_groups():
    chosen, rows = np.arange(0, 40, 3), columns(1)
    part = {name: values[chosen] for name, values in rows.items()}
    metric = percentage("share", "share")
    found = estimate(MetricOnRows(metric, chosen), rows, GROUPS)
    assert found[1:] == interval(part, metric.value, groups=GROUPS[chosen])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_exact_interval_of_a_share_counts_groups(value):
    rows, groups = {"a": np.full(40, value)}, np.repeat(np.arange(10, dtype=np.uint64), 4)
    ten = estimate(MetricOnRows(percentage("a", "a"), None), {"a": np.full(10, value)})
    assert estimate(MetricOnRows(percentage("a", "a"), None), rows, groups) == ten


def test_a_single_group_has_no_interval():
    found = estimate(
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


def test_runs_on_a_single_group_have_no_interval():
    """Neither does their difference: one image does not show how much images vary."""
    figure, one = MetricOnRows(any_number(mean_of("minutes")), None), np.zeros(40, dtype=np.uint64)
    (found,) = sample_metrics([figure], RUNS, one)
    for sample in (*found.values(), found["emd"] - found["ce"]):
        assert np.isnan(metric_interval(sample)).all()


def test_an_objective_does_not_differ_from_itself():
    draws = run_draws({**RUNS, "again": RUNS["ce"]}, mean_of("minutes"), resamples=50)
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
        found = estimate(share, {"a": np.full(rows, value)})
        assert found == pytest.approx((value, *ends), abs=5e-5)
    digits = MetricOnRows(percentage("b", "b", share_of("right", "digits", nothing=np.nan)), None)
    of_one = {"right": np.eye(1, rows)[0], "digits": np.eye(1, rows)[0]}
    assert estimate(digits, of_one) == pytest.approx((1, 0.025, 1))  # one row has digits


def test_a_percentage_that_may_exceed_100_has_no_exact_interval():
    (mape,) = (m for m in NUMBERS.metrics if m.name == "mape")
    columns = NUMBERS.columns([Number("3")] * 4, [Number("3")] * 4)
    assert estimate(MetricOnRows(mape, None), columns) == pytest.approx(
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
        value, *ends = estimate(metrics[name], columns)
        assert math.isfinite(value), name
        assert all(map(math.isnan, ends)), name


def test_a_median_of_many_equal_rows_has_an_interval_of_one_point():
    rows = {"minutes": np.array([*[2.0] * 95, *[30.0] * 5])}
    assert estimate(any_number(median_of("minutes")), rows) == (2, 2, 2)


def runs_of_seeds(*rows, name="right", metric=None):
    """Return the sample of a metric of runs with these rows, by default a share."""
    figure = MetricOnRows(metric or percentage(name, name), None)
    runs = {"": [{name: np.array(own, dtype=float)} for own in rows]}
    return sample_metrics([figure], runs)[0][""]


def test_one_run_and_several_equal_runs_at_a_limit_have_the_same_interval():
    """Of 60 rows, 0 right: 0 to 5.96 %, however many seeds agree on it."""
    wrong, right = np.zeros(60), np.ones(60)
    for seeds in (1, 2, 5):
        found = metric_interval(runs_of_seeds(*[wrong] * seeds))
        assert found[:2] == pytest.approx((0, 0.0596), abs=5e-5)
        found = metric_interval(runs_of_seeds(*[right] * seeds))
        assert found[:2] == pytest.approx((0.9404, 1), abs=5e-5)


def test_equal_seeds_have_the_uncertainty_of_their_rows():
    """30 of 60 in each of three seeds: 1.96 standard errors of a share of one half."""
    rows = np.repeat([0.0, 1.0], 30)
    low, high, _ = metric_interval(runs_of_seeds(rows, rows, rows))
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.25 / 60), rel=0.1)


def test_intervals_stay_within_the_range_of_their_metric():
    """Two seeds have a t of 12.7: 0 and 60 % alone would give -352 to 412 %."""
    low = runs_of_seeds([0.0] * 10, [1.0] * 6 + [0.0] * 4)
    assert metric_interval(low)[:2] == (0, 1)
    minutes = next(m for m in TIMES.metrics if m.name == "mean_deviation_minutes")
    far = runs_of_seeds([360.0] * 10, [150.0] * 10, name="deviation_minutes", metric=minutes)
    near = runs_of_seeds([1.0] * 10, [9.0] * 10, name="deviation_minutes", metric=minutes)
    assert metric_interval(far)[:2] == (0, 360)
    assert metric_interval(far - near)[:2] == (-360, 360)
    linear = next(m for m in TIMES.metrics if m.name == "linear_deviation_minutes")
    assert linear.limits == (0, 719)
    limits = {metric.name: metric.limits for metric in NUMBERS.metrics}
    assert limits["accuracy"] == (0, 1)
    assert limits["mae"] == limits["mape"] == (0, math.inf)
    assert limits["r2_parsed_only"] == (-math.inf, 1)
    assert limits["spearman"] == (-1, 1)


def test_a_difference_of_no_row_may_be_one_of_rows_that_were_not_seen():
    """60 rows without a change allow 5.96 % of changed rows, in either direction."""
    rows = np.repeat([0.0, 1.0], 30)
    same = runs_of_seeds(rows, rows) - runs_of_seeds(rows, rows)
    low, high, p = metric_interval(same)
    assert (low, high, p) == pytest.approx((-0.0596, 0.0596, 1), abs=5e-5)
    gained = runs_of_seeds(*[np.ones(6)] * 2) - runs_of_seeds(*[np.zeros(6)] * 2)
    low, high, p = metric_interval(gained)
    assert (low, high) == pytest.approx((0.025 ** (1 / 6), 1))
    assert p == 2 * 0.5**6  # of the sign test
    minutes = any_number(mean_of("right"))
    same = runs_of_seeds(rows, rows, metric=minutes) - runs_of_seeds(rows, rows, metric=minutes)
    assert metric_interval(same) == pytest.approx((math.nan, math.nan, 1), nan_ok=True)


def numbers_of(kind, rows, rng):
    """Return the columns of answers and targets that are near each other, as ``kind`` says."""
    targets = rng.integers(0, 9, size=rows) if kind == "ties" else rng.normal(size=rows)
    answers = targets + (
        rng.integers(-1, 2, size=rows) if kind == "ties" else rng.normal(size=rows)
    )
    change = {"offset": lambda x: 1e9 + x, "huge": lambda x: x * 1e150, "tiny": lambda x: x * 1e-9}
    change["constant"] = lambda x: np.where(np.arange(rows) < rows - 1, 3.7, x)
    change = change.get(kind, lambda x: x)
    texts = [[f"{value:.12e}" for value in change(own)] for own in (answers, targets)]
    predictions = [None if rng.random() < 0.2 else Number(text) for text in texts[0]]
    return NUMBERS.columns(predictions, [Number(text) for text in texts[1]])


CORRELATIONS = [m for m in NUMBERS.metrics if m.name.startswith(("r2", "log_r2", "pear", "spear"))]


@pytest.mark.parametrize("rows", [3, 30])
@pytest.mark.parametrize("kind", ["floats", "ties", "offset", "huge", "tiny", "constant"])
def test_correlations_of_resamples_equal_those_of_their_rows(kind, rows):
    """Drawing few rows, or many equal ones, gives resamples in which nothing varies."""
    own = numbers_of(kind, rows, np.random.default_rng(rows))
    for metric in CORRELATIONS:
        (samples,) = sample_metrics([MetricOnRows(metric, None)], {"a": [own]}, resamples=50)
        rng, expected = np.random.default_rng(0), []
        for at in rng.integers(rows, size=(50, rows)):
            expected.append(float(metric.value({name: v[at] for name, v in own.items()})))
        found = samples["a"].draws[0]
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, err_msg=metric.name)


def test_correlations_of_resamples_need_sums_alone(monkeypatch):
    own = numbers_of("floats", 50, np.random.default_rng(0))

    def fail(_):
        raise AssertionError("the rows of each resample were collected")

    monkeypatch.setattr(bootstrap._ResampledColumn, "_array", property(fail))
    figures = [MetricOnRows(metric, None) for metric in CORRELATIONS]
    assert len(figures) == 8
    for samples in sample_metrics(figures, {"a": [own]}, resamples=20):
        assert np.isfinite(samples["a"].draws).all()
