"""Task: read a clock with seconds and date, and recognise a clock that shows no valid time.

Example  {"id": "1", "image": "1.png", "answer": {"valid": true, "hours": 7, "minutes": 5,
         "seconds": false}}
Prompt   What time does the clock show? Answer as a JSON object with the fields valid (false if no
         clock can show these hands), hours, minutes, seconds, date, month and weekday. Write false
         for what the clock does not show.
Text     {"valid": true, "hours": 7, "minutes": 5, "seconds": false}

Rows     {"id": text, "image": path, "question": text, "category": text, "answer": {
          "valid": true, "hours": 1, "minutes": [4, 5], "seconds": 45,
          "date": false, "month": false, "weekday": "Monday"}}
         "question" and "category" are optional. A field is false or missing if the clock does not
         show it; {"valid": false} means that the clock shows no valid time. The list [4, 5] accepts
         4 to 5; [1, 3, 5] accepts 1, 3 or 5; {"a": 10, "b": [4, 5]} accepts 10, or 4 to 5 (the
         names "a" and "b" are ignored)
Answer   the same object as JSON, with one value for each field
Scorer   mm_numeric.evaluation.metrics.clockbench

Source: https://clockbench.ai, clockbench_grade.py and input/answers_sample.json.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import ClockReading, Example, Mark, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.tasks.base import BaseTask, Rows, image_example
from mm_numeric.tasks.clock_text import lenient_time, read_object

_LIMITS = {"hours": (0, 24), "minutes": (0, 59), "seconds": (0, 59), "date": (1, 31)}
_ROLES = {"hours": "hour", "minutes": "minute"}
_NO_TIME = re.compile(r"\b(?:invalid|impossible|not (?:a )?valid|no valid)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ClockBench(BaseTask):
    """Task: read a clock with seconds and date, or recognise that it shows no valid time."""

    reads_whole_text: ClassVar[bool] = True

    prompt: str = (
        "What time does the clock show? Answer as a JSON object with the fields valid (false if no "
        "clock can show these hands), hours, minutes, seconds, date, month and weekday. Write "
        "false for what the clock does not show."
    )
    """Prompt of rows without a ``question``."""

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row. A row needs an ``answer`` in training."""
        for where, row in rows:
            answer, category = row.get("answer"), row.get("category")
            if training and answer is None:
                raise ValueError(f'{where}: no "answer" to train on; add it, or remove the row.')
            if not isinstance(category, str | None):
                raise ValueError(f"{where}: the category {category!r:.40} is not a text.")
            question = self.prompt if row.get("question") is None else row["question"]
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"{where}: the question {question!r:.40} is not a text.")
            yield image_example(
                row,
                where,
                prompt=question,
                answer=None if answer is None else read_target(answer, where),
                bucket_fields=("category",),
            )

    def format(self, answer: ClockReading, frame: Frame | None = None) -> Written:
        """Return the answer as JSON, with one value per field, and the positions of its numbers.

        If several values of a field are correct, write the middle of the range or the first value.
        """
        text, marks = "{", []
        for name, value in answer.fields.items():
            text += f'{", " if len(text) > 1 else ""}"{name}": '
            written = json.dumps(_first(value))
            if written.isdigit():
                end = len(text) + len(written)
                role = _ROLES.get(name, "free")
                marks.append(Mark(len(text), end, role, 0 if name in _ROLES else -1))
            text += written
        return Written(text + "}", tuple(marks))

    def parse(self, text: str, frame: Frame | None = None) -> ClockReading | Unreadable:
        """Parse the JSON object in a generated text; some mistakes in its syntax are repaired.

        A text without such an object is unparseable. If it has a time (``7:05:15``) or says that
        there is no valid time, the lenient metrics use this answer.
        """
        if not text.strip():
            return Unreadable("empty answer")
        fields = read_object(text)
        if fields is not None:
            return ClockReading(fields)
        if _NO_TIME.search(text):
            return Unreadable("no JSON object", lenient=ClockReading({"valid": False}))
        time = lenient_time(text)
        if time is None:
            return Unreadable("no JSON object")
        second = False if time.second is None else time.second
        found = {"valid": True, "hours": time.hour, "minutes": time.minute, "seconds": second}
        return Unreadable("no JSON object", lenient=ClockReading(found))

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of an object with up to seven fields, in any order."""
        values = {name: number_regex(*_LIMITS.get(name, (1, 12))) for name in ClockReading.FIELDS}
        # The name of a month or weekday: a JSON text of up to 40 characters.
        name = r'"(?:[ !#-\[\]-~]|\\["\\bfnrt]|\\u[0-9a-f]{4}){1,40}"'
        values |= {"valid": "true", "month": f"(?:{values['month']}|{name})", "weekday": name}
        fields = [f'"{field}": (?:{value}|false|null)' for field, value in values.items()]
        field = f"(?:{'|'.join(fields)})"
        return rf"\{{{field}(?:, {field}){{0,6}}\}}"

    def record(self, answer: ClockReading) -> dict[str, Any]:
        """Convert an answer to a JSON object for predictions.jsonl."""
        return dict(answer.fields)

    def recorded(self, value: Any) -> ClockReading:
        """Convert a JSON object in predictions.jsonl back to the correct answer of a row."""
        return read_target(value, "the target")


def read_target(value: Any, where: str) -> ClockReading:
    """Parse a ground-truth answer such as ``{"valid": true, "hours": 1, "minutes": [4, 5]}``."""
    if not isinstance(value, Mapping) or not isinstance(value.get("valid"), bool):
        raise ValueError(
            f'{where}: the answer {value!r:.60} is not an object with "valid", true or false.'
        )
    unknown = sorted(set(value) - {"valid", *ClockReading.FIELDS})
    if unknown:
        raise ValueError(
            f"{where}: the answer has a field {unknown[0]!r:.40}; the fields are valid, "
            f"{', '.join(ClockReading.FIELDS)}."
        )
    if not value["valid"]:
        return ClockReading({"valid": False})
    for name in ClockReading.FIELDS:
        shown = value.get(name)
        is_shown = shown is not None and shown is not False
        if name in ("hours", "minutes") and not is_shown:
            raise ValueError(f"{where}: a valid time needs {name}, found {shown!r:.40}.")
        if is_shown and not _is_possible(name, shown):
            raise ValueError(f"{where}: {name} {shown!r:.60} is not possible; {_allowed(name)}.")
    return ClockReading(dict(value))


def _is_possible(name: str, value: Any) -> bool:
    """Return True if ``value``, such as [4, 5], is valid for a field such as ``minutes``."""
    if name in ("month", "weekday") and isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list):
        return len(value) > 1 and all(_is_number(name, item) for item in value)
    if isinstance(value, Mapping):
        return bool(value) and all(
            len(item) == 2 and _is_possible(name, item)
            if isinstance(item, list)
            else _is_number(name, item)
            for item in value.values()
        )
    return _is_number(name, value)


def _is_number(name: str, value: Any) -> bool:
    low, high = _LIMITS.get(name, (1, 12) if name == "month" else (1, 0))
    return type(value) is int and low <= value <= high


def _allowed(name: str) -> str:
    """Return a text for error messages that lists the valid values of a field such as ``hours``."""
    if name == "weekday":
        return "write a text such as Monday, or false"
    low, high = _LIMITS.get(name, (1, 12))
    text = " or a text such as June," if name == "month" else ""
    return f"write {low} to {high},{text} a range such as [{low}, {low + 1}], or false"


def _first(value: Any) -> Any:
    """Return one of the accepted values: the middle of a range, or the first of several."""
    if isinstance(value, Mapping):
        return _first(next(iter(value.values())))
    if isinstance(value, list):
        return round((value[0] + value[1]) / 2) if len(value) == 2 else value[0]
    return value
