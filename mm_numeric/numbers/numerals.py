"""Find numbers in text and the power of ten of each digit.

A number is an optional minus, ASCII digits, and optionally a point with more digits (``-3.25``,
``007``). Each of these texts contains two numbers:
    ``3-5``: 3 and 5, because a minus directly after a digit is not a sign
    ``1.2.3``: 1.2 and 3
    ``1e-3``: 1 and -3, because exponents are not supported
    ``1,234``: 1 and 234, unless ``thousands_separators`` is set

A model may write numbers in other formats, such as ``1.234,5``: ``plain_numbers`` rewrites them.
"""

import re
from typing import NamedTuple

NUMBER_FORMATS = ("1,234.5", "1.234,5", "1 234,5", "1 234.5")
"""Number formats, each shown by the number 1234.5; the first is the default. A thousands separator
is optional. If it is a space, a no-break, narrow or thin space is accepted, too."""

_WHOLE = r"[0-9]+"
_GROUPS = r"[1-9][0-9]{{0,2}}(?:{}[0-9]{{3}})+(?![0-9])"
_THOUSANDS = _GROUPS.format(",")
_NUMERAL = r"(?<![0-9])-?(?:{})(?:\.[0-9]+)?"
_PATTERNS = {
    "plain": re.compile(_NUMERAL.format(_WHOLE)),
    "thousands": re.compile(_NUMERAL.format(f"{_THOUSANDS}|{_WHOLE}")),
    "digit_runs": re.compile(_WHOLE),
}


def _pattern(number_format: str) -> re.Pattern[str]:
    """Return a regex of the numbers that a format writes with a separator or a decimal comma."""
    separator = number_format[1].replace(" ", "[ \u00a0\u2009\u202f]").replace(".", r"\.")
    point = re.escape(number_format[5])
    decimals = rf"{point}[0-9]+"
    with_comma = f"|{_WHOLE}{decimals}" if point == "," else ""
    groups = f"{_GROUPS.format(separator)}(?:{decimals})?"
    return re.compile(rf"(?<![0-9{point}])(?:{groups}{with_comma})(?!{point}?[0-9])")


_FORMATS = {name: _pattern(name) for name in NUMBER_FORMATS}


def plain_numbers(text: str, number_format: str = NUMBER_FORMATS[0]) -> str:
    """Rewrite the numbers of a text without thousands separators, with a decimal point.

    Text that is no number in the format stays unchanged, such as ``12,34`` in the format
    ``1,234.5``. In the format ``1.234,5``, ``3.5`` is unchanged, but ``3.500`` becomes 3500.
    """

    def plain(match: re.Match[str]) -> str:
        whole, _, decimals = match[0].partition(number_format[5])
        digits = re.sub("[^0-9]", "", whole)
        return f"{digits}.{decimals}" if decimals else digits

    return _FORMATS[number_format].sub(plain, text)


_FRACTION = re.compile(
    r"(?:(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3}){1,99}|[0-9]{1,300})\s{0,4})?\\[dtc]?frac\s{0,4}"
    r"(?:\{\s{0,4}(-?[0-9]{1,300})\s{0,4}\}|([0-9]))\s{0,4}(?:\{\s{0,4}([0-9]{1,300})\s{0,4}\}|([0-9]))"
)
_LATEX = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (r"(?<=[0-9])\\[,!](?=[0-9])", ""),
        (r"\s{0,4}(?:\\times|\\cdot)\s{0,4}10\^\{?(-?[0-9]{1,3})\}?", r"e\1"),
        (r"\^\{?\\circ\}?", "°"),
        (r"\\(?:text|textbf|mathrm|mathbf|mbox)\s{0,4}\{([^{}]{0,200})\}", r"\1"),
        (r"\^\{(-?[0-9]{1,9})\}", r"^\1"),
        (r"\\([%$])", r"\1"),
        (r"\\[,;:! ]|~", " "),
    )
)


def without_latex(text: str) -> str:
    r"""Rewrite the numbers and units of LaTeX in a text: ``\frac{13}{2}`` becomes ``13/2``.

    It also rewrites ``6\frac{1}{2}`` as ``13/2``, ``1{,}234`` as ``1,234``, ``1.5 \times 10^{3}``
    as ``1.5e3``, ``36^{\circ}`` as ``36°`` and ``12\mathrm{~cm}^{2}`` as ``12 cm^2``.
    """
    if "\\" not in text and "{" not in text:
        return text

    def fraction(match: re.Match[str]) -> str:
        whole, above, below = match[1], match[2] or match[3], match[4] or match[5]
        value = int((whole or "0").replace(",", "")) * int(below) + int(above)
        is_after_digit = match.string[match.start() - 1 : match.start()].isdigit()
        return f"{' ' * is_after_digit}{value}/{below}"

    text = _FRACTION.sub(fraction, text.replace("{,}", ","))
    for pattern, written in _LATEX:
        text = pattern.sub(written, text)
    return text


class Numeral(NamedTuple):
    """A number that was found in a text, and its position."""

    start: int
    """Index of the first character in the text; the sign is included."""

    end: int
    """Index of the last character in the text, plus 1."""

    text: str
    """The number as written, for example ``-3.25``."""

    @property
    def value(self) -> float:
        """Return the numeric value, including the sign."""
        return float(self.text.replace(",", ""))

    @property
    def sign(self) -> int:
        """Return -1 if the number starts with a minus sign, otherwise 1."""
        return -1 if self.text.startswith("-") else 1

    def places(self) -> dict[int, int]:
        """Return the power of ten of each digit: 0 for units, 1 for tens, -1 for tenths.

        The keys are the indices of the digits in the text in which the number was found.
        """
        whole, _, fraction = self.text.partition(".")
        place = sum(map(str.isdigit, whole))
        places = {}
        for i, character in enumerate(whole + "." * bool(fraction) + fraction):
            if character.isdigit():
                place -= 1
                places[self.start + i] = place
        return places


def whole_number(text: str) -> int | None:
    """Return the value of a text of 1 to 18 ASCII digits; None for other texts.

    ``int`` raises ValueError for more than 4,300 digits, in a message that names no file.
    """
    return int(text) if len(text) <= 18 and text.isascii() and text.isdecimal() else None


def find_numerals(
    text: str, *, digit_runs: bool = False, thousands_separators: bool = False
) -> list[Numeral]:
    """Return the numbers in a text from left to right.

    Args:
        text: The text to search.
        digit_runs: Treat every sequence of digits as a separate unsigned integer, as the published
            NTIL code does: ``3.015`` contains 3 and 15, and ``-5`` contains 5.
        thousands_separators: Read ``1,234`` as 1234. Where the comma cannot be a thousands
            separator (``12,34``, ``1,2345``, ``0,123``) it still separates two numbers.
    """
    if digit_runs and thousands_separators:
        raise ValueError("digit_runs and thousands_separators exclude each other.")
    reading = "digit_runs" if digit_runs else "thousands" if thousands_separators else "plain"
    return [Numeral(m.start(), m.end(), m.group()) for m in _PATTERNS[reading].finditer(text)]
