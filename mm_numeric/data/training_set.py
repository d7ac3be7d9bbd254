"""What a run is trained on: rows from one source or several, their lengths, and what is too long.

Of a list every row is read and checked before the model is loaded: ids, answers, images that are
missing, and with ``data.max_tokens`` lengths. Of a stream the first row of each source is, the
others when they are read.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example
from mm_numeric.config.data import listed
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import fingerprint, load_examples
from mm_numeric.data.framing import frame_of
from mm_numeric.data.images import UnreadableImageError, image_size
from mm_numeric.data.lengths import TooLongError, row_tokens
from mm_numeric.data.mixing import mixed_epoch
from mm_numeric.data.streaming import ExampleStream
from mm_numeric.log import logger

_NAMED = 3  # rows in a sentence


class TrainingRows:
    """The rows of a run, as a list or a stream."""

    def __init__(self, config: Config) -> None:
        """Read them, or begin to.

        Raises:
            ValueError: If one cannot be used.
        """
        self.config, self.too_long = config, 0
        self.stream: ExampleStream | None = None
        self.sources: list[list[Example]] = []
        if config.data.stream:
            ordered = config.trainer.get("train_sampling_strategy") == "sequential"
            seeds = (config.trainer.get(name) for name in ("data_seed", "seed"))
            seed = next((seed for seed in seeds if seed is not None), 42)
            self.stream = ExampleStream(config.task, config.data, seed=None if ordered else seed)
            self.stream.check()
            return
        cache, seen = Path(config.data.cache), dict[str, str]()
        for source in listed(config.data.train):
            found = load_examples(config.task, source, cache, training=True, seen=seen)
            self.sources.append(found)

    def rows(self) -> list[Example]:
        """Return every row once; of a stream none is known."""
        return list(chain.from_iterable(self.sources))

    def for_trainer(self, collator: TrainingCollator) -> list[Example] | ExampleStream:
        """Return what a trainer takes: the rows of an epoch, without those that are dropped.

        Raises:
            ValueError: If a row is too long, and not to be dropped.
        """
        if self.stream is not None:
            return self.stream
        if collator.fit is not None:
            self._leave_out_long(collator)
        weights = [s.weight for s in listed(self.config.data.train) if s.weight is not None]
        return mixed_epoch(self.sources, weights) if weights else self.rows()

    def facts(self) -> dict[str, Any]:
        """Return what run.json says of them."""
        known = self.stream is None
        return {
            "rows": sum(map(len, self.sources)) if known else None,
            "rows_sha256": fingerprint(self.rows()) if known else None,
            "rows_too_long": self.too_long,
        }

    def _leave_out_long(self, collator: TrainingCollator) -> None:
        assert collator.fit is not None
        kept: list[list[Example]] = []
        refused: list[str] = []
        for examples in self.sources:
            kept.append([])
            for example in examples:
                try:
                    length(collator, example)
                    kept[-1].append(example)
                except TooLongError as error:
                    refused.append(str(error))
        if refused and collator.fit.too_long != "drop":
            more = f" ({len(refused)} rows are too long)" if len(refused) > 1 else ""
            raise ValueError(f"{refused[0].removesuffix('.')}{more}.")
        self.sources, self.too_long = kept, len(refused)
        for source, rest in zip(listed(self.config.data.train), kept, strict=True):
            if not rest:
                raise ValueError(
                    f"{source.name}: every row has more tokens than data.max_tokens "
                    f"{collator.fit.max_tokens}; raise it."
                )
        if refused:
            named = "; ".join(refused[:_NAMED])
            logger.info("%d rows dropped: %s", len(refused), named)


def lengths(collator: TrainingCollator, examples: Sequence[Example]) -> list[int]:
    """Return how many tokens each row has; one that stands there several times is read once."""
    known: dict[int, int] = {}
    for example in examples:
        if id(example) not in known:
            known[id(example)] = length(collator, example)
    return [known[id(example)] for example in examples]


def length(collator: TrainingCollator, example: Example) -> int:
    """Return how many tokens a row has, by the size that it says or the header of its image.

    A row that the collator will leave out for its image has none.

    Raises:
        ValueError: If its image cannot be read, or it is too long.
    """
    frame, fit = None, collator.fit
    if example.image is not None:
        try:
            size = example.size_px or image_size(example.image)
        except ValueError as error:
            if collator.skip_unreadable_images:
                return 0
            said = f"{example.where}: {error}; replace it or take its row out."
            raise UnreadableImageError(said) from error
        frame = frame_of(collator.family, example, size)
    if fit is not None:
        frame = fit.frame(example, frame)
    return row_tokens(collator.family, collator.task, example, frame)[0]
