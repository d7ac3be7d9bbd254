"""Clocks whose reader finds a time in nearly any text: an untrained model has figures that move."""

from dataclasses import dataclass
from zlib import crc32

from mm_numeric.answers import ClockTime, Unreadable
from mm_numeric.tasks.clock import Clock


@dataclass(frozen=True, kw_only=True)
class HashedClock(Clock):
    """Reads a time as ``Clock`` does, else makes one of the text; one text in five has none."""

    def parse(self, text, frame=None):
        found = super().parse(text, frame)
        if not isinstance(found, Unreadable):
            return found
        number = crc32(text.encode())
        return found if number % 5 == 0 else ClockTime.from_minutes(number % 720)
