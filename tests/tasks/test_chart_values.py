"""The task `chart_values`: years are exact, rendered bars have the value that is asked for."""

import json

import pytest

from mm_numeric.answers import Tolerance
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.chart_values import ChartValues

EXACT, WITHIN_5 = Tolerance(), Tolerance(0.05)


@pytest.mark.parametrize(
    ("row", "tolerance"),
    [
        ({"question": "Which year had the highest sales?", "answer": "2010"}, EXACT),
        ({"question": "When were they equal?", "answer": 2010}, EXACT),
        ({"question": "What was sold in the year 2010?", "answer": 1950, "year": False}, WITHIN_5),
        ({"question": "What is the first label?", "answer": 2010, "year": True}, EXACT),
        ({"question": "How many units?", "answer": 2010}, WITHIN_5),
        ({"question": "How much was it that year?", "answer": "2010.5"}, WITHIN_5),
        ({"question": "How much was it that year?", "answer": "12"}, WITHIN_5),
        ({"question": "How many?", "answer": 12, "tolerance": {"absolute": 1}}, Tolerance(0, 1)),
        (
            {"question": "How?", "answer": 12, "tolerance": {"relative": None, "absolute": 1}},
            Tolerance(0, 1),
        ),
        # Texts, as in CSV files.
        ({"question": "How?", "answer": "12", "tolerance": "0.1", "year": ""}, Tolerance(0.1)),
        ({"question": "How?", "answer": "12", "tolerance": "", "year": "FALSE"}, WITHIN_5),
        ({"question": "How?", "answer": "12", "tolerance": "", "year": "true"}, EXACT),
    ],
)
def test_years_are_exact(row, tolerance):
    (example,) = ChartValues().examples([("f, line 1", {"id": "1", **row})], training=True)
    assert example.answer.tolerance == tolerance


def test_a_year_that_is_no_flag_is_one_sentence():
    row = {"id": "1", "question": "Which?", "answer": 2010, "year": "YES"}
    with pytest.raises(ValueError, match=r"^f, line 1: year is true or false, not 'YES'"):
        list(ChartValues().examples([("f, line 1", row)], training=True))


def test_2008_is_not_2010_in_a_file_of_predictions(tmp_path):
    """A file that is scored apart from its config keeps each row's tolerance."""
    task = ChartValues()
    rows = [
        {"id": "1", "question": "Which year?", "answer": 2010},
        {"id": "2", "question": "How many?", "answer": 2010},
    ]
    lines = [
        {"id": e.id, "task": "chart_values", "text": "2008", "target": task.record(e.answer)}
        for e in task.examples([("f", row) for row in rows], training=False)
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    scores = score(path, task_name="chart_values")
    assert scores.metrics()["within_tolerance"]["value"] == 0.5
    assert scores.metrics()["within_5_percent"]["value"] == 1
    assert scores.metrics()["accuracy"]["value"] == 0
