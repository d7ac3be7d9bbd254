"""The source of answers to score, and their rows after reading."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.answers.judge import Judge, Response
from mm_numeric.evaluation.answers.prepared_rows import PreparedRows
from mm_numeric.geometry.frames import Frame


@dataclass(frozen=True, kw_only=True)
class AnswerSource:
    """Files of the answers and of their targets; ``score`` describes the fields."""

    predictions: Path
    task_name: str | None = None
    scorer: str | None = None
    keep: str | None = None
    judge: Judge | None = None
    rows: PreparedRows | None = None
    partial: bool = False
    truth: Path | None = None
    lines: str | None = None


@dataclass(frozen=True)
class AnswerRows:
    """Rows with answers, from any source; index i of each list is one row."""

    name: str
    """Name of the task, or of the protocol if there is no task."""

    where: str
    """The files, for error messages."""

    head: Mapping[str, Any] = field(default_factory=dict)
    """Entries of results.json about the source: the task and its version, or the true shapes."""

    task: Any = None
    """The task that parses the texts; None for detections, which are shapes already."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task that are stored with every row (``task_options``)."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of scores.jsonl, without scores."""

    answers: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    sizes_px: list[tuple[int, int] | None] = field(default_factory=list)
    """Width and height of each image; empty if the answers are not parsed from text."""

    frames: list[Frame | None] = field(default_factory=list)
    """The frame of each row, or None; empty if the answers are not parsed from text."""

    responses: list[Response] = field(default_factory=list)
    """The same rows, for a judge that extracts the answers."""

    rows_due: int | None = None
    """Number of rows of the data; None if the rows do not have it."""

    text_rules: Counter[str] = field(default_factory=Counter)
    """Rules that chose the part of a text that is the answer -> number of rows."""

    def next_part(self) -> "AnswerRows":
        """Return an empty part of the same file."""
        lists: Any = {name: [] for name in ("rows", "answers", "targets", "sizes_px", "frames")}
        return replace(self, **lists, responses=[], text_rules=Counter())
