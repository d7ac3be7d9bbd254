"""Sampler that puts samples of similar length into the same optimiser step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from mm_numeric.compat import length_grouped_indices


class LengthGroupedSampler(Sampler[int]):
    """Random sampler that puts samples of similar length into the same optimiser step.

    All ranks and micro-batches of a step get samples of similar length, so no rank waits for
    another. The samples of a step do not depend on the number of ranks. With the sampler of
    transformers (5.23), lengths are similar only within a rank, and resuming changes the order.
    """

    def __init__(
        self, lengths: Sequence[int], step_rows: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        """Create a sampler.

        Args:
            lengths: Length of each sample in tokens.
            step_rows: Number of samples per optimiser step.
            seed: Seed of the random order; the epoch is added to it.
            epoch: Function that returns the current epoch. The sampler cannot use ``set_epoch``:
                accelerate (1.15) does not call it when a run resumes within an epoch.
        """
        self.lengths, self.step_rows, self.seed, self.epoch = lengths, step_rows, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch())
        yield from length_grouped_indices(self.lengths, self.step_rows, generator)


def rows_per_step(args: Any) -> int:
    """Return the number of samples per optimiser step, over all ranks and micro-batches."""
    rows: int = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return rows


def sampler_seed(args: Any) -> int:
    """Return the seed of the row order: ``args.data_seed``, or ``args.seed`` if that is None."""
    seed: int = args.seed if args.data_seed is None else args.data_seed
    return seed
