"""How much a digit weighs by where it stands in its number.

Axes    k number tokens
"""

import torch
from torch import Tensor

from mm_numeric.numbers.spans import NumberSpans

PLACES = ("exponential", "linear", "powers", "none")
_LARGEST_WEIGHT = 1e30  # of float32, with room for a sum; 1.2 ** 379


def refuse_places(term: str, places: str, growth: float) -> None:
    """Refuse settings of ``place_weights`` that turn weights negative or off.

    Raises:
        ValueError: If there is one.
    """
    if places not in PLACES:
        raise ValueError(f"{term}: places is one of {', '.join(PLACES)}, not {places!r}.")
    if growth <= 0 or (places == "linear" and growth < 1):
        allowed = ">= 1 where places is linear" if places == "linear" else "> 0"
        raise ValueError(f"{term}: growth must be {allowed}, not {growth}.")


def place_weights(from_right: Tensor, places: str, growth: float) -> Tensor:
    """Return the weight of each digit by how many digits stand to its right, [k], float64.

    Args:
        from_right: [k] 0 for the last digit of a number.
        places: ``exponential``: ``growth ** k``. ``linear``: ``1 + (growth - 1) k``. ``powers``:
            ``10 ** k``. ``none``: 1.
        growth: How fast weights grow; without meaning for the last two.
    """
    from_right = from_right.double()
    if places == "none":
        return torch.ones_like(from_right)
    if places == "linear":
        return 1 + (growth - 1) * from_right
    base = 10.0 if places == "powers" else growth
    return (base**from_right).clamp(max=_LARGEST_WEIGHT)


def places_from_right(spans: NumberSpans) -> Tensor:
    """Return how many digits of its number stand to the right of each token's last digit, [k]."""
    last = torch.zeros_like(spans.sample).scatter_reduce(
        0, spans.number, spans.place, "amin", include_self=False
    )
    return spans.place - last[spans.number]


def sum_by_number(of_tokens: Tensor, spans: NumberSpans) -> Tensor:
    """Sum what [k] number tokens have over the tokens of each number, [m]."""
    return of_tokens.new_zeros(len(spans.value)).index_add(0, spans.number, of_tokens)
