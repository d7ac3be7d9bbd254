"""Numbers in text: find them, and say what each of their digits is worth.

A numeral is an optional minus, digits, and optionally a point with more digits: ``-3.25``, ``007``.
A minus right behind a digit is a separator (``3-5`` holds 3 and 5), a second point ends the number
(``1.2.3`` holds 1.2 and 3), and an exponent is a number of its own (``1e-3`` holds 1 and -3). A
comma separates too (``1,234`` holds 1 and 234), unless it is asked for as a separator of thousands.
Only the ASCII digits count.
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
    """First character, the sign included."""

    end: int
    """One past the last character."""

    text: str
    """As it stands, for example ``-3.25``."""

    @property
    def value(self) -> float:
        """Its value, sign included."""
        return float(self.text.replace(",", ""))

    @property
    def sign(self) -> int:
        """-1 behind a minus, else 1."""
        return -1 if self.text.startswith("-") else 1

    def places(self) -> dict[int, int]:
        """Map the position of each digit in the text to its place: 0 units, 1 tens, -1 tenths."""
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
    """Return the numbers of a text from left to right.

    Args:
        text: Any text.
        digit_runs: Read every run of digits as a whole number of its own, so that ``3.015`` holds
            3 and 15 and ``-5`` holds 5. This is how the published NTIL code reads.
        thousands_separators: Read a comma before each group of three digits as part of the number,
            so that ``1,234`` is 1234. ``12,34``, ``1,2345`` and ``0,123`` are two numbers anyway.

    Raises:
        ValueError: If both are asked for.
    """
    if digit_runs and thousands_separators:
        raise ValueError(
            "digit_runs reads a comma as a separator; it excludes thousands_separators."
        )
    reading = "digit_runs" if digit_runs else "thousands" if thousands_separators else "plain"
    return [Numeral(m.start(), m.end(), m.group()) for m in _PATTERNS[reading].finditer(text)]
