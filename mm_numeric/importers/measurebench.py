"""Import MeasureBench: rows of FlagEval/MeasureBench, saved as JSON, or files of its generators.

    [{"question_id": "ammeter_0", "question": "What is the reading of the instrument?",
      "img_path": "img/ammeter_0.jpg", "image_type": "ammeter", "design": "dial",
      "evaluator": "interval_matching",
      "evaluator_kwargs": {"interval": [9.5, 9.7], "units": ["A", "Ampere"]}}, ...]

The evaluator ``multi_interval_matching`` has ``intervals``, and a list of units for each interval.
Times are texts: ``["8:59:06", "8:59:07"]``. ``evaluator_kwargs`` may be a JSON text, as on the hub.
Save the images as files, and write their paths in ``img_path`` or ``image``. ``image_type`` becomes
``instrument``, and ``design`` (dial, digital, linear, composite) becomes the category.

Like MeasureBench's script, leave out an interval without a list of units: with ``"units": [""]``,
only the first of several intervals counts.

Source: https://github.com/flageval-baai/MeasureBench, evaluation/measure_bench_evaluator.py;
FlagEval/MeasureBench on the hub.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    InvalidRowError,
    invalid_as,
    parse_text,
    shorten,
    text_field,
)
from mm_numeric.tasks.measurement import ReadInstrument, time_text

_TIME = re.compile(r"[0-9]{1,2}(?::-?[0-9]{1,2}){1,2}")  # a generator writes 05:07:-1


@dataclass(frozen=True, kw_only=True)
class MeasureBench(ImageImporter):
    """Importer for MeasureBench, one row per question."""

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question and the intervals of its correct readings."""
        row = {
            "id": str(raw.get("question_id") or identity),
            **self.folder.fields(parse_text(raw.get("img_path") or raw.get("image"), "img_path")),
            "question": text_field(raw, "question"),
            "intervals": _intervals(raw.get("evaluator"), raw.get("evaluator_kwargs")),
            "instrument": text_field(raw, "image_type").lower(),
            "category": text_field(raw, "design").lower(),
        }
        with invalid_as("intervals"):
            list(ReadInstrument().examples([("", row)], training=False))
        return row


def _intervals(evaluator: Any, given: Any) -> list[dict[str, Any]]:
    if evaluator not in ("interval_matching", "multi_interval_matching"):
        raise InvalidRowError(
            "evaluator",
            f"it is interval_matching or multi_interval_matching, not {shorten(evaluator)}.",
        )
    try:
        fields = json.loads(given) if isinstance(given, str) else given
        units = fields["units"]
        if evaluator == "interval_matching":
            pairs = [(fields["interval"], units)]
        else:
            intervals = fields["intervals"]
            pairs = list(zip(intervals, units or [[]] * len(intervals), strict=False))
        # Like MeasureBench's script, read a text instead of a list of units as a list of letters.
        return [
            {"low": _end(low), "high": _end(high), "units": list(own)} for (low, high), own in pairs
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRowError(
            "evaluator_kwargs",
            'expected "interval": [low, high] and "units": [text, ...], or "intervals" and a list '
            f"of units for each, found {shorten(given)}.",
        ) from error


def _end(value: Any) -> Any:
    """Return an end of an interval; rewrite a time such as ``05:07:-1`` as a valid time."""
    if not isinstance(value, str):
        return value
    if not _TIME.fullmatch(value):
        raise ValueError
    hours, minutes, seconds = (int(part) for part in f"{value}:0".split(":")[:3])
    return time_text(max(0, 3600 * hours + 60 * minutes + seconds))
