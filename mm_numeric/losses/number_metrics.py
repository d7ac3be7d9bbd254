"""What is said of a batch's numbers beside the loss: how many are right, and how far off they are.

Axes    k number tokens, m numbers, f figures
"""

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.term import LossSum, NumberLogits
from mm_numeric.losses.terms.whole_number import ExpectedDigits
from mm_numeric.numbers.spans import NumberSpans

FIGURES = ("accuracy", *(f"error/{role}" for role in ROLES))
"""The names of the figures, in the order of ``number_figures``."""


@torch.no_grad()
def number_figures(
    numbers: NumberLogits, spans: NumberSpans, written: Tensor, wanted: Tensor
) -> Tensor:
    """Return the sum and the count of each figure of a batch; sums of batches are those of all.

    ``accuracy`` is over number tokens: a token is right if greedy decoding, behind what stands
    before it in the label, would write it. A more likely word, or a digit of another alphabet, is
    wrong.

    ``error/ROLE`` is over the numbers of a role: ``|X - Y|`` in what the answer is written in (the
    steps of a grid, hours, minutes; a bin counts its value), where X is the number with the
    expected digit at each place, ``sum_k 10 ** k E_p[digit]``, and p is over the alphabet of the
    label. As signs are not predicted by digits, -3 for 3 is no error.

    Args:
        numbers: What the model says at the number tokens.
        spans: The numbers.
        written: [k] the id of the most likely token of the whole vocabulary.
        wanted: [k] the id of the label.

    Returns:
        [f, 2] float64.
    """
    right = (written == wanted).double()
    accuracy = torch.stack([right, torch.ones_like(right)], dim=-1).sum(dim=0, keepdim=True)
    predicted, value = ExpectedDigits().values(numbers, spans)
    errors = (predicted - value).abs()
    each = torch.stack([errors, torch.ones_like(errors)], dim=-1)
    return torch.cat([accuracy, each.new_zeros(len(ROLES), 2).index_add(0, spans.role, each)])


def named_figures(sums: Tensor) -> dict[str, LossSum]:
    """Return what ``number_figures`` has added up, by name."""
    return {name: LossSum(*pair.unbind()) for name, pair in zip(FIGURES, sums, strict=True)}
