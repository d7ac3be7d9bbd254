"""Generate images of rotated rectangles and ellipses, with the rotated box around each of them."""

import random

from PIL import Image, ImageDraw

from mm_numeric.answers import Polygon
from mm_numeric.geometry.row_shapes import around, read_rotated_box
from mm_numeric.tasks.rendering.drawing import (
    OVERSAMPLING,
    Drawing,
    are_apart,
    random_colour,
    shrunk,
)
from mm_numeric.tasks.rendering.scenes import COLOURS, SceneStyle

KINDS = ("rectangle", "ellipse")


def draw_rotated_scene(rng: random.Random, style: SceneStyle) -> Drawing:
    """Return an image of rotated shapes, and its row.

    A row has all shapes, labelled with their kind, as ``rotated_box``: centre x, centre y, width,
    height and clockwise angle in degrees, in random order.
    """
    boxes = _placed(rng, style)
    size = style.width_px * OVERSAMPLING, style.height_px * OVERSAMPLING
    image = Image.new("RGB", size, random_colour(rng, 10, 70))
    instances = []
    for box in boxes:
        kind, colour = rng.choice(KINDS), rng.choice(list(COLOURS.values()))
        _paint(image, box, kind, colour)
        instances.append({"rotated_box": box, "label": kind})
    row = style.sized({"classes": list(KINDS), "instances": instances})
    return shrunk(image, style.size_px, style.noise, rng), row


def _placed(rng: random.Random, style: SceneStyle) -> list[list[float]]:
    """Return rotated boxes inside the image whose upright bounding boxes do not touch.

    There are fewer than ``style.least`` if no more fit in 20 tries for each.
    """
    short = min(style.width_px, style.height_px)
    boxes: list[list[float]] = []
    wanted = rng.randint(style.least, style.most)
    while not boxes:
        boxes = []
        for _ in range(20 * wanted):
            is_large = rng.random() < style.large
            width = short * (rng.uniform(0.4, 0.6) if is_large else rng.uniform(0.2, 0.3))
            height = width * rng.uniform(0.35, 0.7)
            centre = rng.uniform(0, style.width_px), rng.uniform(0, style.height_px)
            numbers = [*centre, width, height, rng.uniform(-90, 90)]
            box = [round(number, 1) for number in numbers]
            inside = (1, 1, style.width_px - 1, style.height_px - 1)
            own = _bounds(box)
            fits = inside[0] <= own[0] and inside[1] <= own[1]
            fits = fits and own[2] <= inside[2] and own[3] <= inside[3]
            if fits and all(are_apart(own, _bounds(other)) for other in boxes):
                boxes.append(box)
            if len(boxes) == wanted:
                break
    return boxes


def _polygon(box: list[float]) -> Polygon:
    return read_rotated_box(box, "a rendered box")


def _bounds(box: list[float]) -> tuple[float, ...]:
    bounds = around(_polygon(box))
    return bounds.x1, bounds.y1, bounds.x2, bounds.y2


def _paint(image: Image.Image, box: list[float], kind: str, colour: tuple[int, int, int]) -> None:
    """Paint a shape into an image that is ``OVERSAMPLING`` times as large as its coordinates."""
    if kind == "rectangle":
        points = [(OVERSAMPLING * x, OVERSAMPLING * y) for x, y in _polygon(box).points]
        ImageDraw.Draw(image).polygon(points, fill=colour)
        return
    x, y, width, height, degrees = box
    mask = Image.new("L", image.size)
    edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    ImageDraw.Draw(mask).ellipse([OVERSAMPLING * edge for edge in edges], fill=255)
    centre = OVERSAMPLING * x, OVERSAMPLING * y
    mask = mask.rotate(-degrees, center=centre)  # Pillow turns counterclockwise
    image.paste(colour, mask=mask)
