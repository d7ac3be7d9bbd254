"""Generate images of coloured shapes, with questions for several tasks."""

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from mm_numeric.geometry.row_shapes import around, read_rotated_box
from mm_numeric.settings import check_choices
from mm_numeric.synthetic.drawing import OVERSAMPLING, are_apart, random_colour, shrunk
from mm_numeric.synthetic.generator import Drawing, NoisyGenerator, SizedImages

COLOURS = {
    "red": (214, 40, 40),
    "green": (42, 157, 70),
    "blue": (38, 84, 210),
    "yellow": (240, 200, 30),
    "purple": (140, 60, 180),
    "white": (245, 245, 245),
}
_KINDS = ("circle", "square", "triangle")
_ROTATED = ("rectangle", "ellipse")
COUNTED = (*(f"{kind}s" for kind in _KINDS), "shapes")
"""Values of ``Counts.counted``: the shapes of one form, or all shapes."""

_SIDES = {"left": (0, min), "right": (0, max), "top": (1, min), "bottom": (1, max)}


@dataclass(frozen=True, kw_only=True)
class Scenes(SizedImages):
    """Base class of generators of images with coloured shapes."""

    least: int = 2
    """Minimum number of shapes in a scene, at least 2, or 1 if the shapes are rotated."""

    most: int = 4
    """Maximum number of shapes in a scene."""

    large: float = 0.5
    """Probability that a shape is large; large shapes are about twice as wide as small shapes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.large <= 1:
            raise ValueError(f"large is 0 to 1, not {self.large}")
        fewest = 1 if self.is_rotated else 2
        if not fewest <= self.least <= self.most <= 6:
            raise ValueError(f"{fewest} <= least <= most <= 6, not {self.least} and {self.most}")

    @property
    def is_rotated(self) -> bool:
        """Return True if the shapes are rotated rectangles and ellipses."""
        return False

    def draw(self, rng: random.Random) -> Drawing:
        """Return an image of shapes, and its row."""
        shapes = _placed(rng, self)
        return _draw(shapes, rng, self), self.sized(self.row(shapes, rng))

    @abstractmethod
    def row(self, shapes: "Sequence[_Shape]", rng: random.Random) -> dict[str, Any]:
        """Return the fields of the row for an image of ``shapes``."""


@dataclass(frozen=True, kw_only=True)
class NoisyBoxes(NoisyGenerator, Scenes):
    """Base class of generators that can add noise to the boxes of shapes."""

    noise = ("noise_pixels",)

    noise_pixels: float = 0.0
    """Standard deviation of Gaussian noise, in pixels, that is added to each edge of the boxes of
    the rows. Boxes stay inside the image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise_pixels < math.inf:
            raise ValueError(f"noise_pixels is 0 or more, not {self.noise_pixels}")

    @property
    def has_noise(self) -> bool:
        """Return True if the boxes of the rows have noise."""
        return self.noise_pixels > 0

    def with_label_noise(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a row with noise added to its boxes."""
        if not self.has_noise:
            return row
        rng = random.Random(f"{self.noise_seed}:{row['id']}")
        if "box" in row:
            return {**row, "box": self._moved(row["box"], rng)}
        instances = [{**own, "box": self._moved(own["box"], rng)} for own in row["instances"]]
        return {**row, "instances": instances}

    def _moved(self, box: Sequence[float], rng: random.Random) -> list[float]:
        """Move each edge of a box by Gaussian noise, inside the image.

        On an axis on which the box would become empty, the edges are not moved.
        """

        def two_edges(first: float, second: float, limit: int) -> list[float]:
            shifted = (edge + rng.gauss(0, self.noise_pixels) for edge in (first, second))
            low, high = sorted(min(max(edge, 0.0), float(limit)) for edge in shifted)
            return [low, high] if low < high else [first, second]

        x1, x2 = two_edges(box[0], box[2], self.width_px)
        y1, y2 = two_edges(box[1], box[3], self.height_px)
        return [x1, y1, x2, y2]

    def describe(self) -> str:
        """Describe the label noise, for a report."""
        if not self.has_noise:
            return "clean labels"
        return f"boxes with Gaussian noise of {self.noise_pixels:g} pixels"


@dataclass(frozen=True, kw_only=True)
class Phrases(NoisyBoxes):
    """Scenes with a phrase that identifies one shape: rows of the task ``grounding``.

    There are three types of phrases: colour and form ("the red circle"), size, colour and form
    ("the large red circle"), and form and position ("the circle at the left"). The types that are
    unambiguous in a scene are equally likely.
    """

    name: str = "phrases"

    def row(self, shapes: "Sequence[_Shape]", rng: random.Random) -> dict[str, Any]:
        """Return a phrase and the box of one shape."""
        found = list(filter(None, (_by_name(shapes), _by_size(shapes), _by_position(shapes))))
        phrase, shape = rng.choice(rng.choice(found))
        return {"phrase": phrase, "box": list(shape.box)}


@dataclass(frozen=True, kw_only=True)
class Objects(NoisyBoxes):
    """Scenes with the boxes or outlines of all shapes: rows of the task ``detection``."""

    name: str = "objects"

    shape: str = "box"
    """``box``: boxes of circles, squares and triangles. ``polygon``: outlines of these shapes.
    ``rotated_box``: rotated rectangles and ellipses."""

    def __post_init__(self) -> None:
        check_choices(self, shape=("box", "polygon", "rotated_box"))
        super().__post_init__()
        if self.has_noise and self.shape != "box":
            raise ValueError("noise_pixels moves the edges of boxes; it requires shape: box")

    @property
    def is_rotated(self) -> bool:
        """Return True if the shapes are rotated rectangles and ellipses."""
        return self.shape == "rotated_box"

    def draw(self, rng: random.Random) -> Drawing:
        """Return an image of shapes, and its row."""
        return _draw_rotated(rng, self) if self.is_rotated else super().draw(rng)

    def row(self, shapes: "Sequence[_Shape]", rng: random.Random) -> dict[str, Any]:
        """Return the boxes or the outlines of all shapes, labelled with their form."""
        instances: list[dict[str, Any]] = [
            {"polygon": shape.outline} if self.shape == "polygon" else {"box": list(shape.box)}
            for shape in shapes
        ]
        for instance, shape in zip(instances, shapes, strict=True):
            instance["label"] = shape.kind
        rng.shuffle(instances)
        return {"classes": list(_KINDS), "instances": instances}


@dataclass(frozen=True, kw_only=True)
class Counts(Scenes):
    """Scenes with the number of shapes, in total or of one form: rows of the task ``counting``."""

    name: str = "counts"
    most: int = 6

    counted: tuple[str, ...] = COUNTED
    """What a question may count: one or more of circles, squares, triangles, shapes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.counted or set(self.counted) - set(COUNTED):
            raise ValueError(f"counted are some of {', '.join(COUNTED)}, not {self.counted}")

    def row(self, shapes: "Sequence[_Shape]", rng: random.Random) -> dict[str, Any]:
        """Return the label (one of ``counted``, such as ``circles``) and the count of a question.

        All counts in a scene are equally likely, even if several labels have the same count.
        """
        counts = {"shapes": len(shapes)}
        counts |= {f"{kind}s": sum(s.kind == kind for s in shapes) for kind in _KINDS}
        count = rng.choice(sorted({counts[label] for label in self.counted}))
        label = rng.choice([label for label in self.counted if counts[label] == count])
        return {"label": label, "count": count}


@dataclass(frozen=True, kw_only=True)
class Points(Scenes):
    """Scenes with the outlines of the shapes of one form: rows of the task ``pointing``."""

    name: str = "points"

    absent: bool = True
    """True if a row may name a form that is not in the scene."""

    def row(self, shapes: "Sequence[_Shape]", rng: random.Random) -> dict[str, Any]:
        """Return a form, such as ``circles``, and the outlines of the shapes of this form."""
        present = {shape.kind for shape in shapes}
        kind = rng.choice([kind for kind in _KINDS if self.absent or kind in present])
        outlines = [{"polygon": shape.outline} for shape in shapes if shape.kind == kind]
        return {"phrase": f"{kind}s", "instances": outlines}


@dataclass(frozen=True)
class _Shape:
    kind: str
    colour: str
    large: bool
    box: tuple[int, int, int, int]
    """x1, y1, x2, y2 in pixels."""

    @property
    def middle(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def outline(self) -> list[float]:
        """Return the corners x1, y1, x2, y2, ... of the shape; a circle has 24 of them."""
        x1, y1, x2, y2 = self.box
        if self.kind == "square":
            return [x1, y1, x2, y1, x2, y2, x1, y2]
        if self.kind == "triangle":
            return [x1, y2, (x1 + x2) / 2, y1, x2, y2]
        (x, y), radius = self.middle, (x2 - x1) / 2
        angles = [2 * math.pi * i / 24 for i in range(24)]
        return [
            round(edge, 2)
            for angle in angles
            for edge in (x + radius * math.cos(angle), y + radius * math.sin(angle))
        ]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


def _by_name(shapes: Sequence[_Shape]) -> list[tuple[str, _Shape]]:
    """Return pairs such as ("the red circle", shape); the phrase fits no other shape."""
    names = [shape.name for shape in shapes]
    return [(f"the {s.name}", s) for s in shapes if names.count(s.name) == 1]


def _by_size(shapes: Sequence[_Shape]) -> list[tuple[str, _Shape]]:
    found = []
    for shape in shapes:
        same = [s for s in shapes if s.name == shape.name]
        if len(same) > 1 and sum(s.large == shape.large for s in same) == 1:
            found.append((f"the {'large' if shape.large else 'small'} {shape.name}", shape))
    return found


def _by_position(shapes: Sequence[_Shape]) -> list[tuple[str, _Shape]]:
    found = []
    for kind in _KINDS:
        same = [s for s in shapes if s.kind == kind]
        for side, (axis, pick) in _SIDES.items():
            middles = sorted(s.middle[axis] for s in same)
            if len(middles) < 2:
                continue
            gap = min(middles[1] - middles[0], middles[-1] - middles[-2])
            if gap >= 6:  # pixels: a smaller difference is hard to see
                shape = pick(same, key=lambda s: s.middle[axis])
                found.append((f"the {kind} at the {side}", shape))
    return found


def _placed(rng: random.Random, settings: Scenes) -> list[_Shape]:
    """Return random shapes that do not touch; 40 % copy form and colour of the previous shape."""
    short = min(settings.width_px, settings.height_px)
    shapes: list[_Shape] = []
    while len(shapes) < 2:
        shapes = []
        for _ in range(rng.randint(settings.least, settings.most)):
            large = rng.random() < settings.large
            side = round(short * (rng.uniform(0.3, 0.4) if large else rng.uniform(0.14, 0.2)))
            x = rng.randint(1, settings.width_px - side - 1)
            y = rng.randint(1, settings.height_px - side - 1)
            kind, colour = rng.choice(_KINDS), rng.choice(list(COLOURS))
            if shapes and rng.random() < 0.4:
                kind, colour = shapes[-1].kind, shapes[-1].colour
            shape = _Shape(kind, colour, large, (x, y, x + side, y + side))
            if all(are_apart(shape.box, other.box) for other in shapes):
                shapes.append(shape)
        if not (_by_name(shapes) or _by_size(shapes) or _by_position(shapes)):
            shapes = []  # no phrase would be unambiguous
    return shapes


def _draw(shapes: Sequence[_Shape], rng: random.Random, settings: Scenes) -> Image.Image:
    image = _canvas(rng, settings)
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        edges = [edge * OVERSAMPLING for edge in shape.box]
        draw_shape(draw, shape.kind, edges, COLOURS[shape.colour])
    return shrunk(image, settings.size_px, settings.image_noise, rng)


def _canvas(rng: random.Random, settings: Scenes) -> Image.Image:
    size = settings.width_px * OVERSAMPLING, settings.height_px * OVERSAMPLING
    return Image.new("RGB", size, random_colour(rng, 10, 70))


def draw_shape(
    draw: ImageDraw.ImageDraw, kind: str, edges: Sequence[float], colour: tuple[int, int, int]
) -> None:
    """Draw a circle, a square or a triangle within the edges x1, y1, x2, y2, in pixels."""
    x1, y1, x2, y2 = edges
    if kind == "circle":
        draw.ellipse((x1, y1, x2 - 1, y2 - 1), fill=colour)
    elif kind == "square":
        draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill=colour)
    else:
        draw.polygon(((x1, y2 - 1), ((x1 + x2) / 2, y1), (x2 - 1, y2 - 1)), fill=colour)


def _draw_rotated(rng: random.Random, settings: Scenes) -> Drawing:
    """Return an image of rotated shapes, and its row.

    A row has all shapes, labelled with their kind, as ``rotated_box``: centre x, centre y, width,
    height and clockwise angle in degrees, in random order.
    """
    boxes = _placed_rotated(rng, settings)
    image = _canvas(rng, settings)
    instances = []
    for box in boxes:
        kind, colour = rng.choice(_ROTATED), rng.choice(list(COLOURS.values()))
        _paint(image, box, kind, colour)
        instances.append({"rotated_box": box, "label": kind})
    row = settings.sized({"classes": list(_ROTATED), "instances": instances})
    return shrunk(image, settings.size_px, settings.image_noise, rng), row


def _placed_rotated(rng: random.Random, settings: Scenes) -> list[list[float]]:
    """Return rotated boxes inside the image whose upright bounding boxes do not touch.

    There are fewer boxes than ``least`` if no more fit after 20 tries for each box.
    """
    short = min(settings.width_px, settings.height_px)
    boxes: list[list[float]] = []
    wanted = rng.randint(settings.least, settings.most)
    while not boxes:
        boxes = []
        for _ in range(20 * wanted):
            is_large = rng.random() < settings.large
            width = short * (rng.uniform(0.4, 0.6) if is_large else rng.uniform(0.2, 0.3))
            height = width * rng.uniform(0.35, 0.7)
            centre = rng.uniform(0, settings.width_px), rng.uniform(0, settings.height_px)
            box = [round(number, 1) for number in (*centre, width, height, rng.uniform(-90, 90))]
            own = _bounds(box)
            fits = (
                min(own) >= 1
                and own[2] <= settings.width_px - 1
                and own[3] <= settings.height_px - 1
            )
            if fits and all(are_apart(own, _bounds(other)) for other in boxes):
                boxes.append(box)
            if len(boxes) == wanted:
                break
    return boxes


def _bounds(box: list[float]) -> tuple[float, ...]:
    (x1, y1), (x2, y2) = around(read_rotated_box(box, "a generated box")).points
    return x1, y1, x2, y2


def _paint(image: Image.Image, box: list[float], kind: str, colour: tuple[int, int, int]) -> None:
    """Paint a shape into an image of ``OVERSAMPLING`` times the size that ``box`` refers to."""
    if kind == "rectangle":
        corners = read_rotated_box(box, "a generated box").points
        points = [(OVERSAMPLING * x, OVERSAMPLING * y) for x, y in corners]
        ImageDraw.Draw(image).polygon(points, fill=colour)
        return
    x, y, width, height, degrees = box
    mask = Image.new("L", image.size)
    edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    ImageDraw.Draw(mask).ellipse([OVERSAMPLING * edge for edge in edges], fill=255)
    centre = OVERSAMPLING * x, OVERSAMPLING * y
    mask = mask.rotate(-degrees, center=centre)  # Pillow turns counterclockwise
    image.paste(colour, mask=mask)
