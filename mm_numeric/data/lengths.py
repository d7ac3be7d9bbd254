"""The order of rows that are grouped by length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Sampler

from mm_numeric.answers import Example
from mm_numeric.compat import length_grouped_indices
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import Frame
from mm_numeric.tasks.base import Task


class LengthGrouped(Sampler[int]):
    """Rows by chance, those of a step of about one length; another order in each epoch.

    A step is all ranks and micro-batches, so that ranks do not wait for each other's padding, and
    the same rows are in the same steps on any number of them. transformers' own sampler (5.23)
    groups the rows of one rank, and cannot say in which order an epoch was that a run goes on in.
    """

    def __init__(
        self, lengths: Sequence[int], rows: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        """Group rows.

        Args:
            lengths: Of each row, in tokens.
            rows: Of a step.
            seed: Of the order.
            epoch: Says which one begins; ``set_epoch`` of accelerate (1.15) does not get through to
                the sampler of a rank that goes on in the middle of one.
        """
        self.lengths, self.rows, self.seed, self.epoch = lengths, rows, seed, epoch

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield the places of rows."""
        chance = torch.Generator()
        chance.manual_seed(self.seed + self.epoch())
        yield from length_grouped_indices(self.lengths, self.rows, chance)


def rows_of_step(args: Any) -> int:
    """Return how many rows an optimiser step has, of all ranks and micro-batches."""
    rows: int = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return rows


def seed_of_rows(args: Any) -> int:
    """Return the seed of the order of rows."""
    seed: int = args.seed if args.data_seed is None else args.data_seed
    return seed


class TooLongError(ValueError):
    """A row has more tokens than ``data.max_tokens``; the text says which, and how many."""


@dataclass(frozen=True)
class Fit:
    """What is done with rows that are too long: ``data.max_tokens`` and ``data.too_long``."""

    family: Family
    task: Task
    max_tokens: int
    too_long: str

    def frame(self, example: Example, frame: Frame | None) -> Frame | None:
        """Return the frame that a row fits in: its own, or a smaller one under ``resize``.

        Raises:
            TooLongError: If there is none.
            ValueError: If its answer cannot be written.
        """
        tokens, of_image = row_tokens(self.family, self.task, example, frame)
        if tokens <= self.max_tokens:
            return frame
        smaller = None
        if self.too_long == "resize" and frame is not None and self.family.resize.kind == "smart":
            smaller = self._smaller(example, frame, self.max_tokens - tokens + of_image)
        if smaller is None:
            raise TooLongError(
                f"{example.where}: the row {example.id!r} has {tokens} tokens, {of_image} of "
                f"them for its image, and data.max_tokens is {self.max_tokens}; raise it, take "
                f"the row out, or {self._advice(frame)}."
            )
        return smaller

    def _advice(self, frame: Frame | None) -> str:
        if self.too_long == "resize":
            return "set data.too_long to drop, for no image here can be made so small"
        if frame is not None and self.family.resize.kind == "smart":
            return "set data.too_long to drop or resize"
        return "set data.too_long to drop"

    def _smaller(self, example: Example, frame: Frame, of_image: int) -> Frame | None:
        """Return a frame with at most so many tokens for the image, in which the row fits."""
        resize, size = self.family.resize, (frame.width_px, frame.height_px)
        while of_image > 0:
            view = replace(resize, max_pixels=of_image * resize.factor**2).view(*size)
            own = resize.view(view.width_px, view.height_px)
            if (own.width_px, own.height_px) != (view.width_px, view.height_px):
                return None  # the family would see it larger again
            found = replace(frame, view=view)
            # An answer in pixels as seen may have other digits.
            tokens, _ = row_tokens(self.family, self.task, example, found)
            if tokens <= self.max_tokens:
                return found
            of_image -= tokens - self.max_tokens
        return None


def row_tokens(
    family: Family, task: Task, example: Example, frame: Frame | None
) -> tuple[int, int]:
    """Return how many tokens a row has, and how many of them are its image's.

    Where the answer goes to a decoder of its own, the longer of question and answer counts.

    Raises:
        ValueError: If its question cannot be asked, or its answer not be written.
    """
    of_image = image_token_count(family, frame)
    try:
        question = len(family.question(example.prompt, of_image))
        answer = len(family.answer(task.format(example.answer, frame).text).ids)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from error
    both = max(question, answer) if family.encoder_decoder else question + answer
    return both, of_image


def image_token_count(family: Family, frame: Frame | None) -> int:
    """Return how many tokens an image has in a frame: the family's own, or a smaller one."""
    if frame is None:
        return 0
    size = frame.width_px, frame.height_px
    if frame.view != family.frame(*size).view:
        size = frame.view.width_px, frame.view.height_px
    return family.image_tokens(*size)
