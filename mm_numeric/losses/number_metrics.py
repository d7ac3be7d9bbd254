"""Training metrics: accuracy of the number tokens, and mean absolute error of the numbers.

Axes    k labels that are number tokens, f metrics
"""

import torch
from torch import Tensor

from mm_numeric.answers import ROLES
from mm_numeric.losses.term import LossSum, NumberLogits, sum_by_number
from mm_numeric.losses.terms.whole_number import digits_of_labels
from mm_numeric.numbers.spans import NumberSpans

METRICS = (*(f"error/{role}" for role in ROLES), "accuracy")
"""Names of the rows of the result of ``number_metrics``."""


@torch.no_grad()
def number_metrics(
    numbers: NumberLogits, spans: NumberSpans, written: Tensor, wanted: Tensor
) -> Tensor:
    """Return the sum and the count of each of the f metrics over a batch, [f, 2], float64.

    To average over several batches, add their results, then divide the sums by the counts.

    ``accuracy``: fraction of the number tokens that the model predicts correctly (argmax over the
        whole vocabulary, with teacher forcing).
    ``error/ROLE``: mean absolute error of the numbers with a role (a meaning such as ``hour``), in
        the unit of the answer. Each digit of the predicted number is an expected value under the
        softmax over the number tokens, such as 3.7. Signs are ignored.

    ``wanted`` [k] are the labels that are number tokens, as token ids. ``written`` [k] are the
    token ids that the model predicts at the same positions.
    """
    digits, classes = digits_of_labels(numbers, spans), numbers.classes
    # The expected digit minus the correct digit, in few kernels: it is computed at each step.
    wrong = digits.addmv(numbers.probs.double(), classes.double_values, beta=-1)
    errors = sum_by_number(wrong * spans.worth, spans).abs()
    values = torch.cat([errors, written == wanted])
    each = torch.stack([values, classes.double_one.expand(len(values))], dim=-1)
    metric = torch.nn.functional.pad(spans.role, (0, len(written)), value=len(ROLES))
    return each.new_zeros(len(METRICS), 2).index_add_(0, metric, each)


def named_metrics(sums: Tensor) -> dict[str, LossSum]:
    """Return the sum and count of each metric by name, from the result of ``number_metrics``."""
    return {name: LossSum(*pair.unbind()) for name, pair in zip(METRICS, sums, strict=True)}
