"""Sampling of training rows in steps of similar length."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from mm_numeric.compat import length_grouped_indices


class LengthGroupedSampler(Sampler[int]):
    """Random order in which the rows of one optimiser step have similar lengths.

    A step covers all ranks and micro-batches, so that no rank waits for another rank's padding and
    every number of ranks trains on the same rows in the same step. The sampler of transformers
    (5.23) groups the rows of a single rank, and cannot restore the order of an epoch on resume.
    """

    def __init__(
        self, lengths: Sequence[int], step_rows: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        """Create a sampler.

        Args:
            lengths: Length of each row in tokens.
            step_rows: Number of rows per optimiser step.
            seed: Seed of the order.
            epoch: Returns the epoch that begins. ``set_epoch`` of accelerate (1.15) does not reach
                the sampler of a rank that resumes in the middle of an epoch.
        """
        self.lengths, self.step_rows, self.seed, self.epoch = lengths, step_rows, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch())
        yield from length_grouped_indices(self.lengths, self.step_rows, generator)


def rows_per_step(args: Any) -> int:
    """Return the number of rows per optimiser step, over all ranks and micro-batches."""
    rows: int = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return rows


def sampler_seed(args: Any) -> int:
    """Return the seed of the row order: ``data_seed`` of the TrainingArguments, or ``seed``."""
    seed: int = args.seed if args.data_seed is None else args.data_seed
    return seed
