"""Draw true and predicted shapes on an image, coloured by whether they match.

Rows     lines of ``scores.jsonl``; each has the answer to one test question
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from mm_numeric.answers import Box, Instance
from mm_numeric.evaluation.metrics.matching import FOUND_IOU, MatchedShapes, is_drawable
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.gallery import data_url, open_upright, outline
from mm_numeric.evaluation.report.page import Tile, render
from mm_numeric.evaluation.report.results import ScoredRow
from mm_numeric.evaluation.table import number
from mm_numeric.geometry.row_shapes import around
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element, joined

COUNTS = ("matched", "detected", "truths")
POINTS = 2000  # maximum drawn points of one answer: a repetitive answer must not fill the page
SIDE_PX = 640
_MARGIN = 0.06  # around the shapes of a cropped image, as a share of its longer edge
_MIN_CROP = 1 / 3  # the minimum share of each edge that a crop keeps
_MAX_CROP = 0.75  # an image is not cropped if the crop would keep more than this share


def quality(row: ScoredRow) -> float:
    """Return a score of an answer from 0 to 1, to rank answers.

    The score is the IoU if each answer is a single shape, and else the F1 score of the shapes. A
    parse failure scores 0. An answer without shapes scores 1 if there are no true shapes.
    """
    if "iou" in row or row["parsed"] is None:
        return float(row.get("iou", 0.0))
    shapes = row["detected"] + row["truths"]
    return float(2 * row["matched"] / shapes) if shapes else 1.0


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


class ImageRegion(NamedTuple):
    """A rectangular region of an image, in pixels of the original image."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """An image, or a region of an image, to draw shapes on."""

    anchor: str  # its id in the page
    region: ImageRegion  # the visible region of the original, upright image
    shown: Markup  # the image as SVG, or a grey area if it could not be opened
    is_image: bool
    is_cropped: bool = False

    def path(self, instances: Sequence[Instance]) -> str:
        """Return the outlines of shapes as one SVG path, with 0 or 1 decimals per coordinate."""
        decimals = 0 if max(self.region.width, self.region.height) > 1000 else 1
        return "".join(outline(own, decimals) for own in instances if is_drawable(own.shape))


def canvas(
    path: Path | None, answers: Sequence[MatchedShapes], anchor: str, *, whole: bool
) -> Canvas:
    """Load the image on which the true and predicted shapes are drawn.

    Unless ``whole`` is True, the image is cropped to the shapes if they are in a small region. If
    the image cannot be opened, a grey area that is large enough for all shapes replaces it.
    """
    items = [*answers[0].truths, *answers[0].ignored, *(i for own in answers for i in own.answers)]
    boxes = [around(item.shape) for item in items if is_drawable(item.shape)]
    image = None if path is None else open_upright(path)
    if image is None:
        return _empty_canvas(path, boxes, anchor)
    region = _region(image.size, [] if whole else boxes)
    left, top, width, height = region
    url = data_url(image.crop((left, top, left + width, top + height)), SIDE_PX)
    place = {"x": left, "y": top, "width": width, "height": height}
    shown = element("image", **place, preserveAspectRatio="none", href=url)
    is_cropped = (width, height) != image.size
    return Canvas(anchor=anchor, region=region, shown=shown, is_image=True, is_cropped=is_cropped)


def _empty_canvas(path: Path | None, boxes: Sequence[Box], anchor: str) -> Canvas:
    wide = max([1.1 * box.x2 for box in boxes if box.x2 > 0], default=100.0)
    high = max([1.1 * box.y2 for box in boxes if box.y2 > 0], default=100.0)
    text = plain("no image" if path is None else f"no image: {path.name}", 30)
    style = f"font:{wide / 12:.1f}px sans-serif;fill:#39424f"
    ground = element("rect", width=wide, height=high, fill="#c9ced6")
    at = {"x": wide / 2, "y": high / 2, "text_anchor": "middle"}
    shown = joined(ground, element("text", text, style=style, **at))
    region = ImageRegion(0, 0, wide, high)
    return Canvas(anchor=anchor, region=region, shown=shown, is_image=False)


def _region(size_px: tuple[int, int], boxes: Sequence[Box]) -> ImageRegion:
    """Choose the crop of an image that contains all boxes with a margin.

    The crop keeps the aspect ratio of the image. The whole image is returned if there are no boxes
    or if the crop would keep most of the image.
    """
    width, height = size_px
    if not boxes:
        return ImageRegion(0, 0, width, height)
    margin = _MARGIN * max(size_px)
    x1, y1 = min(b.x1 for b in boxes) - margin, min(b.y1 for b in boxes) - margin
    x2, y2 = max(b.x2 for b in boxes) + margin, max(b.y2 for b in boxes) + margin
    x1, x2 = (min(max(x, 0), width) for x in (x1, x2))
    y1, y2 = (min(max(y, 0), height) for y in (y1, y2))
    share = max((x2 - x1) / width, (y2 - y1) / height, _MIN_CROP)
    if share > _MAX_CROP:
        return ImageRegion(0, 0, width, height)
    wide, high = round(share * width), round(share * height)
    left, top = ((x1 + x2 - wide) / 2, (y1 + y2 - high) / 2)
    left, top = min(max(left, 0), width - wide), min(max(top, 0), height - high)
    return ImageRegion(round(left), round(top), wide, high)


def shape_tile(
    style: SeriesStyle, row: ScoredRow, pairs: MatchedShapes, on: Canvas, anchor: str
) -> Tile:
    """Draw an answer and the true shapes on an image. The ids in the SVG start with ``anchor``."""
    single = "iou" in row
    # Unmatched shapes are filled only among several: the IoU of a single one says enough.
    missed = [t for t, ok in zip(pairs.truths, pairs.found, strict=True) if not (ok or single)]
    wrong = [c and not (ok or single) for c, ok in zip(pairs.counts, pairs.right, strict=True)]
    drawn = _drawn(pairs.answers)
    words = answer_text(row)
    if len(drawn) < len(pairs.answers):
        words += f", the first {len(drawn)} drawn"
    left, top, width, height = on.region
    edge = 0.015 * max(width, height)  # so that lines at the edge of the image are not clipped
    box = left - edge, top - edge, width + 2 * edge, height + 2 * edge
    drawing = render(
        "shape_tile.html",
        view=" ".join(f"{at:.1f}" for at in box),
        name=plain(style.name, 60),
        words=plain(words),
        image=on.anchor,
        anchor=anchor,
        missed=on.path(missed),
        matched=on.path(list(compress(drawn, (not w for w in wrong)))),
        wrong=on.path(list(compress(drawn, wrong))),
    )
    css = "near" if quality(row) >= (FOUND_IOU if single else 1) else "off"
    return Tile(style.label(), drawing, plain(words), css)


def _drawn(answers: Sequence[Instance]) -> list[Instance]:
    """Return the first shapes of an answer, with at most 2,000 corners in total."""
    drawn, points = [], 0
    for item in answers:
        points += len(item.shape.points)
        if points > POINTS:
            break
        drawn.append(item)
    return drawn
