"""scripts/blind_answers.py: the best answer without the image, to all rows and to each question."""

import runpy
from pathlib import Path
from types import SimpleNamespace

from mm_numeric.answers import Number
from mm_numeric.evaluation.metrics.number_errors import COUNTS

answered_blindly = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "blind_answers.py"))[
    "answered_blindly"
]


def encoded(question, *counts):
    """Return rows with the same question, in the form in which check-data reads them."""
    answers = [Number(str(count)) for count in counts]
    examples = [SimpleNamespace(prompt=question, answer=answer) for answer in answers]
    return [SimpleNamespace(example=e, parsed=e.answer) for e in examples]


def test_the_most_frequent_training_count_answers_the_test_rows():
    train = encoded("circles", 2, 3, 3) + encoded("squares", 2, 2, 2, 4)
    test = encoded("circles", 3, 3, 2, 1) + encoded("squares", 2) + encoded("triangles", 1, 2)
    one = answered_blindly(COUNTS, COUNTS.metrics[0], train, test, by_question=False)  # 2 for all
    assert one["exact"].tolist() == [0, 0, 1, 0, 1, 0, 1]
    each = answered_blindly(COUNTS, COUNTS.metrics[0], train, test, by_question=True)
    assert each["exact"].tolist() == [1, 1, 0, 0, 1, 0, 1]  # 2 for triangles, as for all


def test_an_error_is_made_small():
    (error,) = (metric for metric in COUNTS.metrics if metric.name == "mae")
    train, test = encoded("circles", 1, 3, 3, 4, 90), encoded("circles", 3, 5)
    columns = answered_blindly(COUNTS, error, train, test, by_question=False)
    assert error.value(columns) == 1  # the answer is 3, not 90
