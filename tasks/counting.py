"""Task: count the objects in an image.

Example  {"id": "1", "image": "1.png", "label": "dogs", "count": 3}
Prompt   How many dogs are there?
Text     3

Rows     {"id": text, "image": path, "question": text, "answer": whole number}; optionally
         "category" (such as simple), for which metrics are reported separately
         "label" (what to count, such as ``dogs``, as in PixMo-Count) may replace "question"
         "count" (PixMo-Count) or "number" (CountBench) may replace "answer"
Answer   the count, such as ``12``
Scorer   mm_numeric.evaluation.metrics.number_errors
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import Example, Number
from mm_numeric.geometry.row_shapes import is_text
from mm_numeric.tasks.base import Rows, check_placeholders, image_example
from mm_numeric.tasks.number_questions import WholeNumbers


@dataclass(frozen=True, kw_only=True)
class Counting(WholeNumbers):
    """Task: count objects in an image."""

    highest: ClassVar[int] = 9999
    noun: ClassVar[str] = "a count"
    augmentations: ClassVar[tuple[str, ...]] = ("flip",)
    scorer = "mm_numeric.evaluation.metrics.number_errors:COUNTS"

    label_question: str = "How many {label} are there?"
    """Question of rows without a ``question``; the row's ``label`` replaces ``{label}``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_placeholders("label_question", self.label_question, "label")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row. Each row has an image."""
        for where, row in rows:
            asked, label = row.get("question"), row.get("label")
            if not is_text(asked):
                if not is_text(label):
                    raise ValueError(f'{where}: no question; each row needs "question" or "label".')
                asked = self.label_question.replace("{label}", str(label))
            yield image_example(
                row,
                where,
                prompt=self.prompt.replace("{question}", str(asked)),
                answer=self.read_target(row, where),
                bucket_fields=self.bucket_fields,
            )

    def read_target(self, row: Mapping[str, Any], where: str) -> Number:
        """Return the count of a row from the field ``answer``, ``count`` or ``number``."""
        found = (row[name] for name in ("answer", "count", "number") if row.get(name) is not None)
        return self.read_answer(next(found, None), where)
