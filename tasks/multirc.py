r"""Task: read a passage and answer questions about it with text, not numbers (MultiRC).

The task checks that numeric losses do not harm answers without numbers.

Example  {"id": "1", "passage": "It was 1990.", "question": "When was it?", "answers": [{"text": "In
         1990", "label": 1}, {"text": "Never", "label": 0}]}
Prompt   It was 1990.\n\nQuestion: When was it?
Text     In 1990

Rows     {"id": text, "passage": text, "question": text,
          "answers": [{"text": text, "label": 0 or 1}, ...]}, from ``prepare multirc``
Answer   ``answer: text``: all right answers joined by `` | ``, as in the number token loss's code
         ``answer: yes_no``: yes or no for each proposed answer, as in SuperGLUE
Scorer   mm_numeric.evaluation.metrics.text

Source of the question and of `` | ``: https://github.com/tum-ai/number-token-loss,
data/multirc/preprocess_data.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mm_numeric.answers import Choice, Example, Text, Unreadable, Written
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import ANY
from mm_numeric.tasks.base import BaseTask, Rows, check_choice, check_placeholders
from mm_numeric.tasks.number_questions import with_numerals

BETWEEN = " | "
"""Text between the correct answers to a question."""

_YES_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class MultiRC(BaseTask):
    """Task: read a passage and answer a question about it, with a short text or with yes or no."""

    version: ClassVar[int] = 2
    reads_by: ClassVar[tuple[str, ...]] = ("answer",)

    prompt: str = "{passage}\n\nQuestion: {question}"
    """Prompt; ``{passage}`` and ``{question}`` are replaced by the fields of the row."""

    answer: str = "text"
    """``text``: one example per question. ``yes_no``: one example per proposed answer."""

    def __post_init__(self) -> None:
        check_choice("answer", self.answer, ("text", "yes_no"))
        check_placeholders("prompt", self.prompt, "passage", "question")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per question or, with ``answer: yes_no``, one per proposed answer.

        With ``answer: text``, the model writes the correct answers; a question without a correct
        answer is skipped. In training, answers without a label raise ValueError.
        """
        for where, row in rows:
            texts = [row.get(name) for name in ("passage", "question")]
            if row.get("id") in (None, "") or not all(isinstance(t, str) and t for t in texts):
                raise ValueError(f'{where}: each row needs "id", "passage" and "question".')
            answers = read_answers(row.get("answers"), where)
            known = [right for _, right in answers if right is not None]
            if len(known) not in (0, len(answers)) or (training and not known):
                raise ValueError(f'{where}: an answer has no "label", 0 or 1; each needs one.')
            asked = _filled(self.prompt, passage=texts[0], question=texts[1])
            for identity, prompt, answer in self._asked(str(row["id"]), asked, answers):
                yield Example(id=identity, image=None, prompt=prompt, answer=answer, where=where)

    def _asked(
        self, identity: str, asked: str, answers: list[tuple[str, bool | None]]
    ) -> Iterator[tuple[str, str, Text | Choice | None]]:
        """Yield id, prompt and answer of each example; prompts begin with passage and question."""
        if self.answer == "text":
            right = [text for text, label in answers if label and text.strip()]
            if right:
                yield identity, asked, Text(BETWEEN.join(right))
            elif answers[0][1] is None:
                yield identity, asked, None
            return
        for i, (text, label) in enumerate(answers):
            prompt = f"{asked}\nAnswer: {text}\nIs this answer right, yes or no?"
            choice = None if label is None else Choice("yes" if label else "no", question=identity)
            yield f"{identity}.{i}", prompt, choice

    def format(self, answer: Text | Choice, frame: Frame | None = None) -> Written:
        """Return the text of an answer, with the positions of its numbers (none for yes or no)."""
        if isinstance(answer, Choice):
            return Written(answer.chosen, ())
        return with_numerals(answer.text)

    def parse(self, text: str, frame: Frame | None = None) -> Text | Choice | Unreadable:
        """Return the whole text or, with ``answer: yes_no``, the yes or no at its beginning."""
        if not text.strip():
            return Unreadable("empty answer")
        if self.answer == "text":
            return Text(text.strip())
        found = _YES_NO.match(text)
        return Choice(found[1].lower()) if found else Unreadable("neither yes nor no")

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression: yes or no, or any text with a visible ASCII character."""
        return "(?:yes|no)" if self.answer == "yes_no" else f"{ANY}*[!-~]{ANY}*"

    def record(self, answer: Text | Choice) -> Any:
        """Convert an answer to JSON: a text, or an object ``{"chosen": "yes", "question": ID}``."""
        if isinstance(answer, Text):
            return answer.text
        return {"chosen": answer.chosen, "question": answer.question}

    def recorded(self, value: Any) -> Text | Choice:
        """Convert a JSON value in predictions.jsonl back to an answer."""
        if self.answer == "text":
            if not isinstance(value, str) or not value:
                raise ValueError(f"the target {value!r:.60} is not a text")
            return Text(value)
        if isinstance(value, str):
            return Choice(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("chosen"), str):
            raise ValueError(f'the target {value!r:.60} has no "chosen", yes or no')
        return Choice(value["chosen"], question=str(value.get("question", "")))


def read_answers(value: Any, where: str) -> list[tuple[str, bool | None]]:
    """Read proposed answers and their labels: True if correct, None if the label is missing."""
    if not isinstance(value, list) or not value:
        raise ValueError(f'{where}: no "answers" (a list).')
    found: list[tuple[str, bool | None]] = []
    for i, answer in enumerate(value):
        if not isinstance(answer, Mapping) or not isinstance(answer.get("text"), str):
            raise ValueError(f'{where}, answers.{i}: no "text" in {answer!r:.40}.')
        label = answer.get("label")
        if label not in (None, 0, 1):
            raise ValueError(f"{where}, answers.{i}: the label {label!r:.40} is neither 0 nor 1.")
        found.append((answer["text"], None if label is None else bool(label)))
    return found


def _filled(prompt: str, **texts: Any) -> str:
    """Replace each ``{name}`` in a prompt by ``texts["name"]``, if ``texts`` has this key."""
    return re.sub(r"\{(\w+)\}", lambda m: str(texts.get(m[1], m[0])), prompt)
