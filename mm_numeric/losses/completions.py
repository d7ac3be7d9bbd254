"""The numbers that can still be written after each candidate token (the completions of a prefix).

Axes    k labels that are number tokens, m numbers, c number tokens in the vocabulary (classes)
Units   numbers are counted in units of the last digit of the label: 3.05 and 305 are both 305

If the label is 29, the first token ``3`` leaves 3, 30 to 39, 300 to 399 and so on open. Completions
have as many decimals as the label, and no leading zeros unless the label has some (007).
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from mm_numeric.losses.place_weights import places_from_right, sum_by_number
from mm_numeric.losses.term import NumberClasses
from mm_numeric.numbers.spans import NumberSpans

_LARGEST_POWER = 300  # below the float64 maximum, so that products stay finite


class Completions(NamedTuple):
    """The completions of one length: all numbers from ``low`` to ``high``, if ``exists`` is True.

    Each tensor is [k, c]: the label, and the candidate token. Numbers are float64.
    """

    low: Tensor
    high: Tensor
    exists: Tensor


def in_last_digits(classes: NumberClasses, spans: NumberSpans) -> Tensor:
    """Return each label without sign, in units of its last digit, [m]; exact up to 2 ** 53."""
    digits = classes.values.double()[spans.target]
    return sum_by_number(digits * _power_of_ten(places_from_right(spans)), spans)


def decimals(spans: NumberSpans) -> Tensor:
    """Return the number of decimals of the number that each number token belongs to, [k]."""
    return (places_from_right(spans) - spans.place).clamp(min=0)


def completions(
    classes: NumberClasses,
    spans: NumberSpans,
    lowest: Tensor,
    largest: Tensor,
    fixed_width: Tensor,
) -> Iterator[Completions]:
    """Yield the numbers that begin with the label's previous digits and then a candidate token.

    Yields those with as many digits as the label, with one digit less, with one digit more, and 0.
    Numbers of any other length are farther from the label. A location token has no completion but
    its value. Thousands separators are ignored. Time and memory are linear in k * c.

    Args:
        classes: The candidate tokens.
        spans: The numbers in the labels.
        lowest: [k, 1] smallest valid number.
        largest: [k, 1] largest valid number.
        fixed_width: [k, 1] True if all valid numbers have as many digits as the label (minutes).
    """
    width = classes.width[spans.target, None].double()
    right = places_from_right(spans)[:, None].double()
    fraction = decimals(spans)[:, None].double()
    integers = right - fraction  # digits of the integer part after the token; < 0 in the decimals
    count = sum_by_number(width.squeeze(1), spans)[spans.number, None]  # digits of the label
    step, smallest = _power_of_ten(right), _power_of_ten(count - 1)
    label = in_last_digits(classes, spans)[spans.number, None]
    fixed = fixed_width | (label < smallest) | (width == 0)
    rest = label.remainder(step).where(width > 0, 0)  # the value of the digits after the token
    values = classes.values.double()
    low = label - rest + (values - values[spans.target, None]) * step
    leads = low >= smallest  # no leading zero
    one_digit = count - 1 == fraction  # in the integer part
    for exists, factor, divisor in (
        (fixed | leads | one_digit, 1, 1),
        (~fixed & leads & (integers >= 1), 1, 10),
        (~fixed & leads & (integers >= 0), 10, 1),
        (~fixed & (low == 0) & (width == 1) & ~one_digit, 1, _power_of_ten(integers)),
    ):
        first, last = low / divisor * factor, (low + step) / divisor * factor - 1
        exists = exists & (last >= lowest) & (first <= largest)
        yield Completions(first.maximum(lowest), last.minimum(largest), exists)


def _power_of_ten(exponent: Tensor) -> Tensor:
    """Return ``10 ** exponent``, float64, rounded: pow may be off by one unit in the last place."""
    return (10.0 ** exponent.double().clamp(max=_LARGEST_POWER)).round()
