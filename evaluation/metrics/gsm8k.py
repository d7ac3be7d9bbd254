"""Final numbers of GSM8K solutions: all number metrics, and a lenient accuracy.

``accuracy``           the final number (after ``####``, after ``answer is``, or alone) equals the
                       reference by value (5.0 is 5): ``is_correct`` of grade-school-math,
                       dataset.py
``lenient_accuracy``   if no final number is marked, the last number of the text counts, as in
                       ``flexible-extract`` of lm-evaluation-harness and in the evaluation of the
                       number token loss
"""

from dataclasses import replace
from typing import Any

from mm_numeric.evaluation.metrics.base import mean_of, percentage
from mm_numeric.evaluation.metrics.numbers import NUMBERS


def unchanged(answer: Any, size_px: tuple[int, int] | None) -> Any:
    """Return the answer unchanged: the task itself reads GSM8K answers leniently."""
    return answer


GSM8K = replace(
    NUMBERS,
    metrics=(
        NUMBERS.metrics[0],
        percentage("lenient_accuracy", "accuracy, last number", mean_of("lenient_exact")),
        *NUMBERS.metrics[1:],
    ),
    protocols={
        **NUMBERS.protocols,
        "accuracy": {
            "variant": "grade-school-math, dataset.py: is_correct, by value (5.0 is 5)",
            "unreadable answer": "wrong",
        },
        "lenient_accuracy": {
            "variant": "the last number of the text, if no final number is marked",
        },
    },
    lenient=unchanged,
)
"""Scorer of GSM8K answers."""
