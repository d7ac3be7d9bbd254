"""Shapes of many images at once: what each covers, and how much two of an image share.

Axes    s shapes and p pairs, those of the first image first
Units   pixels of the original image, edges where they are: the box [0, 0, 10, 10] covers 100

A polygon whose boundary crosses or touches itself is made valid: inside is what it goes round an
odd number of times. What cannot cover anything (a reversed box, a point, a line, a shape with a
corner more than 1e9 pixels away) covers nothing. Both are marked ``invalid``.
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
"""A shape with a corner beyond it is no place in an image."""

_PAIRS_AT_ONCE = 1_000_000
_CORNERS = attrgetter("x1", "y1", "x2", "y2")


@dataclass(frozen=True)
class Shapes:
    """The shapes of many images, one image after another."""

    image: Ints
    """Which image each is in, [s]."""

    bounds: Floats
    """x1, y1, x2, y2 of the upright box around each, [s, 4]; zeros where it covers nothing."""

    areas: Floats
    """[s]."""

    is_box: Bools
    """[s]."""

    polygons: NDArray[np.object_]
    """What each polygon covers, [s]; None for a box."""

    invalid: Bools
    """Whether it was made valid, or covers nothing, [s]."""


@dataclass(frozen=True)
class Pairs:
    """Which detections share an area with which truths of their image, truth by truth."""

    detection: Ints
    """[p]."""

    truth: Ints
    """[p]."""

    shared: Floats
    """The area that both cover, [p]; more than 0."""

    def at(self, chosen: Bools | Ints) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.detection[chosen], self.truth[chosen], self.shared[chosen])


def gather(images: Sequence[Sequence[Shape]]) -> Shapes:
    """Return the shapes of images, one image after another."""
    shapes = list(chain.from_iterable(images))
    image = np.repeat(np.arange(len(images)), [len(each) for each in images])
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


def shared_areas(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints) -> Floats:
    """Return the area that both shapes of each pair cover, [p]."""
    one, other = a.bounds[at_a], b.bounds[at_b]
    sides = np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])
    sides.clip(min=0, out=sides)
    shared: Floats = sides[:, 0] * sides[:, 1]
    exact = (a.is_box[at_a] & b.is_box[at_b]) | (shared == 0)
    if not exact.all():
        rest = np.flatnonzero(~exact)
        overlaps = shapely.intersection(_outlines(a, at_a[rest]), _outlines(b, at_b[rest]))
        shared[rest] = shapely.area(overlaps)
    return shared


def ious(a: Shapes, at_a: Ints, b: Shapes, at_b: Ints, shared: Floats) -> Floats:
    """Return shared area over the area that either covers, of each pair, [p]; 0 for nothing."""
    either = a.areas[at_a] + b.areas[at_b] - shared
    return np.divide(shared, either, out=np.zeros(len(shared)), where=either > 0)


def overlapping(detections: Shapes, truths: Shapes) -> Pairs:
    """Return every pair of one image that shares an area, truth by truth."""
    nothing = np.empty(0, dtype=np.int64)
    found = [Pairs(nothing, nothing, np.empty(0))]
    for detection, truth in _candidates(detections, truths):
        shared = shared_areas(detections, detection, truths, truth)
        found.append(Pairs(detection, truth, shared).at(shared > 0))
    return Pairs(
        np.concatenate([pairs.detection for pairs in found]),
        np.concatenate([pairs.truth for pairs in found]),
        np.concatenate([pairs.shared for pairs in found]),
    )


def one_to_one(pairs: Pairs) -> Bools:
    """Go through pairs in their order, and take each of which neither shape is taken, [p].

    A pair that comes first for both of its shapes is taken whatever the others are; taking all of
    these at once, and again among those that are left, comes to the same as one at a time.
    """
    taken = np.zeros(len(pairs.truth), dtype=np.bool_)
    left = np.arange(len(pairs.truth))
    sides = [_numbered(pairs.detection), _numbered(pairs.truth)]
    used = [np.zeros(int(side.max(initial=-1)) + 1, dtype=np.bool_) for side in sides]
    while len(left):
        places = np.arange(len(left))
        first = np.ones(len(left), dtype=np.bool_)
        for side in sides:
            own = side[left]
            earliest = np.empty(int(own.max()) + 1, dtype=np.int64)
            earliest[own[::-1]] = places[::-1]  # of equal indices the last one is kept
            first &= earliest[own] == places
        taken[left[first]] = True
        for side, gone in zip(sides, used, strict=True):
            gone[side[left[first]]] = True
        left = left[~(used[0][sides[0][left]] | used[1][sides[1][left]])]
    return taken


def _candidates(detections: Shapes, truths: Shapes) -> Iterator[tuple[Ints, Ints]]:
    """Yield all pairs within an image, truth by truth, so many at a time."""
    images = int(max(detections.image.max(initial=-1), truths.image.max(initial=-1))) + 1
    counts = np.bincount(detections.image, minlength=images)
    starts = np.cumsum(counts) - counts
    per_truth = counts[truths.image]
    ends = np.cumsum(per_truth)
    first = 0
    while first < len(per_truth):
        before = ends[first] - per_truth[first]
        last = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")), first + 1)
        some = np.arange(first, last)
        truth = np.repeat(some, per_truth[some])
        nth = (
            before
            + np.arange(len(truth))
            - np.repeat(ends[some] - per_truth[some], per_truth[some])
        )
        yield nth + starts[truths.image[truth]], truth
        first = last


def _numbered(values: Ints) -> Ints:
    """Return which of the distinct values each is, [p]."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _boxes(boxes: Sequence[Box]) -> tuple[Floats, Floats]:
    """Return the corners and areas of boxes, [n, 4] and [n]."""
    flat = chain.from_iterable(map(_CORNERS, boxes))
    corners = np.fromiter(flat, np.float64, 4 * len(boxes)).reshape(-1, 4)
    near = np.abs(corners).max(axis=1) <= FARTHEST_PX  # False for nan, too
    covers = near & (corners[:, 0] < corners[:, 2]) & (corners[:, 1] < corners[:, 3])
    corners[~covers] = 0
    return corners, (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])


def _polygons(shapes: Sequence[Polygon]) -> tuple[NDArray[np.object_], Bools]:
    """Return what polygons cover, and which had to be made valid, [n] each."""
    lengths = np.array([len(shape.points) for shape in shapes])
    points = np.array([point for shape in shapes for point in shape.points], dtype=np.float64)
    owner = np.repeat(np.arange(len(shapes)), lengths)
    whole = lengths >= 3
    whole[owner[~(np.abs(points) <= FARTHEST_PX).all(axis=1)]] = False
    found = np.full(len(shapes), shapely.Polygon(), dtype=object)
    kept = whole[owner]
    if whole.any():
        rings = shapely.linearrings(points[kept], indices=_numbered(owner[kept]))
        found[whole] = shapely.polygons(rings)
    broken = ~shapely.is_valid(found)
    found[broken] = shapely.make_valid(found[broken])
    return found, broken


def _outlines(shapes: Shapes, at: Ints) -> NDArray[np.object_]:
    """Return what shapes cover, as shapely has it, [n]."""
    found = shapes.polygons[at]
    boxes = shapes.is_box[at]
    found[boxes] = shapely.box(*shapes.bounds[at[boxes]].T)
    return found
