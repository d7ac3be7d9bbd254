"""Find numbers in a text of one character a token; uses nothing of the library."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Digit(NamedTuple):
    """One digit of a number."""

    position: int
    value: int
    place: int
    from_right: int


def read(characters: Sequence[str], *, runs: bool) -> list[list[Digit]]:
    """Find the numbers of one sequence of characters.

    Args:
        characters: One for each token; anything that is neither digit nor point separates.
        runs: Every run of digits is a number, a point is a separator.
    """
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
        if point and not runs:
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


def nearest_completion(text: str, decimals: int, prefix: str) -> float:
    """Return the distance of a label from the nearest number whose digits begin with a prefix.

    The numbers have as many decimals as the label, and no leading zeros if it has none. The
    distance is in units of the last digit, and infinite if no number begins so.

    Args:
        text: The digits of the label, without its point.
        decimals: How many of them are decimals.
        prefix: Digits, of which the last ones may be those of another token than the label's.
    """
    whole, label = len(text) - decimals, int(text)
    fixed = (whole > 1 and text[0] == "0") or len(prefix) > whole
    best = math.inf
    for length in [whole] if fixed else range(len(prefix), whole + 3):
        if not fixed and length > 1 and prefix[0] == "0":
            continue
        free = length + decimals - len(prefix)
        low, high = int(prefix + "0" * free), int(prefix + "9" * free)
        best = min(best, max(low - label, label - high, 0))
    return best
