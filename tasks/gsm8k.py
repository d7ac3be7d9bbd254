r"""Task: solve the grade-school word problems of GSM8K.

Example  {"id": "1", "question": "Tom has 3 boxes of 4 eggs. How many?", "answer": "3 * 4 = 12\n####
         12"}
Prompt   Tom has 3 boxes of 4 eggs. How many?
Text     3 * 4 = 12\n#### 12

Rows     {"id": text, "question": text, "answer": text}, from ``prepare gsm8k``; the answer is a
         solution that ends with ``#### 18``, or only a number
Answer   the solution, ``####`` and the final number; with ``solution: false`` only the number
Scorer   mm_numeric.evaluation.metrics.number_errors

The parser ignores the text before the last ``A:``. It returns the number after the last ``####``,
or else the number after the last ``answer is``, or else the whole text if it is a number. Thousands
separators and $ are removed, and 5.0 equals 5.

Source: https://github.com/openai/grade-school-math, grade_school_math/dataset.py (extract_answer).
"""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mm_numeric.answers import Mark, Number, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import ANY
from mm_numeric.numbers.numerals import NUMBER_FORMATS, plain_numbers
from mm_numeric.tasks.number_questions import LONGEST, Numbers, last_numeral

END = "####"
"""The marker before the final number of a solution."""

_ANNOTATION = re.compile(r"<<[^>]*>>")
_LAST_PART = re.compile(r".*(?<![A-Za-z])A:", re.DOTALL)
_DECLARED = re.compile(r".*\banswer\s*+(?:is|:|=)", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(
    r"[\s:*=]*+(-?)\s*+\$?\s*+(-?)"
    r"([0-9]{1,999}(?:\.[0-9]{1,999})?|\.[0-9]{1,999})"
    r"(?![0-9]|[,.][0-9]|[eE][-+]?[0-9]|[ \t]*+/[ \t]*+[0-9])"
)
_ALONE = re.compile(r"\s*+[%.]?\s*+")
_PLAIN = str.maketrans(
    {
        "×": "*", "÷": "/", "−": "-", "–": "-", "√": "sqrt ", "^": "**", "<": " less than ",
        "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "¢": " cents", "{": "(", "}": ")",
        "`": "'", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip


@dataclass(frozen=True)
class Solution(Number):
    """A final number with the text of the steps that lead to it."""

    steps: str = field(default="", compare=False)
    """The text before ``####``; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class GSM8K(Numbers):
    """Task: solve a word problem in steps, and end with the final number."""

    version: ClassVar[int] = 3
    reads_whole_text: ClassVar[bool] = True
    sampled_answers: ClassVar[int] = 32
    scorer = "mm_numeric.evaluation.metrics.number_errors:GSM8K"
    risk = "exact"  # decoding returns the most frequent sample, as in self-consistency

    solution: bool = True
    """True to train on the solution and the final number, False to train on the number only."""

    annotations: bool = False
    """True to train on the data set's calculator annotations, such as ``<<48/2=24>>``."""

    plain: bool = False
    """True to write solutions on one line, with only characters that T5's tokenizer knows: ``*``
    for ``×``, ``1/2`` for ``½``."""

    def read_answer(self, value: Any, where: str) -> Solution:
        """Read the steps and the final number of a row's solution, such as ``... #### 18``."""
        found = _read(str(value), NUMBER_FORMATS[0]) if type(value) in (int, float, str) else None
        if not isinstance(found, Solution):
            raise ValueError(
                f'{where}: no number in the answer {value!r:.60}; end it with "#### 18".'
            )
        return Solution(found.text, self._written(found.steps))

    def format(self, answer: Number, frame: Frame | None = None) -> Written:
        """Return the text of an answer (``... #### 18``), and the position of its final number."""
        before = ""
        if self.solution and isinstance(answer, Solution) and answer.steps:
            before = f"{answer.steps}{' ' if self.plain else chr(10)}{END} "
        text = before + answer.text
        return Written(text, (Mark(len(before), len(text)),))

    def parse(self, text: str, frame: Frame | None = None) -> Solution | Unreadable:
        """Parse the final number in a generated text.

        If no number is marked as final, return ``Unreadable``. Its attribute ``lenient`` is the
        last number in the text, for the metric ``lenient_accuracy``.
        """
        return _read(text, self.number_format)

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of any steps, ``####`` and a number, or of a number only."""
        digits = f"[0-9]{{1,{LONGEST}}}"
        number = rf"-?{digits}(?:\.{digits})?"
        if not self.solution:
            return number
        return f"(?:{ANY}*{' ' if self.plain else chr(92) + 'n'}{END} )?{number}"

    def _written(self, steps: str) -> str:
        if not self.annotations:
            steps = _ANNOTATION.sub("", steps)
        if not self.plain:
            return steps
        # NFKD splits ñ into n and a tilde, which is then removed.
        decomposed = unicodedata.normalize("NFKD", steps.translate(_PLAIN))
        kept = "".join(c for c in decomposed if unicodedata.category(c) not in ("Mn", "Cf"))
        return " ".join(kept.split())


def _read(text: str, number_format: str) -> Solution | Unreadable:
    steps = text.rpartition(END)[0].strip()
    text = plain_numbers(text, number_format)
    last = _LAST_PART.match(text)
    part = text[last.end() :] if last else text
    _, end, after = part.rpartition(END)
    found = _NUMBER.match(after)
    if not end:
        declared = _DECLARED.match(part)
        found = _NUMBER.match(part[declared.end() :]) if declared else found
        if found and not declared and not _ALONE.fullmatch(part, found.end()):
            found = None
    if found:
        sign = "-" if found[1] or found[2] else ""
        return Solution(f"{sign}{'0' * found[3].startswith('.')}{found[3]}", steps)
    lenient, _ = last_numeral(text)
    if isinstance(lenient, Unreadable):
        return lenient
    reason = f"no number behind {END}" if end else "no final answer"
    return Unreadable(reason, Solution(lenient.text))
