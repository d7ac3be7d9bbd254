"""The result of an objective for a batch: training loss, sums of its components, and metrics.

Axes    f training metrics
"""

from dataclasses import dataclass

from torch import Tensor

from mm_numeric.losses.term import LossSum


@dataclass(frozen=True, eq=False)
class ObjectiveResult:
    """The training loss of a batch, and the losses that it is the weighted sum of.

    Attributes:
        loss: Scalar training loss, differentiable.
        sums: Sum and count of cross-entropy (``ce``) and of each numeric loss, without weights.
        figures: [f, 2] sum and count of each of the f training metrics; None if not requested.
    """

    loss: Tensor
    sums: dict[str, LossSum]
    figures: Tensor | None = None

    @property
    def parts(self) -> dict[str, Tensor]:
        """Return the unweighted mean cross-entropy and numeric losses of this batch, by name."""
        return {name: component.mean for name, component in self.sums.items()}
