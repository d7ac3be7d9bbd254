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
        means = [
            term.weight * LossSum(sums[term.name].total, divisors[term.name]).mean
            for term in self.spec.terms
        ]
        numeric = self.factor(sums) * sum(means[1:], means[0]) if means else None
        if "ce" not in sums:
            assert numeric is not None  # there is no cross-entropy only if there are terms
            return numeric.to(means[0])
        cross_entropy = self.spec.ce_weight * LossSum(sums["ce"].total, divisors["ce"]).mean
        return cross_entropy if numeric is None else cross_entropy + numeric.to(cross_entropy)

    def factor(self, sums: Mapping[str, LossSum]) -> float | Tensor:
        """Return the factor that multiplies the numeric losses of a batch; it has no gradient.

        With ``balance: ratio``, it scales the numeric losses to ``numeric_weight`` times
        cross-entropy. With ``balance: running``, it is computed from running means. Otherwise it is
        the constant ``numeric_weight``. ``sums`` has the sum and count of each loss in the batch.
        """
        if self.spec.balance == "ratio":
            return self._ratio(self._means_of(sums))
        if self.spec.balance == "running":
            means = self.means.to(sums["ce"].total.device, torch.double, non_blocking=True)
            return torch.where(means[1] != 0, self._ratio(means), self.spec.numeric_weight)
        return self.spec.numeric_weight

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Update the running means of cross-entropy and numeric losses after an optimiser step.

        Only the setting ``balance: running`` uses them. ``sums`` are the losses of the step, summed
        over micro-batches and ranks. Steps without numbers, or with NaN or inf, are skipped.
        """
        if self.spec.balance != "running" or not self.spec.terms:
            return
        now = self._means_of(sums)
        before = self.means.to(now)
        mixed = torch.where(before[1] != 0, _DECAY * before + (1 - _DECAY) * now, now)
        usable = (now[1] != 0) & now.isfinite().all()  # a step of fp16 may overflow and be skipped
        self.means = torch.where(usable, mixed, before).to(self.means.dtype)

    def reset(self) -> None:
        """Delete the running means of the losses, for a new training run."""
        self.means = torch.zeros_like(self.means)

    def _means_of(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Return the mean cross-entropy and the weighted sum of the mean numeric losses, [2]."""
        terms = [t.weight * sums[t.name].mean.detach().double() for t in self.spec.terms]
        return torch.stack([sums["ce"].mean.detach().double(), torch.stack(terms).sum()])

    def _ratio(self, means: Tensor) -> Tensor:
        """Return the factor that scales the numeric losses to a multiple of cross-entropy."""
        cross_entropy, numeric = means.unbind()
        return self.spec.numeric_weight * cross_entropy / (numeric + _EPSILON)
