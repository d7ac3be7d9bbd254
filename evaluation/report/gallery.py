"""What the galleries of a report share: ranked test questions, and their images."""

import base64
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import shapely
from markupsafe import Markup
from PIL import Image

from mm_numeric.answers import Instance, Mask, Point
from mm_numeric.data.images import image_file, upright_rgb
from mm_numeric.evaluation.report.page import Block, fold, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Table, number
from mm_numeric.geometry.masks import mask_region
from mm_numeric.geometry.row_shapes import corners
from mm_numeric.io.escaping import plain

T = TypeVar("T")

COUNTS = ("matched", "detected", "truths")
"""Columns of scores.jsonl with the numbers of shapes."""

WORST, FOLDED, SPREAD = 8, 4, 4
"""Number of the worst questions in a gallery, of those that are not folded, and of others."""


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


def by_question(styles: Styles, scores: Scores) -> dict[tuple[str, int], dict[str, ScoredRow]]:
    """Return the row of each objective, in the order of ``styles``, by question and seed."""
    found: dict[tuple[str, int], dict[str, ScoredRow]] = defaultdict(dict)
    for name, seed in sorted(scores, key=lambda key: list(styles).index(key[0])):
        for row in scores[name, seed]:
            found[str(row["id"]), seed][name] = row
    return found


def order_text(what: str, scores: Scores) -> str:
    """Return a sentence on the order of a gallery; ``what`` names the error that was compared."""
    objectives, seeds = ({key[i] for key in scores} for i in range(2))
    mean = f"the mean {what} over the objectives" if len(objectives) > 1 else f"the {what}"
    if len(seeds) == 1:
        return f"Worst first, by {mean}."
    return f"Worst first, by {mean}; each with the answers of its worst seed."


def which_text(total: int, noun: str, reason: str = "") -> str:
    """Return a sentence on which of the questions or images a gallery shows."""
    if total <= WORST + SPREAD:
        return f"The only {noun}." if total == 1 else f"All {total} {noun}s."
    rest = f"The {WORST} worst of {total:,} {noun}s, and {SPREAD} spread evenly over the rest"
    return f"{rest}{reason}."


def worst_and_others(ranked: Sequence[T]) -> list[T]:
    """Select what a gallery shows: all, or the worst and some that are spread over the rest."""
    if len(ranked) <= WORST + SPREAD:
        return list(ranked)
    return [*ranked[:WORST], *spread_evenly(ranked[WORST:], SPREAD)]


def answer_text(row: ScoredRow) -> str:
    """Describe a scored answer, such as ``IoU 0.83`` or ``3 of 4 found, 2 too many``."""
    if row["parsed"] is None:
        reason = plain(row["reason"] or "unreadable", 60)
        return f"not read: {reason} in “{plain(row['text'], 80)}”"
    if "iou" in row:
        words = f"IoU {number(row['iou'], 2)}"
    else:
        matched, detected, truths = (int(row[column]) for column in COUNTS)
        words = f"{matched} of {truths} found" if truths else "nothing to be found"
        words += f", {detected - matched} too many" if detected > matched else ""
    words += ", truncated" if row.get("cut") else ""
    return words + (f", {row['malformed']:g} malformed" if row.get("malformed") else "")


class Tile(NamedTuple):
    """One answer in a gallery of images: the variables that ``tiles.html`` needs to draw it."""

    label: Markup
    drawing: Markup
    words: str
    css: str


class Article(NamedTuple):
    """The answers to one question, for ``tiles.html``."""

    title: str
    about: str
    tiles: Sequence[Tile]


def gallery(template: str, articles: Sequence[Article], total: int, **more: object) -> Block:
    """Return the drawn answers of ``worst_and_others`` of ``total`` questions, most of them folded.

    ``template`` explains the drawings, and calls ``tiles.gallery``.
    """
    is_folded = len(articles) < total
    drawn = render(
        template,
        first=articles[: FOLDED if is_folded else None],
        more=articles[FOLDED:WORST] if is_folded else [],
        others=articles[WORST:],
        **more,
    )
    return Block(drawn)


def same_as_table(header: Iterable[Any], rows: Sequence[Sequence[Any]]) -> Block:
    """Return the texts of a gallery as a folded table."""
    return fold("The same as a table", [Table.of(header, rows, title="The answers drawn above")])


def names_of(styles: Styles, scores: Scores) -> list[str]:
    """List the objectives with scored answers, in the order of ``styles``."""
    return [name for name in styles if any(name == own for own, _ in scores)]


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
    parts = shapely.get_parts(shapely.get_rings(shapely.get_parts(mask_region(mask))))
    return [shapely.get_coordinates(ring)[:-1].tolist() for ring in parts]
