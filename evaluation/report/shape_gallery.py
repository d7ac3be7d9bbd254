"""Report sections for boxes and polygons in images: IoU, sizes, a gallery, invalid answers.

Rows     lines of ``scores.jsonl`` with the columns
         id, image, prompt   id, image file and question of the test row; prompt is optional
         target, parsed      the true and the predicted shapes; parsed may be None
         text, reason        the text of the model, and why it could not be parsed
         iou                 the IoU of the answer, if each answer is exactly one shape
         matched, detected, truths   otherwise: the number of matched, predicted and true shapes
         scores              optional: the confidences of the predicted shapes
         cut, malformed      optional: True if the answer is truncated inside a shape; number of
                             malformed shapes
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress, product
from pathlib import Path
from typing import Literal, NamedTuple

from mm_numeric.answers import Box, Instance
from mm_numeric.evaluation.metrics.matching import FOUND_IOU, MatchedShapes, is_drawable, match_rows
from mm_numeric.evaluation.metrics.pointing import match_points
from mm_numeric.evaluation.report import results, shape_sections
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.gallery import (
    COUNTS,
    Canvas,
    Entry,
    ImageRegion,
    Question,
    Tile,
    answer_text,
    gallery_section,
    open_upright,
    outline,
    worst_and_others,
    worst_first,
)
from mm_numeric.evaluation.report.page import Section, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, number, percent
from mm_numeric.geometry.row_shapes import around
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element, joined

_PAIRS = "pairs"
"""A key that this module adds to each row: the matched true and predicted shapes."""

POINTS = 2000  # maximum number of drawn points per answer: repetitive answers can be very long
SIDE_PX = 640
_MARGIN = 0.06  # margin around the shapes in a crop, as a share of the image's longer edge
_MIN_CROP = 1 / 3  # a crop keeps at least this share of each edge
_MAX_CROP = 0.75  # an image is not cropped if the crop would keep more than this share


_TAG_LETTERS = 24  # a longer label is truncated in a drawing
_TAG_SHARE = 11 / 240, 11 / 300  # font size: 11 pixels in a tile of 240 x 300 pixels


class Tag(NamedTuple):
    """The label of a shape, drawn at the shape: a text in a rectangle, in pixels of the image."""

    css: str  # true or answered
    text: str
    box: Box

    @property
    def width(self) -> float:
        """Return the width of the rectangle."""
        return self.box.x2 - self.box.x1


def quality(row: ScoredRow) -> float:
    """Return a score of an answer from 0 to 1, to rank answers.

    The score is the IoU if each answer is a single shape, and otherwise the F1 score of the shapes.
    A parse failure scores 0. An answer without shapes scores 1 if there are no true shapes.
    """
    if "iou" in row or row["parsed"] is None:
        return float(row.get("iou", 0.0))
    shapes = row["detected"] + row["truths"]
    return float(2 * row["matched"] / shapes) if shapes else 1.0


def _canvas(path: Path | None, own: Question, anchor: str, *, whole: bool) -> Canvas:
    """Return the image of a question with its true shapes, on which answers are drawn.

    If all shapes are in a small region, the image is cropped to it unless ``whole`` is True. If the
    image cannot be opened, a grey area that is large enough for all shapes replaces the image.
    """
    pairs = [row[_PAIRS] for row in own.rows.values()]
    truth: MatchedShapes = pairs[0]
    items = [*truth.truths, *truth.ignored, *(item for each in pairs for item in each.answers)]
    boxes = [around(item.shape) for item in items if is_drawable(item.shape)]
    image = None if path is None else open_upright(path)
    if image is None:
        wide = max([1.1 * box.x2 for box in boxes if box.x2 > 0], default=100.0)
        high = max([1.1 * box.y2 for box in boxes if box.y2 > 0], default=100.0)
        on = Canvas.empty(path, anchor, wide, high)
    else:
        on = Canvas.of(image, anchor, _region(image.size, [] if whole else boxes), SIDE_PX)
    # This is an attribute, because CSS rules do not apply to elements inside <use>.
    fixed = {"vector-effect": "non-scaling-stroke"}
    ignored = _path(on, truth.ignored)
    lines = (element("path", class_=css, d=ignored, **fixed) for css in ("halo", "ignored"))
    more = element("path", id=f"{anchor}t", **fixed, d=_path(on, truth.truths))
    return replace(on, shown=joined(on.shown, *lines), more=more)


def _path(on: Canvas, instances: Sequence[Instance]) -> str:
    """Return the outlines of shapes as one SVG path, with 0 or 1 decimals per coordinate."""
    decimals = 0 if max(on.region.width, on.region.height) > 1000 else 1
    return "".join(outline(own, decimals) for own in instances if is_drawable(own.shape))


def _region(size_px: tuple[int, int], boxes: Sequence[Box]) -> ImageRegion:
    """Choose a crop of an image that contains all boxes and a margin around them.

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


def _tile(style: SeriesStyle, row: ScoredRow, on: Canvas, anchor: str) -> Tile:
    """Draw an answer and the true shapes on an image. The ids in the SVG start with ``anchor``."""
    single, pairs = "iou" in row, row[_PAIRS]
    # With one shape per image, an unmatched shape is not filled: the IoU says enough.
    missed = [t for t, ok in zip(pairs.truths, pairs.found, strict=True) if not (ok or single)]
    wrong = [c and not (ok or single) for c, ok in zip(pairs.counts, pairs.right, strict=True)]
    drawn = _drawn(pairs.answers)
    words = answer_text(row)
    if len(drawn) < len(pairs.answers):
        words += f", the first {len(drawn)} drawn"
    left, top, width, height = on.region
    edge = 0.015 * max(width, height)  # lines at the edge of the image must not be clipped
    view = Box(left - edge, top - edge, left + width + edge, top + height + edge)
    em = max(share * size for share, size in zip(_TAG_SHARE, (width, height), strict=True))
    labels = _labels(row, pairs, len(drawn))
    tags = _label_tags(labels, view, em)
    if len(tags) < len(labels):
        words += f", {len(labels) - len(tags)} labels not drawn"
    drawing = render(
        "shape_tile.html",
        view=f"{view.x1:.1f} {view.y1:.1f} {view.x2 - view.x1:.1f} {view.y2 - view.y1:.1f}",
        em=em,
        tags=tags,
        name=plain(style.name, 60),
        words=plain(words),
        image=on.anchor,
        anchor=anchor,
        missed=_path(on, missed),
        matched=_path(on, list(compress(drawn, (not w for w in wrong)))),
        wrong=_path(on, list(compress(drawn, wrong))),
    )
    css = "near" if quality(row) >= (FOUND_IOU if single else 1) else "off"
    return Tile(style.label(), drawing, plain(words), css)


def _drawn(answers: Sequence[Instance]) -> list[Instance]:
    drawn, points = [], 0
    for item in answers:
        points += len(item.shape.points)
        if points > POINTS:
            break
        drawn.append(item)
    return drawn


def _labels(row: ScoredRow, pairs: MatchedShapes, drawn: int) -> list[tuple[str, str, Box]]:
    """Return the class in CSS, the text and the bounding box of each label to draw.

    The text of a predicted shape ends with its confidence. Shapes without a label have no text.
    """
    found = [("true", plain(own.label, _TAG_LETTERS), own) for own in pairs.truths]
    scores = [f" {own:.2f}" for own in row.get("scores") or ()] or [""] * drawn
    for own, score in zip(pairs.answers[:drawn], scores, strict=False):
        found.append(("answered", plain(own.label, _TAG_LETTERS) + score, own))
    return [
        (css, text, around(own.shape))
        for css, text, own in found
        if own.label and is_drawable(own.shape)
    ]


def _label_tags(labels: Sequence[tuple[str, str, Box]], view: Box, em: float) -> list[Tag]:
    """Place labels at their boxes within ``view``; leave out labels that would cover others.

    ``em`` is the font size in pixels of the image. A true label is at the upper edge of its box, a
    predicted one at the lower edge: outside of the box, or inside if there is no room.
    """
    found: list[Tag] = []
    high = 1.4 * em
    for css, text, box in labels:
        letters = (1 if unicodedata.east_asian_width(c) in "FW" else 0.6 for c in text)
        wide = min(em * (sum(letters) + 0.7), view.x2 - view.x1)
        edges = (box.y1 - high, box.y1) if css == "true" else (box.y2, box.y2 - high)
        for y, x in product(edges, (box.x1, box.x2 - wide)):
            x, y = min(max(x, view.x1), view.x2 - wide), min(max(y, view.y1), view.y2 - high)
            place = Box(x, y, x + wide, y + high)
            if not any(_overlap(place, other.box) for other in found):
                found.append(Tag(css, text, place))
                break
    return found


def _overlap(a: Box, b: Box) -> bool:
    return a.x1 < b.x2 and b.x1 < a.x2 and a.y1 < b.y2 and b.y1 < a.y2


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections for boxes and polygons, or [] if no answer was scored."""
    scores = {key: rows for key, rows in scores.items() if rows}
    if not scores:
        return []
    single = all("iou" in row for rows in scores.values() for row in rows)
    scores = {
        key: [{**row, _PAIRS: p} for row, p in zip(rows, match_rows(rows), strict=True)]
        for key, rows in scores.items()
    }
    pooled = results.pooled_rows(styles, scores)
    matched = {style: [row[_PAIRS] for row in rows] for style, rows in pooled.items()}
    found = [
        shape_sections.statistics_of(style, rows, matched[style]) for style, rows in pooled.items()
    ]
    first, seeds = next(iter(scores.values())), results.seeds_text(scores)
    mean = shape_sections.mean_box_statistics(first, [row[_PAIRS] for row in first])
    if mean is not None:
        found.append(mean[1])
    chapters = [
        shape_sections.iou_section(found, mean and mean[0], seeds, single=single),
        shape_sections.size_section(found, pooled, single=single),
        None if single else shape_sections.detection_section(pooled, matched, seeds),
        _gallery(folder, styles, scores, "shapes"),
        shape_sections.invalid_answers_section(pooled, seeds),
    ]
    return [chapter for chapter in chapters if chapter is not None]


def point_sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the sections on duplicate points and the gallery of clicks or points.

    There is no gallery if no object has a region. Clicks have no section on duplicates.
    """
    drawn = {
        key: [_with_points(r) for r in rows if r.get("scored", 1)] for key, rows in scores.items()
    }
    blocks = shape_sections.repeat_blocks(
        results.pooled_rows(styles, scores), results.seeds_text(scores)
    )
    found = [Section.of("objects", "Duplicates", *blocks)] if scores and blocks else []
    drawn = {key: rows for key, rows in drawn.items() if rows}
    return [*found, *([_gallery(folder, styles, drawn, "points")] if drawn else [])]


def _with_points(row: ScoredRow) -> ScoredRow:
    own = match_points(row)
    counts = sum(own.found), len(own.answers), len(own.truths)
    return {**row, **dict(zip(COUNTS, counts, strict=True)), _PAIRS: own}


def _gallery(
    folder: Path, styles: Styles, scores: Scores, answers: Literal["shapes", "points"]
) -> Section:
    """Return the gallery section; of each image, it shows the question with the worst answers."""
    ranked = worst_first(styles, scores, lambda row: 1 - quality(row), _image_or_id)
    shown = worst_and_others(ranked)
    single = all("iou" in row for own in shown for row in own.rows.values())
    has_prompts = len({own.row.get("prompt") for own in shown}) > 1
    metric = "IoU" if single else f"F1 score of true and answered {answers}"
    ignored = any(own.row[_PAIRS].ignored for own in shown)
    key = render(
        "shape_key.html",
        single=single,
        answers=answers,
        has_ignored=ignored,
        has_labels=any(item.label for own in shown for item in own.row[_PAIRS].truths),
        found_iou=FOUND_IOU,
    )
    return gallery_section(
        "Answers on the image",
        [
            _entry(folder, own, f"image{i}", styles, single=single, has_prompts=has_prompts)
            for i, own in enumerate(shown)
        ],
        len(ranked),
        styles,
        scores,
        noun="image",
        error=metric,
        header=["prompt"] * has_prompts,
        mean="mean IoU" if single else "mean F1",
        key=key,
        css="shown" if single else f"shown several {answers}",
    )


def _image_or_id(row: ScoredRow) -> tuple[str | None, str | None]:
    image = row["image"] if isinstance(row["image"], str) else None
    return image, None if image else str(row["id"])


def _entry(
    folder: Path, own: Question, anchor: str, styles: Styles, *, single: bool, has_prompts: bool
) -> Entry:
    image, _ = _image_or_id(own.row)
    path = None if image is None else folder / image
    on = _canvas(path, own, anchor, whole=has_prompts or single)
    prompt, mean = str(own.row.get("prompt") or ""), 1 - own.error
    words = {n: Cell(content=answer_text(row), limit=160) for n, row in own.rows.items()}
    return Entry(
        question=own,
        answers=words,
        cells=[Cell(content=prompt, limit=120)] * has_prompts,
        mean=number(mean, 2) if single else str(percent(mean)),
        title=f"“{plain(prompt, 120)}”" if has_prompts else "",
        tiles=[
            _tile(styles[name], row, on, f"{anchor}a{[*styles].index(name)}")
            for name, row in own.rows.items()
        ],
        canvas=on,
    )
