"""Shorten generated lists of shapes: remove duplicates, and end lists that repeat endlessly.

A text is shortened after it was generated, even if a server wrote it or it follows a grammar.
``StopLists`` ends the generation of a list once every later shape would be removed. This saves time
and changes no answer. ``evaluation.metrics.repeats`` finds the duplicates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria

from mm_numeric.answers import Instance, Instances
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.evaluation.metrics.repeats import find_duplicates
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame
from mm_numeric.inference.constrain import Constraint
from mm_numeric.inference.decision_rules import Candidate
from mm_numeric.io.log import logger
from mm_numeric.tasks.base import Task

IN_A_ROW = 3
"""Number of successive duplicates that end a list. After a single duplicate, new objects often
follow. After several duplicates, greedy decoding goes on repeating."""

_EVERY = 16  # tokens between checks, about one shape: each check parses the whole text


class Shortened(NamedTuple):
    """A shortened answer. ``kept`` are the indices of its shapes among the generated shapes."""

    text: str
    answer: Instances
    kept: Sequence[int]
    ended_by: str | None  # the setting that ended the list; None if only duplicates were removed


@dataclass(frozen=True)
class ListLimits:
    """The limits of generated lists in the section ``predict``."""

    task: Task
    settings: PredictConfig

    def kept(self, items: Sequence[Instance]) -> tuple[list[int], str | None]:
        """Return the indices of the shapes to keep, and the setting that ends the list.

        The setting is None if the list is not ended, so that only duplicates are left out.
        """
        least_iou, is_duplicate = self.settings.stop_duplicates, [False] * len(items)
        if least_iou is not None:
            is_duplicate = find_duplicates([items], least_iou)[0].tolist()
        kept, in_a_row = list[int](), 0
        for index, repeats in enumerate(is_duplicate):
            in_a_row = in_a_row + 1 if repeats else 0
            if in_a_row == IN_A_ROW:
                return kept, "stop_duplicates"
            if not repeats and len(kept) == self.settings.max_objects:
                return kept, "max_objects"
            kept += [] if repeats else [index]
        return kept, None

    def is_decided(self, text: str, frame: Frame | None) -> bool:
        """Return True if the limits remove every shape that may follow the unfinished ``text``.

        The last shape of the text does not count, because its label or its end may be missing.
        """
        answer = self.task.read(text, frame)
        return isinstance(answer, Instances) and self.kept(answer.items[:-1])[1] is not None

    def shorten(self, text: str, answer: Any, frame: Frame | None) -> Shortened | None:
        """Return the shortened answer; None if the limits leave the text unchanged.

        A text whose shapes the family's format can parse but not write also stays unchanged, with
        a warning.
        """
        if not (self.settings.limits_lists and isinstance(answer, Instances) and frame):
            return None
        kept, ended_by = self.kept(answer.items)
        if len(kept) == len(answer.items):
            return None
        part = self.task.answer_part(text)
        are_points = all(len(item.shape.points) == 1 for item in answer.items)
        spans = [
            (begin - part.start, end - part.start)
            for begin, end in (answer.spans[index] for index in kept)
        ]
        try:
            written = self.task.text_frame(frame).rewritten(part.text, spans, points=are_points)
            end = part.start + len(part.text)
            shorter = text[: part.start] + written + text[end:]
            found = self.task.read(shorter, frame)
        except ValueError:  # the format has no text for such a shape or label
            found = None
        if getattr(found, "items", None) != tuple(answer.items[index] for index in kept):
            logger.warning("an answer cannot be shortened and is kept: %.80r", text)
            return None
        return Shortened(shorter, found, kept, ended_by)

    def shortened(self, candidate: Candidate, frame: Frame | None) -> Candidate:
        """Return a candidate whose text and answer are shortened by ``shorten``."""
        short = self.shorten(candidate.text, candidate.answer, frame)
        return candidate._replace(text=short.text, answer=short.answer) if short else candidate


class StopLists(StoppingCriteria):
    """Stopping criterion that ends a row when ``ListLimits.is_decided`` is True for its text."""

    def __init__(
        self,
        limits: ListLimits,
        family: Family,
        frames: Sequence[Frame | None],
        constraint: Constraint | None,
        prompt_length: int,
    ) -> None:
        self.limits, self.family, self.frames = limits, family, frames
        self.constraint, self.prompt_length = constraint, prompt_length
        self.ended = [False] * len(frames)

    def __call__(self, input_ids: Tensor, scores: Tensor, **options: Any) -> Tensor:
        """Return True for each row [b] that has ended; ``input_ids`` are [b, t]."""
        if (input_ids.shape[1] - self.prompt_length) % _EVERY == 0:
            answers = input_ids[:, self.prompt_length :].tolist()
            for row, frame in enumerate(self.frames):
                text = "" if self.ended[row] else self.family.text(answers[row])
                if text and self.limits.is_decided(text, frame):
                    self.ended[row] = True
                    if self.constraint is not None:
                        self.constraint.end(row)
        others = [False] * (len(input_ids) - len(self.ended))  # the dummy image row
        return torch.tensor(self.ended + others, device=input_ids.device)
