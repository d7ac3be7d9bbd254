"""Training rows that are read while they are trained on, and never held all at once.

Every rank, and each of its workers, reads the same rows in the same order and keeps its own: a row
is trained on by one rank, and once, until a source begins again. The batch of all ranks together is
cut into pieces as transformers cuts that of a list. So the same rows are in the same steps on any
number of ranks and workers. A run that goes on reads the rows that it was trained on once more, and
opens none of their images.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from mm_numeric.answers import Example
from mm_numeric.config.data import DataConfig, DataSource, listed
from mm_numeric.data.examples import Found, examples_of_row, files_of, rows_of_file
from mm_numeric.data.mixing import turns
from mm_numeric.tasks.base import Task

T = TypeVar("T")


class ExampleStream(IterableDataset[list[Example]]):
    """The micro-batches of one rank, without end."""

    def __init__(self, task: Task, data: DataConfig, *, seed: int | None) -> None:
        """Stream the training rows of a config.

        Args:
            task: What is asked; it reads the rows.
            data: The sources; each of its own begins again when it has ended.
            seed: Of the order, which differs from one pass to the next; None for that of the files.
        """
        self.task, self.data, self.seed = task, data, seed
        self.batch_rows = self.ranks = 1
        self.rank = 0
        self.skipped = 0
        """How many micro-batches were trained on before; lists without rows stand for them."""

    def __iter__(self) -> Iterator[list[Example]]:
        """Yield this worker's share of the rank's micro-batches.

        Raises:
            ValueError: If a row cannot be used, or a source has none.
        """
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
        """Yield examples without end: of the sources in turn, or as their weights say."""
        sources = listed(self.data.train)
        weights = [source.weight for source in sources if source.weight is not None]
        if not weights:
            yield from self._passes(sources, "all")
        endless = [self._passes([source], str(i)) for i, source in enumerate(sources)]
        for chosen in turns(weights):
            yield next(endless[chosen])

    def check(self) -> None:
        """Look for every file, and read the first row of each source that asks something.

        A shard that is missing is found before a model is loaded, and not when its turn comes.

        Raises:
            ValueError: If a source has none, or a row before it cannot be used.
        """
        for source in listed(self.data.train):
            for file in _pieces(self.task, source, self._cache):
                if file is not None and not file.is_file():
                    raise ValueError(f"{file}: there is no such file.")
            next(self._one_pass([source], None))

    def _passes(self, sources: Iterable[DataSource], name: str) -> Iterator[Example]:
        for number in count():
            chance = None if self.seed is None else random.Random(f"{self.seed} {name} {number}")
            yield from self._one_pass(sources, chance)

    def _one_pass(
        self, sources: Iterable[DataSource], chance: random.Random | None
    ) -> Iterator[Example]:
        """Yield every example of sources once, their files shuffled, and rows within a buffer."""
        pieces = [
            (source, file) for source in sources for file in _pieces(self.task, source, self._cache)
        ]
        if chance is None:
            yield from self._read(pieces)
        else:
            chance.shuffle(pieces)
            yield from shuffled(self._read(pieces), self.data.shuffle_rows, chance)

    def _read(self, pieces: Iterable[tuple[DataSource, Path | None]]) -> Iterator[Example]:
        asked = 0
        for source, file in pieces:
            for found in _rows(source, file, self._cache):
                for example, error in examples_of_row(self.task, found, source, training=True):
                    if error is not None:
                        raise error
                    asked += 1
                    yield example
        if not asked:
            names = " and ".join(source.name for source, _ in pieces)
            raise ValueError(f"{names}: no question in any row; give at least one.")

    @property
    def _cache(self) -> Path:
        return Path(self.data.cache)


def stream_loader(stream: ExampleStream, args: Any, accelerator: Any, collate: Any) -> Any:
    """Return what a trainer reads the micro-batches of this rank from.

    accelerate would share the rows among ranks by itself, each rank's workers all the same ones.

    Args:
        stream: Of the whole run; it is told which rank this is.
        args: transformers' TrainingArguments.
        accelerator: accelerate's.
        collate: Makes a batch of examples.
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
    )


def shuffled(rows: Iterable[T], held: int, chance: random.Random) -> Iterator[T]:
    """Yield every row once; of those that are held, one by chance is next."""
    buffer: list[T] = []
    for row in rows:
        if len(buffer) < held:
            buffer.append(row)
            continue
        place = chance.randrange(held)
        yield buffer[place]
        buffer[place] = row
    chance.shuffle(buffer)
    yield from buffer


def _pieces(task: Task, source: DataSource, cache: Path) -> list[Any]:
    """Return the files of a source; None stands for a data set."""
    return [None] if source.dataset is not None else list(files_of(task, source, cache))


def _rows(source: DataSource, file: Path | None, cache: Path) -> Iterator[Found | ValueError]:
    if file is not None:
        yield from rows_of_file(file)
        return
    from mm_numeric.data.huggingface import dataset_rows  # which loads `datasets`

    for where, row, image in dataset_rows(source, cache, stream=True):
        yield Found(where, row, Path(str(source.dataset)), image)
