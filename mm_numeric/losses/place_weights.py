"""Loss weights that give the first digits of a number more weight than the last ones.

Axes    k labels that are number tokens, m numbers
"""

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans

PLACES = ("exponential", "linear", "powers", "none")
MANY_DIGITS = 9
"""Where weights grow with the number of digits, longer numbers can own most of the gradient."""

_LARGEST_WEIGHT = 1e30  # below the float32 maximum, so that sums stay finite; 1.2 ** 379


def check_place_weights(term: str, places: str, growth: float) -> None:
    """Validate the settings ``places`` and ``growth`` of the numeric loss named ``term``."""
    if places not in PLACES:
        raise ValueError(f"{term}: places is one of {', '.join(PLACES)}, not {places!r}.")
    if growth <= 0 or (places == "linear" and growth < 1):
        allowed = ">= 1 where places is linear" if places == "linear" else "> 0"
        raise ValueError(f"{term}: growth must be {allowed}, not {growth}.")


def place_weights(from_right: Tensor, places: str, growth: float) -> Tensor:
    """Return the loss weight of each of k digits, [k], float64.

    Args:
        from_right: [k] number of digits to the right, i; 0 for the last digit of a number.
        places: Formula of the weight. ``exponential``: ``growth ** i``. ``linear``:
            ``1 + (growth - 1) i``. ``powers``: ``10 ** i``. ``none``: 1.
        growth: Growth of the weight per digit; ignored by ``powers`` and ``none``.
    """
    from_right = from_right.double()
    if places == "none":
        return torch.ones_like(from_right)
    if places == "linear":
        return 1 + (growth - 1) * from_right
    base = 10.0 if places == "powers" else growth
    return (base**from_right).clamp(max=_LARGEST_WEIGHT)


def sum_by_number(values: Tensor, spans: NumberSpans) -> Tensor:
    """Return the sum of ``values`` [k] (one per number token) for each of the m numbers, [m]."""
    return values.new_zeros(len(spans.value)).index_add(0, spans.number, values)


def normalised(weights: Tensor, totals: Tensor, digits: Tensor, spans: NumberSpans) -> Tensor:
    """Return loss weights [k] divided so that the digits of each number have the mean weight 1.

    Args:
        weights: [k] weight of each number token.
        totals: [k] sum of the weights of the digits of each number token, float64.
        digits: [k] number of digits of each number token, float64.
        spans: The numbers that the tokens belong to.
    """
    mean = sum_by_number(totals, spans) / sum_by_number(digits, spans)
    return weights / mean[spans.number]
