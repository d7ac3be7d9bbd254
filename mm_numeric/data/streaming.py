"""Stream training samples: read them during training instead of loading all into memory.

Every data loader worker of every rank reads all samples in the same order, and keeps only the
samples of its own batches. In one pass over the data, each sample is trained on once, by one rank.
With the same global batch size, a step uses the same samples on any number of ranks. A resumed run
skips the samples already trained on: it reads them again, but does not open their images.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from transformers import TrainerCallback

from mm_numeric.answers import Example
from mm_numeric.config.data import DataConfig, DataSource, listed
from mm_numeric.data.answers_as_labels import DecodedAnswers
from mm_numeric.data.examples import examples_of_row, find_files, rows_of
from mm_numeric.tasks.base import Task

T = TypeVar("T")


class ExampleStream(IterableDataset[list[Example]]):
    """Infinite stream of micro-batches (lists of examples) for one rank."""

    def __init__(self, task: Task, data: DataConfig, *, seed: int | None) -> None:
        """Create a stream of samples, which are shuffled unless ``seed`` is None."""
        self.task, self.data, self.seed = task, data, seed
        sources = listed(data.train)
        self.answers = {own: DecodedAnswers.of(own) if own.answers else None for own in sources}
        self.batch_rows = self.ranks = 1
        self.rank = 0
        self.skipped = 0
        """Number of micro-batches trained on before a resume; the stream yields [] for each."""

    def __iter__(self) -> Iterator[list[Example]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        examples = self.examples()
        for number in count():
            batch = list(islice(examples, self.batch_rows * self.ranks))
            if number % workers != worker:
                continue
            start = self.rank * self.batch_rows
            yield [] if number < self.skipped else batch[start : start + self.batch_rows]

    def examples(self) -> Iterator[Example]:
        """Yield the examples of all sources endlessly, interleaved by weight if weights are set."""
        sources = listed(self.data.train)
        weights = [source.weight for source in sources if source.weight is not None]
        if not weights:
            yield from self._passes(sources, "all")
        endless = [self._passes([source], str(i)) for i, source in enumerate(sources)]
        for chosen in weighted_round_robin(weights):
            yield next(endless[chosen])

    def check(self) -> Example:
        """Check that every file exists, and read the first example of each source.

        This reports a missing file before the model is loaded. Returns the first example of the
        first source.
        """
        first = []
        for source in listed(self.data.train):
            for file in find_files(source, self._cache):
                if file is not None and not file.is_file():
                    raise ValueError(f"{file}: there is no such file.")
            first.append(next(self._one_pass([source], None)))
        return first[0]

    def _passes(self, sources: Iterable[DataSource], name: str) -> Iterator[Example]:
        """Repeat the examples of sources endlessly. If ``seed`` is set, reshuffle every pass."""
        for number in count():
            rng = None if self.seed is None else random.Random(f"{self.seed} {name} {number}")
            for example in self._one_pass(sources, rng):
                yield replace(example, epoch=number, repeat=number)

    def _one_pass(
        self, sources: Iterable[DataSource], rng: random.Random | None
    ) -> Iterator[Example]:
        """Yield every example once. If ``rng`` is not None, shuffle files and buffered examples."""
        files = [(s, file) for s in sources for file in find_files(s, self._cache)]
        if rng is None:
            yield from self._read(files)
        else:
            rng.shuffle(files)
            yield from shuffled(self._read(files), self.data.shuffle_rows, rng)

    def _read(self, files: Iterable[tuple[DataSource, Path | None]]) -> Iterator[Example]:
        """Yield the examples of (source, file) pairs; file is None for a Hugging Face data set."""
        examples = 0
        for source, file in files:
            for row in rows_of(source, file, self._cache, stream=True):
                for example, error in examples_of_row(
                    self.task, row, source, self.answers[source], training=True
                ):
                    if error is not None:
                        raise error
                    examples += 1
                    yield example
        if not examples:
            names = " and ".join(source.name for source, _ in files)
            raise ValueError(f"{names}: no row contains a question; give at least one.")

    @property
    def _cache(self) -> Path:
        return Path(self.data.cache)


class EpochRows(Dataset[Example], TrainerCallback):
    """A data set that adds the current epoch to its examples. It is also a trainer callback.

    Workers of a data loader that outlive an epoch read the number from shared memory.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch of the examples that are read from now on."""
        self._epoch.fill_(int(state.epoch or 0))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return replace(self.examples[index], epoch=int(self._epoch))


def weighted_round_robin(weights: Sequence[float]) -> Iterator[int]:
    """Yield endlessly the index of the source that the next sample is taken from.

    The share of a source is its weight divided by the sum of the weights. Of n samples, share * n
    should come from it. The next sample is from the source that is furthest below this number (on a
    tie, the first). With two sources, the number of samples from each is within 1 of share * n.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    counts = [0] * len(shares)
    drawn = 0
    while True:
        drawn += 1
        deficits = [share * drawn - count for share, count in zip(shares, counts, strict=True)]
        chosen = deficits.index(max(deficits))
        counts[chosen] += 1
        yield chosen


def stream_loader(stream: ExampleStream, args: Any, accelerator: Any, collate: Any) -> Any:
    """Set the rank and the batch size of a stream, and return its data loader for this rank.

    The stream itself splits the samples among ranks and workers. Accelerate must not split them a
    second time, so it prepares the loader as if there were only one rank. ``args`` are
    TrainingArguments.
    """
    stream.batch_rows, stream.rank = args.train_batch_size, args.process_index
    stream.ranks = args.world_size
    loader = DataLoader(
        stream,
        batch_size=None,
        collate_fn=collate,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context,
        prefetch_factor=args.dataloader_prefetch_factor,
    )
    return prepare_data_loader(
        loader,
        accelerator.device,
        num_processes=1,
        process_index=0,
        put_on_device=True,
        dispatch_batches=False,
        non_blocking=accelerator.non_blocking,
    )


def shuffled(rows: Iterable[T], buffer_size: int, rng: random.Random) -> Iterator[T]:
    """Yield every row once, in an approximately random order, using a buffer of rows."""
    buffer: list[T] = []
    for row in rows:
        if len(buffer) < buffer_size:
            buffer.append(row)
            continue
        index = rng.randrange(buffer_size)
        yield buffer[index]
        buffer[index] = row
    rng.shuffle(buffer)
    yield from buffer
