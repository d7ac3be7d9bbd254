"""Loss of the whole answer, from the probability of each answer that the model could give.

Axes    r rows, a answers
Units   minutes for times, on a circle; units of the answer for other numbers

Losses of single digits compare a digit with that of the label, after the label's own digits. The
loss here compares complete answers: 29 and 30 are one apart, and so are 12:59 and 1:00.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits, check_positive
from mm_numeric.numbers.spans import NumberSpans


@dataclass(frozen=True, kw_only=True)
class ExpectedRisk:
    """Expected distance ``E min(|X - y|, cap)`` of the model's answer X from the label y.

    Attributes:
        cap: Largest distance, above 0; None if there is none.
    """

    per: ClassVar[Literal["answer"]] = "answer"
    cap: float | None = 10.0

    def __post_init__(self) -> None:
        check_positive("expected_risk", cap=self.cap)

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return the loss of each row, [r]."""
        answers = numbers.answers
        assert answers is not None  # as ``NumericLoss`` has checked
        distance = answers.tree.distance(answers.labels)  # of each answer from each label, [r, a]
        if self.cap is not None:
            distance = distance.clamp(max=self.cap)
        return (answers.probs * distance.to(answers.probs)).sum(dim=-1)
