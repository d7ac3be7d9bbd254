"""Metrics of the numbers of a batch: accuracy of the number tokens, and error of the numbers.

Axes    k number tokens, m numbers, f metrics
"""

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.term import LossSum, NumberLogits
from mm_numeric.losses.terms.whole_number import ExpectedDigits
from mm_numeric.numbers.spans import NumberSpans

METRICS = ("accuracy", *(f"error/{role}" for role in ROLES))
"""Names of the metrics, in the order of ``number_metrics``."""


@torch.no_grad()
def number_metrics(
    numbers: NumberLogits, spans: NumberSpans, written: Tensor, wanted: Tensor
) -> Tensor:
    """Return the sum and the count of each metric of a batch, to be added over batches.

    ``accuracy`` is the share of number tokens whose label is the most likely of all tokens, given
    the label's previous tokens (teacher forcing).

    ``error/ROLE`` is the mean absolute error ``|X - Y|`` of the numbers of a role, in the unit of
    the answer (coordinate steps, hours, minutes). X has the expected digit at each place,
    ``sum_k 10 ** k E_p[digit]``, with p over the digit group of the label. Signs are ignored.

    ``written`` [k] are the ids of the most likely tokens of the whole vocabulary, ``wanted`` [k]
    those of the labels. The result is [f, 2], float64.
    """
    right = (written == wanted).double()
    accuracy = torch.stack([right, torch.ones_like(right)], dim=-1).sum(dim=0, keepdim=True)
    predicted, value = ExpectedDigits().values(numbers, spans)
    errors = (predicted - value).abs()
    each = torch.stack([errors, torch.ones_like(errors)], dim=-1)
    return torch.cat([accuracy, each.new_zeros(len(ROLES), 2).index_add(0, spans.role, each)])


def named_metrics(sums: Tensor) -> dict[str, LossSum]:
    """Return sums of ``number_metrics`` by name."""
    return {name: LossSum(*pair.unbind()) for name, pair in zip(METRICS, sums, strict=True)}
