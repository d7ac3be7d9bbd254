"""Tasks: answer a question with a number. Other tasks whose answers are numbers derive from them.

Example  {"id": "1", "question": "What is 7 times 12?", "answer": 84}
Prompt   What is 7 times 12?
Text     84

Rows     {"id": text, "question": text, "answer": number or text}; optionally "image" and "category"
         (such as interpolation), for which metrics are reported separately
Answer   the number as written in the row: ``-12``, ``3.50``, ``2/7``
Scorer   mm_numeric.evaluation.metrics.number_errors
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.answers import Example, Mark, Number, Tolerance, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.numbers.numerals import NUMBER_FORMATS, find_numerals, plain_numbers, without_latex
from mm_numeric.tasks.answer_part import AnswerPart, number_part
from mm_numeric.tasks.base import BaseTask, Rows, buckets, check_choice, check_placeholders

LONGEST = 250
"""Largest number of digits of a number in ``Numbers.grammar``."""

_DECIMAL = r"[0-9]+(?:\.[0-9]+)?"
_EXPONENT = r"(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_BEGINS_WITH_POINT = r"(?<![^\s$+-])\.[0-9]+"
_NUMBER = re.compile(
    rf"(?<![0-9.])-?(?:[0-9]+/[0-9]+|{_DECIMAL}{_EXPONENT}|{_BEGINS_WITH_POINT})", re.ASCII
)
_EXPONENT_OF_UNIT = re.compile(r"(?<=[A-Za-z])\^-?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Numbers(BaseTask):
    """Task: answer a question with a number."""

    version: ClassVar[int] = 4
    reads_by: ClassVar[tuple[str, ...]] = ("number_format",)
    report_sections: ClassVar[tuple[str, ...]] = ("numbers",)

    bucket_fields: ClassVar[tuple[str, ...]] = ("category",)
    """Fields of a row, such as ``category``; metrics are also reported per value of each field."""

    prompt: str = "{question}"
    """Prompt; ``{question}`` is replaced by the question of the row."""

    number_format: str = NUMBER_FORMATS[0]
    """Format of numbers in generated texts, shown by 1234.5: ``1,234.5``, ``1.234,5``, ``1 234,5``
    or ``1 234.5``. The thousands separator is optional. Rows and training answers always have a
    decimal point and no thousands separator."""

    def __post_init__(self) -> None:
        check_placeholders("prompt", self.prompt, "question")
        check_choice("number_format", self.number_format, NUMBER_FORMATS)

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row."""
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
                answer=self.read_target(row, where),
                where=where,
                buckets=buckets(row, self.bucket_fields),
            )

    def read_target(self, row: Mapping[str, Any], where: str) -> Number:
        """Return the correct answer of a row; subclasses may add a tolerance."""
        return self.read_answer(row.get("answer"), where)

    def read_answer(self, value: Any, where: str) -> Number:
        """Convert the field ``answer`` of a row to a number; subclasses may add checks."""
        if type(value) not in (int, float, str):
            raise ValueError(f'{where}: no answer; each row needs "answer" (a number).')
        try:
            return Number(str(value).strip())
        except ValueError as error:
            raise ValueError(f"{where}: the answer {error}.") from None

    def format(self, answer: Number, frame: Frame | None = None) -> Written:
        """Return the text of an answer with the position of each number (``2/7`` has two)."""
        return with_numerals(answer.text)

    def answer_part(self, text: str) -> AnswerPart:
        """Return the part of a generated text whose last number is the answer."""
        return AnswerPart(text) if self.reads_whole_text else number_part(text)

    def parse(self, text: str, frame: Frame | None = None) -> Number | Unreadable:
        """Return the last number in a text; earlier numbers may repeat the question."""
        return last_number(_EXPONENT_OF_UNIT.sub("", without_latex(text)), self.number_format)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a number: ``-12``, ``3.50``, ``2/7`` or ``1.5e3``.

        Each part of the number has up to ``LONGEST`` digits.
        """
        digits = f"[0-9]{{1,{LONGEST}}}"
        decimal = rf"{digits}(?:\.{digits})?(?:[eE][-+]?[0-9]{{1,3}})?"
        return f"-?(?:{decimal}|{digits}/0*[1-9][0-9]{{0,{LONGEST - 1}}})"

    def record(self, answer: Number) -> str:
        """Return the text of a number, such as ``3.50``, for predictions.jsonl."""
        return answer.text

    def recorded(self, value: Any) -> Number:
        """Convert a text in predictions.jsonl, such as ``3.50``, back to a number."""
        return self.read_answer(value, "the target")


@dataclass(frozen=True, kw_only=True)
class ApproximateNumbers(Numbers):
    """Task: answer a question with a number. It is correct if its error is within a tolerance.

    Use it for values that can only be estimated, such as prices or values in a chart.
    """

    scorer = "mm_numeric.evaluation.metrics.number_errors:APPROXIMATE_NUMBERS"

    tolerance: float = 0.05
    """Largest relative error of a correct answer: 0.05 is 5 % of the true number. A row may have
    its own ``tolerance``: a relative error, or ``{"relative": 0.05, "absolute": 2}``, which accepts
    an error within either limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        read_tolerance(self.tolerance, "tolerance")

    def read_target(self, row: Mapping[str, Any], where: str) -> Number:
        """Return the correct answer of a row with its tolerance."""
        given = row.get("tolerance")
        tolerance = read_tolerance(self.tolerance if given in (None, "") else given, where)
        return replace(super().read_target(row, where), tolerance=tolerance)

    def record(self, answer: Number) -> Any:
        """Return the text of a number and its tolerance, for predictions.jsonl."""
        return {"answer": answer.text, "tolerance": answer.tolerance._asdict()}

    def recorded(self, value: Any) -> Number:
        """Convert a number in predictions.jsonl, with or without a tolerance, back to an answer."""
        row = value if isinstance(value, Mapping) else {"answer": value}
        return ApproximateNumbers.read_target(self, row, "the target")


@dataclass(frozen=True, kw_only=True)
class WholeNumbers(Numbers):
    """Base class of tasks whose answers are whole numbers from 0 to ``highest``."""

    highest: ClassVar[int]
    noun: ClassVar[str]
    """Noun for the number in error messages, such as ``a count``."""

    def read_answer(self, value: Any, where: str) -> Number:
        """Convert the answer of a row to a whole number; raise ValueError if above ``highest``."""
        exact = super().read_answer(value, where).exact
        if exact.denominator != 1 or not 0 <= exact <= self.highest:
            raise ValueError(
                f"{where}: {self.noun} is a whole number, 0 to {self.highest}, not {value}."
            )
        return Number(str(int(exact)))

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the whole numbers from 0 to ``highest``."""
        return number_regex(0, self.highest)


@dataclass(frozen=True, kw_only=True)
class RJokes(WholeNumbers):
    """Task: rate how funny a joke is with a whole number (rJokes, LREC 2020).

    The rating is the logarithm of the joke's votes on Reddit. ``prepare rjokes`` writes the rows;
    the field ``question`` has the joke.
    """

    highest: ClassVar[int] = 11
    noun: ClassVar[str] = "the score"


@dataclass(frozen=True, kw_only=True)
class Mathematics(Numbers):
    """Task: answer a question of DeepMind's mathematics data set with a number.

    ``prepare mathematics`` writes the rows, which have a ``category``, such as ``interpolation``,
    and a ``module``, such as ``arithmetic__mixed``.
    """

    bucket_fields: ClassVar[tuple[str, ...]] = ("category", "module")
    main_category: ClassVar[str | None] = "interpolation"


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Numbers):
    """Task: compute a whole number, such as the value of an expression or a product.

    Rows have a ``category``, such as ``interpolation``, or ``extrapolation`` for questions that are
    longer than training questions.
    """

    main_category: ClassVar[str | None] = "interpolation"

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the whole numbers with up to ``LONGEST`` digits."""
        return f"(?:0|-?[1-9][0-9]{{0,{LONGEST - 1}}})"


def read_tolerance(value: Any, where: str) -> Tolerance:
    """Read a tolerance: a relative error, or a mapping with ``relative`` and ``absolute``."""
    if isinstance(value, str):  # from a CSV file
        with suppress(ValueError):
            value = float(value)
    fields = value if isinstance(value, Mapping) else {"relative": value}
    fields = {name: limit for name, limit in fields.items() if limit is not None}  # empty cells
    if set(fields) <= set(Tolerance._fields) and all(
        type(limit) in (int, float) and 0 <= limit < math.inf for limit in fields.values()
    ):
        return Tolerance(**fields)
    raise ValueError(
        f"{where}: a tolerance is a relative error of at least 0, such as 0.05, or "
        f'{{"relative": 0.05, "absolute": 2}}, not {value!r:.60}.'
    )


def with_numerals(text: str) -> Written:
    """Return a text with the positions of its numbers: ``2/7`` has two numbers, 2 and 7."""
    return Written(text, tuple(Mark(n.start, n.end) for n in find_numerals(text)))


def last_number(text: str, number_format: str = NUMBER_FORMATS[0]) -> Number | Unreadable:
    """Return the last number in a text whose numbers are in ``number_format``.

    An exponent belongs to a number, and a number may begin with its decimal point (``.5``). A minus
    sign after a digit is an operator: the last number of ``3-5`` is 5.
    """
    return last_numeral(plain_numbers(text, number_format))[0]


def last_numeral(text: str, *, within_words: bool = True) -> tuple[Number | Unreadable, int]:
    """Return the last number in a text without thousands separators, and the index after it.

    If ``within_words`` is False, numbers after a letter or ^, such as the 2 of ``m/s2``, are
    ignored.
    """
    found = [
        match
        for match in _NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-"))
        if within_words or not re.match(r"[^\W\d_]|\^", text[match.start() - 1 : match.start()])
    ]
    if not found:
        return Unreadable("no number" if text.strip() else "empty answer"), 0
    last = re.sub(r"^(-?)\.", r"\g<1>0.", found[-1][0])
    try:
        return Number(last), found[-1].end()
    except ValueError:
        zero = re.search(r"/0+$", last)
        return Unreadable("division by zero" if zero else "more than 1000 digits"), 0
