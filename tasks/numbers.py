"""Answer questions with a number. The tasks of numbers in text are of this kind.

Rows     {"id": text, "question": text, "answer": number or text}, and for tables by bucket
         "category", such as interpolation; "image" where an image goes with the question
Answer   the number as the row has it: ``-12``, ``3.50``, ``2/7``
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
    """Questions in, numbers out."""

    version: ClassVar[int] = 1  # raise it when a prompt, a parse or what is rendered changes

    report_sections: ClassVar[tuple[str, ...]] = ("numbers",)

    bucket_fields: ClassVar[tuple[str, ...]] = ("category",)
    """The fields of a row that tables by bucket are made of."""

    prompt: str = "{question}"
    """What is asked; ``{question}`` is that of the row."""

    def __post_init__(self) -> None:
        """Refuse a prompt that does not ask."""
        if "{question}" not in self.prompt:
            raise ValueError(f"prompt needs {{question}} in it, not {self.prompt!r:.60}")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Turn rows into examples.

        Args:
            rows: File and line of each row, and its fields.
            training: Not looked at: the same rows are trained on and tested.

        Raises:
            ValueError: If a row has no question, or no number for an answer.
        """
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
        """Read the answer of a row.

        Raises:
            ValueError: If it is no number.
        """
        if type(value) not in (int, float, str):
            raise ValueError(f'{where}: no answer; each row needs "answer" (a number).')
        try:
            return Number(str(value).strip())
        except ValueError as error:
            raise ValueError(f"{where}: the answer {error}.") from None

    def format(self, answer: Number, frame: Frame | None = None) -> Written:
        """Write a number as it was written, its numerals marked."""
        numerals = find_numerals(answer.text)
        return Written(answer.text, tuple(Mark(n.start, n.end) for n in numerals))

    def parse(self, text: str, frame: Frame | None = None) -> Number | Unreadable:
        """Read the last number in a text; chatty models restate the question first."""
        return last_number(text)

    def record(self, answer: Number) -> str:
        """Return a number as predictions.jsonl holds it: as it was written."""
        return answer.text

    def recorded(self, value: Any) -> Number:
        """Read a number that ``record`` wrote.

        Raises:
            ValueError: If it is none.
        """
        return self.read_answer(value, "the target")


def last_number(text: str) -> Number | Unreadable:
    """Read the last number in a text.

    A comma in front of each three digits is part of the number, as is an exponent; a minus behind a
    digit is none (``3-5`` ends with 5), and a number may begin with its point behind a space.
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
    """Write questions and answers into a folder, as many of each category.

    The same seed gives the same rows, whatever is rendered besides.

    Args:
        folder: Where ``rows.jsonl`` is written.
        count: How many rows.
        seed: Of them all.
        draws: What draws a row, for each category there is.
        categories: Those that are drawn, in turn; the first of ``draws`` when there are none.

    Returns:
        The file of the rows.

    Raises:
        ValueError: If there is no such category.
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
