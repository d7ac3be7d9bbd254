"""Rows that a run skips because their image cannot be read."""

import json
from collections.abc import Mapping
from pathlib import Path

from mm_numeric.files import write_text
from mm_numeric.log import ALL_RANKS, logger
from mm_numeric.training.ranks import Ranks

LEFT_OUT = "left_out.json"  # in a checkpoint


class LeftOut:
    """Which rows a run leaves out (``data.on_bad_image: skip``), by id, over all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        """Begin with none."""
        self.ranks, self.ids = ranks, set[str]()
        self._new: set[str] = set()

    def note(self, rows: Mapping[str, str]) -> None:
        """Take rows that this rank has left out, and say once of each why."""
        for row in rows.keys() - self.ids - self._new:
            self._new.add(row)
            logger.warning("row skipped: %s", rows[row], extra=ALL_RANKS)

    def count(self) -> int:
        """Return how many there are by now, on all ranks; all of them have to ask."""
        for found in self.ranks.exchange(self._new or None):
            self.ids |= found
        self._new = set()
        return len(self.ids)

    def save(self, checkpoint: Path) -> None:
        """Write what ``count`` has counted."""
        write_text(checkpoint / LEFT_OUT, json.dumps(sorted(self.ids)) + "\n")

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint; one that does not say it has left nothing out."""
        file = checkpoint / LEFT_OUT
        self.ids = set(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else ())
