"""ClockBench's score equals its script: by a slow loop, and by figures that the script printed."""

import json
import math
from statistics import median

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.answers import ClockReading
from mm_numeric.evaluation.metrics.clockbench import CLOCKBENCH, delta_seconds, is_correct, is_match
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.clockbench import ClockBench, read_target

NONE = {"date": False, "month": False, "weekday": False}


def time_of(hours, minutes, seconds=False, **more):
    return {"valid": True, "hours": hours, "minutes": minutes, "seconds": seconds, **NONE, **more}


INVALID = {"valid": False}
ROWS = [
    (time_of(12, 25, 15), time_of(12, 25, 15)),
    (time_of(4, 6, 5), time_of("4", " 6 ", 5.9)),
    (time_of(8, 10, 15), time_of(8, 10)),  # no second hand found
    (time_of(11, 50, 0), time_of(0, 20, 0)),  # 30 minutes, not 11 h 30 min
    (INVALID, INVALID),
    (INVALID, time_of(3, 0)),
    (time_of(1, [4, 5], 45), time_of(1, 5, 45)),
    (time_of(1, [4, 5], 45), time_of(1, 6, 45)),
    (time_of(14, 35, weekday="Monday"), time_of(14, 35, weekday="MONDAY ")),
    (time_of(14, 35, date=7, month="June"), time_of(2, 35, date=8, month="june")),
    (time_of({"a": 3, "b": [5, 6]}, 0), time_of(6, 0)),
    (time_of({"a": 3, "b": [5, 6]}, 0), time_of(4, 0)),
    (time_of(9, 30), INVALID),
    (time_of(9, 30), {"valid": "true", "hours": 9, "minutes": 30}),
]
"""Targets and answers."""


def read(rows=ROWS):
    return [ClockReading(p) for _, p in rows], [read_target(t, "a test") for t, _ in rows]


def figures(rows=ROWS):
    columns = CLOCKBENCH.judge(*read(rows))
    return {metric.name: float(metric.value(columns)) for metric in CLOCKBENCH.metrics}


def test_the_figures_are_those_that_the_official_script_printed():
    """clockbench_grade.py on ROWS as answer_time: its _scores, rounded as it rounds them."""
    found = figures()
    assert round(found["accuracy"], 4) == 0.4286
    assert round(found["valid_accuracy"], 4) == round(5 / 12, 4)
    assert round(found["invalid_accuracy"], 4) == round(1 / 2, 4)
    assert round(100 * found["predicted_invalid"], 2) == 14.29
    assert round(found["mean_delta_seconds"], 2) == 9022.5
    assert round(found["median_delta_seconds"], 2) == 960.0


def test_every_field_has_its_share_of_the_clocks_that_show_it():
    found = figures()
    assert found["hours"] == pytest.approx(7 / 12)
    assert found["seconds"] == pytest.approx(5 / 6)
    assert (found["date"], found["month"], found["weekday"]) == (0, 1, 1)
    assert found["lenient_accuracy"] == pytest.approx(found["accuracy"] + 1 / len(ROWS))
    assert math.isnan(figures([(time_of(1, 2), time_of(1, 2))])["seconds"])


def slow_match(expected, given):
    """Match one field as clockbench_grade.py's match_value does."""

    def whole(value):
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return int(value)
        digits = value.strip() if isinstance(value, str) else ""
        return int(digits) if digits.removeprefix("-").isdecimal() else None

    if isinstance(expected, str):
        return isinstance(given, str) and expected.strip().lower() == given.strip().lower()
    if expected is False or expected is True or expected is None:
        return expected == given
    if isinstance(expected, int):
        accepted = {expected}
    elif isinstance(expected, list):
        is_range = len(expected) == 2
        accepted = set(range(expected[0], expected[1] + 1)) if is_range else set(expected)
    else:
        accepted = set()
        for one in expected.values():
            accepted |= {one} if isinstance(one, int) else set(range(one[0], one[1] + 1))
    return whole(given) in accepted


NUMBER = st.integers(0, 5)
RANGE = st.tuples(NUMBER, NUMBER).map(sorted)
EXPECTED = st.one_of(
    NUMBER,
    RANGE,
    st.lists(NUMBER, min_size=3, max_size=4),
    st.dictionaries(st.sampled_from("ab"), NUMBER | RANGE, min_size=1),
)
GIVEN = st.one_of(
    NUMBER,
    NUMBER.map(str),
    st.sampled_from([False, True, None, 3.0, 2.9, " 4 ", "-1", "", "x", "monday ", [1, 2], {}]),
)
TARGET = st.just(INVALID) | st.fixed_dictionaries(
    {
        "valid": st.just(True),
        "hours": EXPECTED,
        "minutes": EXPECTED,
        "seconds": st.just(False) | EXPECTED,
        "weekday": st.sampled_from([False, "Monday"]),
    }
)
ANSWER = st.fixed_dictionaries(
    {"valid": st.sampled_from([True, True, False, "true", None])},
    optional=dict.fromkeys(("hours", "minutes", "seconds", "weekday"), GIVEN),
)


@pytest.mark.slow
@given(target=TARGET, answer=ANSWER)
@examples(600)
def test_every_answer_is_judged_as_by_the_official_script(target, answer):
    wanted = target["valid"] is answer["valid"] and (
        not target["valid"]
        or all(slow_match(target[name], answer.get(name)) for name in target if name != "valid")
    )
    assert is_correct(ClockReading(answer), read_target(target, "a test")) == wanted
    for name in target:
        assert is_match(target[name], answer.get(name)) == slow_match(
            target[name], answer.get(name)
        )


@pytest.mark.parametrize(
    ("target", "answer", "seconds"),
    [
        (time_of(11, 59, 59), time_of(12, 0, 0), 1),
        (time_of(1, [4, 6], 0), time_of(1, 7, 0), 120),
        (time_of(13, 0), time_of(1, 0), 12 * 3600),
        (time_of(1, 0), time_of(13, 1), 60),
        (time_of(6, 0), INVALID, 6 * 3600),  # no number is 0
        (time_of(6, 0), time_of(6, 0), None),
        (time_of(6, 0), time_of("six", 0), None),
        (time_of({"a": 1, "b": 2}, 0), time_of(3, 0), None),
        (INVALID, time_of(3, 0), None),
    ],
)
def test_the_deviation_is_on_the_dial_and_of_wrong_times_only(target, answer, seconds):
    assert delta_seconds(ClockReading(answer), read_target(target, "a test")) == seconds


def test_the_median_deviation_is_that_of_the_rows_that_have_one():
    rows = [(time_of(1, 0), time_of(1, minute)) for minute in (0, 1, 2, 9)]
    for count in range(1, 5):
        minutes = [0, 1, 2, 9][1:count]
        found = figures(rows[:count])["median_delta_seconds"]
        assert (found == 60 * median(minutes)) if minutes else math.isnan(found)


def test_a_file_is_scored_strictly_and_leniently(tmp_path):
    task = ClockBench()
    texts = [
        '{"valid": true, "hours": 7, "minutes": 5, "seconds": 15}',
        "7:05:15",
        '{"hours": 7, "minutes": 5, "seconds": 15}',
        "There is no valid time on this clock.",
        "?",
    ]
    targets = [{"valid": True, "hours": 7, "minutes": [4, 5], "seconds": 15}] * 3 + [INVALID] * 2
    lines = [
        {"id": str(i), "task": "clockbench", "text": text, "target": target}
        for i, (text, target) in enumerate(zip(texts, targets, strict=True))
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    scores = score(path)
    assert [row["accuracy"] for row in scores.rows] == [1, 0, 0, 0, 0]
    assert [row["lenient_accuracy"] for row in scores.rows] == [1, 1, 1, 1, 0]
    assert scores.failures == {"no JSON object": 3}
    assert scores.buckets()["shows"]["no valid time"]["metrics"]["lenient_accuracy"]["value"] == 0.5
    assert scores.rows[0]["parsed"] == task.parse(texts[0]).fields
