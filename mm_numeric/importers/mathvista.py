"""Import MathVista from ``testmini.json``, ``annot_testmini.json`` or exported parquet rows.

    {"1": {"pid": "1", "question": ..., "image": "images/1.jpg", "choices": null, "unit": "g",
           "precision": 1, "answer": "1.2", "question_type": "free_form", "answer_type": "float",
           "metadata": {"split": "testmini", "skills": [...], ...}}, ...}

Parquet files must first be exported as .json or .jsonl. Keep the names of all fields, including
``query`` (the prompt). Save each image as a file, and write its path in ``decoded_image``. Rows
whose ``metadata.split`` is ``testmini`` or ``test`` cannot be used for training.

Source: https://github.com/lupantech/MathVista, data/testmini.json; AI4Math/MathVista on the hub.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.importer import (
    ImageImporter,
    invalid_as,
    named_objects,
    parse_text,
    text_field,
)
from mm_numeric.io.files import read_json
from mm_numeric.tasks.mathvista import MathVista

_KEPT = (
    *("question", "choices", "unit", "precision", "answer", "question_type", "answer_type"),
    *("metadata", "query"),
)


@dataclass(frozen=True, kw_only=True)
class MathVistaImporter(ImageImporter):
    """Importer for MathVista: questions about images, for evaluation only, one row per question."""

    def entries(self, path: Path) -> Iterator[tuple[str, str, Any]]:
        """Yield the questions of a list, or of an object that maps problem ids (pid) to them."""
        if path.suffix.lower() != ".json" or not isinstance(read_json(path), dict):
            yield from super().entries(path)
            return
        for where, pid, raw in named_objects(path, "question"):
            yield where, pid, {"pid": pid, **raw} if isinstance(raw, dict) else raw

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a question; raise InvalidRowError if the task ``mathvista`` rejects the row."""
        saved = raw.get("decoded_image")
        image = parse_text(saved if isinstance(saved, str) and saved else raw.get("image"), "image")
        kept = {name: raw[name] for name in _KEPT if not _is_missing(raw.get(name))}
        if isinstance(kept.get("precision"), float) and kept["precision"].is_integer():
            kept["precision"] = int(kept["precision"])  # parquet files have 1.0
        row = {"id": text_field(raw, "pid"), **self.folder.fields(image), **kept}
        with invalid_as("row"):
            list(MathVista().examples([("", row)], training=False))
        return row


def _is_missing(value: Any) -> bool:
    """Return True if a value is null, or NaN, which pandas writes for null in numeric columns."""
    return value is None or (isinstance(value, float) and math.isnan(value))
