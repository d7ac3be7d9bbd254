"""How well true shapes were found: by an objective, and by a model that answers the mean box.

Units    IoU 0 to 1; shares of all true shapes, those in answers that could not be read included
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Instance
from mm_numeric.evaluation.metrics.boxes import size_of
from mm_numeric.evaluation.metrics.matching import FIND, Paired, mean_box, pair
from mm_numeric.evaluation.report.charts import Mark
from mm_numeric.geometry.row_shapes import instance_row

Row = Mapping[str, Any]

BINS = 20
MEAN_BOX = Mark(
    name="mean box", colour="var(--warm)", shape="M-7,-1.6H7V1.6H-7Z", dash="1.5 3"
)  # a model that has not looked


@dataclass(frozen=True)
class Fit:
    """What became of all true shapes under one objective, all seeds together."""

    mark: Mark
    ious: NDArray[np.float64]
    """Of each true shape."""

    read: NDArray[np.bool_]
    """Whether the answer that should hold it could be read, likewise."""

    sizes: NDArray[np.str_]
    """Likewise: small, medium or large."""

    answers: int
    """How many shapes were answered that count."""

    @property
    def unreadable(self) -> float:
        """The share of shapes whose answer could not be read."""
        return _mean(~self.read)

    @property
    def nothing(self) -> float:
        """The share of shapes that no answer touches, though it could be read."""
        return _mean(self.read & (self.ious == 0))

    def at(self, threshold: float, size: str | None = None) -> float | None:
        """Return the share of shapes, of all or one size, with an IoU of at least so much."""
        ious = self.ious if size is None else self.ious[self.sizes == size]
        return _mean(ious >= threshold) if len(ious) else None

    def mean_iou(self, size: str | None = None) -> float | None:
        """Return the mean IoU of the shapes, of all or one size."""
        ious = self.ious if size is None else self.ious[self.sizes == size]
        return _mean(ious) if len(ious) else None

    @property
    def precision(self) -> float | None:
        """The share of answered shapes that find one."""
        return int((self.ious >= FIND).sum()) / self.answers if self.answers else None

    def bins(self) -> list[float]:
        """Return the shares of unreadable and of missed shapes, and then those of each bin."""
        edges = [step / BINS for step in range(BINS + 1)]
        counts, _ = np.histogram(self.ious[self.ious > 0], edges)
        return [self.unreadable, self.nothing, *(counts / max(len(self.ious), 1)).tolist()]


def fit(mark: Mark, rows: Sequence[Row], paired: Sequence[Paired]) -> Fit:
    """Put the true shapes of rows together."""
    truths = [truth.shape for row in paired for truth in row.truths]
    read = [
        row["parsed"] is not None for row, own in zip(rows, paired, strict=True) for _ in own.truths
    ]
    return Fit(
        mark=mark,
        ious=np.array([iou for own in paired for iou in own.ious], dtype=np.float64),
        read=np.array(read, dtype=np.bool_),
        sizes=np.array([size_of(shape) for shape in truths], dtype=np.str_),
        answers=sum(sum(own.counts) for own in paired),
    )


def mean_box_fit(rows: Sequence[Row], paired: Sequence[Paired]) -> tuple[Instance, Fit] | None:
    """Return what a model gets that answers the mean box, once, whatever it is shown.

    Args:
        rows: Of one run.
        paired: The same, for their true shapes.

    Returns:
        The box, with the commonest label where there are labels, and its fit; None where there is
        nothing to be found.
    """
    box = mean_box(paired)
    if box is None:
        return None
    labels = Counter(truth.label for own in paired for truth in own.truths)
    answer = Instance(box, labels.most_common(1)[0][0])
    answers = [{**row, "parsed": instance_row(answer)} for row in rows]
    return answer, fit(MEAN_BOX, answers, pair(answers, "the mean box"))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0
