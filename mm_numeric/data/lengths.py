"""Count the tokens of samples, limit them, and sample rows in a reproducible order.

There are two limits: ``data.max_tokens``, above which samples are resized, dropped or rejected, and
the longest sequence that the model can process.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import Sampler

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.framing import compute_frame
from mm_numeric.data.images import UnreadableImageError, image_size
from mm_numeric.families.family import Family
from mm_numeric.geometry.frames import MAX_ASPECT_RATIO, Frame
from mm_numeric.io.log import NO_PREFIX, logger
from mm_numeric.tasks.base import Task

_POSITIONS = ("max_position_embeddings", "max_seq_len", "seq_length", "max_sequence_length")
"""Settings of model configs with the number of positions; the first that is set is used. Models
with relative positions, such as T5, have none of these settings."""

_ANY_EDGE_PX = 1_000_000
_UNLIMITED = 10**9  # tokens; more than any model has positions


class TooLongError(ValueError):
    """Raised if a sample has more tokens than allowed; the message names it and its length."""


class SampleTokens(NamedTuple):
    """The number of tokens of a sample."""

    total: int
    """Length of the longest sequence that the model processes for the sample (``row_tokens``)."""

    image: int
    answer: int
    """Tokens of the answer, including the end token."""


@dataclass(frozen=True)
class LengthLimit:
    """Maximum number of tokens of a sample, and the action for longer samples."""

    max_tokens: int
    too_long: str
    """Action for longer rows: stop (raise an error), drop, or resize (downscale the image)."""

    def frame(
        self,
        family: Family,
        example: Example,
        frame: Frame | None,
        count: Callable[[Frame | None], SampleTokens],
    ) -> Frame | None:
        """Return a frame (image size) for which the sample has at most ``max_tokens`` tokens.

        ``frame`` is the usual frame, and ``count`` returns the number of tokens for any frame.
        Raises TooLongError if the sample is too long, and ``too_long`` is not ``resize`` or no
        image size is small enough.
        """
        tokens = count(frame)
        if tokens.total <= self.max_tokens:
            return frame
        smaller = None
        if self.too_long == "resize" and frame is not None and family.resize.kind == "smart":
            smaller = self._smaller_frame(family, example, frame, count, tokens)
        if smaller is None:
            raise TooLongError(
                f"{example.where}: the row {example.id!r} has {tokens.total} tokens, "
                f"{tokens.image} of them for its image, and data.max_tokens is {self.max_tokens}"
                f"{self._advice(family, frame)}."
            )
        return smaller

    def _advice(self, family: Family, frame: Frame | None) -> str:
        if self.too_long == "drop":  # the row is dropped and reported, not an error
            return ""
        advice = "; raise it, remove the row, or set data.too_long to drop"
        if self.too_long == "resize":
            return f"{advice}, because its image cannot be made small enough"
        if frame is not None and family.resize.kind == "smart":
            return f"{advice} or resize"
        return advice

    def _smaller_frame(
        self,
        family: Family,
        example: Example,
        frame: Frame,
        count: Callable[[Frame | None], SampleTokens],
        tokens: SampleTokens,
    ) -> Frame | None:
        """Return a frame with a smaller image for which the sample is short enough, or None."""
        resize, size = family.resize, (frame.width_px, frame.height_px)
        image_tokens = self.max_tokens - tokens.total + tokens.image
        while image_tokens > 0:
            most = image_tokens // max(len(example.images), 1) * resize.factor**2
            if not most:
                return None
            view = replace(resize, max_pixels=most).view(*size)
            resized = resize.view(view.width_px, view.height_px)
            if (resized.width_px, resized.height_px) != (view.width_px, view.height_px):
                return None  # the family would enlarge the image again
            smaller = replace(frame, view=view)
            # An answer in pixels of the resized image may now have a different number of digits.
            total = count(smaller).total
            if total <= self.max_tokens:
                return smaller
            image_tokens -= total - self.max_tokens
        return None


def row_tokens(family: Family, question: int, answer: int) -> int:
    """Return the length of the longest sequence that the model processes for one sample.

    For a decoder-only model: question plus answer. For an encoder-decoder: the longer of both.
    """
    return max(question, answer) if family.encoder_decoder else question + answer


def count_image_tokens(family: Family, example: Example, frame: Frame | None) -> int:
    """Return the number of tokens of all images of a sample, resized as ``frame`` describes.

    All images have one size. The number is 0 if ``frame`` is None.
    """
    if frame is None:
        return 0
    size = frame.width_px, frame.height_px
    if frame.view != family.frame(*size).view:
        size = frame.view.width_px, frame.view.height_px
    return family.image_tokens(*size) * max(len(example.images), 1)


def max_positions(settings: Any) -> int | None:
    """Return a model's maximum sequence length in tokens, or None if it has no limit.

    RoPE scaling extends ``max_position_embeddings``: ``linear`` and ``dynamic`` multiply it by a
    factor, and ``yarn`` multiplies the original length (as in vLLM). With other types, the value in
    the configuration is already extended.
    """
    text = settings.get_text_config()
    found = (getattr(text, name, None) for name in _POSITIONS)
    positions = next((value for value in found if isinstance(value, int) and value > 0), None)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    factor = rope.get("factor")
    if positions is None or not isinstance(factor, int | float):
        return positions
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "dynamic"):
        return int(positions * factor)
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings") or positions
        return max(positions, int(original * factor))
    return positions


def check_row(family: Family, example: Example, tokens: int) -> None:
    """Raise ``TooLongError`` if a sample of ``tokens`` tokens is too long for the model."""
    positions = family.max_positions
    if positions is not None and tokens > positions:
        images = "use smaller images (model.image_size), " if example.image is not None else ""
        raise TooLongError(
            f"{example.where}: the row {example.id!r} has {tokens} tokens, and the model has "
            f"{positions} positions; {images}remove the row, or set data.max_tokens to {positions} "
            "and data.too_long to drop."
        )


def check_questions(family: Family, examples: Sequence[Example], max_new_tokens: int) -> None:
    """Raise ``TooLongError`` if a question leaves no room for an answer of ``max_new_tokens``."""
    positions = family.max_positions
    if positions is None:
        return
    if row_tokens(family, 1, max_new_tokens) > positions:
        raise ValueError(
            f"predict.max_new_tokens is {max_new_tokens}, and the model has {positions} positions "
            "for question and answer together; set a smaller number."
        )
    for example in examples:
        image_tokens = most_image_tokens(family) * len(example.images)
        question = _question_tokens(family, example, image_tokens)
        if row_tokens(family, question, max_new_tokens) <= positions:
            continue
        if example.image is not None:
            try:
                size = example.size_px or image_size(example.image)
            except ValueError as error:
                raise UnreadableImageError(f"{example.where}: {error}") from error
            image_tokens = count_image_tokens(family, example, compute_frame(family, example, size))
            question = _question_tokens(family, example, image_tokens)
        if row_tokens(family, question, max_new_tokens) > positions:
            raise TooLongError(
                f"{example.where}: the question has {question} tokens, and with "
                f"predict.max_new_tokens {max_new_tokens} it needs more than the {positions} "
                f"positions of the model; set predict.max_new_tokens to at most "
                f"{max(positions - question, 0)}, or shorten the question or its image."
            )


def fits_in_any_case(family: Family, task: Task, example: Example) -> bool:
    """Return True if a sample is short enough for the model, whatever the size of its image.

    In that case, the image size need not be read, which for a PNG file is as slow as decoding.
    """
    positions = family.max_positions
    if positions is None:
        return True
    try:
        frame = family.frame(_ANY_EDGE_PX, _ANY_EDGE_PX)
        written = task.format(example.answer, frame)
    except ValueError:
        return False
    # In the frame of the image, each coordinate may have more digits, and other merged tokens.
    largest = frame.coordinates.numeral(frame.coordinates.largest(_ANY_EDGE_PX))
    answer = len(family.answer(written.text).ids) + (len(largest) + 2) * len(written.marks)
    most = most_image_tokens(family) * max(len(example.images), 1)
    question = _question_tokens(family, example, most)
    return row_tokens(family, question, answer) <= positions


def most_image_tokens(family: Family) -> int:
    """Return an upper bound for the tokens of an image; 0 if the family accepts no images."""
    if not family.takes_images:
        return 0
    resize = family.resize
    if resize.kind == "none":
        return _UNLIMITED
    if resize.kind != "smart":
        return family.image_tokens(resize.side, resize.side)
    most = resize.max_pixels // resize.factor**2
    # Sides are rounded up for min_pixels, and are at least one token for very long images.
    least = math.ceil(resize.min_pixels / resize.factor**2)
    return max(most, MAX_ASPECT_RATIO, least + 2 * max(MAX_ASPECT_RATIO, least) + 1)


def _question_tokens(family: Family, example: Example, image_tokens: int) -> int:
    """Return the number of tokens of a question whose images have ``image_tokens`` tokens."""
    placeholders = min(image_tokens, max(len(example.images), 1))
    try:
        return len(family.question(example.prompt, placeholders)) + image_tokens - placeholders
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from error


def new_tokens_for(longest: int) -> int:
    """Return 1.25 times the longest training answer, rounded up: test answers may be longer."""
    return longest + -(-longest // 4)


def with_new_tokens(config: Config, longest: int) -> Config:
    """Set ``predict.max_new_tokens`` from the training answers, if the config does not set it.

    ``longest`` is the number of tokens of the longest answer. If it is 0 (the rows are streamed, or
    no image can be read), the config is returned unchanged.
    """
    if config.predict.max_new_tokens is not None or not longest:
        return config
    number = new_tokens_for(longest)
    line = "predict.max_new_tokens: %d, for training answers of up to %d tokens"
    logger.info(line, number, longest, extra=NO_PREFIX)
    return replace(config, predict=replace(config.predict, max_new_tokens=number))


class EpochSampler(Sampler[int]):
    """Sampler whose order depends only on epoch and seed, so that a resumed run has the same order.

    All ranks share one order, and take the samples of a step from neighbouring positions in it. If
    these samples have similar lengths, no rank waits for another. With the length-grouped sampler
    of transformers (5.23), lengths are similar only within a rank, and resuming changes the order.
    """

    def __init__(
        self, order: Callable[[torch.Generator], list[int]], seed: int, epoch: Callable[[], int]
    ) -> None:
        """Create a sampler.

        Args:
            order: Function from a random generator to the indices of all samples of an epoch.
            seed: Seed of the generator; the epoch is added to it.
            epoch: Function that returns the current epoch. The sampler cannot use ``set_epoch``:
                accelerate (1.15) does not call it when a run resumes within an epoch.
        """
        self.order, self.seed, self.epoch = order, seed, epoch
        self.count = len(order(torch.Generator()))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        yield from self.order(torch.Generator().manual_seed(self.seed + self.epoch()))


def rows_per_step(args: Any) -> int:
    """Return the number of samples per optimiser step, over all ranks and micro-batches."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def sampler_seed(args: Any) -> int:
    """Return the seed of the row order: ``args.data_seed``, or ``args.seed`` if that is None."""
    return int(args.seed if args.data_seed is None else args.data_seed)
