"""One answer drawn over its image: the true shapes, the answered ones, and what became of them.

Rows     as ``scores.jsonl`` has them: parsed, reason, text, and of the scorer iou, or matched,
         detected and truths; cut and malformed where they are there
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from mm_numeric.answers import Box, Instance
from mm_numeric.evaluation.metrics.matching import FIND, Paired, is_drawable
from mm_numeric.evaluation.report.charts import Mark, who
from mm_numeric.evaluation.report.html import html_text, number, plain
from mm_numeric.evaluation.report.images import data_url, open_upright, outline
from mm_numeric.geometry.row_shapes import around

Row = Mapping[str, Any]

COUNTS = ("matched", "detected", "truths")
POINTS = 2000  # drawn of one answer at most: a model that repeats itself must not fill the page
SIDE_PX = 640
_ROOM = 0.06  # around the shapes that an image is cut to, as a share of its longer edge
_LEAST = 1 / 3  # of each edge is left by a cut
_MOST = 0.75  # of an image may be left by a cut, or it is shown whole
_FIXED = 'vector-effect="non-scaling-stroke"'  # not in CSS: its rules do not reach into <use>
CSS = """
.over { overflow: hidden; max-height: 300px; }
.over g, .over use { fill: none; stroke-linejoin: round; }
.halo { stroke: var(--paper); stroke-width: 3.8; stroke-opacity: .75; }
.over .true { stroke: var(--true); stroke-width: 2; stroke-dasharray: 5 3; }
.over .read { stroke: var(--read); stroke-width: 2; }
.over .missed { fill: var(--true); fill-opacity: .3; }
.over .wrong { fill: var(--read); fill-opacity: .3; }
.ignored { stroke: var(--control); stroke-width: 2; stroke-dasharray: 2 2; }
.several .over .read, .several .over .true { stroke-width: 1.6; }
.several .halo { stroke-width: 3; }
.keys { display: flex; flex-wrap: wrap; gap: 5px 24px; align-items: center; max-width: none; }
.keys svg { width: 30px; height: 18px; flex: none; }
.keys span { display: inline-flex; align-items: center; gap: 8px; }
"""


def quality(row: Row) -> float:
    """Return how good an answer is, 0 to 1: its IoU, or the share of shapes that matched.

    Of several shapes it is the share of the true and the answered ones together, so that an answer
    of too many is no better than one of too few; 1 where there is nothing and nothing was answered,
    0 where the answer could not be read.
    """
    if "iou" in row or row["parsed"] is None:
        return float(row.get("iou", 0.0))
    shapes = row["detected"] + row["truths"]
    return float(2 * row["matched"] / shapes) if shapes else 1.0


def told(row: Row) -> str:
    """Say in words what became of an answer: ``IoU 0.83``, or ``3 of 4 found, 2 too many``."""
    if row["parsed"] is None:
        reason = plain(row["reason"] or "unreadable", 60)
        return f"not read: {reason} in “{plain(row['text'], 80)}”"
    if "iou" in row:
        words = f"IoU {number(row['iou'], 2)}"
    else:
        matched, detected, truths = (int(row[column]) for column in COUNTS)
        words = f"{matched} of {truths} found" if truths else "nothing to be found"
        words += f", {detected - matched} too many" if detected > matched else ""
    words += ", cut off" if row.get("cut") else ""
    return words + (f", {row['malformed']:g} malformed" if row.get("malformed") else "")


class View(NamedTuple):
    """A part of an image, in its pixels."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """An image that shapes are drawn over."""

    anchor: str
    """What the page calls it."""

    view: View
    """What is shown of the original, upright image."""

    shown: str
    """The image as SVG, or a grey ground that says it could not be opened."""

    is_image: bool
    is_cut: bool = False

    def path(self, instances: Sequence[Instance]) -> str:
        """Return the outlines of shapes as one path, exact to a thousandth of the view."""
        shapes = [item.shape for item in instances if is_drawable(item.shape)]
        decimals = 0 if max(self.view.width, self.view.height) > 1000 else 1
        return "".join(outline(shape, decimals) for shape in shapes)

    def definition(self, own: Paired) -> str:
        """Return the image and its true shapes as definitions that tiles use."""
        lines = f'{_FIXED} d="{self.path(own.ignored)}"'
        return (
            f'<g id="{self.anchor}">{self.shown}<path class="halo" {lines}/>'
            f'<path class="ignored" {lines}/></g>'
            f'<path id="{self.anchor}t" {_FIXED} d="{self.path(own.truths)}"/>'
        )


def canvas(path: Path | None, answers: Sequence[Paired], anchor: str, *, whole: bool) -> Canvas:
    """Open an image to draw over.

    Args:
        path: Its file; where there is none, the canvas is as large as the shapes need.
        answers: All that is to be drawn over it.
        anchor: What the page calls it.
        whole: Or cut to where the shapes are, if these leave much of it empty.
    """
    items = [*answers[0].truths, *answers[0].ignored, *(i for own in answers for i in own.answers)]
    boxes = [around(item.shape) for item in items if is_drawable(item.shape)]
    image = None if path is None else open_upright(path)
    if image is not None:
        view = _view(image.size, [] if whole else boxes)
        left, top, width, height = view
        url = data_url(image.crop((left, top, left + width, top + height)), SIDE_PX)
        place = f'x="{left}" y="{top}" width="{width}" height="{height}"'
        shown = f'<image {place} preserveAspectRatio="none" href="{url}"/>'
        is_cut = (width, height) != image.size
        return Canvas(anchor=anchor, view=view, shown=shown, is_image=True, is_cut=is_cut)
    wide = max([1.1 * box.x2 for box in boxes if box.x2 > 0], default=100.0)
    high = max([1.1 * box.y2 for box in boxes if box.y2 > 0], default=100.0)
    style = f'text-anchor="middle" style="font:{wide / 14:.1f}px sans-serif;fill:#39424f"'
    label = html_text("no image" if path is None else f"no image: {path.name}", 30)
    shown = (
        f'<rect width="{wide:g}" height="{high:g}" fill="#c9ced6"/>'
        f'<text x="{wide / 2:g}" y="{high / 2:g}" {style}>{label}</text>'
    )
    return Canvas(anchor=anchor, view=View(0, 0, wide, high), shown=shown, is_image=False)


def _view(size_px: tuple[int, int], boxes: Sequence[Box]) -> View:
    """Return where the shapes are, with room around them and the image's own proportions."""
    width, height = size_px
    if not boxes:
        return View(0, 0, width, height)
    room = _ROOM * max(size_px)
    x1, y1 = min(b.x1 for b in boxes) - room, min(b.y1 for b in boxes) - room
    x2, y2 = max(b.x2 for b in boxes) + room, max(b.y2 for b in boxes) + room
    x1, x2 = (min(max(x, 0), width) for x in (x1, x2))
    y1, y2 = (min(max(y, 0), height) for y in (y1, y2))
    share = max((x2 - x1) / width, (y2 - y1) / height, _LEAST)
    if share > _MOST:
        return View(0, 0, width, height)
    wide, high = round(share * width), round(share * height)
    left, top = ((x1 + x2 - wide) / 2, (y1 + y2 - high) / 2)
    return View(
        round(min(max(left, 0), width - wide)), round(min(max(top, 0), height - high)), wide, high
    )


def tile(mark: Mark, row: Row, own: Paired, on: Canvas, anchor: str) -> str:
    """Draw one answer and the true shapes over an image, and say what became of it."""
    one = "iou" in row  # whose IoU says enough; among several it must be seen which are wrong
    missed = [t for t, found in zip(own.truths, own.found, strict=True) if not (found or one)]
    drawn = _first(own.answers)
    wrong = [
        counts and not (right or one) for counts, right in zip(own.counts, own.right, strict=True)
    ]
    good = list(compress(drawn, (not w for w in wrong)))
    left, top, width, height = on.view
    edge = 0.015 * max(width, height)  # lines at the edge of the image are seen whole
    box = left - edge, top - edge, width + 2 * edge, height + 2 * edge
    words = told(row)
    if len(drawn) < len(own.answers):
        words += f", the first {len(drawn)} drawn"
    text = html_text(words, 300)
    state = "near" if quality(row) >= (FIND if one else 1) else "off"
    return (
        f'<figure class="tile {state}"><figcaption>{who(mark)}</figcaption><svg class="over" '
        f'viewBox="{" ".join(f"{at:.1f}" for at in box)}" '
        f'role="img" aria-label="{html_text(mark.name, 60)}: {text}"><title>{text}</title>'
        f'<use href="#{on.anchor}"/><path class="missed" d="{on.path(missed)}"/>'
        f'<use class="halo" href="#{on.anchor}t"/><use class="true" href="#{on.anchor}t"/>'
        f'<g class="halo"><path id="{anchor}r" {_FIXED} d="{on.path(good)}"/>'
        f'<path id="{anchor}w" {_FIXED} d="{on.path(list(compress(drawn, wrong)))}"/></g>'
        f'<use class="read" href="#{anchor}r"/><use class="read wrong" href="#{anchor}w"/>'
        f'</svg><span class="words">{text}</span></figure>'
    )


def _first(answers: Sequence[Instance]) -> list[Instance]:
    """Return as many of the first shapes as are drawn."""
    drawn, points = [], 0
    for item in answers:
        points += len(item.shape.points)
        if points > POINTS:
            break
        drawn.append(item)
    return drawn


def keys(*, one_each: bool, ignored: bool) -> str:
    """Explain the lines of tiles, and the fills where there may be several shapes."""
    line, area = "M1 9H29", "M3 3H27V15H3Z"
    shown = [("true", line, "true"), ("read", line, "answered")]
    if not one_each:
        shown.append(("missed", area, f"true, but not found (no IoU of {FIND:g})"))
        shown.append(("wrong", area, "answered, but no match"))
    if ignored:
        shown.append(("ignored", line, "need not be found"))
    return (
        '<p class="keys note">'
        + "".join(
            '<span><svg class="over" viewBox="0 0 30 18" aria-hidden="true">'
            f'<path class="{kind}" d="{path}"/></svg>{text}</span>'
            for kind, path, text in shown
        )
        + "</p>"
    )
