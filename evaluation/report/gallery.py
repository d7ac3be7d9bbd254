"""What the galleries of a report share: ranked test questions, and their images."""

import base64
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

import shapely
from PIL import Image

from mm_numeric.answers import Instance, Mask, Point
from mm_numeric.data.images import image_file, upright_rgb
from mm_numeric.evaluation.report.results import ScoredRow, Scores
from mm_numeric.geometry.row_shapes import corners

T = TypeVar("T")


class Ranked(NamedTuple):
    """A test question, the seed whose answers to it are the worst, and their mean error."""

    id: str
    seed: int
    error: float


def worst_first(scores: Scores, error: Callable[[ScoredRow], float]) -> list[Ranked]:
    """Rank the test questions by the answers of their worst seed, the largest error first.

    The error of a seed is the mean of ``error(row)`` over the objectives.
    """
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (_, seed), rows in scores.items():
        for row in rows:
            errors[str(row["id"]), seed].append(error(row))
    worst: dict[str, Ranked] = {}
    for id_, seed in sorted(errors):
        found = Ranked(id_, seed, fmean(errors[id_, seed]))
        if id_ not in worst or found.error > worst[id_].error:
            worst[id_] = found
    return sorted(worst.values(), key=lambda own: (-own.error, own.id))


def order_text(what: str, scores: Scores) -> str:
    """Return a sentence on the order of a gallery; ``what`` names the error that was compared."""
    objectives, seeds = ({key[i] for key in scores} for i in range(2))
    mean = f"the mean {what} over the objectives" if len(objectives) > 1 else f"the {what}"
    if len(seeds) == 1:
        return f"Worst first, by {mean}."
    return f"Worst first, by {mean}; each with the answers of its worst seed."


def spread_evenly(values: Sequence[T], count: int) -> list[T]:
    """Select at most ``count`` evenly spaced items of a sequence, including the last item."""
    count = min(count, len(values))
    return [values[len(values) * (k + 1) // count - 1] for k in range(count)]


_LOSSLESS_PX = 64  # smaller images are stored as PNG, because their noise is part of the task


def open_upright(path: Path) -> Image.Image | None:
    """Load an image as upright RGB, as a model sees it, or return None if it cannot be opened."""
    try:
        with image_file(path) as opened:
            return upright_rgb(opened)
    except Exception:  # Pillow raises almost any type for a damaged file
        return None


def data_url(image: Image.Image, side_px: int) -> str:
    """Return an image as a data URL, downscaled so that the longer edge is at most ``side_px``."""
    small = image.copy()
    small.thumbnail((side_px, side_px))
    buffer = io.BytesIO()
    kind = "PNG" if max(small.size) <= _LOSSLESS_PX else "JPEG"
    small.save(buffer, format=kind, optimize=True, quality=85)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{data}"


def outline(item: Instance, decimals: int = 2) -> str:
    """Return the outline of an object as the ``d`` attribute of an SVG path.

    A shape of one corner is a path without length, which is drawn as a dot by round line caps.
    """
    rings = [corners(item.shape)] if item.mask is None else mask_rings(item.mask)
    texts = ([f"{x:.{decimals}f} {y:.{decimals}f}" for x, y in ring] for ring in rings)
    return "".join("M" + "L".join(points) + "Z" for points in texts)


def mask_rings(mask: Mask) -> list[Sequence[Point]]:
    """Return the borders of a mask, also those around holes."""
    height, ends = mask.size[0], list(accumulate(mask.counts))
    boxes = []
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        for x in range(start // height, (end - 1) // height + 1):  # a run may reach columns
            top, bottom = max(start - x * height, 0), min(end - x * height, height)
            boxes.append(shapely.box(x, top, x + 1, bottom))
    found = shapely.simplify(shapely.union_all(boxes), 0)  # without points between corners
    parts = shapely.get_parts(shapely.get_rings(shapely.get_parts(found)))
    return [shapely.get_coordinates(ring)[:-1].tolist() for ring in parts]
