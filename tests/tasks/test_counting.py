"""The task `counting`: rows of the published data sets, and scores as in loops."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm_numeric.answers import Number
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.number_errors import COUNTS, score_counts
from mm_numeric.tasks.counting import Counting

PAIRS = st.lists(
    st.tuples(st.none() | st.integers(-1, 40), st.integers(0, 30)), min_size=1, max_size=12
)


def examples(row, task=None):
    return list((task or Counting()).examples([("f, line 1", row)], training=True))


def test_rows_of_a_csv_file_may_have_sizes(tmp_path):
    """Its values are texts, and empty ones are missing."""
    file = tmp_path / "rows.csv"
    file.write_text("image,width,height,label,count\na.png,640,480,dogs,3\nb.png,,,cats,2\n")
    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()
    rows = load_examples(Counting(), DataSource(path=str(file)), tmp_path, training=True)
    assert [(row.size_px, str(row.answer)) for row in rows] == [((640, 480), "3"), (None, "2")]


def relative_accuracy(answer, target):
    """lmms-eval, tasks/vsibench/utils.py: one threshold after the other."""
    thresholds = np.linspace(0.5, 0.95, int((0.95 - 0.5) / 0.05 + 2))
    return sum(abs(answer - target) / target <= 1 - t for t in thresholds) / len(thresholds)


@given(pairs=PAIRS)
@example(pairs=[(9, 10), (19, 20), (21, 20), (15, 10), (5, 10), (None, 3), (0, 0), (1, 0)])
@settings(derandomize=True, deadline=None, max_examples=100)
def test_every_score_is_that_of_a_loop(pairs):
    answers = [None if a is None else Number(str(a)) for a, _ in pairs]
    columns = score_counts(answers, [Number(str(target)) for _, target in pairs])
    for i, (answer, target) in enumerate(pairs):
        wanted = float(answer == target)
        if answer is not None and target:
            wanted = relative_accuracy(answer, target)
        assert columns["mra"][i] == pytest.approx(wanted, abs=1e-12)
        assert columns["within_1"][i] == (answer is not None and abs(answer - target) <= 1)
    assert [metric.name for metric in COUNTS.metrics[:5]] == [
        "accuracy", "within_1", "lenient_accuracy", "mae", "mra",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "question", "count"),
    [
        ({"question": "How many cups?", "answer": "3"}, "How many cups?", "3"),
        ({"question": "How many cups?", "number": 3, "text": "3 cups"}, "How many cups?", "3"),
        ({"label": "cups", "count": 0, "points": {"x": []}}, "How many cups are there?", "0"),
    ],
    ids=["TallyQA", "CountBench", "PixMo-Count"],
)
def test_columns_of_published_data_sets_are_read(columns, question, count):
    (found,) = examples({"image": "0.png", **columns})
    assert (found.id, found.prompt, found.answer.text) == ("0.png", question, count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 2.5}, "a count is a whole number, 0 to 9999, not 2.5"),
        ({"answer": -1}, "a count is a whole number"),
        ({"answer": None}, r'no answer; each row needs "answer"'),
        ({"question": " "}, r'no question; each row needs "question" or "label"'),
        ({"image": None}, "no image"),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence(change, message):
    with pytest.raises(ValueError, match=f"^f, line 1: {message}"):
        examples({"id": "1", "image": "a.png", "question": "How many?", "answer": 2, **change})
    with pytest.raises(ValueError, match=r"^label_question needs \{label\}"):
        Counting(label_question="How many?")
