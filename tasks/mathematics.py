"""Task: answer those questions of DeepMind's mathematics data set whose answer is a number.

Rows     {"id": text, "question": text, "answer": text, "category": "interpolation",
          "module": "arithmetic__mixed"}, from ``prepare mathematics``
Answer   a number, written as in the data set: ``-12``, ``0.25``, ``2/7``
Scorer   mm_numeric.evaluation.metrics.number_errors; also reported per category and per module
"""

from dataclasses import dataclass
from typing import ClassVar

from mm_numeric.tasks.numbers import Numbers


@dataclass(frozen=True, kw_only=True)
class Mathematics(Numbers):
    """Task: answer a question of DeepMind's mathematics data set with a number."""

    bucket_fields: ClassVar[tuple[str, ...]] = ("category", "module")
