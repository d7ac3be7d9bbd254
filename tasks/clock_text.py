"""Read times from texts that do not have the format of the prompt, for lenient metrics.

clock times    7:05:15   19:05   0:25   7:5   7h05   7 h 5 min   7 hours and 5 minutes
whole hours    7 o'clock   7 pm   7h
objects        {"hours": 7, "minutes": 5, "seconds": 15}, also with keys such as hour, h or Minute,
               and in Python's syntax or with the mistakes that ClockBench's script repairs
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![0-9:.])([0-9]{1,2})[:\uff1a]([0-9]{1,2})(?:[:\uff1a]([0-9]{1,2}))?(?![0-9:])",
        r"(?<![0-9:.])([0-9]{1,2}) ?h(?:ours?|rs?)?,? ?(?:and )?([0-9]{1,2})(?![0-9:])"
        r"(?: ?m(?:in(?:ute)?s?)?,? ?(?:and )?([0-9]{1,2}) ?s)?",
        r"(?<![0-9:.])([0-9]{1,2}) ?(?:o['\u2019]? ?clock\b|h\b(?! ?[0-9])|[ap]\.?m\b)",
    )
)
"""Patterns of a time; the groups are the hour, and, if the pattern has them, minute and second."""

_KEYS = {
    "hours": ("hours", "hour", "h"),
    "minutes": ("minutes", "minute", "mins", "min", "m"),
    "seconds": ("seconds", "second", "secs", "sec", "s"),
}
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_BARE_KEY = re.compile(r"(?<=[{,])(\s*)([A-Za-z_]\w*)(\s*):")
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}
_CONSTANT = re.compile(r"\b(?:true|false|null)\b", re.IGNORECASE)
_LONGEST = 10_000  # maximum length of an object in characters; answers are far shorter


class TimeOfDay(NamedTuple):
    """A time between 0:00:00 and 24:00:00."""

    hour: int
    minute: int
    second: int | None
    """None if the text has no seconds."""


def lenient_time(text: str) -> TimeOfDay | None:
    """Return the last time in a text; None if the text has no time or the last time is invalid."""
    fields = read_object(text)
    if fields is not None:
        found = time_of_fields(fields)
        if found is not None:
            return found
    matches = [match for pattern in _PATTERNS for match in pattern.finditer(text)]
    if not matches:
        return None
    last = max(matches, key=lambda match: (match.start(), match.end()))
    return _checked(last.groups())


def time_of_fields(fields: Mapping[str, Any]) -> TimeOfDay | None:
    """Return the time in an object such as ``{"hours": 7, "minutes": 5}``; None if invalid."""
    lower = {str(name).lower(): value for name, value in fields.items()}
    values = []
    for names in _KEYS.values():
        found = next((lower[name] for name in names if name in lower), None)
        values.append(None if found is False else found)
    return None if values[0] is None or values[1] is None else _checked(values)


def _checked(values: Iterable[Any]) -> TimeOfDay | None:
    """Convert hour, minute and second to a time; None if a value is no number or out of range."""
    texts = ["" if value is None else str(value).strip() for value in values]
    texts += [""] * (3 - len(texts))
    if not re.fullmatch("[0-9]{1,2}", texts[0]):
        return None
    if not all(re.fullmatch("(?:[0-9]{1,2})?", text) for text in texts[1:]):
        return None
    hour, minute, second = int(texts[0]), int(texts[1] or 0), int(texts[2] or 0)
    if hour > 24 or minute > 59 or second > 59 or (hour == 24 and (minute or second)):
        return None
    return TimeOfDay(hour, minute, second if texts[2] else None)


def read_object(text: str) -> dict[str, Any] | None:
    """Parse the object between the first ``{`` and the last ``}`` of a text; None if it has none.

    Like ClockBench, accept trailing commas, keys without quotes and Python's syntax.
    """
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end or end - start > _LONGEST:
        return None
    written = text[start : end + 1]
    repaired = _BARE_KEY.sub(r'\1"\2"\3:', _TRAILING_COMMA.sub(r"\1", written))
    for candidate in (written, repaired):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return _as_json(found)
    python = _CONSTANT.sub(lambda match: _CONSTANTS[match[0].lower()], repaired)
    try:
        found = ast.literal_eval(python)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return _as_json(found)


def _as_json(found: Any) -> dict[str, Any] | None:
    """Convert a parsed dict to JSON types; None if it is no dict, or has a value such as NaN."""
    try:
        value = json.loads(json.dumps(found, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
