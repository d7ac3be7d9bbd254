"""Draw answers on images: boxes, polygons and points as outlines, times as the hands of a clock.

Colours and hands are the same as in the image galleries of reports.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.answers import HALF_DAY_MINUTES, Box, ClockTime, Instance, Instances, Polygon
from mm_numeric.evaluation.metrics.matching import is_drawable
from mm_numeric.geometry.row_shapes import corners

TRUE_COLOUR, ANSWER_COLOUR = "#1550c8", "#f06a0a"
_LINE_PX, _POINT_PX = 3, 4  # width of an outline, radius of a point
_SIDES_PX = 480, 1280  # limits of the longer edge of an image with a drawn answer
_HANDS = ((1, 25, 4.2), (12, 39, 2.4))  # turns in 12 hours, length and width in % of the image
_TEXT_PX = 18


def objects_of(answer: Any) -> Sequence[Instance]:
    """Return the objects of a list, or a single shape as one object; [] for other answers."""
    if isinstance(answer, Instances):
        return answer.items
    return [Instance(answer)] if isinstance(answer, Box | Polygon) else []


def draw_shapes(
    image: Image.Image,
    items: Sequence[Instance],
    colour: str,
    *,
    scale: float = 1.0,
    texts: Sequence[str] = (),
    below: bool = False,
) -> None:
    """Draw the outline of each object, with coordinates multiplied by ``scale``, and its text.

    The text is above the object, or below it.
    """
    draw = ImageDraw.Draw(image)
    for number, item in enumerate(items):
        if not is_drawable(item.shape):
            continue
        points = [(scale * x, scale * y) for x, y in corners(item.shape)]
        for fill, wider in (("white", 2), (colour, 0)):
            draw.line([*points, points[0]], fill=fill, width=_LINE_PX + wider)
        if len(points) == 1:
            ((x, y),) = points
            draw.ellipse([x - _POINT_PX, y - _POINT_PX, x + _POINT_PX, y + _POINT_PX], fill=colour)
        if texts and texts[number]:
            left, top = (min(own) for own in zip(*points, strict=True))
            edge = max(y for _, y in points) if below else top - _TEXT_PX
            at = left, min(max(0.0, edge), image.height - _TEXT_PX)
            _write(draw, at, texts[number], background=colour)


def draw_hands(image: Image.Image, time: ClockTime, colour: str) -> None:
    """Draw the hands of a clock, with a white outline, from the centre of the image; 12 is up."""
    draw, (width, height) = ImageDraw.Draw(image), image.size
    ends = []
    for turns, length, thickness in _HANDS:
        angle = 2 * math.pi * turns * time.minutes / HALF_DAY_MINUTES
        x, y = 50 + length * math.sin(angle), 50 - length * math.cos(angle)
        ends.append(((x * width / 100, y * height / 100), thickness * min(image.size) / 100))
    for outline, fill in ((2.2 * min(image.size) / 100, "#ffffff"), (0, colour)):
        for end, thickness in ends:
            line = [(width / 2, height / 2), end]
            draw.line(line, fill=fill, width=max(1, round(thickness + outline)))


def drawn_answer(
    image: Image.Image, size: tuple[int, int], answer: Any, caption: str, texts: Sequence[str] = ()
) -> Image.Image:
    """Return an image with an answer on it and a caption below it.

    Coordinates are pixels of the original image, whose width and height are ``size``. ``texts`` are
    written at the objects. The image is resized so that lines and texts are readable.
    """
    image, low = drawn_answers(image, size, {ANSWER_COLOUR: answer}, texts), _SIDES_PX[0]
    whole = Image.new("RGB", (max(image.width, low), image.height + 2 * _TEXT_PX), "white")
    whole.paste(image)
    _write(ImageDraw.Draw(whole), (8, image.height + _TEXT_PX / 2), caption)
    return whole


def drawn_answers(
    image: Image.Image,
    size: tuple[int, int],
    answers: Mapping[str, Any],
    texts: Sequence[str] | None = None,
    limits_px: tuple[int, int] = _SIDES_PX,
) -> Image.Image:
    """Return an image with one or two answers on it; ``answers`` maps their colours to them.

    The arguments are those of ``drawn_answer``. ``texts`` are the labels of the objects by default,
    those of a second answer below its objects. ``limits_px`` limits the longer edge.
    """
    low, high = limits_px
    scale = min(max(max(size), low), high) / max(size)
    image = image.resize([max(1, round(scale * side)) for side in size])
    for number, (colour, answer) in enumerate(answers.items()):
        if isinstance(answer, ClockTime):
            draw_hands(image, answer, colour)
        items = objects_of(answer)
        names = [item.label for item in items] if texts is None else texts
        draw_shapes(image, items, colour, scale=scale, texts=names, below=number > 0)
    return image


def _write(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, background: str | None = None
) -> None:
    """Write a text, in white if it has a background. Pillow's default font has only ASCII."""
    font = ImageFont.load_default(_TEXT_PX * 0.8)
    text = text.encode("ascii", "replace").decode()
    if background is not None:
        draw.rectangle(draw.textbbox(at, text, font=font), fill=background)
    draw.text(at, text, font=font, fill="white" if background else "black")
