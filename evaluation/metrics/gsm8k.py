"""Metrics of GSM8K: the metrics of ``metrics.numbers`` on the final number, and two accuracies.

``accuracy``           share of final numbers that equal the reference by value (5.0 equals 5), as
                       ``is_correct`` in grade-school-math, dataset.py. The final number follows
                       ``####`` or ``answer is``, or is the whole text.
``lenient_accuracy``   as ``accuracy``, but a text without a final number is scored by its last
                       number, as by ``flexible-extract`` of lm-evaluation-harness and in the
                       published evaluation of the number token loss
"""

from dataclasses import replace

from mm_numeric.evaluation.metrics.base import mean_of, percentage, unchanged
from mm_numeric.evaluation.metrics.numbers import NUMBERS

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
"""Scorer for the final numbers of GSM8K solutions."""
