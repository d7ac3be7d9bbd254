"""Find numbers in text, with the place value of each of their digits.

A numeral is an optional minus, digits, and optionally a point with more digits: ``-3.25``, ``007``.
A minus directly after a digit is a separator (``3-5`` contains 3 and 5), a second point ends the
number (``1.2.3`` contains 1.2 and 3), and an exponent is a separate number (``1e-3`` contains 1 and
-3). A comma is a separator too (``1,234`` contains 1 and 234), unless ``thousands_separators`` is
set. Only ASCII digits are digits.
"""

import re
from typing import NamedTuple

_WHOLE = r"[0-9]+"
_THOUSANDS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])"
_NUMERAL = r"(?<![0-9])-?(?:{})(?:\.[0-9]+)?"
_PATTERNS = {
    "plain": re.compile(_NUMERAL.format(_WHOLE)),
    "thousands": re.compile(_NUMERAL.format(f"{_THOUSANDS}|{_WHOLE}")),
    "digit_runs": re.compile(_WHOLE),
}


class Numeral(NamedTuple):
    """One number in a text."""

    start: int
    """Index of the first character, including the sign."""

    end: int
    """Index after the last character."""

    text: str
    """The number as written, for example ``-3.25``."""

    @property
    def value(self) -> float:
        """Numeric value, including the sign."""
        return float(self.text.replace(",", ""))

    @property
    def sign(self) -> int:
        """-1 if the text starts with a minus, else 1."""
        return -1 if self.text.startswith("-") else 1

    def places(self) -> dict[int, int]:
        """Return the place of each digit (0 units, 1 tens, -1 tenths) by its index in the text."""
        whole, _, fraction = self.text.partition(".")
        place = sum(map(str.isdigit, whole))
        places = {}
        for i, character in enumerate(whole + "." * bool(fraction) + fraction):
            if character.isdigit():
                place -= 1
                places[self.start + i] = place
        return places


def find_numerals(
    text: str, *, digit_runs: bool = False, thousands_separators: bool = False
) -> list[Numeral]:
    """Return the numbers in a text from left to right.

    Args:
        text: The text to search.
        digit_runs: Read every run of digits as a separate whole number, as the published NTIL code
            does: ``3.015`` contains 3 and 15, and ``-5`` contains 5.
        thousands_separators: Read a comma before each group of three digits as part of the number,
            so that ``1,234`` is 1234. ``12,34``, ``1,2345`` and ``0,123`` are two numbers anyway.
    """
    if digit_runs and thousands_separators:
        raise ValueError("digit_runs and thousands_separators exclude each other.")
    reading = "digit_runs" if digit_runs else "thousands" if thousands_separators else "plain"
    return [Numeral(m.start(), m.end(), m.group()) for m in _PATTERNS[reading].finditer(text)]
