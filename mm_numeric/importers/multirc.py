"""Import MultiRC of SuperGLUE. Each line has a passage, with questions and possible answers.

    {"idx": 0, "passage": {"text": ..., "questions": [
        {"idx": 0, "question": ..., "answers": [{"idx": 0, "text": ..., "label": 1}, ...]}, ...]}}

``label`` is 1 for a correct answer and 0 for a wrong one; test files have no labels.

Source: https://super.gluebenchmark.com, MultiRC.zip.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.files import FileImporter, rows_from_objects
from mm_numeric.importers.importer import ImportedItem, InvalidRowError, Row, parse_text, shorten
from mm_numeric.tasks.multirc import read_answers


@dataclass(frozen=True, kw_only=True)
class MultiRCImporter(FileImporter):
    """Importer for MultiRC of SuperGLUE: text passages with questions, one row per question."""

    endings = (".jsonl",)

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per question."""
        return rows_from_objects(files, _questions)


def _questions(where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
    passage = raw.get("passage")
    if not isinstance(passage, Mapping) or not isinstance(passage.get("questions"), list):
        raise InvalidRowError(
            "passage", f"expected a passage with questions, found {shorten(passage)}."
        )
    text = parse_text(passage.get("text"), "the passage's text")
    number = raw["idx"] if type(raw.get("idx")) is int else identity
    for i, question in enumerate(passage["questions"]):
        place = f"{where}, questions.{i}"
        try:
            yield Row(place, {"id": f"{number}.{i}", "passage": text, **_question(question)})
        except InvalidRowError as error:
            yield error.at(place)


def _question(raw: Any) -> dict[str, Any]:
    """Validate one question of a passage, and return its fields ``question`` and ``answers``."""
    if not isinstance(raw, Mapping):
        raise InvalidRowError("question", f"expected an object, found {shorten(raw)}.")
    try:
        answers = read_answers(raw.get("answers"), "")
    except ValueError as error:
        raise InvalidRowError("answers", str(error).lstrip(":, ")) from error
    return {
        "question": parse_text(raw.get("question"), "question"),
        "answers": [
            {"text": text} if label is None else {"text": text, "label": int(label)}
            for text, label in answers
        ],
    }
