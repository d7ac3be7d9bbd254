"""Task: read a measuring instrument, such as a thermometer, a gauge, a ruler or a clock.

Example  {"id": "1", "image": "1.png", "question": "How warm is it?", "answer": 36.6, "unit": "°C"}
Prompt   How warm is it?
Text     36.6 °C

Rows     {"id": text, "image": path, "question": text, "answer": number or text, "unit": text};
         "unit" may be a list of spellings, the first of which is written: ["°C", "Celsius"]; an
         empty list if the question asks for no unit
         "time": "10:09:30" may replace "answer" and "unit"
         "intervals" may replace them, too, as in MeasureBench: [{"low": 9.5, "high": 9.7,
         "units": ["A"]}, ...], where a time is "10:09:30"; the training answer is the middle of the
         first interval
         optional: "range": [lowest, highest] of the instrument, "tolerance" (see the option), and
         "instrument" and "category", for which metrics are reported separately
Answer   the number as it is in the row, and its unit: ``36.6 °C``; or the number alone; or a time
Scorer   mm_numeric.evaluation.metrics.measurement

A reading in another unit than the row's is wrong: units are not converted.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar

from mm_numeric.answers import (
    Example,
    Interval,
    Measurement,
    Number,
    Tolerance,
    Unreadable,
    Written,
)
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.row_shapes import finite_numbers
from mm_numeric.numbers.numerals import plain_numbers, without_latex
from mm_numeric.tasks.answer_part import BOXED, AnswerPart
from mm_numeric.tasks.base import Rows
from mm_numeric.tasks.number_questions import ApproximateNumbers, last_numeral, with_numerals

# Characters of a unit: letters, % ' " / ^ and all characters that are not ASCII, such as ° and µ.
# A digit may follow a letter or ^.
_CHARACTER = r"""[^\x00-\x20!#$&()*+,\-.0-9:;<=>?@\[\\\]_`{|}~\x7f]"""
_WORD = rf"(?:[A-Za-z^][0-9]|{_CHARACTER}){{1,20}}"
_UNIT = rf"{_WORD}(?: {_WORD}){{0,3}}"
_TIME = r"[0-9]{1,2}:[0-5][0-9](?::[0-5][0-9])?"
_LAST_TIME = re.compile(rf"(?<![0-9:.]){_TIME}(?![0-9:]|\.[0-9])")
_AFTER_BOX = re.compile(r"\}[ \t$]{0,4}([^0-9\n$.,;][^\n$.,;]{0,60})")
_CLOCK = re.compile(
    r"\b(?:time|clock|watch|hands?|hours?|minutes?|seconds?)\b|时间|时钟|时针|分针", re.IGNORECASE
)
_OF_DIAL = re.compile(
    r"(?:hours?|hrs?|h|minutes?|mins?|seconds?|secs?|s|degrees?|o|and|on|is|at|in|past|just|near|mark|position)\b",
    re.IGNORECASE,
)
"""Words after a number that describe a clock's dial and are not a unit, such as the ``and`` in
``between 9 and 10``."""

_AFTER_NUMBER = re.compile(rf"[ \t]*({_UNIT})")


@dataclass(frozen=True, kw_only=True)
class ReadInstrument(ApproximateNumbers):
    """Task: read the number and the unit that an instrument shows."""

    version: ClassVar[int] = 3
    reads_by: ClassVar[tuple[str, ...]] = ("write_unit", "number_format")
    bucket_fields: ClassVar[tuple[str, ...]] = ("category", "instrument")
    scorer = "mm_numeric.evaluation.metrics.measurement:MEASUREMENTS"

    prompt: str = "{question}"
    """Prompt; ``{question}`` is replaced by the question of the row, ``{unit}`` by its unit."""

    write_unit: bool = True
    """True to write and require the unit after the number. False to write only the number; the
    prompt then has to name the unit, such as ``prompt: "{question} Answer in {unit}."``."""

    tolerance: float = 0.02
    """Largest error of a correct reading, as a fraction of the instrument's range or, in rows
    without ``range``, of the reading. A row may have its own ``tolerance``, such as ``{"absolute":
    0.1}``, in the row's unit."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row."""
        for where, row in rows:
            for example in super().examples([(where, row)], training=training):
                prompt = example.prompt.replace("{unit}", "".join(example.answer.units[:1]))
                yield replace(example, prompt=prompt)

    def read_target(self, row: Mapping[str, Any], where: str) -> Measurement:
        """Return the correct reading of a row with its unit, range and tolerance or intervals."""
        intervals, is_time = _intervals(row.get("intervals"), where)
        answer = row.get("answer")
        if row.get("time") is not None:
            answer, is_time = str(seconds_of(row["time"], f"{where}, time")), True
        elif intervals and answer is None:
            answer = _middle(intervals[0], whole=is_time)
        number = super().read_target({**row, "answer": answer}, where)
        if intervals and not intervals[0].low <= number.value <= intervals[0].high:
            raise ValueError(f"{where}: the answer {number} is not in the first interval.")
        if intervals:
            units = intervals[0].units
        else:
            units = () if is_time else _units(row.get("unit"), where)
        span = _range(row.get("range"), number, where)
        tolerance = number.tolerance
        if span is not None and row.get("tolerance") in (None, ""):
            tolerance = Tolerance(absolute=self.tolerance * (span[1] - span[0]))
        return Measurement(
            number.text, units, span, intervals, is_time=is_time, tolerance=tolerance
        )

    def format(self, answer: Any, frame: Frame | None = None) -> Written:
        """Return the text of a reading, such as ``36.6 °C``, with the position of its number."""
        number = with_numerals(str(answer))
        if not (self.write_unit and any(answer.units[:1])):
            return number
        text = f"{answer} {answer.units[0]}"
        digits = frozenset(i for i in range(len(number.text), len(text)) if text[i].isdigit())
        return Written(text, number.marks, digits)

    def answer_part(self, text: str) -> AnswerPart:
        r"""Return the part of a text with the answer, and a unit that follows ``\boxed{...}``."""
        part = super().answer_part(text)
        if part.rules[-1:] != (BOXED,):
            return part
        unit = _AFTER_BOX.match(text, part.start + len(part.text))
        return part._replace(text=f"{part.text} {unit[1]}") if unit else part

    def parse(self, text: str, frame: Frame | None = None) -> Measurement | Unreadable:
        """Return the last number in a text, and the words after it as its unit.

        Digits in a unit, such as the 2 of ``m/s2``, are not numbers. ``10:09`` and ``10:09:30`` are
        times, which need no unit. The last time is the answer if no number with a unit follows. It
        is also the answer if this unit is a word such as ``minutes`` in a text about a clock.
        """
        text = plain_numbers(without_latex(text), self.number_format)
        found, end = last_numeral(text, within_words=False)
        unit = _AFTER_NUMBER.match(text, end) if end else None
        times = list(_LAST_TIME.finditer(text))
        is_dial = unit is None or (_OF_DIAL.match(unit[1]) and _CLOCK.search(text))
        if times and (times[-1].end() >= end or is_dial):
            return Measurement(str(seconds_of(times[-1][0], "")), is_time=True)
        if isinstance(found, Unreadable):
            return found
        if unit is None:
            return Measurement(found.text, ("",) if self.write_unit else ())
        return Measurement(found.text, (unit[1].rstrip("\"'") or unit[1],))

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a number or time, and a unit if ``write_unit`` is True."""
        number = f"(?:{super().grammar(frame)}|{_TIME})"
        return f"{number}(?: {_UNIT})?" if self.write_unit else number

    def record(self, answer: Any) -> Any:
        """Convert a reading to JSON for predictions.jsonl."""
        own = {"unit": [*filter(None, answer.units)], "range": answer.range and list(answer.range)}
        if answer.is_time:
            own["time"] = str(answer)
        if answer.intervals:
            show = time_text if answer.is_time else float
            own["intervals"] = [
                {"low": show(i.low), "high": show(i.high), "units": list(i.units)}
                for i in answer.intervals
            ]
        return {**super().record(answer), **own}

    def recorded(self, value: Any) -> Measurement:
        """Convert a JSON value in predictions.jsonl back to a reading."""
        if not isinstance(value, Mapping):
            raise ValueError(f'the target has "answer" and "unit", and is not {value!r:.60}')
        return self.read_target(value, "the target")


def seconds_of(time: Any, where: str) -> int:
    """Convert a time such as ``10:09`` or ``10:09:30`` to seconds."""
    if not isinstance(time, str) or not re.fullmatch(_TIME, time):
        raise ValueError(f'{where}: a time is a text such as "10:09:30", not {time!r:.40}.')
    hours, minutes, *seconds = map(int, time.split(":"))
    return 3600 * hours + 60 * minutes + sum(seconds)


def time_text(seconds: float) -> str:
    """Convert seconds to a time such as ``10:09`` or ``10:09:30``."""
    return str(Measurement(str(int(seconds)), is_time=True))


def _intervals(value: Any, where: str) -> tuple[tuple[Interval, ...], bool]:
    """Read the field ``intervals`` of a row. Also return True if the intervals are of times."""
    if value is None:
        return (), False
    if not (isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value)):
        raise ValueError(
            f'{where}, intervals: expected a list such as [{{"low": 9.5, "high": 9.7, "units": '
            f'["A"]}}], found {value!r:.60}.'
        )
    found = []
    is_time = isinstance(value[0].get("low"), str)
    for i, raw in enumerate(value):
        place = f"{where}, intervals.{i}"
        ends = [raw.get("low"), raw.get("high")]
        if is_time:
            low, high = (float(seconds_of(end, place)) for end in ends)
        else:
            low, high = finite_numbers(ends, place)
        units = raw.get("units", [])
        if not (isinstance(units, list) and all(isinstance(unit, str) for unit in units)):
            raise ValueError(f"{place}, units: expected a list of texts, found {units!r:.60}.")
        if low > high:
            raise ValueError(f"{place}: low {ends[0]!r} is above high {ends[1]!r}.")
        found.append(Interval(low, high, tuple(units)))
    return tuple(found), is_time


def _middle(interval: Interval, *, whole: bool) -> str:
    """Return an interval's middle, rounded to a tenth of its width or to a ``whole`` number."""
    low, high, _ = interval
    if whole:
        return f"{(low + high) // 2:.0f}"
    if low == high:
        text = f"{Decimal(str(low)):f}"
    else:
        decimals = max(0, 1 - math.floor(math.log10(high - low)))
        text = f"{(low + high) / 2:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _units(value: Any, where: str) -> tuple[str, ...]:
    units = [value] if isinstance(value, str) else value
    if not (isinstance(units, list) and all(map(_is_unit, units))):
        raise ValueError(
            f'{where}: each row needs "unit", such as "°C" or ["°C", "degrees Celsius"], of up to '
            "four words, or [] if the question asks for no unit, found "
            f"{value!r:.60}; numbers without a unit are for the task `numbers`."
        )
    return tuple(units)


def _is_unit(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(_UNIT, value) is not None


def _range(value: Any, number: Number, where: str) -> tuple[float, float] | None:
    if value is None:
        return None
    bounds = finite_numbers(value, f"{where}, range")
    if len(bounds) != 2 or not bounds[0] <= number.value <= bounds[1] or bounds[0] == bounds[1]:
        raise ValueError(
            f"{where}, range: expected [lowest, highest] with the reading {number} between them, "
            f"found {value!r:.60}."
        )
    return bounds[0], bounds[1]
