"""Every figure for numbers equals a slow loop, over all rows and over those that could be read."""

import json
import math
import re
import statistics
from fractions import Fraction

import numpy as np
import pytest
from documents import PAGES
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from intervals import interval
from result_files import section, write_lines

from mm_numeric.answers import Number, Tolerance, Unreadable
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.evaluation.metrics.number_errors import (
    APPROXIMATE_NUMBERS,
    GSM8K,
    NUMBERS,
    digit_count,
    digits_by_place,
    score_approximate,
    score_numbers,
)
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table
from mm_numeric.tasks.number_questions import ApproximateNumbers

RANDOM = examples(100)
WRITTEN = st.one_of(
    st.integers(-50, 50).map(str),
    st.integers(-(10**40), 10**40).map(str),
    st.decimals(-100, 100, places=2).map(str),
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda p: f"{p[0]}/{p[1]}"),
)
PAIRS = st.lists(st.tuples(st.none() | WRITTEN, WRITTEN), min_size=1, max_size=12)


def numbers(pairs):
    """Return answers and targets."""
    return [p and Number(p) for p, _ in pairs], [Number(t) for _, t in pairs]


def figures(pairs):
    """Return every metric of some pairs."""
    columns = score_numbers(*numbers(pairs))
    return {metric.name: float(metric.value(columns)) for metric in NUMBERS.metrics}


def slow_ranks(values):
    """Count, for each value, how many are less, and half of those that are equal."""
    return [sum(v < w for v in values) + (values.count(w) - 1) / 2 for w in values]


def slow_pearson(xs, ys):
    if 1 in (len(set(xs)), len(set(ys))):
        return math.nan
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    both = math.fsum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    alone = math.fsum((a - x) ** 2 for a in xs) * math.fsum((b - y) ** 2 for b in ys)
    return both / math.sqrt(alone)


def slow_r2(given, wanted):
    if len(set(wanted)) == 1:
        return math.nan
    mean = statistics.fmean(wanted)
    around = math.fsum((t - mean) ** 2 for t in wanted)
    left = math.fsum((a - t) ** 2 for a, t in zip(given, wanted, strict=True))
    return 1 - left / around


def slow_figures(pairs, *, parsed_only):
    """Return what ``figures`` says of distance, from a loop over rows."""
    rows = []
    for given_text, wanted_text in pairs:
        wanted = float(Fraction(wanted_text))
        if given_text is not None:
            rows.append((float(Fraction(given_text)), wanted))
        elif not parsed_only:
            rows.append((-wanted if wanted else 1.0, wanted))
    if not rows:
        return dict.fromkeys(
            [
                "mae",
                "median_absolute_error",
                "rmse",
                "r2",
                "pearson",
                "spearman",
                "mape",
                "log_mae",
                "log_r2",
            ],
            math.nan,
        )
    given, wanted = map(list, zip(*rows, strict=True))
    is_any_parsed = any(text is not None for text, _ in pairs)
    errors = [abs(a - t) for a, t in rows]
    logs = [[math.copysign(math.log10(1 + abs(v)), v) for v in side] for side in (given, wanted)]
    relative = [abs(a - t) / abs(t) for a, t in rows if t]
    return {
        "mae": statistics.fmean(errors),
        "median_absolute_error": statistics.median(errors),
        "rmse": math.sqrt(statistics.fmean(e * e for e in errors)),
        "r2": slow_r2(given, wanted),
        "pearson": slow_pearson(given, wanted) if is_any_parsed else math.nan,
        "spearman": slow_pearson(slow_ranks(given), slow_ranks(wanted))
        if is_any_parsed
        else math.nan,
        "mape": statistics.fmean(relative) if relative else math.nan,
        "log_mae": statistics.fmean(abs(a - t) for a, t in zip(*logs, strict=True)),
        "log_r2": slow_r2(*logs),
    }


@given(pairs=PAIRS)
@RANDOM
def test_every_figure_equals_a_slow_loop(pairs):
    found = figures(pairs)
    for end, parsed_only in (("", False), ("_parsed_only", True)):
        for name, value in slow_figures(pairs, parsed_only=parsed_only).items():
            assert found[name + end] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name
    exact = [p is not None and Fraction(p) == Fraction(t) for p, t in pairs]
    assert found["accuracy"] == statistics.fmean(exact)
    assert found["unreadable"] == statistics.fmean(p is None for p, _ in pairs)


@pytest.mark.slow
@given(pairs=PAIRS, seed=st.integers(0, 9))
@RANDOM
def test_resamples_are_taken_as_rows_are(pairs, seed):
    columns = score_numbers(*numbers(pairs))
    at = np.random.default_rng(seed).integers(len(pairs), size=(3, len(pairs)))
    many = {name: values[at] for name, values in columns.items()}
    for metric in NUMBERS.metrics:
        alone = [float(metric.value({n: v[i] for n, v in columns.items()})) for i in at]
        assert metric.value(many) == pytest.approx(alone, rel=1e-6, abs=1e-9, nan_ok=True)


@given(pairs=PAIRS, cut=st.integers(0, 12))
@RANDOM
def test_columns_of_shards_add_up(pairs, cut):
    shards = [score_numbers(*numbers(part)) for part in (pairs[:cut], pairs[cut:])]
    for name, values in score_numbers(*numbers(pairs)).items():
        assert np.array_equal(np.concatenate([shard[name] for shard in shards]), values)


def test_known_figures():
    found = figures([("3", "3"), ("5.0", "5"), ("10", "7"), (None, "-4"), ("1/2", "0.5")])
    assert found["accuracy"] == 3 / 5
    assert found["mae"] == (3 + 8) / 5
    assert found["mae_parsed_only"] == 3 / 4
    assert found["median_absolute_error"] == 0
    assert found["mape"] == pytest.approx((3 / 7 + 2) / 5)
    assert found["unreadable"] == 1 / 5


@pytest.mark.parametrize(
    ("answer", "target", "exact", "close"),
    [
        ("100000000000000000000001", "100000000000000000000000", 0, 1),
        ("0.1", "0.10", 1, 1),
        ("1e3", "1000", 1, 1),
        ("0.333333333", "1/3", 0, 1),
        ("-5", "5", 0, 0),
        ("007", "7", 1, 1),
        ("1.0001", "1", 0, 0),
        ("1e160", "2e160", 0, 0),  # both are clipped
        ("1e160", "1000001e154", 0, 1),
        (None, "0", 0, 0),
    ],
)
def test_exact_is_exact_and_close_is_close(answer, target, exact, close):
    found = figures([(answer, target)])
    assert (found["accuracy"], found["is_close"]) == (exact, close)


def test_unparseable_answers_alone_have_the_worst_errors_and_no_correlation():
    """Substitutes for missing answers have Pearson -1 with the targets, which says nothing."""
    found = figures([(None, str(n)) for n in (-7, -2, 1, 4, 30)])
    assert math.isnan(found["pearson"])
    assert math.isnan(found["spearman"])
    assert found["mape"] == 2
    assert found["r2"] < -1
    assert math.isnan(found["mae_parsed_only"])


def test_numbers_beyond_float64_keep_every_figure_finite():
    found = figures([("9" * 900, "3"), ("1", "4"), ("2", "-" + "9" * 400)])
    assert all(math.isfinite(v) for name, v in found.items() if name != "thousands_accuracy")


def test_a_long_number_for_tiny_targets_keeps_every_figure_finite():
    """Infinity is not JSON."""
    for unit in ("e-6", "e-320"):
        found = figures([("9" * 200, f"7{unit}"), *((f"{n}{unit}", f"{n}{unit}") for n in (1, 2))])
        assert found["r2"] < -1e200 or math.isnan(found["r2"])  # without variance in float64
        assert not any(map(math.isinf, found.values()))
        assert found["mape"] > 1e100


def test_one_value_alone_has_no_r2_and_no_correlation():
    found = figures([("0.3", "0.1"), ("0.4", "0.1"), ("0.4", "0.1")])
    assert all(math.isnan(found[name]) for name in ("r2", "log_r2", "pearson", "spearman"))
    assert interval(score_numbers(*numbers([("3", "3")])), NUMBERS.metrics[2].value)


@pytest.mark.parametrize(
    ("answer", "target", "right"),
    [
        ("123", "123", [1, 1, 1]),
        ("23", "123", [1, 1, 0]),
        ("1123", "123", [1, 1, 1]),
        ("-123", "123", [1, 1, 1]),
        ("129", "123", [0, 1, 1]),
        ("3.5", "3.25", [0, 0, 1]),
        ("3", "3.00", [1, 1, 1]),
        ("5", "105", [1, 1, 0]),
        (None, "12", [0, 0]),
        ("12", "2/7", []),
        ("10", "1e1", []),
        ("10", "1E1", []),
    ],
)
def test_digits_by_place(answer, target, right):
    columns = score_numbers(*numbers([(answer, target)]))
    assert (columns["right_digits"][0], columns["digits"][0]) == (sum(right), len(right))
    decimals = digits_by_place(Number(target))[0]
    for place, name in enumerate(("units", "tens", "hundreds")):
        here = right[decimals + place : decimals + place + 1]
        assert columns[name][0] == len(here)
        assert columns[f"right_{name}"][0] == sum(here)


@pytest.mark.parametrize(
    ("text", "count"), [("0", "1"), ("-0.5", "1"), ("999", "3"), ("-1000", "4"), ("2001/2", "4")]
)
def test_digits_before_the_point(text, count):
    assert digit_count(Number(text)) == count


def predictions(folder, rows):
    """Write a file of predictions: text, target and category."""
    path = folder / "predictions.jsonl"
    lines = [
        {"id": str(i), "task": "numbers", "text": text, "target": target, "buckets": buckets}
        for i, (text, target, buckets) in enumerate(rows)
    ]
    write_lines(path, lines)
    return path


OF_CATEGORIES = ("accuracy", "mae", "r2")


def test_categories_have_figures_of_their_own(tmp_path):
    near, far = {"category": "interpolation"}, {"category": "extrapolation", "module": "m"}
    rows = [("1", "1", near), ("2", "2", near), ("x", "7", far), ("8", "10", far), ("9", "9", far)]
    scores = score(predictions(tmp_path, rows))
    results = section(tmp_path)
    assert list(results["metrics"])[:9] == [
        "accuracy",
        *(f"{name}_{c}" for c in ("extrapolation", "interpolation") for name in OF_CATEGORIES),
        "lenient_accuracy",
        "mae",
    ]
    assert results["metrics"]["accuracy_interpolation"]["value"] == 1
    assert results["metrics"]["accuracy_extrapolation"]["value"] == 1 / 3
    assert results["metrics"]["mae_extrapolation"]["value"] == (14 + 2) / 3
    assert results["metrics"]["accuracy"]["value"] == 3 / 5
    assert results["buckets"]["category"]["extrapolation"]["rows"] == 3
    assert set(results["buckets"]["module"]) == {"none", "m"}
    assert results["buckets"]["digits"]["2"]["rows"] == 1
    assert results["failures"] == {"no number": 1}
    lines = (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[2])
    assert (row["target"], row["target_value"], row["answer_value"]) == ("7", 7, -7)
    assert (row["parsed"], row["buckets"]) == (None, far)
    assert "interpolation accuracy        100.00 %" in results_table(scores)


def test_one_category_alone_has_none(tmp_path):
    rows = [("1", "1", {"category": "interpolation"}), ("2", "3", {"category": "interpolation"})]
    assert next(iter(score(predictions(tmp_path, rows), write=False).metrics())) == "accuracy"


def test_buckets_are_names_and_texts(tmp_path):
    path = predictions(tmp_path, [("1", "1", {"category": 3})])
    with pytest.raises(ValueError, match=r'line 1: "buckets" is .*; write names and texts'):
        score(path, write=False)


def test_a_scorer_that_names_no_metric_shows_its_headline_by_category():
    assert Scorer(columns=score_numbers, metrics=NUMBERS.metrics, buckets={}).by_category == ()


RANDOM_TOLERANCE = settings(derandomize=True, deadline=None, max_examples=200)
WRITTEN_TOLERANCE = st.one_of(
    st.integers(-30, 30).map(str),
    st.integers(95, 105).map(str),
    st.decimals(-2, 2, places=2).map(str),
    st.integers(10**17, 10**17 + 9).map(str),
)
LIMITS = st.builds(Tolerance, st.sampled_from([0.0, 0.05, 0.5]), st.sampled_from([0.0, 0.02, 3.0]))
ROWS = st.lists(st.tuples(st.none() | WRITTEN_TOLERANCE, WRITTEN_TOLERANCE, LIMITS), max_size=12)


def relaxed_correctness(target, prediction, max_relative_change=0.05):
    """pix2struct/metrics.py, line 81, for texts without a percent sign.

    Where the target is 0, it compares the texts; 0 and 0.0 are equal here.
    """
    predicted, wanted = float(prediction), float(target)
    if wanted:
        return abs(predicted - wanted) / abs(wanted) <= max_relative_change
    return predicted == wanted


@pytest.mark.slow
@given(rows=ROWS)
@example(rows=[("21", "20", Tolerance(0.05)), ("1.05", "1", Tolerance(0.05))])
@example(rows=[("100000000000000001", "100000000000000000", Tolerance())])
@RANDOM_TOLERANCE
def test_every_answer_is_within_as_in_a_loop(rows):
    answers = [text and Number(text) for text, _, _ in rows]
    columns = score_approximate(
        answers, [Number(text, tolerance=limits) for _, text, limits in rows]
    )
    for i, (text, target, limits) in enumerate(rows):
        is_within = is_relaxed = text is not None
        if text is not None:
            error = abs(float(text) - float(target))
            is_within = Number(text) == Number(target) or (
                (limits.relative > 0 and relaxed_correctness(target, text, limits.relative))
                or (limits.absolute > 0 and error <= limits.absolute)
            )
            is_relaxed = relaxed_correctness(target, text)
        assert columns["within_tolerance"][i] == is_within
        assert columns["within_5_percent"][i] == is_relaxed


def test_years_are_exact_where_relaxed_accuracy_accepts_any_of_a_century():
    """The published trap: every year from 1910 to 2110 is within 5 % of 2010."""
    targets = [Number("2010"), Number("2010", tolerance=Tolerance(0.05))]
    columns = score_approximate([Number("2008")] * 2, targets)
    assert list(columns["within_5_percent"]) == [1, 1]
    assert list(columns["within_tolerance"]) == [0, 1]
    assert APPROXIMATE_NUMBERS.metrics[0].name == "within_tolerance"


def official(target, answer):
    """relaxed_correctness of pix2struct, for any texts."""

    def number(text):
        try:
            return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            return None

    wanted, found = number(target), number(answer)
    if found is not None and wanted:
        return abs(found - wanted) / abs(wanted) <= 0.05
    return answer.lower() == target.lower()


def test_the_page_of_tasks_lists_where_the_script_of_chartqa_differs():
    table = PAGES["docs/tasks.md"].partition("| target | answer | script | here |")[2]
    rows = re.findall(r"^\| ([\d.]+) \| (.+?) \| (right|wrong).*? \| (right|wrong)", table, re.M)
    assert len(rows) == 4
    for target, answer, script, here in rows:
        (found,) = score_approximate([ApproximateNumbers().parse(answer)], [Number(target)])[
            "within_5_percent"
        ]
        assert {True: "right", False: "wrong"}[official(target, answer)] == script, answer
        assert {1: "right", 0: "wrong"}[found] == here, answer


def test_a_file_that_is_scored_apart_from_its_config_keeps_the_tolerance_of_each_row(tmp_path):
    task = ApproximateNumbers()
    rows = [
        {"id": "1", "question": "Which year?", "answer": 2010, "tolerance": 0},
        {"id": "2", "question": "How many?", "answer": 2010},
    ]
    lines = [
        {"id": e.id, "task": "approximate_numbers", "text": "2008", "target": task.record(e.answer)}
        for e in task.examples([("f", row) for row in rows], training=False)
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    metrics = score(path, task_name="approximate_numbers").metrics()
    assert metrics["within_tolerance"]["value"] == 0.5
    assert metrics["within_5_percent"]["value"] == 1
    assert metrics["accuracy"]["value"] == 0


def test_a_target_keeps_the_tolerance_of_its_row():
    task = ApproximateNumbers(tolerance=0.1)
    wanted = [
        ({}, Tolerance(0.1)),
        ({"tolerance": 0}, Tolerance()),
        ({"tolerance": {"absolute": 2}}, Tolerance(0.0, 2)),
        ({"tolerance": {"relative": None, "absolute": 2}}, Tolerance(0.0, 2)),  # of a table
        ({"tolerance": "0.2"}, Tolerance(0.2)),  # of a CSV file
        ({"tolerance": ""}, Tolerance(0.1)),
    ]
    for own, tolerance in wanted:
        answer = task.read_target({"answer": 12, **own}, "f, line 1")
        assert answer.tolerance == tolerance
        back = task.recorded(json.loads(json.dumps(task.record(answer))))
        assert (back, back.tolerance) == (answer, tolerance)
    assert task.recorded("12").tolerance == Tolerance(0.1)


@pytest.mark.parametrize("value", [-1, "5 %", float("nan"), {"percent": 5}, True, [0.05]])
def test_what_is_no_tolerance_is_one_sentence(value):
    with pytest.raises(ValueError, match=r"^f, line 1: a tolerance is a relative error of at "):
        ApproximateNumbers().read_target({"answer": 1, "tolerance": value}, "f, line 1")
    if not isinstance(value, list):
        with pytest.raises(ValueError, match=r"^tolerance: a tolerance is"):
            ApproximateNumbers(tolerance=value)


@pytest.mark.parametrize(
    ("answer", "target", "is_right"),
    [
        ("5.000000000000002", "5", True),
        ("0.30000000000000004", "0.3", True),
        ("5.00000001", "5", False),
        ("-5.000000000000002", "5", False),
        ("12345678901", "12345678902", False),  # whole numbers have no rounding errors
        ("0.0000000001", "0", True),
        ("5", "5.0", True),
    ],
)
def test_noise_of_floats_is_right_under_the_lenient_accuracy(answer, target, is_right):
    columns = NUMBERS.judge([Number(answer)], [Number(target)])
    found = {m.name: m.value(columns) for m in NUMBERS.metrics[:2]}
    assert found == {"accuracy": Number(answer) == Number(target), "lenient_accuracy": is_right}
    columns = GSM8K.judge([Unreadable("", Number(answer))], [Number(target)])
    assert GSM8K.metrics[1].value(columns) == is_right
