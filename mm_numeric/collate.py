"""Examples -> model inputs: padding, labels on the answer only, and the numbers in them.

Axes    b samples, t positions, n supervised rows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.data import open_picture
from mm_numeric.families.family import Family, Prompts
from mm_numeric.spans import (
    IGNORE_INDEX,
    NumberSpans,
    TokenNumber,
    numbers_in_answer,
    numbers_in_labels,
)
from mm_numeric.vocabulary import NumberVocabulary

BATCH_KEYS = ("labels", "supervised", "spans")
"""What a training batch holds beside the inputs of the model."""


@dataclass(frozen=True)
class PromptCollator:
    """Batches of prompts, padded on the left, for generation."""

    family: Family

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the inputs of the model."""
        prompts = _prompts(self.family, examples)
        return _inputs(self.family, prompts, prompts.ids, left=True)


@dataclass(frozen=True)
class TrainingCollator:
    """Batches of prompts with answers, padded on the right.

    Beside the inputs of the model a batch holds ``supervised`` [b, t] (bool, the rows that predict
    a token of the answer), ``labels`` [n] (what they are to predict, top to bottom), and ``spans``.
    """

    family: Family
    task: Any
    vocabulary: NumberVocabulary
    digit_runs: bool = False
    """Read numbers as the published NTIL code does, from the label ids and not the task's marks."""

    thousands: bool = False
    """Read 1,234 as one number where the task has not marked it."""

    every_number: bool = False
    """Take the numbers of the answer that the task has not marked too."""

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the inputs of the model, and ``BATCH_KEYS``."""
        prompts = _prompts(self.family, examples)
        answers, numbers = zip(*(self._answer(e) for e in examples), strict=True)
        ids = [prompt + answer for prompt, answer in zip(prompts.ids, answers, strict=True)]
        inputs = _inputs(self.family, prompts, ids, left=False)
        supervised = torch.zeros(inputs["input_ids"].shape, dtype=torch.bool)
        rows, row = [], 0
        for i, (prompt, answer) in enumerate(zip(prompts.ids, answers, strict=True)):
            # The row before a token predicts it.
            supervised[i, len(prompt) - 1 : len(prompt) + len(answer) - 1] = True
            rows.append({position: row + position for position in range(len(answer))})
            row += len(answer)
        labels = torch.tensor([token for answer in answers for token in answer])
        if self.digit_runs:
            spans = NumberSpans.from_labels(_rectangle(answers), self.vocabulary, digit_runs=True)
        else:
            spans = NumberSpans.build(numbers, rows)
        return {**inputs, "labels": labels, "supervised": supervised, "spans": spans}

    def _answer(self, example: Example) -> tuple[list[int], list[TokenNumber]]:
        """Return the tokens of an answer, its end included, and the numbers in it."""
        written = self.task.format(example.answer)
        answer = self.family.answer(written.text)
        try:
            numbers = numbers_in_answer(
                written.text, written.marks, answer.ids, answer.offsets, self.vocabulary
            )
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}") from error
        if self.every_number:
            marked = {position for number in numbers for position in number.positions}
            found = numbers_in_labels(answer.ids, self.vocabulary, thousands=self.thousands)
            numbers += [number for number in found if marked.isdisjoint(number.positions)]
        return answer.ids, sorted(numbers, key=lambda number: number.positions)


def _prompts(family: Family, examples: Sequence[Example]) -> Prompts:
    """Write the questions of examples, their pictures loaded.

    Raises:
        ValueError: If a picture cannot be read, or has no place in the family's frame.
    """
    pictures = [open_picture(example) for example in examples]
    for example, picture in zip(examples, pictures, strict=True):
        try:
            family.frame(*picture.size)
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}; crop it or take its row out.") from error
    return family.prompts([example.prompt for example in examples], pictures)


def _inputs(
    family: Family, prompts: Prompts, ids: Sequence[list[int]], *, left: bool
) -> dict[str, Any]:
    """Pad ids to a rectangle and add what the family's model takes beside them."""
    input_ids = _rectangle(ids, fill=family.pad_id, left=left)
    mask = _rectangle([[1] * len(i) for i in ids], fill=0, left=left)
    return family.model_inputs(input_ids, mask, prompts.pictures)


def _rectangle(ids: Sequence[list[int]], fill: int = IGNORE_INDEX, left: bool = False) -> Tensor:
    """Pad lists of ids to one length, [b, t]."""
    width = max(map(len, ids))
    padding = [[fill] * (width - len(i)) for i in ids]
    pairs = zip(padding, ids, strict=True) if left else zip(ids, padding, strict=True)
    return torch.tensor([a + b for a, b in pairs])
