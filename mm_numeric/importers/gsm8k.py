"""Import GSM8K from its files ``train.jsonl`` and ``test.jsonl``, optionally compressed (.gz).

    {"question": "Janet has ...", "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 .. #### 18"}

Source: https://github.com/openai/grade-school-math, grade_school_math/data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.importers.files import FileImporter, rows_from_objects
from mm_numeric.importers.importer import ImportedItem, InvalidRowError, Row, parse_text
from mm_numeric.tasks import gsm8k


@dataclass(frozen=True, kw_only=True)
class GSM8KImporter(FileImporter):
    """Importer for GSM8K: math problems and their solutions, one row per line of the file."""

    endings = (".jsonl", ".gz")

    def rows(self, files: Sequence[Path]) -> Iterator[ImportedItem]:
        """Yield one row per line of the files; an invalid problem or answer yields an error."""
        return rows_from_objects(files, _row)


def _row(where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
    question = parse_text(raw.get("question"), "question")
    answer = parse_text(raw.get("answer"), "answer")
    try:
        gsm8k.GSM8K().read_answer(answer, "")
    except ValueError as error:
        raise InvalidRowError("answer", str(error).lstrip(": ")) from error
    yield Row(where, {"id": identity, "question": question, "answer": answer})
