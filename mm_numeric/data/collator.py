"""Collate examples into model inputs, labels (answer tokens only) and the positions of numbers.

Axes of tensors: b samples, t token positions, n answer tokens in the whole batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from mm_numeric.answers import Example, Written
from mm_numeric.config.schema import Config
from mm_numeric.data.augment import Augmenter
from mm_numeric.data.framing import FramedImage, compute_frame, load_framed_image
from mm_numeric.data.image_cache import ImageCache, VisionCache, joined
from mm_numeric.data.images import UnreadableImageError, image_size
from mm_numeric.data.lengths import (
    LengthLimit,
    SampleTokens,
    TooLongError,
    check_row,
    count_image_tokens,
    row_tokens,
)
from mm_numeric.families.family import Family, Prompts, Tokens
from mm_numeric.geometry.frames import Frame
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, TokenNumber, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.tasks.base import Task

BATCH_KEYS = ("labels", "supervised", "spans", "origin")
"""Entries of a training batch that are not passed to the model."""

_DUMMY_IMAGE = Image.new("RGB", (64, 64))
_DUMMY_QUESTION = "?"


@dataclass(frozen=True)
class Origin:
    """Ids of the samples in a training batch, and of skipped samples (unreadable or too long)."""

    ids: tuple[str, ...]

    tokens: int
    """Number of tokens of prompts, images and answers, without padding. For an encoder-decoder, the
    tokens of the encoder and of the answers."""

    skipped: Mapping[str, str]
    """Maps the id of each skipped row to the reason: an unreadable image, or too many tokens."""

    images: int = 0
    """Number of rows with images, without a dummy image row."""


def prompt_batch(
    family: Family, examples: Sequence[Example], *, add_dummy_image_row: bool = False
) -> tuple[dict[str, Any], list[Frame | None]]:
    """Return the model inputs for generating answers, and the frame of each example's image.

    Prompts of decoder-only models are padded on the left. If ``add_dummy_image_row`` is set, a
    prompt with a dummy image is added to a batch without images, because under ZeRO-3 all ranks
    must run the vision tower. No frame is returned for this prompt.
    """
    images = [load_framed_image(family, example) for example in examples]
    frames = [frame for _, frame in images]
    if add_dummy_image_row and not _has_image(images):
        dummy, image = _dummy_row(family, examples[0])
        examples, images = [*examples, dummy], [*images, image]
    prompts = _prompts(family, examples, images)
    return padded_inputs(family, prompts, prompts.ids, left=not family.encoder_decoder), frames


class EncodedAnswer(NamedTuple):
    """The correct answer of a sample, as text and as tokens."""

    written: Written
    tokens: Tokens


class TrainedAnswer(NamedTuple):
    """The correct answer of a sample, and the numbers in it."""

    tokens: Tokens
    numbers: list[TokenNumber]


class EncodedAnswers:
    """Cache of answers that were encoded to measure their samples, for use in the batches.

    Each answer is thus formatted and tokenised only once. Answers beyond ``max_tokens`` tokens in
    total are not kept, to limit the memory (160 bytes per token in long answers, 260 in answers of
    five tokens).
    """

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        self._free = max_tokens
        self._kept: dict[str, tuple[Any, Frame | None, EncodedAnswer]] = {}
        self._latest: tuple[str, Any, Frame | None, EncodedAnswer] | None = None

    def find(self, example: Example, frame: Frame | None) -> EncodedAnswer | None:
        """Return the encoded answer of a sample in this frame; None if it is not cached."""
        # Answer and frame are compared, too, because streamed rows may repeat an id.
        wanted = example.id, example.answer, frame
        if self._latest is not None and self._latest[:3] == wanted:
            return self._latest[3]
        *own, encoded = self._kept.get(example.id, (None, None, None))
        return encoded if own == [*wanted[1:]] else None

    def add(self, example: Example, frame: Frame | None, encoded: EncodedAnswer) -> None:
        """Keep an answer until the next answer is added."""
        self._latest = example.id, example.answer, frame, encoded

    def keep(self, example: Example, frame: Frame | None, encoded: EncodedAnswer) -> None:
        """Keep an answer for the batches of all epochs, if there is space for it."""
        if self._free > 0 and example.id not in self._kept:
            self._free -= len(encoded.tokens.ids)
            self._kept[example.id] = example.answer, frame, encoded


@dataclass(frozen=True)
class TrainingCollator:
    """Collates examples into training batches: prompts followed by answers, padded on the right.

    A batch contains the model inputs and these entries:

    supervised  [b, t] bool, True at the positions that predict an answer token
    labels      [n] all answer tokens of the batch, one for each True in ``supervised``
    spans       ``NumberSpans``: the numbers in the answers, and the labels that spell each number
    origin      ``Origin``: the ids of the samples in the batch, and of skipped samples
    """

    family: Family
    task: Task
    vocabulary: NumberVocabulary
    digit_runs: bool = False
    """Use every run of digits in the labels as a number, as the published NTIL code does. False:
    use the numbers that the task marks in its answers."""

    thousands_separators: bool = False
    """Read 1,234 as one number, not two, if ``every_number`` is set."""

    every_number: bool = False
    """Also add spans for the numbers in an answer that the task has not marked. Digits of the text
    format, such as the 2 of ``bbox_2d``, are not numbers."""

    skip_unreadable_images: bool = False
    """Skip a row whose image cannot be read, instead of raising an error."""

    add_dummy_image_row: bool = False
    """Append a dummy image row to a batch without images, so that every rank runs the vision tower.
    Otherwise training hangs when only some ranks have images, in the gathers of ZeRO-3 or the
    gradient reductions of DDP and ZeRO. The row has a short question, without an answer, and adds
    nothing to the loss. A batch whose rows are all skipped gets this row in any case."""

    length_limit: LengthLimit | None = None
    encoded: EncodedAnswers = field(default_factory=EncodedAnswers, repr=False, compare=False)
    image_cache: ImageCache | None = None
    """Cache of resized images; None to decode every image."""

    vision_cache: VisionCache | None = None
    """Cache of image features. Batches then have ``vision_rows`` in place of ``pixel_values``. None
    to run the vision tower for every image."""

    augment: Augmenter | None = None
    """Changes images and answers before they are encoded; None to train on the rows as they are.
    Examples without an epoch are not changed."""

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a training batch: the model inputs, the labels and the positions of numbers.

        An empty list of examples becomes an empty dict. After a resume, streamed data has an empty
        list for each micro-batch that was trained on before the interruption.
        """
        if not examples:
            return {}
        kept, images, answers, skipped = self._load(examples)
        answer_ids = [answer.tokens.ids for answer in answers]
        spans = self._spans(answer_ids, [answer.numbers for answer in answers])
        row_ids = tuple(example.id for example in kept)
        with_images = sum(example.image is not None for example in kept)
        if not kept or (self.add_dummy_image_row and not _has_image(images)):
            dummy, image = _dummy_row(self.family, examples[0])
            kept, images = [*kept, dummy], [*images, image]
            answer_ids = [*answer_ids, []]
        vision: dict[str, Any] = {}
        if self.vision_cache is None:
            prompts = _prompts(self.family, kept, images)
        else:
            rows = zip(kept, images, strict=True)
            own = [_prompts(self.family, [example], [image]) for example, image in rows]
            prompts, vision = joined(own, self.vision_cache)
        for example, prompt, ids in zip(kept, prompts.ids, answer_ids, strict=True):
            check_row(self.family, example, row_tokens(self.family, len(prompt), len(ids)))
        inputs, supervised = self._training_inputs(prompts, answer_ids)
        labels = torch.tensor([token for ids in answer_ids for token in ids], dtype=torch.long)
        spans = replace(spans, supervised=supervised.flatten().nonzero().squeeze(1))
        tokens = int(inputs["attention_mask"].sum()) + len(labels) * self.family.encoder_decoder
        origin = Origin(row_ids, tokens, skipped, with_images)
        extra = {"labels": labels, "supervised": supervised, "spans": spans, "origin": origin}
        return {**inputs, **vision, **extra}

    def answer(self, example: Example, frame: Frame | None) -> TrainedAnswer:
        """Return the answer that is trained on, with its end token, and the numbers in it."""
        written, answer = self.encode(example, frame)
        try:
            numbers = self.family.numbers(written.text, written.marks, answer, self.vocabulary)
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}") from error
        if self.every_number:
            taken = {position for number in numbers for position in number.positions}
            taken |= {
                position
                for position, (start, end) in enumerate(answer.offsets)
                if not written.format_digits.isdisjoint(range(start, end))
            }
            found = numbers_in_labels(
                answer.ids, self.vocabulary, thousands_separators=self.thousands_separators
            )
            numbers += [number for number in found if taken.isdisjoint(number.positions)]
        numbers = sorted(numbers, key=lambda number: number.positions)
        return TrainedAnswer(answer, numbers)

    def encode(self, example: Example, frame: Frame | None) -> EncodedAnswer:
        """Return an example's answer as text, and its tokens with the end token."""
        found = self.encoded.find(example, frame)
        if found is None:
            try:
                written = self.task.format(example.answer, frame)
                found = EncodedAnswer(written, self.family.answer(written.text))
            except ValueError as error:
                raise ValueError(f"{example.where}: {error}") from error
            self.encoded.add(example, frame, found)
        return found

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the token count of each example; a repeated example is tokenised only once."""
        known: dict[int, int] = {}
        for example in examples:
            if id(example) not in known:
                known[id(example)] = self.length(example)
        return [known[id(example)] for example in examples]

    def length(self, example: Example) -> int:
        """Return the number of tokens of an example, or 0 if it is skipped. See ``measure``."""
        tokens = self.measure(example)
        return 0 if tokens is None else tokens.total

    def measure(self, example: Example) -> SampleTokens | None:
        """Count the tokens of an example, without decoding its image if possible.

        The image size is taken from the example or, if missing, read from the image file. The
        encoded answer is kept for the batches. With ``skip_unreadable_images``, None is returned
        for an example with an unreadable image.
        """
        frame = None
        if example.image is not None:
            try:
                size = example.size_px or image_size(example.image)
            except ValueError as error:
                if self.skip_unreadable_images:
                    return None
                message = f"{example.where}: {error}; replace it or remove its row."
                raise UnreadableImageError(message) from error
            frame = compute_frame(self.family, example, size)
        frame = self.fitted_frame(example, frame)
        tokens = self.count(example, frame)
        self.encoded.keep(example, frame, self.encode(example, frame))
        return tokens

    def fitted_frame(self, example: Example, frame: Frame | None) -> Frame | None:
        """Return a frame for which an example has at most ``data.max_tokens`` tokens."""
        if self.length_limit is None:
            return frame
        return self.length_limit.frame(self.family, example, frame, partial(self.count, example))

    def count(self, example: Example, frame: Frame | None) -> SampleTokens:
        """Count the tokens of an example whose images are resized as ``frame`` describes."""
        image = count_image_tokens(self.family, example, frame)
        answer = len(self.encode(example, frame).tokens.ids)
        try:
            question = len(self.family.question(example.prompt, image))
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}") from error
        return SampleTokens(row_tokens(self.family, question, answer), image, answer)

    def load_image(self, example: Example) -> FramedImage:
        """Load the images of an example and their frame; downscale images of a long example."""
        return load_framed_image(
            self.family,
            example,
            image_cache=self.image_cache,
            fitted=partial(self.fitted_frame, example),
        )

    def augmented(self, example: Example) -> Example:
        """Return an augmented sample, or the sample itself if the augmented one is too long."""
        changed = example if self.augment is None else self.augment(example)
        if changed is example or changed.size_px is None:
            return example
        try:
            frame = compute_frame(self.family, changed, changed.size_px)
            tokens = self.count(changed, self.fitted_frame(changed, frame))
            check_row(self.family, changed, tokens.total)
        except TooLongError:
            return example
        return changed

    def _load(
        self, examples: Sequence[Example]
    ) -> tuple[list[Example], list[FramedImage], list[TrainedAnswer], dict[str, str]]:
        """Load the images of examples, and encode their answers.

        Returns the examples that can be used, their images and answers, and a dict that maps the
        ids of the other examples to the reasons.
        """
        kept, images, answers, skipped = [], [], [], {}
        for original in examples:
            example = self.augmented(original)
            try:
                image = self.load_image(example)
            except UnreadableImageError as error:
                if not self.skip_unreadable_images:
                    raise
                skipped[example.id] = str(error)
            except TooLongError as error:
                if self.length_limit is None or self.length_limit.too_long != "drop":
                    raise
                skipped[example.id] = str(error)
            else:
                kept.append(example)
                images.append(image)
                answers.append(self.answer(example, image[1]))
        return kept, images, answers, skipped

    def _spans(
        self, answer_ids: Sequence[list[int]], numbers: Sequence[list[TokenNumber]]
    ) -> NumberSpans:
        """Locate the tokens that spell numbers in a batch of answers."""
        if self.digit_runs and answer_ids:
            return NumberSpans.from_labels(_pad(answer_ids), self.vocabulary, digit_runs=True)
        rows, start = [], 0
        for ids in answer_ids:
            rows.append({position: start + position for position in range(len(ids))})
            start += len(ids)
        return NumberSpans.build(numbers, rows)

    def _training_inputs(
        self, prompts: Prompts, answer_ids: Sequence[list[int]]
    ) -> tuple[dict[str, Any], Tensor]:
        """Return the model inputs, and a boolean mask of positions that predict answer tokens."""
        if self.family.encoder_decoder:
            inputs = padded_inputs(self.family, prompts, prompts.ids, left=False)
            shifted = [[self.family.decoder_start_id, *ids[:-1]] for ids in answer_ids]
            inputs["decoder_input_ids"] = _pad(shifted, fill=self.family.pad_id)
            starts, width = [0] * len(answer_ids), inputs["decoder_input_ids"].shape[1]
        else:
            whole = [prompt + ids for prompt, ids in zip(prompts.ids, answer_ids, strict=True)]
            inputs = padded_inputs(self.family, prompts, whole, left=False)
            # The position before a token predicts it.
            starts, width = [len(p) - 1 for p in prompts.ids], inputs["input_ids"].shape[1]
        supervised = torch.zeros((len(answer_ids), width), dtype=torch.bool)
        for i, (start, ids) in enumerate(zip(starts, answer_ids, strict=True)):
            supervised[i, start : start + len(ids)] = True
        return inputs, supervised


def has_mixed_modalities(family: Family, examples: Sequence[Example]) -> bool:
    """Return True if the model accepts images, and some but not all examples have an image."""
    with_image = sum(example.image is not None for example in examples)
    return family.takes_images and 0 < with_image < len(examples)


def _has_image(images: Sequence[FramedImage]) -> bool:
    return any(image is not None for image, _ in images)


def _dummy_row(family: Family, example: Example) -> tuple[Example, FramedImage]:
    """Return a dummy row to add to a batch, and its image if the family accepts images."""
    # Not the question of the example, which may have been skipped because it is too long.
    dummy = replace(example, prompt=_DUMMY_QUESTION, image=None, more_images=())
    return dummy, (_DUMMY_IMAGE if family.takes_images else None, None)


def _prompts(family: Family, examples: Sequence[Example], images: Sequence[FramedImage]) -> Prompts:
    """Return the tokenised questions and the processed images of examples."""
    texts, where = zip(*((example.prompt, example.where) for example in examples), strict=True)
    return family.prompts(texts, [image for image, _ in images], where)


def padded_inputs(
    family: Family, prompts: Prompts, ids: Sequence[list[int]], *, left: bool
) -> dict[str, Any]:
    """Return the inputs of a model: padded token ids, attention mask, image tensors and others.

    ``ids[i]`` has the token ids of question i, and in training also the token ids of its answer.
    """
    input_ids = _pad(ids, fill=family.pad_id, left=left)
    mask = _pad([[1] * len(i) for i in ids], fill=0, left=left)
    is_answer = _pad(
        [[0] * len(p) + [1] * (len(i) - len(p)) for p, i in zip(prompts.ids, ids, strict=True)],
        fill=0,
        left=left,
    ).bool()
    inputs = family.model_inputs(input_ids, mask, is_answer, prompts.images)
    for name, rows in prompts.aligned.items():
        filled = [row + [0] * (len(i) - len(row)) for row, i in zip(rows, ids, strict=True)]
        inputs[name] = _pad(filled, fill=0, left=left)
    return inputs


def _pad(ids: Sequence[list[int]], fill: int = IGNORE_INDEX, left: bool = False) -> Tensor:
    """Pad lists of token ids with ``fill`` to the same length, and return them as one tensor."""
    width = max(map(len, ids))
    padding = [[fill] * (width - len(i)) for i in ids]
    pairs = zip(padding, ids, strict=True) if left else zip(ids, padding, strict=True)
    return torch.tensor([a + b for a, b in pairs])


def make_collator(config: Config, family: Family) -> TrainingCollator:
    """Create the training collator from a config."""
    spec, data = config.objective.spec, config.data
    limit, positions = None, family.max_positions
    if data.max_tokens is not None:
        if positions is not None and data.max_tokens > positions:
            raise ValueError(
                f"{config.title}, data.max_tokens: it is {data.max_tokens}, and the model has "
                f"{positions} positions; set {positions} or less."
            )
        limit = LengthLimit(data.max_tokens, data.too_long)
    vocabulary = family.vocabulary()
    return TrainingCollator(
        family,
        config.task,
        vocabulary.only_digits() if spec.number_tokens == "digits" else vocabulary,
        digit_runs=spec.digit_runs,
        thousands_separators=spec.thousands_separators,
        every_number=spec.numbers == "all",
        skip_unreadable_images=data.on_bad_image == "skip",
        length_limit=limit,
        image_cache=None if data.image_cache is None else ImageCache(Path(data.image_cache)),
    )
