"""Final numbers of worked solutions: as any number, and read leniently beside it.

``accuracy``           the number that is declared final (behind ``####``, behind ``answer is``, or
                       alone) has the value of the reference: ``is_correct`` of grade-school-math's
                       dataset.py, with 5.0 for 5
``lenient_accuracy``   where none is declared, the last number of the text, as ``flexible-extract``
                       of lm-evaluation-harness and the number token loss's evaluation take it
"""

from dataclasses import replace
from typing import Any

from mm_numeric.evaluation.metrics.base import Metric, mean_of
from mm_numeric.evaluation.metrics.numbers import NUMBERS


def as_read(answer: Any, size_px: tuple[int, int] | None) -> Any:
    """Return the kinder reading as the task gave it."""
    return answer


GSM8K = replace(
    NUMBERS,
    metrics=(
        NUMBERS.metrics[0],
        Metric(
            name="lenient_accuracy",
            label="accuracy, last number",
            unit="%",
            higher_is_better=True,
            value=mean_of("lenient_exact"),
        ),
        *NUMBERS.metrics[1:],
    ),
    protocols={
        **NUMBERS.protocols,
        "accuracy": {
            "variant": "grade-school-math, dataset.py: is_correct, by value (5.0 is 5)",
            "unreadable answer": "wrong",
        },
        "lenient_accuracy": {
            "variant": "the last number of the text, where no number is declared final",
        },
    },
    lenient=as_read,
)
"""How the answers of GSM8K are judged."""
