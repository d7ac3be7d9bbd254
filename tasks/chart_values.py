"""Task: read a value from a chart.

Rows     {"id": text, "image": path, "question": text, "answer": number or text}; optionally
         "year": true or false, whether the answer is a year, which has to be exact;
         "tolerance": largest relative error, instead of the option ``tolerance``; and "category"
Answer   the number as written in the row: ``12``, ``3.5``
Scorer   mm_numeric.evaluation.metrics.number_errors

Within 5 %, each year from 1910 to 2110 would be right for 2010. In a row without "year", the answer
is a year if it is a whole number from 1800 to 2099 with four digits, and the question contains the
word ``year``, ``years`` or ``when``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mm_numeric.answers import Number, Tolerance
from mm_numeric.tasks.number_questions import ApproximateNumbers

_YEAR = re.compile("(?:18|19|20)[0-9]{2}")
_ASKS_FOR_A_YEAR = re.compile(r"\b(?:years?|when)\b", re.IGNORECASE)

_IN_CSV = {"true": True, "false": False, "": None}


@dataclass(frozen=True, kw_only=True)
class ChartValues(ApproximateNumbers):
    """Task: answer a question about a chart with a number, within a tolerance."""

    def read_target(self, row: Mapping[str, Any], where: str) -> Number:
        """Return the correct answer of a row with its tolerance, which is 0 for a year."""
        answer, is_year = super().read_target(row, where), row.get("year")
        is_year = _IN_CSV.get(str(is_year).lower(), is_year)
        if is_year is None:
            asks = _ASKS_FOR_A_YEAR.search(str(row.get("question")))
            is_year = bool(asks and _YEAR.fullmatch(answer.text))
        if not isinstance(is_year, bool):
            raise ValueError(f"{where}: year is true or false, not {is_year!r:.20}.")
        return replace(answer, tolerance=Tolerance()) if is_year else answer
