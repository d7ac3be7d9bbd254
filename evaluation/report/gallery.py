"""The galleries of a report: the worst test questions, some others, and the models' answers."""

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import shapely
from markupsafe import Markup
from PIL import Image

from mm_numeric.answers import Instance, Mask, Point
from mm_numeric.data.images import image_file, upright_rgb
from mm_numeric.evaluation.report.page import Block, Content, Section, fold, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, Table, number
from mm_numeric.geometry.masks import mask_region
from mm_numeric.geometry.row_shapes import corners
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element, joined

T = TypeVar("T")

COUNTS = ("matched", "detected", "truths")
"""Columns of scores.jsonl: numbers of matched, predicted and true shapes."""

WORST, FOLDED, SPREAD = 8, 4, 4
"""A gallery shows the 8 worst questions, all but 4 of them folded, and 4 of the other questions."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A test question, the seed with the worst answers to it, and the mean error of the answers."""

    id: str
    seed: int
    error: float
    rank: int  # 1 for the worst question
    rows: Mapping[str, ScoredRow]
    """Objective -> the scored row of its run with this seed."""

    @property
    def row(self) -> ScoredRow:
        """Return the first objective's row, to read fields that are equal in all rows (image)."""
        return next(iter(self.rows.values()))


def row_names(row: ScoredRow) -> list[str]:
    """Return the file name of the image, and ``id 7`` if the id differs; without image, the id."""
    id_, image = str(row["id"]), row.get("image")
    if not isinstance(image, str):
        return [id_]
    file = Path(image)
    return [file.name, *([] if id_ in (image, file.name, file.stem) else [f"id {id_}"])]


def worst_first(
    styles: Styles,
    scores: Scores,
    error: Callable[[ScoredRow], float],
    group: Callable[[ScoredRow], Any] = lambda row: str(row["id"]),
) -> list[Question]:
    """Return the test questions, the largest error first, each with the answers of its worst seed.

    The error of a seed is the mean of ``error(row)`` over the objectives. Of several questions with
    the same ``group(row)``, such as an image, only the worst question is returned. Questions with
    equal errors take turns by class, and are sorted by id within a class.
    """
    answers: dict[tuple[str, int], dict[str, ScoredRow]] = defaultdict(dict)
    for name, seed in sorted(scores, key=lambda key: list(styles).index(key[0])):
        for row in scores[name, seed]:
            answers[str(row["id"]), seed][name] = row
    ranked = sorted(
        (-fmean(map(error, rows.values())), *key, rows) for key, rows in answers.items()
    )
    worst: dict[Any, Question] = {}
    for negative, id_, seed, rows in ranked:
        own = Question(id=id_, seed=seed, error=-negative, rank=0, rows=rows)
        worst.setdefault(group(own.row), own)
    turns: Counter[tuple[float, frozenset[str]]] = Counter()
    found = []
    for own in worst.values():
        equal = own.error, _classes(own.row)
        found.append((-own.error, turns[equal], own))
        turns[equal] += 1
    found.sort(key=lambda item: item[:2])
    return [replace(own, rank=rank) for rank, (*_, own) in enumerate(found, start=1)]


def _classes(row: ScoredRow) -> frozenset[str]:
    """Return the labels of the true shapes of a row, and its category if it has one."""
    target = row["target"]
    shapes = target if isinstance(target, list) else [target]
    labels = {str(own.get("label")) for own in shapes if isinstance(own, Mapping)}
    return frozenset({*labels, str((row.get("buckets") or {}).get("category"))})


def worst_and_others(ranked: Sequence[T]) -> list[T]:
    """Select the questions of a gallery: all, or the worst and some evenly spaced others."""
    if len(ranked) <= WORST + SPREAD:
        return list(ranked)
    return [*ranked[:WORST], *spread_evenly(ranked[WORST:], SPREAD)]


class Tile(NamedTuple):
    """One answer in a gallery: the variables with which ``gallery.html`` draws it."""

    label: Markup
    drawing: Markup
    words: str
    css: str


class ImageRegion(NamedTuple):
    """A rectangular region of an image, in pixels of the original image."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """An image, or a region of an image, to draw on."""

    anchor: str  # the id of the image in the page
    region: ImageRegion  # the visible region of the original, upright image
    shown: Markup  # the image as SVG, or a grey area if it could not be opened
    is_image: bool
    is_cropped: bool = False
    more: Markup | str = ""
    """Other drawings, such as the true shapes, that tiles show on the image."""

    @classmethod
    def of(cls, image: Image.Image, anchor: str, region: ImageRegion, side_px: int) -> "Canvas":
        """Return a region of an image, scaled to a longer edge of at most ``side_px``."""
        left, top, width, height = region
        url = data_url(image.crop((left, top, left + width, top + height)), side_px)
        place = {"x": left, "y": top, "width": width, "height": height}
        shown = element("image", **place, preserveAspectRatio="none", href=url)
        is_cropped = (width, height) != image.size
        return cls(anchor=anchor, region=region, shown=shown, is_image=True, is_cropped=is_cropped)

    @classmethod
    def open(cls, path: Path, anchor: str, side_px: int) -> "Canvas":
        """Return a whole image, or a grey area if it cannot be opened."""
        image = open_upright(path)
        if image is None:
            return cls.empty(path, anchor, 100, 100)
        return cls.of(image, anchor, ImageRegion(0, 0, *image.size), side_px)

    @classmethod
    def empty(cls, path: Path | None, anchor: str, wide: float, high: float) -> "Canvas":
        """Return a grey area in place of an image that could not be opened."""
        text = plain("no image" if path is None else f"no image: {path.name}", 30)
        style = f"font:{wide / 12:.1f}px sans-serif;fill:#39424f"
        ground = element("rect", width=wide, height=high, fill="#c9ced6")
        at = {"x": wide / 2, "y": high / 2, "text_anchor": "middle"}
        shown = joined(ground, element("text", text, style=style, **at))
        region = ImageRegion(0, 0, wide, high)
        return cls(anchor=anchor, region=region, shown=shown, is_image=False)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A question in a gallery: its drawn answers, and its row in the gallery's table."""

    question: Question
    answers: Mapping[str, Cell | str]  # the answers in the table, by objective
    cells: Sequence[Cell | str] = ()  # table cells between the id and the answers
    mean: str = ""  # the error or the score of the answers
    title: str = ""  # the heading above the drawings; the name of the image by default
    tiles: Sequence[Tile] = ()
    canvas: Canvas | None = None


def gallery_section(
    title: str,
    entries: Sequence[Entry],
    total: int,
    styles: Styles,
    scores: Scores,
    *,
    noun: str,
    error: str,
    header: Sequence[str] = (),
    mean: str = "",
    key: Markup | str = "",
    css: str = "shown",
) -> Section:
    """Return a section with the worst of ``total`` questions and some others, most of them folded.

    ``entries`` with tiles are drawn; if no entry has tiles, the table is not folded. ``noun`` names
    a question, such as image, and ``error`` names the value by which questions are sorted.
    ``header`` has the titles of ``Entry.cells``, and ``mean`` is the title of ``Entry.mean``.
    ``key`` is the legend of the drawings, and ``css`` is the CSS class of the drawings.
    """
    names = [name for name in styles if any(name == own for own, _ in scores)]
    several = len({seed for _, seed in scores}) > 1
    lines, cases = [], []
    for own in entries:
        found = own.question
        seed = f"seed {found.seed}" if several else ""
        answers = (own.answers.get(name) for name in names)
        name, *others = (plain(own, 60) for own in row_names(found.row))
        label = Cell(content=name, note=" · ".join(filter(None, [*others, seed])))
        lines.append([label, *own.cells, *answers, *([own.mean] if mean else [])])
        about = [*([name] if own.title else []), *others, f"{mean} {own.mean}".strip(), seed]
        about.append(f"{found.rank:,} of {total:,} from the worst")
        cases.append((own.title or name, " · ".join(filter(None, about)), own.tiles))
    columns = [noun, *header, *(styles[name].cell() for name in names), *([mean] if mean else [])]
    table = Table.of(columns, lines, title="Answers, the worst first", css="asked")
    blocks: list[Content] = [table]
    canvases = [own.canvas for own in entries if own.canvas]
    if any(own.tiles for own in entries):
        folded = len(cases) < total
        drawn = render(
            "gallery.html",
            canvases=canvases,
            key=key,
            css=css,
            is_alone=len(names) == 1,
            first=cases[: FOLDED if folded else None],
            more=cases[FOLDED:WORST] if folded else [],
            others=cases[WORST:],
        )
        blocks = [Block(drawn), fold("The same as a table", [table])]
    text = _order_text(error, scores) + _which_text(total, noun)
    if any(own.is_cropped for own in canvases):
        text += " Images with small shapes are cropped."
    if missing := sum(not own.is_image for own in canvases):
        text += f" {missing} of the {len(canvases)} images could not be opened."
    return Section.of("gallery", title, text, *blocks)


def _order_text(error: str, scores: Scores) -> str:
    objectives, seeds = ({key[i] for key in scores} for i in range(2))
    mean = f"the mean {error} over the objectives" if len(objectives) > 1 else f"the {error}"
    each = "; each with the answers of its worst seed" if len(seeds) > 1 else ""
    return f"Worst first, by {mean}{each}. "


def _which_text(total: int, noun: str) -> str:
    if total <= WORST + SPREAD:
        return f"The only {noun}." if total == 1 else f"All {total} {noun}s."
    return f"The {WORST} worst of {total:,} {noun}s, and {SPREAD} spread evenly over the rest."


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


def spread_evenly(values: Sequence[T], count: int) -> list[T]:
    """Select at most ``count`` evenly spaced items of a sequence, including the last item."""
    count = min(count, len(values))
    return [values[len(values) * (k + 1) // count - 1] for k in range(count)]


_LOSSLESS_PX = 64  # smaller images are stored as PNG, because their noise is part of the task


def open_upright(path: Path) -> Image.Image | None:
    """Load an image as upright RGB, like the input of a model; None if it cannot be opened."""
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

    A shape with one corner is a path of length 0; round line caps draw it as a dot.
    """
    rings = [corners(item.shape)] if item.mask is None else mask_rings(item.mask)
    texts = ([f"{x:.{decimals}f} {y:.{decimals}f}" for x, y in ring] for ring in rings)
    return "".join("M" + "L".join(points) + "Z" for points in texts)


def mask_rings(mask: Mask) -> list[Sequence[Point]]:
    """Return the borders of a mask, including the borders of holes."""
    parts = shapely.get_parts(shapely.get_rings(shapely.get_parts(mask_region(mask))))
    return [shapely.get_coordinates(ring)[:-1].tolist() for ring in parts]
