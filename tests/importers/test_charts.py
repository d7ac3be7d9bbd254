"""ChartQA and PlotQA: questions with a number as answer, which is exact if it is a year."""

import pytest
from importing import json_file, outcome
from PIL import Image

from mm_numeric.answers import Tolerance
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.charts import ChartQA, PlotQA
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.number_questions import ApproximateNumbers

EXACT, WITHIN_5 = Tolerance(), Tolerance(0.05)


def test_chartqa(tmp_path):
    row = {"imgname": "41699051005347.png", "query": "How many food items?", "label": "14"}
    others = [{**row, "label": text} for text in ("1,234", "3.5%", "Yes", "[2, 3]", "3,4")]
    path = json_file(tmp_path / "test_human.json", [row, *others, {**row, "label": 5}])
    found = outcome(ChartQA(), path)
    assert found.rows[0] == {
        "id": "test_human.1",
        "image": "41699051005347.png",
        "question": "How many food items?",
        "answer": "14",
        "category": "human",
    }
    assert [row["answer"] for row in found.rows] == ["14", "1234", "3.5"]
    assert found.left_out == {"questions without a numeric answer": 3}
    assert found.kinds == ["text"]
    done = prepare("chartqa", ChartQA(), [path], tmp_path / "rows.jsonl")
    assert done.record["task"] == "approximate_numbers"
    Image.new("RGB", (9, 9)).save(tmp_path / "41699051005347.png")
    source = DataSource(path=str(tmp_path / "rows.jsonl"))
    (first, *_) = load_examples(ApproximateNumbers(), source, tmp_path, training=False)
    assert (first.answer.tolerance, first.buckets) == (WITHIN_5, {"category": "human"})


def test_plotqa(tmp_path):
    one = {"image_index": 17, "question_string": "What is the sum of 2010?", "answer": 12.5,
           "answer_bbox": {}, "template": "reasoning", "type": "dot_line"}  # fmt: skip
    others = [{**one, "answer": answer} for answer in ("2008", "Yes", 1.5e-05)]
    bad = [{**one, "answer": None}, {**one, "image_index": "17"}]
    path = json_file(tmp_path / "qa_pairs_V2.json", {"qa_pairs": [one, *others, *bad]})
    found = outcome(PlotQA(), path)
    assert found.rows[0] == {
        "id": "qa_pairs_V2.1",
        "image": "17.png",
        "question": "What is the sum of 2010?",
        "answer": "12.5",
        "category": "dot_line",
    }
    assert [row["answer"] for row in found.rows] == ["12.5", "2008", "1.5e-05"]
    assert found.left_out == {"questions without a numeric answer": 1}
    assert found.kinds == ["answer", "image"]
    flat = json_file(tmp_path / "qa_pairs.json", [one])
    assert outcome(PlotQA(), flat).row["answer"] == "12.5"
    (first, *_) = ApproximateNumbers().examples([("f", row) for row in found.rows], training=False)
    assert first.answer.tolerance == WITHIN_5


@pytest.mark.parametrize(
    ("question", "answer", "tolerance"),
    [
        ("Which year had the highest sales?", "2010", EXACT),
        ("When were they equal?", "2010", EXACT),
        ("How many units?", "2010", WITHIN_5),
        ("How much was it that year?", "2010.5", WITHIN_5),
        ("How much was it that year?", "12", WITHIN_5),
    ],
)
def test_years_are_exact(tmp_path, question, answer, tolerance):
    row = {"imgname": "1.png", "query": question, "label": answer}
    found = outcome(ChartQA(), json_file(tmp_path / "val_human.json", [row]))
    plot = {"image_index": 1, "question_string": question, "answer": answer}
    both = [found.row, outcome(PlotQA(), json_file(tmp_path / "qa_pairs.json", [plot])).row]
    read = ApproximateNumbers().examples([("f", own) for own in both], training=False)
    assert [own.answer.tolerance for own in read] == [tolerance] * 2
