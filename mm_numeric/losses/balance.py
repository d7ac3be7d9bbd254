"""The factor that multiplies the numeric losses before they are added to cross-entropy.

It is a constant, or proportional to the ratio of cross-entropy to the sum of the numeric losses.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum

_EPSILON = 1e-10  # as in the published code: avoids a division by zero
_DECAY = 0.9  # of the running means at each step


class Balance(nn.Module):
    """Computes the factor that multiplies the numeric losses, from the setting ``balance``.

    Attributes:
        means: [2] running means of cross-entropy and of the weighted sum of the numeric losses; 0
            before the first step with numbers. A part of the state with ``balance: running``.
    """

    means: Tensor

    def __init__(self, spec: ObjectiveSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("means", torch.zeros(2), persistent=spec.balance == "running")

    def total(self, sums: Mapping[str, LossSum], divisors: Mapping[str, Tensor]) -> Tensor:
        """Return the training loss: weighted mean cross-entropy plus weighted numeric losses.

        ``sums`` has the sum of cross-entropy (``ce``) and of each numeric loss. Each sum is divided
        by its entry in ``divisors`` to get the mean.
        """
        means = {name: LossSum(part.total, divisors[name]).mean for name, part in sums.items()}
        weighted = [_times(term.weight, means[term.name]) for term in self.spec.terms]
        numeric = None
        if weighted:
            is_whole = all(divisors[name] is part.items for name, part in sums.items())
            own = means if is_whole else None
            numeric = self.factor(sums, own) * sum(weighted[1:], weighted[0])
        if "ce" not in sums:
            assert numeric is not None  # there is no cross-entropy only if there are terms
            return numeric
        cross_entropy = _times(self.spec.ce_weight, means["ce"])
        return cross_entropy if numeric is None else cross_entropy + numeric.to(cross_entropy)

    def factor(
        self, sums: Mapping[str, LossSum], means: Mapping[str, Tensor] | None = None
    ) -> float | Tensor:
        """Return the factor that multiplies the numeric losses of a batch; it has no gradient.

        With ``balance: ratio``, it scales the numeric losses to ``numeric_weight`` times
        cross-entropy. With ``balance: running``, it is computed from running means. Otherwise it is
        the constant ``numeric_weight``. ``sums`` has the sum and count of each loss in the batch,
        and ``means`` their means if these are known.
        """
        if self.spec.balance == "ratio":
            own = means or {name: part.mean for name, part in sums.items()}
            return self._ratio(*self._means_of(own))
        if self.spec.balance == "running":
            running = self.means.to(sums["ce"].total.device, torch.double, non_blocking=True)
            return torch.where(running[1] != 0, self._ratio(*running), self.spec.numeric_weight)
        return self.spec.numeric_weight

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Update the running means of cross-entropy and numeric losses after an optimiser step.

        Only the setting ``balance: running`` uses them. ``sums`` are the losses of the step, summed
        over micro-batches and ranks. Steps without numbers, or with NaN or inf, are skipped.
        """
        if self.spec.balance != "running" or not self.spec.terms:
            return
        now = torch.stack(self._means_of({name: part.mean for name, part in sums.items()}))
        before = self.means.to(now)
        mixed = torch.where(before[1] != 0, _DECAY * before + (1 - _DECAY) * now, now)
        usable = (now[1] != 0) & now.isfinite().all()  # a step of fp16 may overflow and be skipped
        self.means = torch.where(usable, mixed, before).to(self.means.dtype)

    def reset(self) -> None:
        """Delete the running means of the losses, for a new training run."""
        self.means = torch.zeros_like(self.means)

    def _means_of(self, means: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy and the weighted sum of the mean numeric losses."""
        names = "ce", *(term.name for term in self.spec.terms)
        cross_entropy, *terms = torch.stack([means[n].detach() for n in names]).double()
        weighted = [_times(t.weight, mean) for t, mean in zip(self.spec.terms, terms, strict=True)]
        return cross_entropy, sum(weighted[1:], weighted[0])

    def _ratio(self, cross_entropy: Tensor, numeric: Tensor) -> Tensor:
        """Return the factor that scales the numeric losses to a multiple of cross-entropy."""
        return self.spec.numeric_weight * cross_entropy / (numeric + _EPSILON)


def _times(weight: float, mean: Tensor) -> Tensor:
    """Return the product; a weight of 1 costs nothing."""
    return mean if weight == 1 else weight * mean
