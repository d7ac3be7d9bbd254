"""Loss terms with a fault in them, for runs in processes of their own: ``faulty_terms:Name``."""

from dataclasses import dataclass
from typing import ClassVar

import torch

BAD = 59
"""The number that they fail at."""


@dataclass(frozen=True, kw_only=True)
class NotANumber:
    """A loss of nan for a minute of 59."""

    per: ClassVar[str] = "number"

    def __call__(self, numbers, spans):
        return torch.zeros(len(spans.value)).masked_fill(spans.value == BAD, torch.nan)


@dataclass(frozen=True, kw_only=True)
class NoGradient:
    """The same loss for every token, with a gradient that is nan where the number is 59."""

    per: ClassVar[str] = "token"

    def __call__(self, numbers, spans):
        bad = (spans.value == BAD)[spans.number]
        loss = (numbers.logits - numbers.logits).sum(dim=1)
        return torch.where(bad, loss, loss + 1).sqrt()
