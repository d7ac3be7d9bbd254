"""Numbers within a tolerance, next to the official rule of charts, in loops."""

import json
import re

import pytest
from documents import PAGES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm_numeric.answers import Number, Tolerance
from mm_numeric.evaluation.metrics.tolerance import APPROXIMATE_NUMBERS, score_approximate
from mm_numeric.tasks.chart_values import ChartValues
from mm_numeric.tasks.number_questions import ApproximateNumbers

RANDOM = settings(derandomize=True, deadline=None, max_examples=200)
WRITTEN = st.one_of(
    st.integers(-30, 30).map(str),
    st.integers(95, 105).map(str),
    st.decimals(-2, 2, places=2).map(str),
    st.integers(10**17, 10**17 + 9).map(str),
)
LIMITS = st.builds(Tolerance, st.sampled_from([0.0, 0.05, 0.5]), st.sampled_from([0.0, 0.02, 3.0]))
ROWS = st.lists(st.tuples(st.none() | WRITTEN, WRITTEN, LIMITS), max_size=12)


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
@RANDOM
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
        (found,) = score_approximate([ChartValues().parse(answer)], [Number(target)])[
            "within_5_percent"
        ]
        assert {True: "right", False: "wrong"}[official(target, answer)] == script, answer
        assert {1: "right", 0: "wrong"}[found] == here, answer


def test_a_target_keeps_the_tolerance_of_its_row():
    task = ApproximateNumbers(tolerance=0.1)
    wanted = [
        ({}, Tolerance(0.1)),
        ({"tolerance": 0}, Tolerance()),
        ({"tolerance": {"absolute": 2}}, Tolerance(0.0, 2)),
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
