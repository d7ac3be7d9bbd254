"""Label smoothing of the digits, to compare with the numeric losses.

    objective: {preset: ce, numeric_weight: 0.1, terms: [{name: "label_smoothing:LabelSmoothing"}]}

With a weight of e, CE plus this term is cross-entropy with the target (1 - e) at the label and
e / 10 at each of the ten digits. Text tokens are not smoothed.
"""

from typing import ClassVar, Literal

from torch import Tensor

from mm_numeric.losses.term import NumberLogits
from mm_numeric.numbers.spans import NumberSpans


class LabelSmoothing:
    """The logit of the label minus the mean logit of the tokens that can replace it."""

    per: ClassVar[Literal["supervised"]] = "supervised"

    def __call__(self, numbers: NumberLogits, spans: NumberSpans) -> Tensor:
        """Return one loss for each number token, [k]."""
        wanted = numbers.logits.gather(1, spans.target[:, None]).squeeze(1)
        if numbers.present is None:
            return wanted - numbers.logits.mean(dim=1)
        kept = numbers.logits.where(numbers.present, 0).sum(dim=1) / numbers.present.sum(dim=1)
        return wanted - kept
