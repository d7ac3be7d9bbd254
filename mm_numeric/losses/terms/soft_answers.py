"""Soft answers: cross-entropy with a Gaussian target over whole numbers and times.

Axes    k labels that are number tokens, c number tokens in the vocabulary (classes)

``mm_numeric.data.soft_answers`` draws the answers and computes the targets.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_positive, one_hot
from mm_numeric.losses.terms.soft_targets import soft_cross_entropy
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class SoftAnswers:
    """Cross-entropy with a Gaussian around the label as the target distribution over answers.

    For each row and epoch, the data collator draws an answer from the Gaussian, rounded as the
    label is, and trains on it in place of the label. At each digit of the drawn answer, this loss
    is ``-sum_d q(d) log P(d)``: q is the probability of the digit d given the previous digits, if
    answers are distributed like the Gaussian, and P the prediction over the whole vocabulary. The
    unit is nats. It replaces cross-entropy at the number tokens: set ``ce_tokens: text``. It is
    cross-entropy of the labels at batches without drawn answers, which are those of an evaluation.

    Attributes:
        scale: Standard deviation of the Gaussian, above 0: minutes for times, otherwise in the unit
            of the label, or with ``relative`` a share of it.
        relative: True if ``scale`` is a share of the label: 0.02 is 2 %. Not for times.
    """

    per: ClassVar[Literal["supervised"]] = "supervised"
    needs_whole_numbers: ClassVar[bool] = True
    """A target depends on all digits of the label."""

    needs_drawn_answers: ClassVar[bool] = True
    """Training without ``spans.digit_target`` is an error: it would be cross-entropy."""

    scale: float = 3.0
    relative: bool = False

    def __post_init__(self) -> None:
        check_positive("soft_answers", scale=self.scale)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss at each of the k labels that are number tokens, [k]."""
        target = one_hot(spans.target, len(numbers.values)).to(numbers.logits)
        if spans.digit_target is not None:
            digit = numbers.values.long().clamp(0, spans.digit_target.shape[1] - 1)
            drawn = spans.digit_target.to(numbers.logits)[:, digit]
            if numbers.present is not None:
                drawn = drawn * numbers.present
            is_drawn = spans.digit_target.sum(dim=1, keepdim=True) > 0
            target = drawn.where(is_drawn, target)
        return soft_cross_entropy(target, numbers)
