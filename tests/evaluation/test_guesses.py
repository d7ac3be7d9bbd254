"""Guesses: random answers, and constant ones that are not chosen on the rows that they answer."""

from itertools import product

import pytest
from result_files import write_lines

from mm_numeric.answers import ClockTime, Number
from mm_numeric.evaluation.guesses import (
    CONSTANT,
    PER_QUESTION,
    RANDOM,
    GuessedRows,
    best_guess,
    guess_metrics,
)
from mm_numeric.evaluation.metrics.clock import TIMES
from mm_numeric.evaluation.metrics.number_errors import COUNTS
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.counting import Counting


def counted(*groups):
    """Return rows from groups ``(question, *counts)``."""
    pairs = [(question, count) for question, *counts in groups for count in counts]
    return GuessedRows(
        scorer=COUNTS,
        task=Counting(),
        targets=[Number(str(count)) for _, count in pairs],
        frames=[None] * len(pairs),
        prompts=[question for question, _ in pairs],
    )


def test_the_most_frequent_training_count_answers_the_test_rows():
    train = [("circles", 2, 3, 3), ("squares", 2, 2, 2, 4)]
    test = [("circles", *[3] * 9, 1), ("squares", *[2] * 3, *[7] * 6), ("rings", *[2] * 4, 1)]
    found = guess_metrics(counted(*train, *test), train_rows=7)
    assert found[CONSTANT]["accuracy"] == 7 / 24  # 2 for all
    assert found[PER_QUESTION]["accuracy"] == (9 + 3 + 4) / 24  # 2 for rings, as for all
    few = guess_metrics(counted(*train, ("circles", 3), ("squares", 2)), train_rows=7)
    assert PER_QUESTION not in few


def test_each_metric_has_a_constant_answer_of_its_own():
    train = ("circles", 1, 1, 1, 4, 4, 5, 5, 90)
    found = guess_metrics(counted(train, ("circles", 1, 5)), train_rows=8)[CONSTANT]
    assert found["accuracy"] == 0.5  # the answer is 1
    assert found["mae"] == (3 + 1) / 2  # the answer is 4, not 90


def test_a_constant_answer_is_not_chosen_on_the_rows_that_it_answers():
    """Every second row is a 1 and the others are a 2, so each half answers the other wrongly."""
    found = guess_metrics(counted(("circles", *[1, 2] * 10)))
    assert found[CONSTANT]["accuracy"] == 0
    assert guess_metrics(counted(("circles", 1))) == {}


def test_random_times_deviate_by_a_quarter_of_the_dial():
    """The mean circular distance of two random times is 180 minutes, a quarter of 720."""
    times = [ClockTime(h, m) for m, h in product(range(0, 60, 7), range(1, 13))]
    rows = GuessedRows(scorer=TIMES, task=Clock(), targets=times, frames=[None] * len(times))
    found = guess_metrics(rows)
    assert found[RANDOM]["mean_deviation_minutes"] == pytest.approx(180, abs=20)
    assert best_guess(found, "mean_deviation_minutes", higher_is_better=False).value < 185
    assert best_guess(found, "unknown", higher_is_better=True) is None


def test_categories_have_guesses_of_their_own():
    base = counted(("circles", *[1] * 8, *[2, 3] * 4))
    kinds = ["interpolation"] * 8 + ["extrapolation"] * 8
    rows = GuessedRows(**{**vars(base), "categories": kinds})
    found = guess_metrics(rows)[CONSTANT]
    assert found["accuracy_interpolation"] == 1
    assert found["accuracy_extrapolation"] == 0


def test_score_prints_and_stores_guesses(tmp_path):
    rows = [
        {"id": str(i), "task": "clock", "text": "7:05", "target": f"{1 + i}:00"} for i in range(8)
    ]
    scores = score(write_lines(tmp_path / "predictions.jsonl", rows))
    line = "guessing has within 5 min 0.00 % (random answer), 0.00 % (constant answer)"
    assert line in results_table(scores).splitlines()
    stored = (tmp_path / "results.json").read_text()
    assert '"random answer": {' in stored
