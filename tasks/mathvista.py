r"""Task: answer a question of MathVista about an image with a choice, a number or a list.

Example  {"id": "1", "image": "1.png", "question": "How many sides has it?", "answer": "4",
         "question_type": "free_form", "answer_type": "integer"}
Prompt   Hint: Please answer the question requiring an integer answer and provide the final value,
         e.g., 1, 2, 3, at the end.\nQuestion: How many sides has it?
Text     4

Rows     {"id": text, "image": path, "question": text, "answer": text,
          "question_type": "multi_choice" or "free_form",
          "answer_type": "text", "integer", "float" or "list",
          "choices": [text, ...] of multi_choice, "precision": 1 or 2 of a float,
          "unit": text, "metadata": {"task": text, "skills": [text, ...], ...}, "query": text}
         "unit", "metadata" and "query" (the published prompt) are optional; without "query", the
         prompt is built as in MathVista's code
Answer   the letter of the choice, or the number or list
Scorer   mm_numeric.evaluation.metrics.mathvista

MathVista's rows are licensed for testing only (CC BY-SA 4.0, "test use"): training on rows whose
metadata.split is testmini or test is an error. Your own rows have another split or no split.

Source of the query: https://github.com/lupantech/MathVista, evaluation/build_query.py and
data/query.json (without examples, captions or text from OCR).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import Example, ShortAnswer, Text, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.tasks.base import BaseTask, Rows, check_placeholders, image_example
from mm_numeric.tasks.number_questions import with_numerals

_TESTS = ("testmini", "test")
_NUMBERS = {
    "integer": re.compile(r"-?[0-9]+"),
    "float": re.compile(r"-?[0-9]+(?:\.[0-9]+)?"),
    "list": re.compile(r"\[[^\[\]]*\]"),
}
_HINTS: dict[tuple[str, int | None], str] = {
    ("text", None): "and provide the correct option letter, e.g., A, B, C, D",
    ("integer", None): "requiring an integer answer and provide the final value, e.g., 1, 2, 3",
    ("float", 1): "requiring a floating-point number with one decimal place and provide the final "
    "value, e.g., 1.2, 1.3, 1.4",
    ("float", 2): "requiring a floating-point number with two decimal places and provide the final "
    "value, e.g., 1.23, 1.34, 1.45",
    ("list", None): "requiring a Python list as an answer and provide the final list, e.g., "
    "[1, 2, 3], [1.2, 1.3, 1.4]",
}
"""Maps (answer type, number of decimals of a float) to the hint in the prompt."""


@dataclass(frozen=True, kw_only=True)
class MathVista(BaseTask):
    """Task: answer a question about an image with a choice, a number or a list."""

    version: ClassVar[int] = 2  # 2: the names of metrics state that rules extract the answers
    reads_whole_text: ClassVar[bool] = True

    prompt: str = "{query}"
    """Prompt; ``{query}`` is replaced by MathVista's hint, question and choices."""

    def __post_init__(self) -> None:
        check_placeholders("prompt", self.prompt, "query")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row; training on MathVista's own test rows raises ValueError."""
        for where, row in rows:
            answer = read_short_answer(row, where)
            split = (row.get("metadata") or {}).get("split")
            if training and split in _TESTS:
                raise ValueError(
                    f"{where}: a row of MathVista's {split}, which is licensed for testing only; "
                    "train on rows of your own."
                )
            if training and not answer.text:
                raise ValueError(f"{where}: no answer to train on; remove the row.")
            query = row.get("query") or published_query(row, answer, where)
            yield image_example(
                row,
                where,
                prompt=self.prompt.replace("{query}", str(query)),
                answer=answer if answer.text else None,
                ids=("id", "pid"),
            )

    def format(self, answer: ShortAnswer | Text, frame: Frame | None = None) -> Written:
        """Return an answer as text, such as the letter of a choice, with its number positions."""
        if isinstance(answer, ShortAnswer) and answer.question_type == "multi_choice":
            return Written(chr(ord("A") + answer.choices.index(answer.text)), ())
        return with_numerals(answer.text)

    def parse(self, text: str, frame: Frame | None = None) -> Text | Unreadable:
        """Return the whole text. The scorer, which knows the choices, extracts the answer."""
        return Text(text) if text.strip() else Unreadable("empty answer")

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of a choice's letter, a number or a list."""
        return r"(?:[A-Z]|-?[0-9]{1,30}(?:\.[0-9]{1,30})?|\[[^\[\]\x00-\x08]{0,200}\])"

    def record(self, answer: ShortAnswer | Text) -> Any:
        """Convert an answer to JSON: a generated answer to a text, a row's answer to an object."""
        if isinstance(answer, Text):
            return answer.text
        return {
            "answer": answer.text,
            "question_type": answer.question_type,
            "answer_type": answer.answer_type,
            "choices": list(answer.choices),
            "precision": answer.precision,
            "metadata": {name: list(labels) for name, labels in answer.labels.items()},
        }

    def recorded(self, value: Any) -> ShortAnswer:
        """Convert a JSON object in predictions.jsonl back to the correct answer of a row."""
        if not isinstance(value, Mapping):
            raise ValueError(f"the target {value!r:.60} is not an object")
        answer = read_short_answer(value, "the target")
        if not answer.text:
            raise ValueError("the target has no answer")
        return answer


def read_short_answer(row: Mapping[str, Any], where: str) -> ShortAnswer:
    """Read the correct answer (empty if missing), the answer type and the choices from a row."""
    kind = row.get("question_type"), row.get("answer_type")
    if kind not in [("multi_choice", "text"), *(("free_form", name) for name in _NUMBERS)]:
        raise ValueError(
            f"{where}: question_type {kind[0]!r:.40} with answer_type {kind[1]!r:.40}; it is "
            "multi_choice with text, or free_form with integer, float or list."
        )
    question_type, answer_type = str(kind[0]), str(kind[1])
    text, choices = row.get("answer"), row.get("choices") or []
    if not isinstance(text, str | None):
        raise ValueError(f"{where}: the answer {text!r:.40} is not a text; put it in quotes.")
    if not (isinstance(choices, list) and all(isinstance(c, str) for c in choices)):
        raise ValueError(f"{where}: choices {choices!r:.60} is not a list of texts.")
    if question_type == "multi_choice" and not 1 < len(choices) <= 26:
        raise ValueError(f"{where}: {len(choices)} choices; multi_choice has 2 to 26.")
    if question_type == "multi_choice" and text and text not in choices:
        raise ValueError(f"{where}: the answer {text!r:.40} is not one of the choices.")
    if question_type == "free_form" and text and not _NUMBERS[answer_type].fullmatch(text):
        raise ValueError(f"{where}: the answer {text!r:.40} is not of type {answer_type}.")
    precision = row.get("precision")
    if answer_type == "float" and precision not in (1, 2):
        raise ValueError(f"{where}: precision {precision!r:.40} of a float; it is 1 or 2.")
    return ShortAnswer(
        text=text or "",
        question_type=question_type,
        answer_type=answer_type,
        choices=tuple(choices) if question_type == "multi_choice" else (),
        precision=int(precision) if answer_type == "float" and precision is not None else None,
        labels=_labels(row.get("metadata"), where),
    )


def published_query(row: Mapping[str, Any], asked: ShortAnswer, where: str) -> str:
    """Return a prompt in MathVista's format: a hint, the question with its unit, the choices."""
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f'{where}: no "question" (a text).')
    unit = f" (Unit: {row['unit']})" if row.get("unit") else ""
    hint = _HINTS[asked.answer_type, asked.precision]
    lines = [f"Hint: Please answer the question {hint}, at the end."]
    lines.append(f"Question: {question}{unit}")
    if asked.choices:
        lines.append("Choices:")
        lines += [f"({chr(ord('A') + i)}) {choice}" for i, choice in enumerate(asked.choices)]
    return "\n".join(lines).strip()


def _labels(metadata: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Return the categories of a row, such as ``{"skills": ("arithmetic reasoning",)}``."""
    if not isinstance(metadata, Mapping | None):
        raise ValueError(f"{where}: metadata {metadata!r:.40} is not an object.")
    labels = {}
    for name, value in (metadata or {}).items():
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(v, str) for v in values):
            labels[str(name)] = tuple(values)
    return labels
