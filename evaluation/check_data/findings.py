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
class Trained:
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
    """Number of tokens before the answer, including one placeholder per image feature."""

    image_tokens: int
    """Number of placeholders for image features."""

    answer_tokens: int
    """Number of tokens of the answer, including the end token."""

    number_tokens: int
    """Number of answer tokens in numeric losses."""

    read_back: Any
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
class Fault:
    """A problem that has to be fixed, with every row that has it."""

    advice: str
    """How to fix it; empty if the messages say so."""

    sentences: list[str] = field(default_factory=list)
    """One error message per row, with file and line."""


@dataclass
class Checkup:
    """The results for the training rows or the test rows."""

    name: str
    """train or test."""

    source: str
    """Files, data set or renderer of the rows."""

    questions: int = 0
    """Number of examples that were read, valid or not."""

    trained: list[Trained] = field(default_factory=list)
    """The usable examples."""

    faults: dict[str, Fault] = field(default_factory=dict)
    """The faults by kind: an error message without its position, names and numbers."""

    too_long: int = 0
    """Number of rows that training drops because of ``data.max_tokens``."""

    tokens: set[int] = field(default_factory=set)
    """All token ids in answers, without the end tokens."""

    digits_left: int = 0
    """Number of digits of answers that are in no numeric loss."""

    wide_tokens: int = 0
    """Number of number tokens with more than one digit."""

    ceiling: dict[str, float] = field(default_factory=dict)
    """Value of each metric of the task's scorer for the parsed right answers."""

    scorer: Scorer | None = None

    def fault(self, kind: str, sentence: str, advice: str = "") -> None:
        """Add one row to the fault of a kind."""
        self.faults.setdefault(kind, Fault(advice)).sentences.append(sentence)


@dataclass
class DataReport:
    """The results of ``check-data``."""

    config: Config
    collator: TrainingCollator
    positions: int | None
    """Maximum sequence length of the model; None if its config has none."""

    checkups: list[Checkup]
    notes: list[str]

    @property
    def family(self) -> Family:
        """The family of the model."""
        return self.collator.family

    @property
    def ready(self) -> bool:
        """Whether no fault was found."""
        return not any(checkup.faults for checkup in self.checkups)


def kind_of(sentence: str) -> str:
    """Return an error message without its position, names and numbers, to group equal faults.

    A quoted value may be truncated, so that its closing quote is missing.
    """
    message = re.sub(r"^.*?, (?:line|row) \d+(?:, ?|: )", "", sentence.removesuffix("."))
    message = re.sub(r"(?<!\w)'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|\[[^]]*(?:\]|$)", "...", message)
    return re.sub(r"-?\d+(?:\.\d+)?", "#", re.sub(r"\S*[/\\]\S*", "...", message))
