"""The operations of ``data.augment``: functions that change an image together with its answer.

An operation is called with a ``Scene``, a random generator and its options. It returns the changed
scene, or None if this change is not legal for the row, such as a crop that cuts an object. It draws
all random values before it changes an image, because all frames of a video must change alike.

Pillow changes the pixels. Libraries for augmentation cannot be used: AlbumentationsX, the
maintained successor of albumentations, has the licence AGPL-3.0; albumentations (MIT) has had no
release since May 2025; and torchvision has no build for every torch.
"""

import io
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from mm_numeric.answers import Instances
from mm_numeric.geometry.moves import Affine, KeptShare

_GREY = (127, 127, 127)  # colour of pixels that an operation leaves empty

_SIDE = re.compile(
    r"\bleft(?=(?:most|hand(?:ed)?|wards?|side)?\b)"
    r"|\bright(?=(?:most|hand(?:ed)?|wards?|side)?\b)|左|右",
    re.IGNORECASE,
)
_ORDINAL = r"first|second|third|fourth|fifth|last|[0-9]+(?:th|[snr][td])"
_MIRRORED = re.compile(
    rf"\b(?:lft|lt|rt|rgt|east|west|eastern|western|(?:counter|anti)?-?clockwise|o'?clock"
    rf"|{_ORDINAL})\b",
    re.IGNORECASE,
)
_POSITION = re.compile(
    rf"{_SIDE.pattern}|{_MIRRORED.pattern}|[上下中]|\b(?:top|bottom|upper|uppermost|lower|lowermost"
    r"|middle|center|centre|central|corner|north|south|northern|southern)(?:most)?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Scene:
    """The images of a row, all of the same size, with its question and its answer."""

    images: tuple[Image.Image, ...]
    answer: Any
    prompt: str
    kept: KeptShare
    others: Callable[[random.Random, int], "Sequence[Scene]"]
    """Returns a number of scenes of other training rows with the same question, drawn at random
    without repetition; fewer if there are not enough."""

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height of the images in pixels."""
        return self.images[0].size

    def with_pixels(self, change: Callable[[Image.Image], Image.Image]) -> "Scene":
        """Return the scene with changed pixels; all objects stay where they are."""
        return replace(self, images=tuple(map(change, self.images)))

    def moved(
        self, move: Affine, size: tuple[int, int], draw: Callable[[Image.Image], Image.Image]
    ) -> "Scene | None":
        """Return the scene with all pixels moved; None if an object would be lost (``KeptShare``).

        ``move`` maps old to new coordinates. ``draw`` returns the moved image, of size ``size``.
        """
        answer = self.kept.answer(self.answer, move, size)
        if answer is None and self.answer is not None:
            return None
        return replace(self, images=tuple(map(draw, self.images)), answer=answer)

    @property
    def words(self) -> str:
        """Return the question and all labels of the answer, as one text."""
        items = self.answer.items if isinstance(self.answer, Instances) else ()
        return "\n".join([self.prompt, *(item.label for item in items)])

    @property
    def names_position(self) -> bool:
        """Return True if a word, such as left or corner, names the position of an object."""
        return _POSITION.search(self.words) is not None


def position_word(text: str) -> str | None:
    """Return the first word in a text that names a position in the image, or None."""
    found = _POSITION.search(text)
    return None if found is None else found[0]


def flip(scene: Scene, rng: random.Random) -> Scene | None:
    """Mirror left and right. ``left`` and ``right`` are swapped in the question.

    Rows are not flipped if a label has one of the two words, if a word such as clockwise cannot be
    swapped, or if the question counts (``second``) without naming a side.
    """
    has_sides = _SIDE.search(scene.prompt) is not None
    labels = scene.words.removeprefix(scene.prompt)
    if _SIDE.search(labels) or (_MIRRORED.search(scene.words) and not _swappable(scene, has_sides)):
        return None
    width, _ = scene.size
    moved = scene.moved(Affine.scaling(-1.0, 1.0, left=width), scene.size, ImageOps.mirror)
    return moved and replace(moved, prompt=_SIDE.sub(_other_side, scene.prompt))


def _swappable(scene: Scene, has_sides: bool) -> bool:
    """Return True if the question names a side, and only ordinals (``second``) have no mirror."""
    others = re.sub(rf"\b(?:{_ORDINAL})\b", "", scene.words, flags=re.IGNORECASE)
    return has_sides and _MIRRORED.search(others) is None


def _other_side(found: re.Match[str]) -> str:
    word = found[0]
    other = {"left": "right", "right": "left", "左": "右", "右": "左"}[word.lower()]
    return other.upper() if word.isupper() else other.title() if word.istitle() else other


def crop(scene: Scene, rng: random.Random, *, least: float = 0.6) -> Scene | None:
    """Cut a window out of the image, with at least the share ``least`` of its width and height."""
    check_range("least", least, 0.1, 1)
    if scene.names_position:
        return None
    width, height = (max(1, round(edge * rng.uniform(least, 1))) for edge in scene.size)
    left, top = rng.randint(0, scene.size[0] - width), rng.randint(0, scene.size[1] - height)
    window = left, top, left + width, top + height
    move = Affine.scaling(1.0, 1.0, -left, -top)
    return scene.moved(move, (width, height), lambda image: image.crop(window))


def scale(
    scene: Scene, rng: random.Random, *, least: float = 0.7, most: float = 1.3
) -> Scene | None:
    """Resize the image by a factor from ``least`` to ``most``, and keep the size of the canvas.

    At a random position, a smaller image is placed on grey, and a larger image is cropped.
    """
    check_range("least", least, 0.1, 4)
    check_range("most", most, least, 4)
    if scene.names_position:
        return None
    factor = rng.uniform(least, most)
    width, height = scene.size
    wide, high = max(1, round(width * factor)), max(1, round(height * factor))
    left, top = (rng.randint(*sorted((0, free))) for free in (width - wide, height - high))

    def draw(image: Image.Image) -> Image.Image:
        canvas = Image.new("RGB", image.size, _GREY)
        canvas.paste(image.resize((wide, high), Image.Resampling.BICUBIC), (left, top))
        return canvas

    return scene.moved(Affine.scaling(wide / width, high / height, left, top), scene.size, draw)


def rotate(scene: Scene, rng: random.Random, *, degrees: float = 5.0) -> Scene | None:
    """Rotate the image about its centre by up to ``degrees``; empty corners become grey."""
    check_range("degrees", degrees, 0, 45)
    width, height = scene.size
    move = Affine.rotation(rng.uniform(-degrees, degrees), (width / 2, height / 2))

    def draw(image: Image.Image) -> Image.Image:
        return image.transform(
            image.size,
            Image.Transform.AFFINE,
            tuple(move.inverse()),
            resample=Image.Resampling.BILINEAR,
            fillcolor=_GREY,
        )

    return scene.moved(move, scene.size, draw)


def mosaic(scene: Scene, rng: random.Random, *, least: float = 0.3) -> Scene | None:
    """Put this image and the images of three other rows with the same question into quarters.

    The quarters meet at a random point; each has at least the share ``least`` of the width and of
    the height. No image is cropped: each is resized to fit its quarter, with a corner at the point.
    """
    check_range("least", least, 0.1, 0.5)
    others = [] if scene.names_position else scene.others(rng, 3)
    if len(others) < 3 or len(scene.images) > 1:
        return None
    width, height = scene.size
    x, y = (round(edge * rng.uniform(least, 1 - least)) for edge in scene.size)
    canvas, items = Image.new("RGB", scene.size, _GREY), []
    quarters = [(x, y, True, True), (width - x, y, False, True)]
    quarters += [(x, height - y, True, False), (width - x, height - y, False, False)]
    for own, (free_x, free_y, is_left, is_top) in zip([scene, *others], quarters, strict=True):
        factor = min(free_x / own.size[0], free_y / own.size[1])
        wide, high = (max(1, math.floor(edge * factor)) for edge in own.size)
        left, top = x - wide if is_left else x, y - high if is_top else y
        canvas.paste(own.images[0].resize((wide, high), Image.Resampling.BICUBIC), (left, top))
        move = Affine.scaling(wide / own.size[0], high / own.size[1], left, top)
        answer = own.kept.answer(own.answer, move, scene.size)
        if answer is None:
            return None
        items += answer.items
    return replace(scene, images=(canvas,), answer=replace(scene.answer, items=tuple(items)))


def colour(scene: Scene, rng: random.Random, *, strength: float = 0.3) -> Scene:
    """Multiply brightness, contrast and saturation by factors within ``strength`` of 1.

    The hue is unchanged, because questions name colours.
    """
    check_range("strength", strength, 0, 0.9)
    factors = [rng.uniform(1 - strength, 1 + strength) for _ in range(3)]

    def change(image: Image.Image) -> Image.Image:
        kinds = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
        for kind, factor in zip(kinds, factors, strict=True):
            image = kind(image).enhance(factor)
        return image

    return scene.with_pixels(change)


def blur(scene: Scene, rng: random.Random, *, radius: float = 1.5) -> Scene:
    """Blur the image with a Gaussian, whose standard deviation is up to ``radius`` pixels."""
    check_range("radius", radius, 0, 20)
    drawn = ImageFilter.GaussianBlur(rng.uniform(0, radius))
    return scene.with_pixels(lambda image: image.filter(drawn))


def jpeg(scene: Scene, rng: random.Random, *, quality: float = 40) -> Scene:
    """Compress the image as JPEG, with a quality from ``quality`` to 95."""
    check_range("quality", quality, 1, 95)
    return scene.with_pixels(partial(_compressed, quality=round(rng.uniform(quality, 95))))


def _compressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=quality)
    return Image.open(buffer, formats=["JPEG"]).convert("RGB")


def check_range(name: str, value: Any, least: float, most: float) -> None:
    """Raise ValueError unless an option of an operation is a number from ``least`` to ``most``."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} is a number from {least:g} to {most:g}, not {value!r:.40}")
