"""Losses of the difference between the expected value of the predicted token and the label's value.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)
Units   token values (``ntl_mae``) or squared token values (``ntl_mse``, ``ntl_huber``). The values
        of tokens with several digits, such as 000 to 999, are rescaled to the range 0 to 9.

Source: the loss NTL-MSE of arXiv 2411.02083. If each number token is a single digit, the losses
equal the class NTLossDotProduct of the ntloss package to 1e-6. The expected value ignores the
variance: probability 0.5 on 0 and 0.5 on 8 gives a loss of 0 for the label 4. The losses
``ntl_was`` and ``rps`` do not have this problem. RAFT (``raft``) is the squared error of an
expected value over the whole vocabulary, not only over the number tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_positive, check_scale
from mm_numeric.losses.terms.expected_distance import reweighed
from mm_numeric.losses.terms.soft_targets import log_probs
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class ExpectedValue:
    """Base class of losses on the difference between the expected token value and the label.

    The expected value of the predicted token is ``sum_j p_j v_j``: p is the softmax over the number
    tokens, and v_j the value of token j. The error is this value minus the value v_y of the label.

    Attributes:
        reweigh: True also penalises the probability of text, as in ``ntl_was``.
        scale: Unit of the values, ``range`` or ``published``, as in ``ntl_was``.
    """

    per: ClassVar[Literal["token"]] = "token"
    reweigh: bool = False
    scale: str = "range"

    def __post_init__(self) -> None:
        check_scale("ntl_mse, ntl_mae and ntl_huber", self.scale)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        values = numbers.classes.scaled_values(self.scale)
        losses = self.cost(numbers.probs @ values - values[spans.target])
        if not self.reweigh:
            return losses
        worst = self.cost(numbers.classes.scaled_reach(self.scale)[spans.target])
        return reweighed(losses, worst, numbers)

    def cost(self, error: Tensor) -> Tensor:
        """Return the loss of each error; an error is the expected value minus the correct value."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SquaredError(ExpectedValue):
    """Squared error ``(E - v_y) ** 2`` of the expected token value E for a label of value v_y."""

    def cost(self, error: Tensor) -> Tensor:
        """Return the squared error."""
        return error.square()


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(ExpectedValue):
    """Absolute error ``|E - v_y|`` of the expected token value E for a label of value v_y.

    This loss is never larger than the expected absolute error, the loss ``ntl_was``.
    """

    def cost(self, error: Tensor) -> Tensor:
        """Return the absolute error."""
        return error.abs()


@dataclass(frozen=True, kw_only=True)
class HuberError(ExpectedValue):
    """Huber loss: ``d ** 2 / 2`` up to an error of delta, then ``delta (|d| - delta / 2)``.

    The error d is the expected token value minus the value of the label.

    Attributes:
        delta: Error at which the loss changes from quadratic to linear, in token value, above 0.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("ntl_huber", delta=self.delta)

    def cost(self, error: Tensor) -> Tensor:
        """Return the Huber loss of the error."""
        return torch.nn.functional.huber_loss(
            error, torch.zeros_like(error), reduction="none", delta=self.delta
        )


@dataclass(frozen=True, kw_only=True)
class RegressionAware:
    """RAFT: squared error ``(sum_j P_j v_j - v_y) ** 2``, with P over the whole vocabulary.

    Source: Lukasik et al., "Better autoregressive regression with LLMs via regression-aware
    fine-tuning", ICLR 2025, for answers of one token, such as ratings of 1 to 5. Here the loss is
    computed at each number token. v_j is the value of token j, and v_y the value of the label. The
    sum is over the tokens that can replace the label, and P is not renormalised over them. So text
    counts as the value 0, and costs nothing if the label is 0. The preset ``raft`` replaces
    cross-entropy at the number tokens, as in the paper. Then use ``decode: raft``, because the most
    likely digit is not trained, or ``decode: mean`` for answers of several tokens, which
    renormalises over the explored answers.
    """

    per: ClassVar[Literal["token"]] = "token"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        values = numbers.classes.scaled_values("range")
        return (log_probs(numbers).exp() @ values - values[spans.target]).square()
