"""Task: rate how funny a joke is, from 0 to 11 (rJokes, LREC 2020).

The rating is the logarithm of the joke's votes on Reddit.

Rows     {"id": text, "question": the joke, "answer": 0 to 11}, from ``prepare rjokes``
Answer   a whole number
Scorer   mm_numeric.evaluation.metrics.number_errors
"""

from dataclasses import dataclass
from typing import Any

from mm_numeric.answers import Number
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.tasks.numbers import Numbers

HIGHEST = 11


@dataclass(frozen=True, kw_only=True)
class RJokes(Numbers):
    """Task: rate a joke with a whole number from 0 to 11."""

    def read_answer(self, value: Any, where: str) -> Number:
        """Read the score of a joke; it must be a whole number from 0 to 11."""
        answer = super().read_answer(value, where)
        if answer.exact.denominator != 1 or not 0 <= answer.exact <= HIGHEST:
            raise ValueError(f"{where}: the score is a whole number, 0 to {HIGHEST}, not {value}.")
        return answer

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the whole numbers from 0 to 11."""
        return number_regex(0, HIGHEST)
