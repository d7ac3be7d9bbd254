"""Task: read the time on an analogue clock.

Example  {"id": "1", "image": "1.png", "time": "7:05"}
Prompt   What time does the clock show? Answer as H:MM.
Text     7:05

Rows     {"id": text, "image": path, "time": "H:MM"}
         or {"file": path, "hour": 1..12, "minute": 0..59}
Answer   "H:MM" on a 12-hour dial, for example "7:05"
Scorer   mm_numeric.evaluation.metrics.clock
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import ClockTime, Example, Mark, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.tasks.answer_part import AnswerPart, answer_part, number_part
from mm_numeric.tasks.base import BaseTask, Rows, image_example
from mm_numeric.tasks.clock_text import lenient_time

_WRITTEN = re.compile(r"[ \t]*([0-9]{1,2}):([0-9]{2})[ \t]*")
_TIME = re.compile(r"(?<![0-9:])([0-9]{1,2}):([0-9]{2})(?![0-9:])")


@dataclass(frozen=True, kw_only=True)
class Clock(BaseTask):
    """Task: read the time shown by an analogue clock."""

    version: ClassVar[int] = 2
    report_sections: ClassVar[tuple[str, ...]] = ("clock",)

    prompt: str = "What time does the clock show? Answer as H:MM."
    """Prompt of all images."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row."""
        for where, row in rows:
            yield image_example(row, where, prompt=self.prompt, answer=read_time(row, where))

    def format(self, answer: ClockTime, frame: Frame | None = None) -> Written:
        """Return a time as text, such as ``7:05``, with the positions of its hour and minute."""
        text = str(answer)
        colon = text.index(":")
        hour, minute = Mark(0, colon, "hour", 0), Mark(colon + 1, len(text), "minute", 0)
        return Written(text, (hour, minute))

    def answer_part(self, text: str) -> AnswerPart:
        """Return the part of a generated text whose last time is the answer."""
        part = number_part(text)
        # ``Answer: 3 hours 15 minutes`` has no time as H:MM: search the text before it, too.
        return part if part.failure or _TIME.search(part.text) else answer_part(text)

    def parse(self, text: str, frame: Frame | None = None) -> ClockTime | Unreadable:
        """Return the last clock time, such as ``7:05``, in a generated text.

        If the time has another format, such as ``7:05:15``, ``19:05`` or ``7 o'clock``, return
        ``Unreadable``. Its attribute ``lenient`` is then this time, for the lenient metrics.
        """
        times = _TIME.findall(text)
        if not text.strip():
            return Unreadable("empty answer")
        if not times:
            return Unreadable("no time as H:MM", lenient=_on_dial(text))
        hour, minute = map(int, times[-1])
        if not 1 <= hour <= 12:
            return Unreadable("hour not 1 to 12", lenient=_on_dial(text))
        if minute > 59:
            return Unreadable("minute not 0 to 59")
        return ClockTime(hour, minute)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the times on a 12-hour dial: 1:00 to 12:59."""
        return "(?:[1-9]|1[0-2]):[0-5][0-9]"

    def record(self, answer: ClockTime) -> str:
        """Convert ``ClockTime(7, 5)`` to the text ``7:05`` for predictions.jsonl."""
        return str(answer)

    def recorded(self, value: Any) -> ClockTime:
        """Convert a text in predictions.jsonl, such as ``7:05``, back to a time."""
        answer = self.parse(value) if isinstance(value, str) else Unreadable("not a text")
        if isinstance(answer, Unreadable):
            raise ValueError(f"the target {value!r:.60} cannot be read: {answer.reason}")
        return answer


def _on_dial(text: str) -> ClockTime | None:
    """Find the last time in a text and convert it to 12-hour H:MM: 19:05:15 becomes 7:05."""
    found = lenient_time(text)
    return None if found is None else ClockTime.from_minutes(60 * found.hour + found.minute)


def read_time(row: Mapping[str, Any], where: str) -> ClockTime:
    """Read the time of a row from its field ``time`` ("H:MM"), or from ``hour`` and ``minute``."""
    hour, minute, shown = row.get("hour"), row.get("minute"), row.get("time")
    if shown is not None:
        match = _WRITTEN.fullmatch(str(shown))
        if not match:
            raise ValueError(
                f'{where}: time {shown!r} is not written as "H:MM", such as "7:05", '
                "without am or pm; the task clockbench accepts seconds, ranges and clocks without "
                "a valid time."
            )
        hour, minute = match.groups()
    elif hour is None or minute is None:
        raise ValueError(f'{where}: no time; each row needs "time", or "hour" and "minute".')
    else:
        shown = f"hour {hour}, minute {minute}"
    try:
        return ClockTime(int(str(hour)), int(str(minute)))  # through str, because int(7.9) is 7
    except ValueError as error:
        raise ValueError(f"{where}: {shown!r} is not a time on a 12-hour dial: {error}.") from None
