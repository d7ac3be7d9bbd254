"""Numbers in text: find them, and say what each of their digits is worth.

A numeral is an optional minus, digits, and optionally a point with more digits: ``-3.25``, ``007``.
A minus right behind a digit is a separator (``3-5`` holds 3 and 5), a second point ends the number
(``1.2.3`` holds 1.2 and 3). Only the ASCII digits count.
"""

import re
from typing import NamedTuple

_NUMERAL = re.compile(r"(?<![0-9])-?[0-9]+(?:\.[0-9]+)?")
_DIGIT_RUN = re.compile(r"[0-9]+")


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
        return float(self.text)

    @property
    def sign(self) -> int:
        """-1 behind a minus, else 1."""
        return -1 if self.text.startswith("-") else 1

    def places(self) -> dict[int, int]:
        """Map the position of each digit in the text to its place: 0 units, 1 tens, -1 tenths."""
        point = self.text.find(".")
        units = (len(self.text) if point < 0 else point) - 1
        return {
            self.start + i: units - i + (i > units)
            for i, character in enumerate(self.text)
            if character.isdigit()
        }


def find_numerals(text: str, *, digit_runs: bool = False) -> list[Numeral]:
    """Return the numbers of a text from left to right.

    Args:
        text: Any text.
        digit_runs: Read every run of digits as a whole number of its own, so that ``3.015`` holds
            3 and 15 and ``-5`` holds 5. This is how the published NTIL code reads.
    """
    pattern = _DIGIT_RUN if digit_runs else _NUMERAL
    return [Numeral(m.start(), m.end(), m.group()) for m in pattern.finditer(text)]
