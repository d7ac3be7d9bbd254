"""Training set: load rows from one or more sources, drop rows that are too long, and mix them.

Input: the ``data`` section of a config. Output: a list of examples, or a stream (``data.stream``).
For a list, every row is checked before the model is loaded: its id, answer, image file and, with
``data.max_tokens``, length. For a stream, only the first example of each source is checked.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from mm_numeric.answers import Example
from mm_numeric.config.data import listed
from mm_numeric.config.schema import Config
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import NoAnswersError, fingerprint, load_examples
from mm_numeric.data.images import UnreadableImageError
from mm_numeric.data.lengths import TooLongError, check_row, fits_in_any_case
from mm_numeric.data.streaming import ExampleStream, weighted_round_robin
from mm_numeric.io.log import ONCE, logger, progress

T = TypeVar("T")

_MAX_NAMED = 3  # rows named in a message
_OPENED = 256  # images that are opened for their size, because their rows do not have it


class TrainingRows:
    """The training samples of a run: a list in memory, or a stream that is read while training."""

    def __init__(self, config: Config) -> None:
        self.config, self.too_long = config, 0
        self.longest_answer = 0
        """Tokens of the longest answer that ``for_trainer`` measured, including its end token; 0 if
        it measured none."""

        self.stream: ExampleStream | None = None
        self.first_streamed: Example | None = None
        self.sources: list[list[Example]] = []
        if config.data.stream:
            is_sequential = config.trainer.get("train_sampling_strategy") == "sequential"
            seed_or_none = None if is_sequential else config.row_seed
            self.stream = ExampleStream(config.task, config.data, seed=seed_or_none)
            self.first_streamed = self.stream.check()
            return
        self._load()

    def _load(self) -> None:
        """Load the samples of every source.

        A source is left out, with a warning, if none of its decoded answers can be trained on: all
        may be unparseable, or not confident enough.
        """
        config, ids = self.config, dict[str, str]()
        without: list[NoAnswersError] = []
        for source in listed(config.data.train):
            try:
                examples = load_examples(
                    config.task, source, Path(config.data.cache), training=True, seen=ids
                )
            except NoAnswersError as error:
                examples = []
                without.append(error)
            self.sources.append(examples)
        if without and not any(self.sources):
            raise without[0]
        for empty in without:
            reason = str(empty).partition("; give at least one")[0]
            logger.warning("%s; its source is left out.", reason)

    def rows(self) -> list[Example]:
        """Return the loaded samples of all sources, each once ([] if they are streamed)."""
        return list(chain.from_iterable(self.sources))

    @property
    def count(self) -> int | None:
        """Return the number of loaded samples; None if they are streamed."""
        return None if self.stream is not None else sum(map(len, self.sources))

    def for_trainer(self, collator: TrainingCollator) -> list[Example] | ExampleStream:
        """Return the data for the trainer: the stream, or a list of the samples of one epoch.

        Samples that are too long are left out of the list or cause an error (``data.too_long``).
        Without ``data.max_tokens``, a sample that is too long for the model causes an error.
        Sets ``longest_answer`` if ``predict.max_new_tokens`` depends on it.
        """
        if self.stream is not None:
            return self.stream
        dropped: list[Example] = []
        if collator.length_limit is not None:
            dropped = self._apply_length_limit(collator)
        elif collator.family.max_positions or self.config.predict.max_new_tokens is None:
            self._measure_all(collator)
        self._report_classes(dropped)
        named = zip(self.sources, listed(self.config.data.train), strict=True)
        filled = [(rows, source.weight) for rows, source in named if rows]
        weights = [weight for _, weight in filled if weight is not None]
        if not weights:
            return self.rows()
        epoch, counts = mixed_epoch([rows for rows, _ in filled], weights), Counter[str]()
        for index, row in enumerate(epoch):
            if counts[row.id]:
                epoch[index] = replace(row, repeat=counts[row.id])
            counts[row.id] += 1
        return epoch

    def metadata(self) -> dict[str, Any]:
        """Return entries for run.json: the first prompt, number and hash of the samples."""
        is_list = self.stream is None
        first = self.first_streamed or self.rows()[0]
        return {
            "first_prompt": first.prompt,
            "rows": self.count,
            "rows_sha256": fingerprint(self.rows()) if is_list else None,
            "rows_too_long": self.too_long,
        }

    def _report_classes(self, dropped: Sequence[Example]) -> None:
        """Log the number of objects of each class, and a warning for each class without objects."""
        task = self.config.task
        counts, too_long = task.count_classes(self.rows()), task.count_classes(dropped)
        if counts is None or too_long is None:
            return
        for name, value in counts.facts():
            logger.info("%s: %s", name, value, extra=ONCE)
        for warning in counts.warnings(too_long.objects):
            logger.warning("%s", warning)

    def _measure_all(self, collator: TrainingCollator) -> None:
        """Measure the samples, and raise ``TooLongError`` if one is too long for the model.

        If a row has an image but not its size, the image must be opened, which takes long. This is
        done for the 256 such rows with the longest answers. Each other image is opened only if the
        row could be too long with an image of some size.
        """
        family, unknown = collator.family, list[Example]()
        for example in progress(self.rows(), desc="measuring rows", unit="row"):
            if example.image is None or example.size_px is not None:
                self._measure(collator, example)
            else:
                unknown.append(example)
        unknown.sort(key=lambda example: -len(repr(example.answer)))
        for number, example in enumerate(unknown):
            if number < _OPENED:
                with suppress(UnreadableImageError):  # data.on_bad_image handles it in training
                    self._measure(collator, example)
                    continue
            if not fits_in_any_case(family, self.config.task, example):
                self._measure(collator, example)

    def _measure(self, collator: TrainingCollator, example: Example) -> None:
        """Measure a sample; raise ``TooLongError`` if it has more tokens than allowed."""
        tokens = collator.measure(example)
        if tokens is not None:
            check_row(collator.family, example, tokens.total)
            self.longest_answer = max(self.longest_answer, tokens.answer)

    def _apply_length_limit(self, collator: TrainingCollator) -> list[Example]:
        """Drop and return the samples that are too long, or raise an error (``data.too_long``)."""
        limit = collator.length_limit
        assert limit is not None
        kept: list[list[Example]] = []
        errors: list[str] = []
        dropped: list[Example] = []
        for examples in self.sources:
            kept.append([])
            for example in examples:
                try:
                    self._measure(collator, example)
                    kept[-1].append(example)
                except TooLongError as error:
                    errors.append(str(error))
                    dropped.append(example)
        if errors and limit.too_long != "drop":
            more = f" ({len(errors)} rows are too long)" if len(errors) > 1 else ""
            raise ValueError(f"{errors[0].removesuffix('.')}{more}.")
        for source, before, rest in zip(
            listed(self.config.data.train), self.sources, kept, strict=True
        ):
            if before and not rest:
                raise ValueError(
                    f"{source.name}: every row has more tokens than data.max_tokens "
                    f"{limit.max_tokens}; raise it."
                )
        self.sources, self.too_long = kept, len(errors)
        if errors:
            logger.info("%d rows dropped: %s", len(errors), "; ".join(errors[:_MAX_NAMED]))
        return dropped


def mixed_epoch(sources: Sequence[Sequence[T]], weights: Sequence[float]) -> list[T]:
    """Return the samples of one epoch, with the sources interleaved by their weights.

    The epoch ends when every sample has occurred at least once; small sources are repeated.
    """
    rows: list[T] = []
    counts = [0] * len(sources)
    incomplete = len(sources)
    for chosen in weighted_round_robin(weights):
        source = sources[chosen]
        rows.append(source[counts[chosen] % len(source)])
        counts[chosen] += 1
        incomplete -= counts[chosen] == len(source)
        if not incomplete:
            return rows
    raise AssertionError  # weighted_round_robin never ends
