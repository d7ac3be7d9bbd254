"""Compute areas, intersections and IoUs of boxes and polygons, for many images at once.

Arrays  [s]: one entry for each box or polygon; [p]: one entry for each pair; sorted by image
Units   pixels of the original image, continuous coordinates: the box [0, 0, 10, 10] has area 100

A polygon whose boundary crosses or touches itself is repaired with ``shapely.make_valid``, which
keeps the points inside an odd number of loops (the even-odd rule). A reversed box, a point, a line,
and a shape with a coordinate beyond 1e9 pixels have area 0. Repaired shapes and shapes of area 0
are marked as invalid.

Official scripts compute areas with the shoelace formula and without a repair. In this formula, the
two halves of a bow tie cancel each other. The class ``Shapes`` stores both areas: ``areas`` after
the repair, and ``ring_areas`` before the repair. Both only differ for invalid polygons.
"""

from collections.abc import Callable, Iterator, Sequence
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

_FARTHEST_PX = 1e9
"""A shape with a larger absolute coordinate has area 0."""

_MAX_PAIRS = 1_000_000
_CORNERS = attrgetter("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class Shapes:
    """The shapes of many images as arrays with one entry per shape, sorted by image."""

    image: Ints
    """Index of the image that contains the shape, [s]."""

    bounds: Floats
    """Bounding box x1, y1, x2, y2, [s, 4]; zeros for a shape of area 0."""

    areas: Floats
    """Area in square pixels, after the repair, [s]."""

    ring_areas: Floats
    """Absolute area by the shoelace formula, in square pixels, without a repair, [s]."""

    is_box: Bools
    """True for an upright box, False for a polygon, [s]."""

    polygons: NDArray[np.object_]
    """shapely geometry of a polygon, None for a box, [s]."""

    invalid: Bools
    """True for a shape that was repaired or has area 0, [s]."""


@dataclass(frozen=True)
class Pairs:
    """Overlapping pairs of a detection (prediction) and a truth (true shape), sorted by truth."""

    detection: Ints
    """Index of the detection in the ``Shapes`` of all detections, [p]."""

    truth: Ints
    """Index of the truth in the ``Shapes`` of all truths, [p]."""

    intersection: Floats
    """Area of the intersection, greater than 0, [p]."""

    def select(self, chosen: Bools | Ints) -> "Pairs":
        """Return the pairs that a boolean mask or an array of indices selects."""
        return Pairs(self.detection[chosen], self.truth[chosen], self.intersection[chosen])


def collect_shapes(
    images: Sequence[Sequence[Shape]],
    repair: Callable[[NDArray[np.object_]], NDArray[np.object_]] = shapely.make_valid,
) -> Shapes:
    """Convert the shapes of many images (one list per image) to arrays.

    ``repair`` is a function from invalid shapely polygons to valid geometries.
    """
    shapes = list(chain.from_iterable(images))
    image = np.repeat(np.arange(len(images)), [len(shapes_of_image) for shapes_of_image in images])
    is_box = np.fromiter((isinstance(shape, Box) for shape in shapes), np.bool_, len(shapes))
    bounds, areas = np.zeros((len(shapes), 4)), np.zeros(len(shapes))
    polygons = np.full(len(shapes), None, dtype=object)
    repaired = np.zeros(len(shapes), dtype=np.bool_)
    if is_box.any():
        bounds[is_box], areas[is_box] = _boxes([s for s in shapes if isinstance(s, Box)])
    ring_areas = areas.copy()
    if not is_box.all():
        rings = _polygons([shape for shape in shapes if isinstance(shape, Polygon)])
        ring_areas[~is_box] = shapely.area(rings)  # the shoelace formula, also if invalid
        repaired[~is_box] = invalid = ~shapely.is_valid(rings)
        rings[invalid] = repair(rings[invalid])
        polygons[~is_box], areas[~is_box] = rings, shapely.area(rings)
        around = shapely.bounds(rings)
        bounds[~is_box] = np.where(areas[~is_box, None] > 0, around, 0)
    return Shapes(image, bounds, areas, ring_areas, is_box, polygons, repaired | (areas == 0))


def bounds_intersection_areas(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints) -> Floats:
    """Compute the intersection area of the bounding boxes of each pair of shapes, [p].

    It is at least as large as the intersection area of the shapes; for upright boxes, it is equal.
    """
    one, other = a.bounds[at_a], b.bounds[at_b]
    sides = np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])
    sides.clip(min=0, out=sides)
    return sides[:, 0] * sides[:, 1]


def intersection_areas(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints) -> Floats:
    """Compute the intersection area of each pair of shapes, [p] for p pairs.

    Pair i is shape ``at_a[i]`` of ``a`` and shape ``at_b[i]`` of ``b``.
    """
    shared = bounds_intersection_areas(a, at_a, b, at_b)
    exact = (a.is_box[at_a] & b.is_box[at_b]) | (shared == 0)
    if not exact.all():
        rest = np.flatnonzero(~exact)
        overlaps = shapely.intersection(_geometries(a, at_a[rest]), _geometries(b, at_b[rest]))
        shared[rest] = shapely.area(overlaps)
    return shared


def ious(detections: Shapes, truths: Shapes, pairs: Pairs, *, ring_areas: bool = False) -> Floats:
    """Compute the IoU of each pair of shapes, [p] for p pairs.

    The IoU is 0 if the area of the union is not positive. If ``ring_areas``, areas are computed
    before invalid polygons are repaired; if a polygon crosses itself, its IoU may then exceed 1.
    """
    areas, true_areas = (
        side.ring_areas if ring_areas else side.areas for side in (detections, truths)
    )
    intersection = pairs.intersection
    union = areas[pairs.detection] + true_areas[pairs.truth] - intersection
    return np.divide(intersection, union, out=np.zeros(len(union)), where=union > 0)


def overlapping_pairs(detections: Shapes, truths: Shapes) -> Pairs:
    """Find all pairs of a detection and a truth that overlap in the same image, sorted by truth."""
    nothing = np.empty(0, dtype=np.int64)
    chunks = [Pairs(nothing, nothing, np.empty(0))]
    for detection, truth in pairs_in_groups(detections.image, truths.image):
        areas = intersection_areas(detections, detection, truths, truth)
        chunks.append(Pairs(detection, truth, areas).select(areas > 0))
    return Pairs(
        np.concatenate([pairs.detection for pairs in chunks]),
        np.concatenate([pairs.truth for pairs in chunks]),
        np.concatenate([pairs.intersection for pairs in chunks]),
    )


def pairs_in_groups(detections: Ints, truths: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the indices of all pairs of a detection and a truth in the same group, in chunks.

    The arguments are the group number of each detection and truth, such as the index of its image,
    in ascending order. Pairs are sorted by truth.
    """
    groups = int(max(detections.max(initial=-1), truths.max(initial=-1))) + 1
    counts = np.bincount(detections, minlength=groups)
    starts = np.cumsum(counts) - counts
    per_truth = counts[truths]
    ends = np.cumsum(per_truth)
    first = 0
    while first < len(per_truth):
        before = ends[first] - per_truth[first]
        last = max(int(np.searchsorted(ends, before + _MAX_PAIRS, side="right")), first + 1)
        some = np.arange(first, last)
        truth = np.repeat(some, per_truth[some])
        own_start = np.repeat(ends[some] - per_truth[some], per_truth[some])
        nth = before + np.arange(len(truth)) - own_start
        yield nth + starts[truths[truth]], truth
        first = last


def greedy_one_to_one(pairs: Pairs) -> Bools:
    """Select pairs in the given order if both shapes are unmatched; return a boolean mask, [p]."""
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


def _dense_index(values: Ints) -> Ints:
    """Replace each value by its rank among the distinct values: [7, 3, 7] -> [1, 0, 1]."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _boxes(boxes: Sequence[Box]) -> tuple[Floats, Floats]:
    flat = chain.from_iterable(map(_CORNERS, boxes))
    corners = np.fromiter(flat, np.float64, 4 * len(boxes)).reshape(-1, 4)
    near = np.abs(corners).max(axis=1) <= _FARTHEST_PX  # also False for nan
    has_area = near & (corners[:, 0] < corners[:, 2]) & (corners[:, 1] < corners[:, 3])
    corners[~has_area] = 0
    return corners, (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def _polygons(shapes: Sequence[Polygon]) -> NDArray[np.object_]:
    """Convert polygons to shapely polygons without repairing them.

    A polygon with less than three corners or a coordinate beyond 1e9 pixels becomes empty.
    """
    lengths = np.array([len(shape.points) for shape in shapes])
    points = np.array([point for shape in shapes for point in shape.points], dtype=np.float64)
    owner = np.repeat(np.arange(len(shapes)), lengths)
    usable = lengths >= 3
    usable[owner[~(np.abs(points) <= _FARTHEST_PX).all(axis=1)]] = False
    geometries = np.full(len(shapes), shapely.Polygon(), dtype=object)
    kept = usable[owner]
    if usable.any():
        rings = shapely.linearrings(points[kept], indices=_dense_index(owner[kept]))
        geometries[usable] = shapely.polygons(rings)
    return geometries


def _geometries(shapes: Shapes, at: Ints) -> NDArray[np.object_]:
    geometries = shapes.polygons[at]
    boxes = shapes.is_box[at]
    geometries[boxes] = shapely.box(*shapes.bounds[at[boxes]].T)
    return geometries
