"""Every metric of times equals a slow loop, and a deviation is a circular distance."""

import math
import statistics

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import ClockTime
from mm_numeric.evaluation.metrics.clock import (
    TIMES,
    dial_deviation_minutes,
    score_times,
    with_hands_swapped,
)
from mm_numeric.tasks.clock import Clock

TIME = st.builds(ClockTime.from_minutes, st.integers(0, 719))
ANSWER = st.none() | TIME
MINUTE = "minute_accuracy it_is_about_time_minute"
RANDOM = examples(200)


def slow_deviation(one, other):
    """Turn one clock minute by minute, both ways, until it shows the other time."""
    for minutes in range(361):
        for way in (1, -1):
            if ClockTime.from_minutes(one.minutes + way * minutes) == other:
                return minutes
    raise AssertionError


def of(text):
    """Read a time, or None."""
    return Clock().parse(text) if text else None


@given(one=TIME, other=TIME)
@RANDOM
def test_a_deviation_equals_turning_the_hands(one, other):
    assert dial_deviation_minutes(one, other) == slow_deviation(one, other)
    assert dial_deviation_minutes(other, one) == slow_deviation(one, other)


@given(one=TIME, other=TIME, third=TIME)
@RANDOM
def test_a_deviation_is_a_distance(one, other, third):
    direct = dial_deviation_minutes(one, third)
    assert direct <= dial_deviation_minutes(one, other) + dial_deviation_minutes(other, third)
    assert (direct == 0) == (one == third)
    assert 0 <= direct <= 360


@pytest.mark.parametrize(
    ("one", "other", "minutes"),
    [
        ("12:59", "1:00", 1),
        ("11:59", "12:00", 1),
        ("12:00", "6:00", 360),
        ("12:01", "6:00", 359),
        ("3:00", "3:00", 0),
        ("1:10", "11:50", 80),
        (None, "3:00", 360),
    ],
)
def test_known_deviations(one, other, minutes):
    assert dial_deviation_minutes(of(one), of(other)) == minutes


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        ("3:00", "12:15"),
        ("12:15", "3:01"),
        ("6:00", "12:30"),
        ("9:30", "6:48"),
        ("12:00", "12:00"),
        ("1:10", "2:06"),
    ],
)
def test_what_one_reads_who_swaps_the_hands(shown, read):
    assert with_hands_swapped(of(shown)) == of(read)


def test_the_worst_counts_for_what_cannot_be_read():
    columns = score_times([None], [of("7:05")])
    assert {name: values.tolist() for name, values in columns.items()} == {
        "deviation_minutes": [360],
        "linear_deviation_minutes": [719],
        "exact": [0],
        "within_1_minute": [0],
        "within_5_minutes": [0],
        "hour_accuracy": [0],
        "minute_accuracy": [0],
        "it_is_about_time_minute": [0],
        "hand_swaps": [0],
        "unreadable": [1],
    }


@pytest.mark.parametrize(
    ("prediction", "target", "right"),
    [
        ("7:05", "7:05", f"exact within_1_minute within_5_minutes hour_accuracy {MINUTE}"),
        ("7:06", "7:05", "within_1_minute within_5_minutes hour_accuracy it_is_about_time_minute"),
        ("7:07", "7:05", "within_5_minutes hour_accuracy"),
        ("7:10", "7:05", "within_5_minutes hour_accuracy"),
        ("7:11", "7:05", "hour_accuracy"),
        ("8:05", "7:05", MINUTE),
        ("2:04", "7:05", "it_is_about_time_minute"),
        ("6:59", "2:00", "it_is_about_time_minute"),
        ("12:59", "1:00", "within_1_minute within_5_minutes it_is_about_time_minute"),
        ("12:00", "11:59", "within_1_minute within_5_minutes it_is_about_time_minute"),
        ("12:15", "3:00", "hand_swaps"),
        ("12:20", "3:00", "hand_swaps"),
        ("12:21", "3:00", ""),
        ("12:00", "12:00", f"exact within_1_minute within_5_minutes hour_accuracy {MINUTE}"),
    ],
)
def test_what_is_right_about_an_answer(prediction, target, right):
    columns = score_times([of(prediction)], [of(target)])
    del columns["deviation_minutes"], columns["linear_deviation_minutes"]
    assert {name for name, values in columns.items() if values.tolist() == [1]} == set(
        right.split()
    )
    assert {value for values in columns.values() for value in values} <= {0.0, 1.0}


def slow_figures(predictions, targets):
    """Take every figure one answer at a time, in plain Python, as scoring.md says."""
    pairs = list(zip(predictions, targets, strict=True))
    count = len(pairs)
    apart = [360 if p is None else slow_deviation(p, t) for p, t in pairs]
    linear = [719 if p is None else abs(p.minutes - t.minutes) for p, t in pairs]
    read = [d for d, (p, _) in zip(apart, pairs, strict=True) if p is not None]
    about = [p is not None and abs(p.minutes - t.minutes) in (0, 1, 719) for p, t in pairs]
    minute = [p is not None and float(abs(p.minute - t.minute) <= 1) for p, t in pairs]
    for i, (p, t) in enumerate(pairs):  # as src/eval.py of It's About Time adds them
        minute[i] += p is not None and float(abs(p.minute - t.minute) == 59)
    swapped = 0
    for d, (p, t) in zip(apart, pairs, strict=True):
        if p is not None and d > 5 and slow_deviation(p, with_hands_swapped(t)) <= 5:
            swapped += 1
    return {
        "within_5_minutes": sum(d <= 5 for d in apart) / count,
        "within_1_minute": sum(d <= 1 for d in apart) / count,
        "exact": sum(p == t for p, t in pairs) / count,
        "mean_deviation_minutes": sum(apart) / count,
        "median_deviation_minutes": statistics.median(apart),
        "mean_deviation_minutes_parsed_only": sum(read) / len(read) if read else math.nan,
        "hour_accuracy": sum(p is not None and p.hour == t.hour for p, t in pairs) / count,
        "minute_accuracy": sum(p is not None and p.minute == t.minute for p, t in pairs) / count,
        "hand_swaps": swapped / count,
        "unreadable": sum(p is None for p, _ in pairs) / count,
        "it_is_about_time": sum(about) / count,
        "it_is_about_time_minute": sum(minute) / count,
        "linear_deviation_minutes": sum(linear) / count,
    }


@given(pairs=st.lists(st.tuples(ANSWER, TIME), min_size=1, max_size=8), near=st.booleans())
@examples(60)
def test_every_figure_equals_the_loop(pairs, near):
    predictions, targets = [p for p, _ in pairs], [t for _, t in pairs]
    if near:  # answers that are a few minutes off, or swapped
        minutes = [0, 1, -1, 5, -6, 2, 60, 30]
        predictions = [
            p and ClockTime.from_minutes(t.minutes + d)
            for (p, t), d in zip(pairs, minutes, strict=False)
        ]
        predictions[-1] = with_hands_swapped(targets[-1])
    columns = TIMES.judge(predictions, targets)
    found = {metric.name: float(metric.value(columns)) for metric in TIMES.metrics}
    lenient = {name: found.pop(name) for name in list(found) if name.startswith("lenient_")}
    assert found == pytest.approx(slow_figures(predictions, targets), nan_ok=True)
    assert lenient == {name: found[name.removeprefix("lenient_")] for name in lenient}


def test_a_lenient_reading_is_scored_next_to_the_strict_one_and_never_instead():
    texts = ["7:05", "7:05:15", "19:06", '{"hours": 0, "minutes": 35}', "7 o'clock", "7h20", "?"]
    targets = [of(time) for time in ("7:05", "7:05", "7:05", "12:30", "7:00", "7:05", "7:05")]
    columns = TIMES.judge([Clock().parse(text) for text in texts], targets)
    assert columns["deviation_minutes"].tolist() == [0, 360, 360, 360, 360, 360, 360]
    assert columns["lenient_deviation_minutes"].tolist() == [0, 0, 1, 5, 0, 15, 360]
    figures = {metric.name: float(metric.value(columns)) for metric in TIMES.metrics}
    assert (figures["exact"], figures["lenient_exact"]) == (1 / 7, 3 / 7)
    assert (figures["unreadable"], figures["lenient_unreadable"]) == (6 / 7, 1 / 7)
    assert figures["lenient_within_5_minutes"] == 5 / 7
    assert figures["mean_deviation_minutes"] == 6 * 360 / 7
    assert figures["lenient_mean_deviation_minutes"] == (1 + 5 + 15 + 360) / 7


def test_figures_are_taken_over_the_last_axis():
    targets = [of("7:05"), of("1:00"), of("12:00")]
    columns = TIMES.judge([of("7:07"), None, of("6:00")], targets)
    drawn = np.array([[0, 1, 2], [0, 0, 0], [1, 1, 1]])
    resampled = {name: values[drawn] for name, values in columns.items()}
    for metric in TIMES.metrics:
        each = [metric.value({k: v[at] for k, v in columns.items()}) for at in drawn]
        np.testing.assert_allclose(metric.value(resampled), each)


def test_parsed_only_is_nothing_where_nothing_was_parsed():
    parsed_only = next(m for m in TIMES.metrics if m.name.endswith("_parsed_only"))
    assert math.isnan(parsed_only.value(score_times([None, None], [of("7:05"), of("1:00")])))
    assert parsed_only.value(score_times([None, of("1:04")], [of("7:05"), of("1:00")])) == 4


def test_what_is_good_and_what_is_worst():
    good = {m.name for m in TIMES.metrics if m.higher_is_better}
    assert good == {
        *("exact", "within_1_minute", "within_5_minutes", "it_is_about_time"),
        *("hour_accuracy", "minute_accuracy", "it_is_about_time_minute", "lenient_exact"),
        *("lenient_within_1_minute", "lenient_within_5_minutes"),
    }
    assert {m.name for m in TIMES.metrics if m.unit == "min"} == {
        m.name for m in TIMES.metrics if "deviation" in m.name
    }
    assert TIMES.metrics[0].name == "within_5_minutes"
    assert TIMES.buckets["hour"](of("7:05")) == "7"


def test_as_many_answers_as_targets():
    with pytest.raises(ValueError, match="longer than"):
        score_times([None], [of("7:05"), of("1:00")])
    assert {len(values) for values in score_times([], []).values()} == {0}
