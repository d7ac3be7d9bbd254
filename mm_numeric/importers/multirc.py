"""Import MultiRC of SuperGLUE. Each line has a passage, with questions and possible answers.

    {"idx": 0, "passage": {"text": ..., "questions": [
        {"idx": 0, "question": ..., "answers": [{"idx": 0, "text": ..., "label": 1}, ...]}, ...]}}

``label`` is 1 for a correct answer and 0 for a wrong one; test files have no labels.

Source: https://super.gluebenchmark.com, MultiRC.zip.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import (
    FileImporter,
    ImportedItem,
    InvalidRowError,
    invalid_as,
    parse_text,
    row_or_error,
    shorten,
    text_field,
)
from mm_numeric.tasks.multirc import read_answers


@dataclass(frozen=True, kw_only=True)
class MultiRCImporter(FileImporter):
    """Importer for MultiRC of SuperGLUE: text passages with questions, one row per question."""

    endings = (".jsonl",)

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield the row of each question about a passage, or an error."""
        passage = raw.get("passage")
        if not isinstance(passage, Mapping) or not isinstance(passage.get("questions"), list):
            why = f"expected a passage with questions, found {shorten(passage)}."
            raise InvalidRowError("passage", why)
        text = parse_text(passage.get("text"), "the passage's text")
        number = raw["idx"] if type(raw.get("idx")) is int else identity
        for i, question in enumerate(passage["questions"]):
            about = {"id": f"{number}.{i}", "passage": text}
            yield row_or_error(f"{where}, questions.{i}", _question, question, about)


def _question(raw: Any, about: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidRowError("question", f"expected an object, found {shorten(raw)}.")
    with invalid_as("answers"):
        answers = read_answers(raw.get("answers"), "")
    return {
        **about,
        "question": text_field(raw, "question"),
        "answers": [
            {"text": text} if label is None else {"text": text, "label": int(label)}
            for text, label in answers
        ],
    }
