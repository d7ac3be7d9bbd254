"""Generate images of shaded cuboids on the ground, with their boxes in space.

The camera is level, ``CAMERA_METRES`` above the ground, and its focal length is the width of the
image. A cuboid stands upright and is turned about the y axis by up to 45 degrees in both
directions, so that it has one answer: a quarter turn is the same as to swap the sizes x and z.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from mm_numeric.geometry.boxes_3d import (
    CORNER_SIGNS,
    Floats,
    corners_of,
    project,
    rotation_matrices,
)
from mm_numeric.tasks.rendering.drawing import (
    OVERSAMPLING,
    Drawing,
    ImageStyle,
    are_apart,
    random_colour,
    shrunk,
)
from mm_numeric.tasks.rendering.scenes import COLOURS

CAMERA_METRES = 1.5
LABEL = "cuboid"
_TO_LIGHT = np.array([-0.54, -0.79, -0.29])  # a unit vector: above, to the left of the camera
_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class CuboidStyle(ImageStyle):
    """Options for rendered cuboids on the ground."""

    most: int = 3
    """Maximum number of cuboids; the minimum is one."""

    depth_m: tuple[float, ...] = (4.0, 10.0)
    """Smallest and largest distance of a centre from the plane of the camera, in metres."""

    size_m: tuple[float, ...] = (0.5, 2.0)
    """Smallest and largest size of a cuboid along each of its axes, in metres."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise ValueError(f"most is at least 1, not {self.most}")
        for name, limits in (("depth_m", self.depth_m), ("size_m", self.size_m)):
            if len(limits) != 2 or not 0.1 <= limits[0] <= limits[1] <= 100:
                raise ValueError(f"{name} is [from, to], 0.1 to 100, not {list(limits)}")

    @property
    def camera(self) -> dict[str, float]:
        """Return the camera as in a row."""
        focal = self.width_px
        return {"fx": focal, "fy": focal, "cx": self.width_px / 2, "cy": self.height_px / 2}

    def draw(self, rng: random.Random) -> Drawing:
        """Return an image of cuboids that do not hide each other, and their boxes in space."""
        boxes = _placed(rng, self)
        ground, sky = random_colour(rng, 60, 110), random_colour(rng, 10, 50)
        width, height = (OVERSAMPLING * side for side in self.size_px)
        image = Image.new("RGB", (width, height), sky)
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, OVERSAMPLING * self.camera["cy"], width, height), fill=ground)
        for box in boxes:
            _paint(draw, np.array(box), self.camera, rng.choice(list(COLOURS.values())))
        instances = [{"bbox_3d": box, "label": LABEL} for box in boxes]
        row = {"classes": [LABEL], "instances": instances, "camera": self.camera}
        return shrunk(image, self.size_px, self.noise, rng), self.sized(row)


def _placed(rng: random.Random, style: CuboidStyle) -> list[list[float]]:
    """Return boxes, of centimetres and hundredths of half turns, that are seen as a whole."""
    boxes: list[list[float]] = []
    bounds: list[Sequence[float]] = []
    wanted = rng.randint(1, style.most)
    tried = 0
    while len(boxes) < wanted and tried < (20 * wanted if boxes else _TRIES):
        tried += 1
        depth, sizes = rng.uniform(*style.depth_m), [rng.uniform(*style.size_m) for _ in range(3)]
        centre = depth * rng.uniform(-0.5, 0.5), CAMERA_METRES - sizes[1] / 2, depth
        numbers = [*centre, *sizes, 0.0, rng.uniform(-0.25, 0.25), 0.0]
        box = [round(number, 2) + 0.0 for number in numbers]  # no -0.0
        corners = corners_of(np.array(box))
        if corners[:, 2].min() <= 0:
            continue
        points = project(corners, style.camera)
        own = (*points.min(axis=0).tolist(), *points.max(axis=0).tolist())
        fits = min(own) >= 1 and own[2] <= style.width_px - 1 and own[3] <= style.height_px - 1
        if fits and all(are_apart(own, other) for other in bounds):
            boxes.append(box)
            bounds.append(own)
    if not boxes:
        raise ValueError(
            f"task.cuboids: no cuboid of size_m {list(style.size_m)} at depth_m "
            f"{list(style.depth_m)} was seen as a whole in {_TRIES} tries; set larger depths or "
            "smaller sizes."
        )
    return boxes


def _paint(
    draw: ImageDraw.ImageDraw, box: Floats, camera: Mapping[str, float], colour: Sequence[int]
) -> None:
    """Paint the visible faces of a box into an image that is larger by ``OVERSAMPLING``."""
    corners, axes = corners_of(box), rotation_matrices(box[6:]).T
    points = OVERSAMPLING * project(corners, camera)
    for axis, sign in np.ndindex(3, 2):
        normal = axes[axis] * (2 * sign - 1)
        face = np.flatnonzero(CORNER_SIGNS[:, axis] == 2 * sign - 1)[[0, 1, 3, 2]]  # in a circle
        if normal @ corners[face[0]] < 0:  # it faces the camera, which is at the origin
            brightness = 0.6 + 0.4 * float(normal @ _TO_LIGHT)
            red, green, blue = (round(own * brightness) for own in colour)
            draw.polygon([(x, y) for x, y in points[face].tolist()], fill=(red, green, blue))
