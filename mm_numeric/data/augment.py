"""Augment training rows (``data.augment``): change images together with their answers.

The random changes of a row depend only on the seed, the epoch, the row's id and its number of
earlier occurrences: they are the same on any number of workers and ranks, and after a resume. Rows
are changed before they are encoded, so that the answer is written for the changed image.
"""

import inspect
import io
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from PIL import Image

from mm_numeric.answers import EmbeddedImage, Example
from mm_numeric.config.schema import Config
from mm_numeric.data.augmentations import Scene, position_word
from mm_numeric.data.images import UnreadableImageError, open_sized
from mm_numeric.geometry.moves import KeptShare
from mm_numeric.registry import AUGMENTATIONS, choose, unknown
from mm_numeric.tasks.base import Task

_DRAWS = 10  # maximum attempts of an operation to find a change that is legal for the row

Operation = Callable[..., Scene | None]


class Drawn(NamedTuple):
    """A row after augmentation."""

    example: Example
    applied: tuple[str, ...] = ()
    """Names of the operations that changed the row."""

    rejected: tuple[str, ...] = ()
    """Names of the operations that were drawn, but did not change the row."""


@dataclass(frozen=True)
class Augmenter:
    """Augments training rows as the config section ``data.augment`` describes."""

    operations: Mapping[str, tuple[float, Operation, Mapping[str, Any]]]
    """Maps each name to its probability, its function and the options of the function."""

    kept: KeptShare
    task: Task
    seed: int
    rows: Sequence[Example] = field(default=(), repr=False)
    """The training rows, from which ``mosaic`` draws."""

    by_question: Mapping[str, list[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Group the rows by their questions."""
        groups: dict[str, list[int]] = defaultdict(list)
        if "mosaic" in self.operations:
            for index, example in enumerate(self.rows):
                if len(example.images) == 1 and not example.repeat:
                    groups[example.prompt].append(index)
        object.__setattr__(self, "by_question", groups)

    def __call__(self, example: Example) -> Example:
        """Return the row augmented for its epoch; a row without an epoch is unchanged."""
        return example if example.epoch is None else self.draw(example, example.epoch).example

    def draw(self, example: Example, epoch: int) -> Drawn:
        """Return the row augmented for an epoch, with the applied and the rejected operations.

        A row without an image, or whose image cannot be read, is unchanged.
        """
        rng = random.Random(f"{self.seed} {epoch} {example.repeat} {example.id}")
        chosen = [name for name, (p, _, _) in self.operations.items() if rng.random() < p]
        if not chosen or example.image is None:
            return Drawn(example)
        try:
            scene, applied = self._scene(example), []
            for name in chosen:
                changed = self._changed(scene, rng, name)
                if changed is not None:
                    scene = changed
                    applied.append(name)
        except UnreadableImageError:  # data.on_bad_image handles it when its row is loaded
            return Drawn(example, (), tuple(chosen))
        rejected = tuple(name for name in chosen if name not in applied)
        if not applied:
            return Drawn(example, (), rejected)
        return Drawn(self._example(example, scene), tuple(applied), rejected)

    def _changed(self, scene: Scene, rng: random.Random, name: str) -> Scene | None:
        _, operation, options = self.operations[name]
        draws = (operation(scene, rng, **options) for _ in range(_DRAWS))
        return next((changed for changed in draws if changed is not None), None)

    def _scene(self, example: Example) -> Scene:
        opened, sizes = zip(
            *(open_sized(replace(example, image=image)) for image in example.images), strict=True
        )
        if any(image.size != size for image, size in zip(opened, sizes, strict=True)):
            raise UnreadableImageError("it was reduced, and answers are moved in its pixels")

        def others(rng: random.Random, count: int) -> list[Scene]:
            found = [self.rows[i] for i in self.by_question.get(example.prompt, ())]
            found = [row for row in found if row.id != example.id]
            return [self._scene(row) for row in rng.sample(found, min(count, len(found)))]

        return Scene(opened, example.answer, example.prompt, self.kept, others)

    def _example(self, example: Example, scene: Scene) -> Example:
        first, *more = (_embedded(image, example) for image in scene.images)
        return replace(
            example,
            image=first,
            more_images=tuple(more),
            size_px=scene.size,
            prompt=scene.prompt,
            answer=self.task.moved_answer(scene.answer),
        )


def make_augmenter(config: Config, rows: Sequence[Example]) -> Augmenter | None:
    """Create the augmenter of a config; None without ``data.augment``.

    ``rows`` are the training rows; [] for a stream.
    """
    settings = config.data.augment
    if settings is None:
        return None
    where = f"{config.title}, data.augment.operations"
    kept = KeptShare(settings.kept, settings.smallest_px)
    operations = {}
    for name, (probability, options) in settings.chosen().items():
        operation: Operation = choose(name, AUGMENTATIONS, "operation", where)
        _check_options(operation, kept, options, f"{where}.{name}")
        operations[name] = probability, operation, options
    word = position_word(getattr(config.task, "prompt", ""))
    if word is not None and {"flip", "crop", "scale", "mosaic"} & operations.keys():
        raise ValueError(
            f"{where}: task.prompt has the word {word!r}, which names a position; only phrases may "
            "do so. Write the prompt without it, or leave out flip, crop, scale and mosaic."
        )
    return Augmenter(operations, kept, config.task, config.row_seed, rows)


def _check_options(
    operation: Operation, kept: KeptShare, options: Mapping[str, Any], where: str
) -> None:
    """Raise ValueError for an option that an operation does not have, or whose value is invalid."""
    known = list(inspect.signature(operation).parameters)[2:]
    for name in options:
        if name not in known:
            raise unknown(name, known, "option", where)
    blank = Scene((Image.new("RGB", (8, 8)),), None, "", kept, lambda rng, count: [])
    try:
        operation(blank, random.Random(0), **options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}.") from error


def _embedded(image: Image.Image, example: Example) -> EmbeddedImage:
    """Return an image as an ``EmbeddedImage``, in the lossless format BMP."""
    buffer = io.BytesIO()
    image.save(buffer, format="BMP")
    return EmbeddedImage(str(example.image), f"{example.image} (augmented)", buffer.getvalue)
