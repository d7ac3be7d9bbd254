"""How large the numeric terms are beside cross-entropy: fixed, by ratio, or by a running ratio."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.losses.term import LossSum

_TINY = 1e-10  # keeps the published ratio from dividing by zero
_KEPT = 0.9  # of the running means at each step


class Balance:
    """What the numeric terms are multiplied by."""

    def __init__(self, spec: ObjectiveSpec) -> None:
        """Start without history."""
        self.spec = spec
        self._means: Tensor | None = None

    def factor(self, sums: Mapping[str, LossSum]) -> float | Tensor:
        """Return the factor for one batch, without gradient.

        Args:
            sums: The parts of this batch, without weights.
        """
        if self.spec.balance == "ratio":
            return self._ratio(self._means_of(sums))
        if self.spec.balance == "running" and self._means is not None:
            return torch.where(self._means[1] != 0, self._ratio(self._means), self.spec.weight)
        return self.spec.weight

    def end_step(self, sums: Mapping[str, LossSum]) -> None:
        """Take a finished optimiser step into the running means, without waiting for the device.

        A step without numbers says nothing about the size of the terms and is passed over; so
        is one that is not finite.

        Args:
            sums: The parts of the whole step, added over its micro-batches and ranks.
        """
        if self.spec.balance != "running" or not self.spec.terms:
            return
        now = self._means_of(sums)
        before = torch.zeros_like(now) if self._means is None else self._means.to(now.device)
        mixed = torch.where(before[1] != 0, _KEPT * before + (1 - _KEPT) * now, now)
        usable = (now[1] != 0) & now.isfinite().all()  # a step of fp16 may overflow and be skipped
        self._means = torch.where(usable, mixed, before)

    def _means_of(self, sums: Mapping[str, LossSum]) -> Tensor:
        """Return the means of cross-entropy and of the weighted terms together, [2], float64."""
        terms = [t.weight * sums[t.name].mean.detach().double() for t in self.spec.terms]
        return torch.stack([sums["ce"].mean.detach().double(), torch.stack(terms).sum()])

    def _ratio(self, means: Tensor) -> Tensor:
        """Return what brings the terms to the size of cross-entropy, times their weight."""
        cross_entropy, numeric = means.unbind()
        return self.spec.weight * cross_entropy / (numeric + _TINY)

    def reset(self) -> None:
        """Forget what was seen: another training begins."""
        self._means = None

    def state_dict(self) -> dict[str, list[float] | None]:
        """Return what a run that goes on has to know; plain numbers."""
        return {"means": None if self._means is None else self._means.tolist()}

    def load_state_dict(self, state: Mapping[str, list[float] | None]) -> None:
        """Go on from where ``state_dict`` was taken."""
        means = state["means"]
        self._means = None if means is None else torch.tensor(means, dtype=torch.float64)
