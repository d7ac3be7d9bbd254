"""What ``check-data`` found, as values."""

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
    """One example as it will be trained on.

    Its text and tokens are made anew whenever they are asked for: of a page full of words they
    would take a megabyte, and all rows are held at once.
    """

    collator: TrainingCollator = field(repr=False)
    example: Example
    size_px: tuple[int, int] | None
    """Of its upright image."""

    has_image: bool
    """Whether the image is there; without, its size is the row's word."""

    frame: Frame | None
    question_tokens: int
    """How many there are before the answer, one placeholder for each image feature included."""

    image_tokens: int
    answer_tokens: int
    """The end included."""

    number_tokens: int
    """Of the answer, those that numeric losses see."""

    read_back: Any
    """What the task reads from the tokens of the answer, generation's end included."""

    @property
    def written(self) -> Written:
        """The answer as the task writes it."""
        written: Written = self.collator.task.format(self.example.answer, self.frame)
        return written

    @property
    def answer(self) -> Tokens:
        """The tokens of the answer."""
        return self.collator.answer(self.example, self.frame)[0]

    @property
    def numbers(self) -> list[TokenNumber]:
        """The numbers in those tokens."""
        return self.collator.answer(self.example, self.frame)[1]


@dataclass
class Fault:
    """Something to mend, and every place where it was found."""

    advice: str
    """What to do; empty where the sentences say it."""

    sentences: list[str] = field(default_factory=list)


@dataclass
class Checkup:
    """What was found in one data source."""

    name: str
    """train or test."""

    source: str
    questions: int = 0
    trained: list[Trained] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    """By what they are, such as ``line 3, box: the box [...] is reversed``, without its numbers."""

    too_long: int = 0
    """How many rows training drops, for they have more tokens than ``data.max_tokens``."""

    tokens: set[int] = field(default_factory=set)
    """Every token that stands within an answer."""

    digits_left: int = 0
    """Digits of answers that no numeric loss sees."""

    wide_tokens: int = 0
    """Number tokens of more than one digit."""

    ceiling: dict[str, float] = field(default_factory=dict)
    """Each metric of the task's scorer, on the answers read back."""

    scorer: Scorer | None = None

    def fault(self, kind: str, sentence: str, advice: str = "") -> None:
        """Note one more place of a fault."""
        self.faults.setdefault(kind, Fault(advice)).sentences.append(sentence)


@dataclass
class DataReport:
    """What ``check-data`` found."""

    config: Config
    collator: TrainingCollator
    positions: int | None
    """How many tokens the model has positions for."""

    checkups: list[Checkup]
    notes: list[str]

    @property
    def family(self) -> Family:
        """Of the model that would be trained."""
        return self.collator.family

    @property
    def ready(self) -> bool:
        """Whether there is nothing to mend."""
        return not any(checkup.faults for checkup in self.checkups)


def kind_of(sentence: str) -> str:
    """Return what a sentence is about, without its place, names and numbers.

    What it quotes may be cut off: then it ends with the sentence.
    """
    told = re.sub(r"^.*?, (?:line|row) \d+(?:, ?|: )", "", sentence.removesuffix("."))
    told = re.sub(r"(?<!\w)'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|\[[^]]*(?:\]|$)", "...", told)
    return re.sub(r"-?\d+(?:\.\d+)?", "#", re.sub(r"\S*[/\\]\S*", "...", told))
