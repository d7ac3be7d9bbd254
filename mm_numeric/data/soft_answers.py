"""Draw answers from a Gaussian around the label, with the target probabilities of their digits.

The Gaussian is rounded to the label's number of decimals, and is 0 below 0; the sign of a label is
kept. For clock times it is circular, on a 12-hour dial. The probability of a digit, given those
before it, is a ratio of sums over all answers that begin so. These are ranges of integers, one for
each number of digits, so that a sum is a difference of two values of the normal distribution.
"""

import math
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mm_numeric.answers import HALF_DAY_MINUTES, ClockTime, Mark, Written
from mm_numeric.losses.terms.soft_answers import SoftAnswers

_NUMBER = re.compile(r"-?([0-9]{1,300})(?:\.([0-9]{1,300}))?")
_TIME = re.compile(r"([1-9]|1[0-2]) ([0-5][0-9])")
_NARROW = 1e-4  # of the standard deviation: the density is constant in ranges below this width
_TAIL = 40  # standard deviations, beyond which float64 has no probability

_TIMES = [str(ClockTime.from_minutes(minutes)) for minutes in range(HALF_DAY_MINUTES)]
_CHARACTERS = np.array([[ord(c) - ord("0") for c in text.ljust(5)] for text in _TIMES])
"""[720, 5] the digits of each time; a colon is 10, and a missing character is below 0."""

Probs = npt.NDArray[np.float64]


class DrawnAnswer(NamedTuple):
    """An answer that is trained on in place of the label."""

    written: Written
    targets: dict[int, Probs]
    """Maps the index of each digit in the text to the probabilities of 0 to 9, which sum to 1.

    Empty if the Gaussian has no other answer than the label."""


def draw_answer(written: Written, settings: SoftAnswers, seed: str) -> DrawnAnswer:
    """Draw an answer from the Gaussian around the label, which has one number or one time.

    An answer without numbers is returned as it is. The result depends on the arguments alone.
    Raises ValueError if the answer has other numbers, such as coordinates or a fraction.
    """
    source, marks = random.Random(seed), sorted(written.marks)
    texts = [written.text[mark.start : mark.end] for mark in marks]
    roles = [mark.role for mark in marks]
    if not roles:
        return DrawnAnswer(written, {})
    if roles == ["hour", "minute"]:
        drawn, probs = _draw_time(texts, settings, source)
    elif roles == ["free"]:
        drawn, probs = _draw_number(texts[0], settings, source)
    else:
        raise ValueError(
            f"soft_answers takes answers with one number or one time, and {written.text!r:.60} has "
            f"{len(roles)} numbers ({', '.join(roles[:4])}); use another objective."
        )
    new = _rewritten(written, marks, drawn)
    digits = [i for mark in new.marks for i in range(mark.start, mark.end) if new.text[i].isdigit()]
    return DrawnAnswer(new, dict(zip(digits, probs, strict=True)) if probs else {})


def _rewritten(written: Written, marks: Sequence[Mark], texts: Sequence[str]) -> Written:
    """Return an answer with other texts in place of the marked numbers."""
    text, end, new_marks, shifts = "", 0, [], dict[int, int]()
    for mark, own in zip(marks, texts, strict=True):
        text += written.text[end : mark.start] + own
        new_marks.append(mark._replace(start=len(text) - len(own), end=len(text)))
        end = mark.end
        shifts[end] = len(text) - end
    format_digits = {
        i + max(((at, by) for at, by in shifts.items() if at <= i), default=(0, 0))[1]
        for i in written.format_digits
    }
    return Written(text + written.text[end:], tuple(new_marks), frozenset(format_digits))


def _draw_time(
    texts: Sequence[str], settings: SoftAnswers, source: random.Random
) -> tuple[list[str], list[Probs]]:
    """Draw the hour and the minute of a time, with the probabilities at each of their digits."""
    found = _TIME.fullmatch(" ".join(texts))
    if found is None or settings.relative:
        problem = "relative has no meaning" if found else "hours are written 1 to 12"
        raise ValueError(f"soft_answers, time {':'.join(texts)}: {problem} for a time on a dial.")
    label = ClockTime(int(found[1]), int(found[2])).minutes
    drawn = (label + round(source.gauss(0, settings.scale))) % HALF_DAY_MINUTES
    mass = np.roll(_circular(settings.scale), label)
    begins, probs = np.ones(len(_TIMES), dtype=bool), []
    for characters in _CHARACTERS.T[: len(_TIMES[drawn])]:
        if 0 <= characters[drawn] <= 9:
            is_digit = begins & (characters >= 0) & (characters <= 9)
            sums = np.bincount(characters[is_digit], weights=mass[is_digit], minlength=10)
            probs.append(sums / sums.sum())
        begins &= characters == characters[drawn]
    return _TIMES[drawn].split(":"), probs


@lru_cache(maxsize=8)
def _circular(deviation: float) -> Probs:
    """Return the probability of each number of minutes, 0 to 719, after the label."""
    turns = range(-math.ceil(deviation / 60) - 1, math.ceil(deviation / 60) + 2)
    edges = torch.arange(HALF_DAY_MINUTES + 1).double() - 0.5
    starts = HALF_DAY_MINUTES * torch.tensor(turns).double()[:, None]
    return _differences((edges + starts) / deviation).sum(dim=0).numpy()


def _draw_number(
    text: str, settings: SoftAnswers, source: random.Random
) -> tuple[list[str], list[Probs]]:
    """Draw a number, with the probabilities at each of its digits; [] if only the label has any."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(
            f"soft_answers takes numbers such as -3.50, of at most 300 digits, and not {text!r:.60}"
        )
    whole, fraction = found[1], found[2] or ""
    label, decimals = int(whole + fraction), len(fraction)
    fixed = len(whole + fraction) if len(whole) > 1 and whole[0] == "0" else None
    deviation = settings.scale * float(label if settings.relative else 10**decimals)
    if deviation < 1 / _TAIL / 2:
        return [text], []
    drawn = -1
    while drawn < 0 or (fixed and drawn >= 10**fixed):
        drawn = label + round(source.gauss(0, deviation))
    digits = str(drawn).zfill(fixed or decimals + 1)
    probs = _digit_probs(digits, label, deviation, decimals, fixed)
    point = len(digits) - decimals
    return ["-" * text.startswith("-") + digits[:point] + "." * bool(decimals) + digits[point:]], [
        *probs
    ]


def _digit_probs(
    digits: str, label: int, deviation: float, decimals: int, fixed: int | None
) -> Probs:
    """Return the probability of each digit 0 to 9 after the digits before it, [digits, 10].

    ``digits`` are those of the drawn number. ``label`` and ``deviation`` are the mean and standard
    deviation of the Gaussian in units of the last digit, ``decimals`` the number of digits after
    the point. With ``fixed``, all numbers have this number of digits, with leading zeros.
    """
    longest = max(len(str(label + math.ceil(_TAIL * deviation))), decimals + 1)
    rows, edges, narrow = [], [], []
    for i in range(len(digits)):
        lengths: Sequence[int] = range(i + 1 + decimals, longest + 1)
        if fixed or i >= len(digits) - decimals or (i and digits[0] == "0"):
            lengths = [len(digits)]
        for length in lengths:
            unit = 10 ** (length - i - 1)
            first = 10 * int(digits[:i] or "0") * unit - label
            rows.append((i, not fixed and i == 0 and length > decimals + 1))
            edges.append([(first + digit * unit - 0.5) / deviation for digit in range(11)])
            narrow.append(unit / deviation)
    bounds = torch.tensor(edges, dtype=torch.float64)
    width = torch.tensor(narrow, dtype=torch.float64)[:, None]
    centres = (bounds[:, 1:] + bounds[:, :-1]) / 2
    sums = torch.where(
        width < _NARROW,
        width * torch.exp(-centres.square() / 2) / math.sqrt(2 * math.pi),
        _differences(bounds),
    )
    position, no_zero = torch.tensor(rows).T
    sums[no_zero.bool(), 0] = 0.0
    total = sums.new_zeros(len(digits), 10).index_add(0, position, sums)
    return (total / total.sum(dim=1, keepdim=True)).numpy()


def _differences(bounds: torch.Tensor) -> torch.Tensor:
    """Return the probability between each two neighbours of sorted bounds, exact in both tails."""
    is_right = bounds[..., :-1] > 0
    left, right = (torch.special.ndtr(own).diff(dim=-1) for own in (bounds, -bounds))
    return torch.where(is_right, -right, left)
