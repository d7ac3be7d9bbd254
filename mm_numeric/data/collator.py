"""Examples -> model inputs: padding, labels on the answer only, and the numbers in them.

Axes    b samples, t positions, n supervised rows
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mm_numeric.answers import Example
from mm_numeric.config.schema import Config
from mm_numeric.data.framing import Seen, framed
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.images import UnreadableImageError
from mm_numeric.data.lengths import Fit, TooLongError
from mm_numeric.families.family import Family, Prompts, Tokens
from mm_numeric.geometry.frames import Frame
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, TokenNumber, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.tasks.base import Task

BATCH_KEYS = ("labels", "supervised", "spans", "origin")
"""What a training batch holds beside the inputs of the model."""

_BLANK = Image.new("RGB", (64, 64))  # seen where no image of a batch can be


@dataclass(frozen=True)
class Origin:
    """Which rows a batch was made of."""

    ids: tuple[str, ...]

    left_out: Mapping[str, str]
    """The ids of rows whose image cannot be read, or that are too long, and why."""


def prompt_batch(
    family: Family, examples: Sequence[Example], *, add_dummy_image_row: bool = False
) -> tuple[dict[str, Any], list[Frame | None]]:
    """Return prompts as the inputs of a model that answers them, and the frame of each.

    They are padded on the left where the answer goes on behind them.

    Args:
        family: Whose model it is.
        examples: What is asked.
        add_dummy_image_row: Where none has an image, ask the first once more, behind the others
            and of a blank one; it has no frame. See ``TrainingCollator``.
    """
    seen = [framed(family, example) for example in examples]
    frames = [frame for _, frame in seen]
    if add_dummy_image_row and not _has_image(seen):
        examples, seen = [*examples, examples[0]], [*seen, (_BLANK, None)]
    prompts = _asked(family, examples, seen)
    return _inputs(family, prompts, prompts.ids, left=not family.encoder_decoder), frames


@dataclass(frozen=True)
class TrainingCollator:
    """Batches of prompts with answers, padded on the right.

    Beside the inputs of the model a batch holds ``supervised`` [b, t] (bool, the rows that predict
    a token of the answer), ``labels`` [n] (what they are to predict, top to bottom), ``spans``, and
    its ``origin``.
    """

    family: Family
    task: Task
    vocabulary: NumberVocabulary
    digit_runs: bool = False
    """Read numbers as the published NTIL code does, from the label ids and not the task's marks."""

    thousands_separators: bool = False
    """Read 1,234 as one number where the task has not marked it."""

    every_number: bool = False
    """Take the numbers of the answer that the task has not marked too."""

    skip_unreadable_images: bool = False
    """Leave a row out whose image cannot be read."""

    add_dummy_image_row: bool = False
    """Give a batch without an image one row more: its first question, unanswered and on a blank
    image. Where some rows have an image and some have none, ranks would else part: one gathers
    (ZeRO-3) or reduces (DDP, ZeRO) what sees images while the other does not, and both wait. The
    row is in no sum, its gradient is 0. A batch whose rows are all left out has it anyway."""

    fit: Fit | None = None
    """What is done with rows that are too long."""

    cache: ImageCache | None = None
    """Where images are kept as the family sees them."""

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the inputs of the model, and ``BATCH_KEYS``.

        No rows stand for those of a stream that were trained on before: of them nothing is made.
        """
        if not examples:
            return {}
        asked, seen, left_out = self._seen(examples)
        answers = [
            self.answer(example, frame) for example, (_, frame) in zip(asked, seen, strict=True)
        ]
        ids, numbers = [answer.ids for answer, _ in answers], [found for _, found in answers]
        if not asked or (self.add_dummy_image_row and not _has_image(seen)):
            blank = _BLANK if self.family.takes_images else None
            asked_too, seen_too = [*asked, examples[0]], [*seen, (blank, None)]
            prompts, ids = _asked(self.family, asked_too, seen_too), [*ids, []]
        else:
            prompts = _asked(self.family, asked, seen)
        if self.family.encoder_decoder:
            inputs = _inputs(self.family, prompts, prompts.ids, left=False)
            inputs["decoder_input_ids"] = self._decoder_inputs(ids)
            starts, width = [0] * len(ids), inputs["decoder_input_ids"].shape[1]
        else:
            whole = [prompt + answer for prompt, answer in zip(prompts.ids, ids, strict=True)]
            inputs = _inputs(self.family, prompts, whole, left=False)
            # The row before a token predicts it.
            starts, width = [len(p) - 1 for p in prompts.ids], inputs["input_ids"].shape[1]
        supervised = torch.zeros((len(ids), width), dtype=torch.bool)
        rows, row = [], 0
        for i, (start, answer) in enumerate(zip(starts, ids, strict=True)):
            supervised[i, start : start + len(answer)] = True
            rows.append({position: row + position for position in range(len(answer))})
            row += len(answer)
        labels = torch.tensor([token for answer in ids for token in answer], dtype=torch.long)
        if self.digit_runs and asked:
            answered = _rectangle(ids[: len(asked)])
            spans = NumberSpans.from_labels(answered, self.vocabulary, digit_runs=True)
        else:
            spans = NumberSpans.build(numbers, rows[: len(numbers)])
        spans = replace(spans, supervised=supervised.flatten().nonzero().squeeze(1))
        origin = Origin(tuple(example.id for example in asked), left_out)
        found = {"labels": labels, "supervised": supervised, "spans": spans, "origin": origin}
        return {**inputs, **found}

    def _seen(
        self, examples: Sequence[Example]
    ) -> tuple[list[Example], list[Seen], dict[str, str]]:
        """Return the examples that are trained on, what is seen of them, and who is left out.

        Raises:
            ValueError: If an image cannot be read and is not to be skipped, or cannot be used, or
                a row is too long and not to be dropped.
        """
        asked, seen, left_out = [], [], {}
        for example in examples:
            try:
                seen.append(framed(self.family, example, fit=self.fit, cache=self.cache))
                asked.append(example)
            except UnreadableImageError as error:
                if not self.skip_unreadable_images:
                    raise
                left_out[example.id] = str(error)
            except TooLongError as error:
                if self.fit is None or self.fit.too_long != "drop":
                    raise
                left_out[example.id] = str(error)
        return asked, seen, left_out

    def answer(self, example: Example, frame: Frame | None) -> tuple[Tokens, list[TokenNumber]]:
        """Return the tokens of an answer, its end included, and the numbers in it.

        Raises:
            ValueError: If it cannot be written in the frame, or a numeric loss would miss a number.
        """
        try:
            written = self.task.format(example.answer, frame)
            answer = self.family.answer(written.text)
            numbers = self.family.numbers(written.text, written.marks, answer, self.vocabulary)
        except ValueError as error:
            raise ValueError(f"{example.where}: {error}") from error
        if self.every_number:
            marked = {position for number in numbers for position in number.positions}
            found = numbers_in_labels(
                answer.ids, self.vocabulary, thousands_separators=self.thousands_separators
            )
            numbers += [number for number in found if marked.isdisjoint(number.positions)]
        return answer, sorted(numbers, key=lambda number: number.positions)

    def _decoder_inputs(self, ids: Sequence[list[int]]) -> Tensor:
        """Return what a decoder is given to write these answers, [b, t]."""
        start = self.family.decoder_start_id
        return _rectangle([[start, *answer[:-1]] for answer in ids], fill=self.family.pad_id)


def has_mixed_modalities(family: Family, examples: Sequence[Example]) -> bool:
    """Say whether a family that sees images is asked with some and without: see the collator."""
    with_image = sum(example.image is not None for example in examples)
    return family.takes_images and 0 < with_image < len(examples)


def _has_image(seen: Sequence[Seen]) -> bool:
    return any(image is not None for image, _ in seen)


def _asked(family: Family, examples: Sequence[Example], seen: Sequence[Seen]) -> Prompts:
    """Write the questions of examples about the images that are seen."""
    texts, where = zip(*((example.prompt, example.where) for example in examples), strict=True)
    return family.prompts(texts, [image for image, _ in seen], where)


def _inputs(
    family: Family,
    prompts: Prompts,
    ids: Sequence[list[int]],
    *,
    left: bool,
) -> dict[str, Any]:
    """Pad ids to a rectangle and add what the family's model takes beside them.

    Args:
        family: Whose model it is.
        prompts: The questions.
        ids: For each the same tokens, or with those of an answer behind them.
        left: Whether padding stands before them.
    """
    input_ids = _rectangle(ids, fill=family.pad_id, left=left)
    mask = _rectangle([[1] * len(i) for i in ids], fill=0, left=left)
    answered = _rectangle(
        [[0] * len(p) + [1] * (len(i) - len(p)) for p, i in zip(prompts.ids, ids, strict=True)],
        fill=0,
        left=left,
    ).bool()
    return family.model_inputs(input_ids, mask, answered, prompts.images)


def _rectangle(ids: Sequence[list[int]], fill: int = IGNORE_INDEX, left: bool = False) -> Tensor:
    """Pad lists of ids to one length, [b, t]."""
    width = max(map(len, ids))
    padding = [[fill] * (width - len(i)) for i in ids]
    pairs = zip(padding, ids, strict=True) if left else zip(ids, padding, strict=True)
    return torch.tensor([a + b for a, b in pairs])


def make_collator(config: Config, family: Family) -> TrainingCollator:
    """Return what makes batches of a config's examples."""
    spec, data = config.objective.spec, config.data
    return TrainingCollator(
        family,
        config.task,
        family.vocabulary(),
        digit_runs=spec.digit_runs,
        thousands_separators=spec.thousands_separators,
        every_number=spec.numbers_from == "text",
        skip_unreadable_images=config.data.on_bad_image == "skip",
        fit=None
        if data.max_tokens is None
        else Fit(family, config.task, data.max_tokens, data.too_long),
        cache=None if data.image_cache is None else ImageCache(Path(data.image_cache)),
    )
