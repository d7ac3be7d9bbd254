"""Data classes for the results of ``check-data``."""

import re
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.answers import Example, Written
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.families.family import Family, Tokens
from mm_numeric.geometry.frames import Frame
from mm_numeric.numbers.spans import TokenNumber


@dataclass(frozen=True)
class EncodedExample:
    """One example, encoded as for training.

    Text and tokens are computed at each access instead of stored: all examples are in memory at
    once, and the tokens of one page full of words take a megabyte.
    """

    collator: TrainingCollator = field(repr=False)
    example: Example
    size_px: tuple[int, int] | None
    """Width and height of the upright image."""

    has_image: bool
    """Whether the image file exists. If not, the size comes from the row or ``--size``."""

    frame: Frame | None
    question_tokens: int
    """Number of tokens before the answer, including ``image_tokens``."""

    image_tokens: int
    """Number of placeholders for image features."""

    answer_tokens: int
    """Including the end token."""

    number_tokens: int
    """Number of answer tokens in numeric losses."""

    parsed: Any
    """The answer that the task parses from the decoded tokens."""

    @property
    def written(self) -> Written:
        """The text of the answer and the positions of its numbers."""
        return self.collator.task.format(self.example.answer, self.frame)

    @property
    def answer(self) -> Tokens:
        """The tokens of the answer."""
        return self.collator.answer(self.example, self.frame)[0]

    @property
    def numbers(self) -> list[TokenNumber]:
        """The numbers in the tokens of the answer."""
        return self.collator.answer(self.example, self.frame)[1]


@dataclass
class Problem:
    """A problem that has to be fixed, with one error message for each row that has it."""

    advice: str
    """How to fix it; empty if the messages contain the advice."""

    messages: list[str] = field(default_factory=list)


@dataclass
class SourceReport:
    """The results for the training rows or the test rows."""

    name: str
    """train or test."""

    description: str
    """Files, data set or renderer of the rows."""

    questions: int = 0
    """Number of examples that were read, valid or not."""

    examples: list[EncodedExample] = field(default_factory=list)
    """The usable examples."""

    problems: dict[str, Problem] = field(default_factory=dict)
    """The problems by kind; see ``problem_kind``."""

    too_long: int = 0
    """Number of rows that training drops because of ``data.max_tokens``."""

    tokens: set[int] = field(default_factory=set)
    """All token ids in answers, without the end tokens."""

    unmarked_digits: int = 0
    """Number of digits of answers that are in no numeric loss."""

    wide_tokens: int = 0
    """Number of number tokens with more than one digit."""

    ceiling: dict[str, float] = field(default_factory=dict)
    """Value of each metric of the scorer for the parsed right answers."""

    scorer: Scorer | None = None

    def add_problem(self, kind: str, message: str, advice: str = "") -> None:
        """Add the error message of one row to the problem of a kind."""
        self.problems.setdefault(kind, Problem(advice)).messages.append(message)


@dataclass
class DataReport:
    """The results of ``check-data``."""

    config: Config
    collator: TrainingCollator
    positions: int | None
    """Maximum sequence length of the model; None if its config has none."""

    sources: list[SourceReport]
    notes: list[str]

    @property
    def family(self) -> Family:
        """The family of the model."""
        return self.collator.family

    @property
    def ready(self) -> bool:
        """Whether no problem was found."""
        return not any(source.problems for source in self.sources)


def problem_kind(message: str) -> str:
    """Return an error message without its position, names and numbers, to group equal problems.

    A quoted value may be truncated, so that its closing quote is missing.
    """
    message = re.sub(r"^.*?, (?:line|row) \d+(?:, ?|: )", "", message.removesuffix("."))
    message = re.sub(r"(?<!\w)'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|\[[^]]*(?:\]|$)", "...", message)
    return re.sub(r"-?\d+(?:\.\d+)?", "#", re.sub(r"\S*[/\\]\S*", "...", message))
