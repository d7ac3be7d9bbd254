"""Training metrics: accuracy of the number tokens, and mean absolute error of the numbers.

Axes    k labels that are number tokens, f metrics
"""

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.term import LossSum, NumberLogits
from mm_numeric.losses.terms.whole_number import ExpectedDigits
from mm_numeric.numbers.spans import NumberSpans

METRICS = ("accuracy", *(f"error/{role}" for role in ROLES))
"""Names of the rows of the result of ``number_metrics``."""


@torch.no_grad()
def number_metrics(
    numbers: NumberLogits, spans: NumberSpans, written: Tensor, wanted: Tensor
) -> Tensor:
    """Return the sum and the count of each metric over a batch, [f, 2], float64.

    Add the results of several batches, then divide sums by counts:

    ``accuracy``: share of the number tokens that the model predicts (argmax over the whole
        vocabulary, with teacher forcing).
    ``error/ROLE``: mean absolute error ``|X - Y|`` of the numbers with this role (``x``, ``hour``
        ...), in the unit of the answer. X is the predicted number made of expected digits,
        ``sum_k 10 ** k E_p[digit]``, with p the softmax over the number tokens. Signs are ignored.

    ``written`` [k] are the predicted token ids, and ``wanted`` [k] the label token ids.
    """
    right = (written == wanted).double()
    accuracy = torch.stack([right, torch.ones_like(right)], dim=-1).sum(dim=0, keepdim=True)
    predicted, value = ExpectedDigits().values(numbers, spans)
    errors = (predicted - value).abs()
    each = torch.stack([errors, torch.ones_like(errors)], dim=-1)
    return torch.cat([accuracy, each.new_zeros(len(ROLES), 2).index_add(0, spans.role, each)])


def named_metrics(sums: Tensor) -> dict[str, LossSum]:
    """Return the sum and count of each metric by name, from the result of ``number_metrics``."""
    return {name: LossSum(*pair.unbind()) for name, pair in zip(METRICS, sums, strict=True)}
