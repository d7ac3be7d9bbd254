"""Import GSM8K from its files ``train.jsonl`` and ``test.jsonl``, optionally compressed (.gz).

    {"question": "Janet has ...", "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 .. #### 18"}

Source: https://github.com/openai/grade-school-math, grade_school_math/data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.importers.importer import FileImporter, invalid_as, text_field
from mm_numeric.tasks import gsm8k


@dataclass(frozen=True, kw_only=True)
class GSM8KImporter(FileImporter):
    """Importer for GSM8K: math problems and their solutions, one row per line of the file."""

    endings = (".jsonl", ".gz")

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Convert a problem and its solution; the solution must end with a number."""
        question, answer = text_field(raw, "question"), text_field(raw, "answer")
        with invalid_as("answer"):
            gsm8k.GSM8K().read_answer(answer, "")
        return {"id": identity, "question": question, "answer": answer}
