"""Answer a question with a number; base class of the tasks for numbers in text.

Rows     {"id": text, "question": text, "answer": number or text}; optionally "category" (such as
         interpolation) for tables by bucket, and "image"
Answer   the number as written in the row: ``-12``, ``3.50``, ``2/7``
Score    mm_numeric.evaluation.metrics.numbers
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Example, Mark, Number, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.registry import unknown
from mm_numeric.tasks.base import BaseTask, Rows

_DECIMAL = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
_EXPONENT = r"(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_BEGINS_WITH_POINT = r"(?<![^\s$+-])\.[0-9]+"
_NUMBER = re.compile(
    rf"(?<![0-9.])-?(?:[0-9]+/[0-9]+|{_DECIMAL}{_EXPONENT}|{_BEGINS_WITH_POINT})", re.ASCII
)

Drawn = tuple[str, int]
"""A question and its answer."""


@dataclass(frozen=True, kw_only=True)
class Numbers(BaseTask):
    """Answer a question with a number."""

    report_sections: ClassVar[tuple[str, ...]] = ("numbers",)

    bucket_fields: ClassVar[tuple[str, ...]] = ("category",)
    """Fields of a row that become buckets of its example."""

    prompt: str = "{question}"
    """The question; ``{question}`` is replaced by that of the row."""

    def __post_init__(self) -> None:
        """Validate ``prompt``."""
        if "{question}" not in self.prompt:
            raise ValueError(f"prompt needs {{question}} in it, not {self.prompt!r:.60}")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row; ``training`` makes no difference."""
        for where, row in rows:
            question, image = row.get("question"), row.get("image")
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f'{where}: no question; each row needs "question" (a text).')
            if row.get("id") in (None, ""):
                raise ValueError(f'{where}: no id; each row needs an "id" of its own.')
            yield Example(
                id=str(row["id"]),
                image=Path(image) if isinstance(image, str) and image else None,
                prompt=self.prompt.replace("{question}", question),
                answer=self.read_answer(row.get("answer"), where),
                where=where,
                buckets={
                    name: str(row[name])
                    for name in self.bucket_fields
                    if row.get(name) not in (None, "")
                },
            )

    def read_answer(self, value: Any, where: str) -> Number:
        """Return the answer of a row; subclasses override it to check more."""
        if type(value) not in (int, float, str):
            raise ValueError(f'{where}: no answer; each row needs "answer" (a number).')
        try:
            return Number(str(value).strip())
        except ValueError as error:
            raise ValueError(f"{where}: the answer {error}.") from None

    def format(self, answer: Number, frame: Frame | None = None) -> Written:
        """Return a number as it was written, with its numerals marked."""
        numerals = find_numerals(answer.text)
        return Written(answer.text, tuple(Mark(n.start, n.end) for n in numerals))

    def parse(self, text: str, frame: Frame | None = None) -> Number | Unreadable:
        """Parse the last number in a text, because some models restate the question first."""
        return last_number(text)

    def record(self, answer: Number) -> str:
        """Return a number as it was written."""
        return answer.text

    def recorded(self, value: Any) -> Number:
        """Return the number that ``record`` wrote."""
        return self.read_answer(value, "the target")


def last_number(text: str) -> Number | Unreadable:
    """Return the last number in a text.

    Thousands separators and an exponent are part of a number. A minus sign after a digit is not
    (the last number of ``3-5`` is 5), and a number may begin with its decimal point (`` .5``).
    """
    found = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    if not found:
        return Unreadable("no number" if text.strip() else "empty answer")
    last = re.sub(r"^(-?)\.", r"\g<1>0.", found[-1].replace(",", ""))
    try:
        return Number(last)
    except ValueError:
        zero = re.search(r"/0+$", last)
        return Unreadable("division by zero" if zero else "more than 1000 digits")


def render_questions(
    folder: Path,
    count: int,
    seed: int,
    draws: Mapping[str, Callable[[random.Random], Drawn]],
    categories: Sequence[str],
) -> Path:
    """Write random questions and answers into ``rows.jsonl`` in a folder.

    Args:
        folder: The folder.
        count: Number of rows.
        seed: A row depends only on this seed, its category and its index.
        draws: For each category, a function that draws a question and its answer.
        categories: The categories of the rows, in turn; when empty, the first of ``draws``.

    Returns:
        The file of the rows.

    Raises:
        ValueError: If a category is unknown.
    """
    for category in categories:
        if category not in draws:
            raise unknown(category, draws, "category", "data, categories")
    drawn = categories or [next(iter(draws))]
    lines = []
    for i in range(count):
        category = drawn[i % len(drawn)]
        question, answer = draws[category](random.Random(f"{seed}:{category}:{i}"))
        row = {"id": f"{seed}-{i:06d}", "question": question, "answer": str(answer)}
        lines.append(json.dumps({**row, "category": category}))
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows
