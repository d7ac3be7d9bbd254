"""Masks: regions of pixels in an image, stored as run lengths (RLE) of COCO.

    {"size": [height, width], "counts": [runs of pixels]}

The runs go down the columns, from left to right. The first run is outside of the region, the second
run inside, and so on. ``counts`` may also be the text that pycocotools writes (compressed RLE).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mm_numeric.answers import Box, Instances, Mask, Point

# Functions import shapely and pycocotools themselves, because rewards of numbers need neither.

TOLERANCE_PX = 0.5
"""Tolerance, in pixels, of the first simplification of an outline."""

_MOST_PIXELS = 2**27
_FARTHEST_PX = 100_000.0  # pycocotools overflows for larger coordinates


def mask_of(pixels: NDArray[Any]) -> Mask:
    """Convert pixels to a mask. Pixels with at least half of the largest value are inside.

    The values may be 0 and 1, or 0 and 255. JPEG files also have values between them near the
    border of a region. Only the first channel of ``pixels`` [height, width, channels] is used.
    """
    values = pixels if pixels.ndim == 2 else pixels[..., 0]
    flat = ((values > 0) & (2.0 * values >= values.max(initial=0))).T.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    height, width = values.shape
    return Mask((height, width), tuple([0, *counts] if flat[:1].any() else counts))


def read_mask(value: Any, where: str) -> Mask:
    """Read a mask with at least one pixel from a run-length encoding as in COCO files."""
    size = value.get("size") if isinstance(value, Mapping) else None
    if not (
        isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)
    ):
        raise ValueError(
            f'{where}: a mask is {{"size": [height, width], "counts": ...}}, run lengths as in '
            f"COCO files, not {value!r:.60}."
        )
    if size[0] * size[1] > _MOST_PIXELS:
        raise ValueError(f"{where}: a mask has at most {_MOST_PIXELS} pixels, not {size}.")
    counts = run_lengths(value.get("counts"), size, where)
    if not any(counts[1::2]):
        raise ValueError(f"{where}: the mask has no pixel; leave the object out.")
    return Mask((size[0], size[1]), tuple(counts))


def run_lengths(counts: Any, size: Sequence[int], where: str) -> list[int]:
    """Validate and return the run lengths of a mask of (height, width), given as list or text."""
    if not isinstance(counts, list):
        counts = _decoded(counts, where)
    elif not all(type(count) is int and 0 <= count < 2**32 for count in counts):
        raise ValueError(f"{where}: counts are lengths in pixels, not {counts!r:.60}.")
    if sum(counts) != size[0] * size[1]:
        raise ValueError(
            f"{where}: the counts hold {sum(counts)} pixels, but an image of {size[1]} x {size[0]} "
            f"has {size[0] * size[1]}; the mask is truncated or damaged."
        )
    return counts


def _decoded(counts: Any, where: str) -> list[int]:
    """Decode run lengths (RLE counts) in COCO's text format.

    Each character has five bits of a number. A sixth bit is set if the number continues in the next
    character. From the fourth number on, the text has differences: the fourth number minus the
    second, and so on.
    """
    if isinstance(counts, str) and counts.isascii():
        counts = counts.encode()
    if not isinstance(counts, bytes):
        raise ValueError(f"{where}: counts are a list or a text, not {counts!r:.60}.")
    runs: list[int] = []
    value = shift = 0
    for code in counts:
        bits = code - 48
        if not 0 <= bits < 64 or shift > 30:
            raise ValueError(f"{where}: the text of the counts is damaged at run {len(runs) + 1}.")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits & 16) << (shift - 4)
            runs.append(value + runs[-2] if len(runs) > 2 else value)
            value = shift = 0
    if shift or min(runs, default=0) < 0:
        raise ValueError(f"{where}: the text of the counts is truncated or damaged.")
    return runs


def mask_row(mask: Mask) -> dict[str, Any]:
    """Convert a mask to a dictionary for JSON, which ``read_mask`` reads."""
    return {"size": list(mask.size), "counts": list(mask.counts)}


def mask_contains(mask: Mask, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, for points ``x`` [p] and ``y`` [p] in pixels, True if the point's pixel is in a mask.

    ``mask`` has the size of the image; points outside of the image are not in the mask. The pixel
    of a point is found by rounding down, as in ``text2pts`` of RoboPoint
    (robopoint/eval/summarize_vqa.py).
    """
    height, width = mask.size
    column, row = np.floor(x), np.floor(y)
    in_image = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    # Indices are float64, because an answer may have a coordinate that no integer type can hold.
    index = np.where(in_image, column * height + row, 0)
    run = np.searchsorted(np.cumsum(mask.counts), index, side="right")
    return np.asarray(in_image & (run % 2 == 1))


def box_and_point(mask: Mask) -> tuple[Box, Point]:
    """Return a mask's box, and the centre of the mask's pixel nearest to the centre of the box.

    Both are in pixels: a mask of only the first pixel has the box (0, 0, 1, 1).
    """
    inside = np.repeat(np.arange(len(mask.counts)) % 2 == 1, mask.counts)
    column, row = np.divmod(np.flatnonzero(inside), mask.size[0])
    x1, y1, x2, y2 = (int(n) for n in (column.min(), row.min(), column.max() + 1, row.max() + 1))
    x, y = column + 0.5, row + 0.5
    nearest = int(np.argmin((x - (x1 + x2) / 2) ** 2 + (y - (y1 + y2) / 2) ** 2))
    return Box(x1, y1, x2, y2), (float(x[nearest]), float(y[nearest]))


def check_masks(answer: Instances, width: int, height: int, where: str = "") -> None:
    """Raise ValueError if a mask has another size than the image: one of the two was resized."""
    for item in answer.items:
        if item.mask is not None and item.mask.size != (height, width):
            raise ValueError(
                f"{where}a mask has the size of its image, [{height}, {width}] (height, width), "
                f"not {list(item.mask.size)}"
            )


def polygon_rle(points: Sequence[Point], size: tuple[int, int]) -> dict[str, Any]:
    """Return a polygon in an image of ``size`` (height, width) as run lengths of pycocotools."""
    from pycocotools import mask

    near = np.clip(np.array(points, dtype=np.float64), -_FARTHEST_PX, _FARTHEST_PX)
    return mask.frPyObjects([near.ravel().tolist()], *size)[0]


def polygon_mask(points: Sequence[Point], size: tuple[int, int]) -> Mask:
    """Return the mask of a polygon, computed by ``polygon_rle``; it may have no pixel."""
    return Mask(size, tuple(_decoded(polygon_rle(points, size)["counts"], "the polygon")))


def mask_region(mask: Mask) -> Any:
    """Return the region of a mask as a shapely geometry, along the edges of its pixels."""
    import shapely

    inside = np.repeat(np.arange(len(mask.counts), dtype=np.int8) % 2, mask.counts)
    padded = np.pad(inside.reshape(mask.size[::-1]), 1)  # [x, y]
    x, y = np.nonzero(np.diff(padded, axis=0)[:, 1:-1])  # edges down from (x, y)
    u, v = np.nonzero(np.diff(padded, axis=1)[1:-1])  # edges to the right of (u, v)
    starts = np.concatenate([np.stack([x, y], axis=1), np.stack([u, v], axis=1)])
    ends = np.concatenate([np.stack([x, y + 1], axis=1), np.stack([u + 1, v], axis=1)])
    edges: Any = shapely.linestrings(np.stack([starts, ends], axis=1).astype(np.float64))
    faces = shapely.get_parts(shapely.polygonize(edges))  # parts of the region, or holes in it
    found = np.floor(shapely.get_coordinates(shapely.point_on_surface(faces))).astype(np.int64)
    within = padded[found[:, 0] + 1, found[:, 1] + 1] == 1
    return shapely.simplify(shapely.multipolygons(faces[within]), 0)


def few_corners(region: Any, most: int) -> tuple[Point, ...]:
    """Return the outline of the largest part of a region, with at most ``most`` corners.

    A polygon that crosses itself is repaired first. An outline with too many corners is simplified
    within ``TOLERANCE_PX`` (Douglas and Peucker). Then the corner that forms the smallest triangle
    with its neighbours is removed, until at most ``most`` corners are left (Visvalingam and Whyatt,
    https://doi.org/10.1179/000870493786962263). Holes and other parts of the region are lost. The
    result is empty if no area is left.
    """
    import shapely

    parts = shapely.get_parts(shapely.get_parts(shapely.make_valid(region)))  # may be nested
    ring = shapely.get_exterior_ring(max(parts, key=shapely.area))
    if ring is None:  # a line or a point
        return ()
    if len(ring.coords) - 1 > most:
        ring = shapely.get_exterior_ring(shapely.simplify(shapely.Polygon(ring), TOLERANCE_PX))
    points = shapely.get_coordinates(ring)[:-1]
    while len(points) > most:
        (ax, ay), (bx, by) = ((points - np.roll(points, step, axis=0)).T for step in (1, -1))
        points = np.delete(points, np.abs(ax * by - ay * bx).argmin(), axis=0)
    return tuple(map(tuple, points.tolist())) if shapely.Polygon(points).area else ()
