"""The task `chart_values`: years are exact, rendered bars have the value that is asked for."""

import json

import numpy as np
import pytest
from PIL import Image

from mm_numeric.answers import Tolerance
from mm_numeric.evaluation.score import score
from mm_numeric.tasks.chart_values import ChartValues
from mm_numeric.tasks.rendering.bar_charts import ChartStyle

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


def test_a_bar_is_as_high_as_its_value(tmp_path):
    style = ChartStyle(noise=0, width_px=200, height_px=150)
    file = ChartValues(chart=style).render(tmp_path, 20, 5)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert 1 <= sum(row["year"] for row in rows) <= 10
    for row in rows:
        pixels = np.asarray(Image.open(tmp_path / row["image"])).astype(int)
        coloured = pixels.max(axis=2) - pixels.min(axis=2) > 60
        edges = np.flatnonzero(np.diff(np.pad(coloured.any(axis=0).astype(int), 1)))
        tops = [coloured[:, a:b].any(axis=1).argmax() for a, b in edges.reshape(-1, 2)]
        heights = [(131 - top) / 121 * 100 for top in tops]  # axis from row 132 up to row 10
        if row["year"]:
            assert row["answer"] == 2011 + int(np.argmin(tops))
        else:
            bar = int(row["question"][-5:-1]) - 2011
            assert heights[bar] == pytest.approx(row["answer"], abs=1.5)


@pytest.mark.parametrize("change", [{"least": 1}, {"most": 9}, {"highest": 10}, {"width_px": 40}])
def test_a_chart_has_limits(change):
    with pytest.raises(ValueError, match=r"least <= most|width_px and height_px"):
        ChartStyle(**change)
