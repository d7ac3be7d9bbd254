"""Import ClockBench from two files: one has the questions about each clock, one the answers.

    input_sample.json     {"white_1": {"image_url": "images/white_1.png", "question_time": ...,
                           "question_shift": ..., "question_angle": ..., "question_zone": ...}}
    answers_sample.json   {"white_1": {"answer_time": ..., "answer_shift": ...}}

An answer is a JSON object, such as {"valid": true, "hours": 12, "minutes": 25, "seconds": 15}, or a
string that contains one. Each question becomes a row. Its id is, for example, ``white_1/time``, and
its category is ``time``, ``shift``, ``angle`` or ``zone``. ClockBench's script asks the four
questions about a clock in one conversation; here, each question is a row with the image.

Source: https://clockbench.ai, input/input_sample.json and input/answers_sample.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    invalid_as,
    named_objects,
    row_or_error,
    text_field,
)
from mm_numeric.tasks.clock_text import read_object
from mm_numeric.tasks.clockbench import read_target

_KINDS = ("time", "shift", "angle", "zone")


@dataclass(frozen=True, kw_only=True)
class ClockBenchImporter(ImageImporter):
    """Importer for ClockBench: four questions about each clock, one row per question."""

    endings = (".json",)

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per question, or an error if its text or answer is missing or invalid."""
        clocks: dict[str, dict[str, Any]] = {}
        wheres: dict[str, str] = {}
        for path in files:
            for where, name, fields in named_objects(path, "clock"):
                if isinstance(fields, InvalidRowError):
                    yield fields.at(where)
                    continue
                clocks.setdefault(name, {}).update(fields)
                if "image_url" in fields:
                    wheres[name] = where
        for name, fields in clocks.items():
            where = wheres.get(name, f"{files[-1]}, {name}")
            for kind in _KINDS:
                yield row_or_error(f"{where}, {kind}", self._row, name, kind, fields)

    def _row(self, name: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if "image_url" not in fields:
            why = "no questions; give the file with the questions as well."
            raise InvalidRowError("question", why)
        if not any(f"answer_{kind}" in fields for kind in _KINDS):
            why = "no answers; give the file with the answers as well."
            raise InvalidRowError("answer", why)
        image = text_field(fields, "image_url")
        answer = fields.get(f"answer_{kind}")
        found = answer if isinstance(answer, Mapping) else read_object(str(answer))
        with invalid_as("answer"):
            target = read_target(answer if found is None else found, f"answer_{kind}")
        return {
            "id": f"{name}/{kind}",
            **self.folder.fields(image),
            "question": text_field(fields, f"question_{kind}"),
            "category": kind,
            "answer": dict(target.fields),
        }
