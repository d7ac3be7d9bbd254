"""The factor that multiplies the numeric losses before they are added to cross-entropy.

It is a constant, or proportional to the ratio of cross-entropy to the sum of the numeric losses.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum

_EPSILON = 1e-10  # as in the published code: avoids a division by zero
_DECAY = 0.9  # of the running means at each step


class Balance:
    """Computes the factor that multiplies the numeric losses, from the setting ``balance``."""

    def __init__(self, spec: ObjectiveSpec) -> None:
        self.spec = spec
        self._means: Tensor | None = None

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

        With ``balance: ratio``, it scales the numeric losses to ``weight`` times cross-entropy.
        With ``balance: running``, it is computed from running means. Otherwise it is the
        constant ``weight``. ``sums`` has the sum and count of each loss in the batch.
        """
        if self.spec.balance == "ratio":
            return self._ratio(self._means_of(sums))
        if self.spec.balance == "running" and self._means is not None:
            return torch.where(self._means[1] != 0, self._ratio(self._means), self.spec.weight)
        return self.spec.weight

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Update the running means of cross-entropy and numeric losses after an optimiser step.

        Only the setting ``balance: running`` uses them. ``sums`` are the losses of the step, summed
        over micro-batches and ranks. Steps without numbers, or with NaN or inf, are skipped.
        """
        if self.spec.balance != "running" or not self.spec.terms:
            return
        now = self._means_of(sums)
        before = torch.zeros_like(now) if self._means is None else self._means.to(now.device)
        mixed = torch.where(before[1] != 0, _DECAY * before + (1 - _DECAY) * now, now)
        usable = (now[1] != 0) & now.isfinite().all()  # a step of fp16 may overflow and be skipped
        self._means = torch.where(usable, mixed, before)

    def _means_of(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Return the mean cross-entropy and the weighted sum of the mean numeric losses, [2]."""
        terms = [t.weight * sums[t.name].mean.detach().double() for t in self.spec.terms]
        return torch.stack([sums["ce"].mean.detach().double(), torch.stack(terms).sum()])

    def _ratio(self, means: Tensor) -> Tensor:
        """Return the factor that scales the numeric losses to ``weight`` times cross-entropy."""
        cross_entropy, numeric = means.unbind()
        return self.spec.weight * cross_entropy / (numeric + _EPSILON)

    def reset(self) -> None:
        """Delete the running means of the losses, for a new training run."""
        self._means = None

    def state_dict(self) -> dict[str, list[float] | None]:
        """Return the running means of the losses as plain numbers, for a checkpoint."""
        return {"means": None if self._means is None else self._means.tolist()}

    def load_state_dict(self, state: Mapping[str, list[float] | None]) -> None:
        """Restore the running means of the losses from ``state_dict``."""
        means = state["means"]
        self._means = None if means is None else torch.tensor(means, dtype=torch.float64)
