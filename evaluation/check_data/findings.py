"""Data classes for the results of ``check-data``, the command that checks data before training."""

import re
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.answers import Example, ImageSource, Instances, Written
from mm_numeric.config.schema import Config
from mm_numeric.data.augment import Augmenter
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.lengths import new_tokens_for
from mm_numeric.evaluation.check_data.memory import MemoryEstimate
from mm_numeric.evaluation.metrics.base import Scorer
from mm_numeric.families.family import Family, Tokens
from mm_numeric.geometry.coordinate_range import CoordinateRange
from mm_numeric.geometry.frames import Frame
from mm_numeric.numbers.spans import TokenNumber


@dataclass(frozen=True)
class EncodedExample:
    """One example (question, image and answer), encoded as for training.

    To save memory, the text and the tokens of the answer are not stored but computed when read.
    """

    collator: TrainingCollator = field(repr=False)
    example: Example
    size_px: tuple[int, int] | None
    """Width and height of the image after EXIF rotation; None without an image."""

    has_image: bool
    """Whether the image file exists. Otherwise ``size_px`` is from the row or from ``--size``."""

    frame: Frame | None
    question_tokens: int
    """Number of tokens before the answer, including the image tokens."""

    image_tokens: int
    """Number of placeholder tokens in the question that image features replace."""

    answer_tokens: int
    """Number of tokens of the answer, including the end token."""

    number_tokens: int
    """Number of answer tokens that the numeric losses train."""

    parsed: Any
    """The answer after a round trip: formatted, tokenised, decoded and parsed again."""

    @property
    def written(self) -> Written:
        """Return the text of the correct answer, and the positions of the numbers in it."""
        return self.collator.task.format(self.example.answer, self.frame)

    def parsed_within(self, limit: int | None) -> Any:
        """Parse the first ``limit`` tokens of the answer, or all tokens if None."""
        if limit is None or self.answer_tokens <= limit:
            return self.parsed
        return self.collator.task.read(self.text_within(limit), self.frame)

    def text_within(self, limit: int | None) -> str:
        """Decode the first ``limit`` tokens of the answer, or all tokens if None."""
        return self.collator.family.text(self.answer.ids[:limit])

    @property
    def answer(self) -> Tokens:
        """Return the tokens of the correct answer, including the end token."""
        return self.collator.answer(self.example, self.frame).tokens

    @property
    def numbers(self) -> list[TokenNumber]:
        """Return the numbers in the correct answer, with the token positions of each number."""
        return self.collator.answer(self.example, self.frame).numbers


@dataclass
class Problem:
    """A problem to fix before training, with one error message for each affected row."""

    advice: str
    """How to fix the problem; empty if the messages explain it."""

    messages: list[str] = field(default_factory=list)


@dataclass
class SourceReport:
    """The results of ``check-data`` for the training rows or the test rows."""

    name: str
    """``train`` or ``test``."""

    description: str
    """The files, data set or renderer that the rows come from."""

    questions: int = 0
    """Number of examples that were read, including invalid examples."""

    examples: list[EncodedExample] = field(default_factory=list)
    """The examples that could be encoded."""

    unanswered: int = 0
    """Number of valid test rows without an answer; ``examples`` does not contain these rows."""

    problems: dict[str, Problem] = field(default_factory=dict)
    """Short description of a problem (see ``problem_kind``) -> the problem."""

    too_long: list[Example] = field(default_factory=list)
    """The examples with more than ``data.max_tokens`` tokens, which training drops."""

    coordinates: CoordinateRange = field(default_factory=CoordinateRange)
    """The range of the coordinates of all answers, including those that cannot be formatted."""

    one_colour: dict[ImageSource, str] = field(default_factory=dict)
    """Decoded image whose pixels all have the same colour -> text with its row and the colour."""

    tokens: set[int] = field(default_factory=set)
    """All token ids that occur in answers, except the end tokens."""

    unmarked_digits: int = 0
    """Number of digits in answers that no numeric loss trains."""

    wide_tokens: int = 0
    """Number of answer tokens that hold more than one digit of a number."""

    long_numbers: int = 0
    """How many numbers in answers have more than nine digits."""

    ceiling: dict[str, float] = field(default_factory=dict)
    """Name of a metric -> the highest value that a model can reach."""

    scorer: Scorer | None = None

    def add_problem(self, kind: str, message: str, advice: str = "") -> None:
        """Add the error message of one row to the problem ``kind``, such as "no image"."""
        self.problems.setdefault(kind, Problem(advice)).messages.append(message)


@dataclass
class DataReport:
    """The results of ``check-data`` for all rows of a config."""

    config: Config
    collator: TrainingCollator
    positions: int | None
    """Maximum sequence length of the model; None if the model's config does not set it."""

    sources: list[SourceReport]
    notes: list[str]
    memory: MemoryEstimate | None = None
    """Estimated memory of a training step; None without valid training rows."""

    augment: Augmenter | None = None
    """The augmentation of training rows; None without ``data.augment``. All other fields describe
    rows without augmentation."""

    @property
    def max_new_tokens(self) -> int:
        """Return ``predict.max_new_tokens``, or a default computed from the longest answer."""
        examples = next((source.examples for source in self.sources if source.examples), [])
        longest = max((e.answer_tokens for e in examples), default=0)
        return self.config.predict.max_new_tokens or new_tokens_for(longest)

    @property
    def family(self) -> Family:
        """Return the model family, which defines the prompt format and the image preprocessing."""
        return self.collator.family

    @property
    def ready(self) -> bool:
        """Return True if no problem was found in the data."""
        return not any(source.problems for source in self.sources)


def num_objects(answer: Any) -> int:
    """Return the number of objects of an answer that is a list of objects; 0 for other answers."""
    return len(answer.items) if isinstance(answer, Instances) else 0


def problem_kind(message: str) -> str:
    """Replace names and numbers in an error message, to group similar errors.

    Numbers become ``#``. Quoted values and paths become ``...``. A closing quote may be missing,
    because long values are truncated in messages.
    """
    message = re.sub(r"^.*?, (?:line|row) \d+(?:, ?|: )", "", message.removesuffix("."))
    message = re.sub(r"(?<!\w)'[^']*(?:'|$)|\"[^\"]*(?:\"|$)|\[[^]]*(?:\]|$)", "...", message)
    return re.sub(r"-?\d+(?:\.\d+)?", "#", re.sub(r"\S*[/\\]\S*", "...", message))
