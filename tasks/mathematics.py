"""Answer the questions of DeepMind's mathematics data set that have a number for an answer.

Rows     {"id": text, "question": text, "answer": text, "category": "interpolation",
          "module": "arithmetic__mixed"}, from ``prepare mathematics``
Answer   as the data have it: ``-12``, ``0.25``, ``2/7``
Score    mm_numeric.evaluation.metrics.numbers, by category and by module
"""

from dataclasses import dataclass
from typing import ClassVar

from mm_numeric.tasks.numbers import Numbers


@dataclass(frozen=True, kw_only=True)
class Mathematics(Numbers):
    """Questions of DeepMind's generator in, numbers out."""

    bucket_fields: ClassVar[tuple[str, ...]] = ("category", "module")
