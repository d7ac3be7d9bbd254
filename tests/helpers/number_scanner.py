"""Find numbers in a text of one character a token; uses nothing of the library."""

from collections.abc import Sequence
from typing import NamedTuple


class Digit(NamedTuple):
    """One digit of a number."""

    position: int
    value: int
    place: int
    from_right: int


def read(characters: Sequence[str]) -> list[list[Digit]]:
    """Find the numbers of characters, one a token; what is neither digit nor point separates."""
    digits = "0123456789"
    numbers, i = [], 0
    while i < len(characters):
        if characters[i] not in digits:
            i += 1
            continue
        whole, fraction = [], []
        while i < len(characters) and characters[i] in digits:
            whole.append(i)
            i += 1
        point = i + 1 < len(characters) and characters[i] == "." and characters[i + 1] in digits
        if point:
            i += 1
            while i < len(characters) and characters[i] in digits:
                fraction.append(i)
                i += 1
        at = whole + fraction
        numbers.append(
            [
                Digit(p, int(characters[p]), len(whole) - 1 - n, len(at) - 1 - n)
                for n, p in enumerate(at)
            ]
        )
    return numbers
