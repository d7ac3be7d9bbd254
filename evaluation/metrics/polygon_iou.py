"""Areas and intersections of the boxes and polygons of many images at once.

Axes    s shapes and p pairs, sorted by image
Units   pixels of the original image, continuous coordinates: the box [0, 0, 10, 10] has area 100

A polygon whose boundary crosses or touches itself is made valid by the even-odd rule. A reversed
box, a point, a line, and a shape with a corner more than 1e9 pixels away have area 0. Both kinds
are marked ``invalid``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
import shapely
from numpy.typing import NDArray

from mm_numeric.answers import Box, Polygon, Shape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FARTHEST_PX = 1e9
"""A shape with a coordinate beyond this has area 0."""

_MAX_PAIRS = 1_000_000
_CORNERS = attrgetter("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class Shapes:
    """The shapes of many images, sorted by image."""

    image: Ints
    """Index of each shape's image, [s]."""

    bounds: Floats
    """x1, y1, x2, y2 of each shape's bounding box, [s, 4]; zeros if its area is 0."""

    areas: Floats
    """Area of each shape, [s]."""

    is_box: Bools
    """Whether each shape is an upright box, [s]."""

    polygons: NDArray[np.object_]
    """shapely geometry of each polygon, [s]; None for a box."""

    invalid: Bools
    """Whether each shape had to be made valid or has area 0, [s]."""


@dataclass(frozen=True)
class Pairs:
    """Overlapping pairs of a detection and a truth of the same image, sorted by truth."""

    detection: Ints
    """Index of the detection, [p]."""

    truth: Ints
    """Index of the truth, [p]."""

    intersection: Floats
    """Intersection area, [p]; greater than 0."""

    def select(self, chosen: Bools | Ints) -> "Pairs":
        """Return the pairs chosen by a mask or by indices."""
        return Pairs(self.detection[chosen], self.truth[chosen], self.intersection[chosen])


def collect_shapes(images: Sequence[Sequence[Shape]]) -> Shapes:
    """Return the shapes of many images as arrays, sorted by image."""
    shapes = list(chain.from_iterable(images))
    image = np.repeat(np.arange(len(images)), [len(shapes_of_image) for shapes_of_image in images])
    is_box = np.fromiter((isinstance(shape, Box) for shape in shapes), np.bool_, len(shapes))
    bounds, areas = np.zeros((len(shapes), 4)), np.zeros(len(shapes))
    polygons = np.full(len(shapes), None, dtype=object)
    made_valid = np.zeros(len(shapes), dtype=np.bool_)
    if is_box.any():
        bounds[is_box], areas[is_box] = _boxes([s for s in shapes if isinstance(s, Box)])
    if not is_box.all():
        others = [shape for shape in shapes if isinstance(shape, Polygon)]
        polygons[~is_box], made_valid[~is_box] = _polygons(others)
        areas[~is_box] = shapely.area(polygons[~is_box])
        around = shapely.bounds(polygons[~is_box])
        bounds[~is_box] = np.where(areas[~is_box, None] > 0, around, 0)
    return Shapes(image, bounds, areas, is_box, polygons, made_valid | (areas == 0))


def intersection_areas(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints) -> Floats:
    """Return the intersection area of each pair of shapes, [p]."""
    one, other = a.bounds[at_a], b.bounds[at_b]
    sides = np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])
    sides.clip(min=0, out=sides)
    shared: Floats = sides[:, 0] * sides[:, 1]
    exact = (a.is_box[at_a] & b.is_box[at_b]) | (shared == 0)
    if not exact.all():
        rest = np.flatnonzero(~exact)
        overlaps = shapely.intersection(_geometries(a, at_a[rest]), _geometries(b, at_b[rest]))
        shared[rest] = shapely.area(overlaps)
    return shared


def ious(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints, intersection: Floats) -> Floats:
    """Return the intersection over union of each pair, [p]; 0 if both areas are 0."""
    union = a.areas[at_a] + b.areas[at_b] - intersection
    return np.divide(intersection, union, out=np.zeros(len(union)), where=union > 0)


def overlapping_pairs(detections: Shapes, truths: Shapes) -> Pairs:
    """Return all pairs of the same image with a positive intersection, sorted by truth."""
    nothing = np.empty(0, dtype=np.int64)
    chunks = [Pairs(nothing, nothing, np.empty(0))]
    for detection, truth in _candidates(detections, truths):
        areas = intersection_areas(detections, detection, truths, truth)
        chunks.append(Pairs(detection, truth, areas).select(areas > 0))
    return Pairs(
        np.concatenate([pairs.detection for pairs in chunks]),
        np.concatenate([pairs.truth for pairs in chunks]),
        np.concatenate([pairs.intersection for pairs in chunks]),
    )


def greedy_one_to_one(pairs: Pairs) -> Bools:
    """Select pairs greedily in their order, so that each shape is in at most one, [p].

    A pair that comes first for both of its shapes is always selected. Selecting all such pairs at
    once, and repeating this among the remaining pairs, gives the same result as a sequential loop.
    """
    selected = np.zeros(len(pairs.truth), dtype=np.bool_)
    left = np.arange(len(pairs.truth))
    sides = [_dense_index(pairs.detection), _dense_index(pairs.truth)]
    used = [np.zeros(int(side.max(initial=-1)) + 1, dtype=np.bool_) for side in sides]
    while len(left):
        positions = np.arange(len(left))
        first = np.ones(len(left), dtype=np.bool_)
        for side in sides:
            own = side[left]
            earliest = np.empty(int(own.max()) + 1, dtype=np.int64)
            # On duplicate indices numpy keeps the last assignment.
            earliest[own[::-1]] = positions[::-1]
            first &= earliest[own] == positions
        selected[left[first]] = True
        for side, is_used in zip(sides, used, strict=True):
            is_used[side[left[first]]] = True
        left = left[~(used[0][sides[0][left]] | used[1][sides[1][left]])]
    return selected


def _candidates(detections: Shapes, truths: Shapes) -> Iterator[tuple[Ints, Ints]]:
    """Yield the indices of all pairs of the same image, sorted by truth, in chunks."""
    images = int(max(detections.image.max(initial=-1), truths.image.max(initial=-1))) + 1
    counts = np.bincount(detections.image, minlength=images)
    starts = np.cumsum(counts) - counts
    per_truth = counts[truths.image]
    ends = np.cumsum(per_truth)
    first = 0
    while first < len(per_truth):
        before = ends[first] - per_truth[first]
        last = max(int(np.searchsorted(ends, before + _MAX_PAIRS, side="right")), first + 1)
        some = np.arange(first, last)
        truth = np.repeat(some, per_truth[some])
        own_start = np.repeat(ends[some] - per_truth[some], per_truth[some])
        nth = before + np.arange(len(truth)) - own_start
        yield nth + starts[truths.image[truth]], truth
        first = last


def _dense_index(values: Ints) -> Ints:
    """Return the index of each value among the sorted distinct values, [p]."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _boxes(boxes: Sequence[Box]) -> tuple[Floats, Floats]:
    """Return the corners and areas of boxes, [n, 4] and [n]."""
    flat = chain.from_iterable(map(_CORNERS, boxes))
    corners = np.fromiter(flat, np.float64, 4 * len(boxes)).reshape(-1, 4)
    near = np.abs(corners).max(axis=1) <= FARTHEST_PX  # also False for nan
    has_area = near & (corners[:, 0] < corners[:, 2]) & (corners[:, 1] < corners[:, 3])
    corners[~has_area] = 0
    return corners, (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def _polygons(shapes: Sequence[Polygon]) -> tuple[NDArray[np.object_], Bools]:
    """Return the valid geometry of each polygon, and whether it was invalid before, [n] each."""
    lengths = np.array([len(shape.points) for shape in shapes])
    points = np.array([point for shape in shapes for point in shape.points], dtype=np.float64)
    owner = np.repeat(np.arange(len(shapes)), lengths)
    usable = lengths >= 3
    usable[owner[~(np.abs(points) <= FARTHEST_PX).all(axis=1)]] = False
    geometries = np.full(len(shapes), shapely.Polygon(), dtype=object)
    kept = usable[owner]
    if usable.any():
        rings = shapely.linearrings(points[kept], indices=_dense_index(owner[kept]))
        geometries[usable] = shapely.polygons(rings)
    was_invalid = ~shapely.is_valid(geometries)
    geometries[was_invalid] = shapely.make_valid(geometries[was_invalid])
    return geometries, was_invalid


def _geometries(shapes: Shapes, at: Ints) -> NDArray[np.object_]:
    """Return the shapely geometries of some shapes, [n]."""
    geometries = shapes.polygons[at]
    boxes = shapes.is_box[at]
    geometries[boxes] = shapely.box(*shapes.bounds[at[boxes]].T)
    return geometries
