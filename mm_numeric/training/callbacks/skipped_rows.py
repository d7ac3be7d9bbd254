"""Record the training rows that a run skips."""

from collections.abc import Mapping

from mm_numeric.distributed.ranks import Ranks
from mm_numeric.io.log import ALL_RANKS, logger


class SkippedRows:
    """Collects the ids of the training rows that a run skips, over all ranks.

    A row is skipped for an unreadable image (``data.on_bad_image: skip``) or for its length
    (``data.too_long: drop``).
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.ids = ranks, set[str]()
        self._new: set[str] = set()

    def add(self, reasons: Mapping[str, str]) -> None:
        """Add rows that this rank skipped, a dict of id to reason, and log each new row."""
        for row in reasons.keys() - self.ids - self._new:
            self._new.add(row)
            logger.warning("row skipped: %s", reasons[row], extra=ALL_RANKS)

    def count(self) -> int:
        """Return the number of training rows skipped so far on all ranks. Call it on all ranks."""
        for found in self.ranks.exchange(self._new or None):
            self.ids |= found
        self._new = set()
        return len(self.ids)
