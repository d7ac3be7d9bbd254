"""Report sections for boxes and polygons in images: IoU, sizes, a gallery, invalid answers.

Rows     lines of ``scores.jsonl`` with the columns
         id, image, prompt   id, image file and question of the test row; prompt is optional
         target, parsed      the true and the predicted shapes; parsed may be None
         text, reason        the text of the model, and why it could not be parsed
         iou                 the IoU of the answer, if each answer is exactly one shape
         matched, detected, truths   otherwise: the number of matched, predicted and true shapes
         cut, malformed      optional: whether the answer is truncated inside a shape, and the
                             number of malformed shapes
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Literal, NamedTuple

from markupsafe import Markup

from mm_numeric.answers import Box, Instance
from mm_numeric.evaluation.metrics.matching import FOUND_IOU, MatchedShapes, is_drawable, match_rows
from mm_numeric.evaluation.metrics.pointing import match_points
from mm_numeric.evaluation.report import iou_sections, results
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.detection_section import detection_section, repeat_blocks
from mm_numeric.evaluation.report.gallery import (
    COUNTS,
    Article,
    Tile,
    answer_text,
    data_url,
    gallery,
    names_of,
    open_upright,
    order_text,
    outline,
    same_as_table,
    which_text,
    worst_and_others,
    worst_first,
)
from mm_numeric.evaluation.report.iou_sections import mean_box_statistics, statistics_of
from mm_numeric.evaluation.report.page import Section, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, number, percent
from mm_numeric.geometry.row_shapes import around
from mm_numeric.io.escaping import plain
from mm_numeric.io.markup import element, joined

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
    drawn, points = [], 0
    for item in answers:
        points += len(item.shape.points)
        if points > POINTS:
            break
        drawn.append(item)
    return drawn


PairedRuns = Mapping[tuple[str, int], Sequence[MatchedShapes]]
"""Maps (objective, seed) to the matched true and answered shapes of each row."""

_Answers = Literal["shapes", "points"]


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections for boxes and polygons, or [] if no answer was scored."""
    scores = {key: rows for key, rows in scores.items() if rows}
    if not scores:
        return []
    single = all("iou" in row for rows in scores.values() for row in rows)
    paired = {key: match_rows(rows) for key, rows in scores.items()}
    pooled = results.pooled_rows(styles, scores)
    matched = {
        style: [p for key in scores if key[0] == style.name for p in paired[key]]
        for style in pooled
    }
    found = [statistics_of(style, rows, matched[style]) for style, rows in pooled.items()]
    first, seeds = next(iter(scores)), results.seeds_text(scores)
    mean = mean_box_statistics(scores[first], paired[first])
    if mean is not None:
        found.append(mean[1])
    chapters = [
        iou_sections.iou_section(found, mean and mean[0], seeds, single=single),
        iou_sections.size_section(found, pooled, single=single),
        None if single else detection_section(pooled, matched, seeds),
        _gallery(folder, styles, scores, paired, "shapes"),
        iou_sections.invalid_answers_section(pooled),
    ]
    return [chapter for chapter in chapters if chapter is not None]


def point_sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the sections on duplicate points and the gallery of clicks or points.

    There is no gallery if no row has an object with a region, and clicks have no duplicates.
    """
    paired: dict[tuple[str, int], list[MatchedShapes]] = {}
    counted: dict[tuple[str, int], list[ScoredRow]] = {}
    for key, rows in scores.items():
        kept = [row for row in rows if row.get("scored", 1)]
        pairs = [match_points(row) for row in kept]
        counts = [(sum(own.found), len(own.answers), len(own.truths)) for own in pairs]
        if kept:
            paired[key] = pairs
            counted[key] = [
                {**row, **dict(zip(COUNTS, own, strict=True))}
                for row, own in zip(kept, counts, strict=True)
            ]
    blocks = repeat_blocks(results.pooled_rows(styles, scores), results.seeds_text(scores))
    found = [Section.of("objects", "Duplicates", *blocks)] if scores and blocks else []
    return [*found, *([_gallery(folder, styles, counted, paired, "points")] if counted else [])]


@dataclass(frozen=True)
class _ShapeCase:
    """One image of the gallery: a test row, and the answers of all objectives with one seed."""

    id: str
    seed: int  # the one whose answers are the worst
    image: str | None
    prompt: str
    mean: float  # the mean quality of its answers
    rank: int
    answers: Mapping[str, tuple[ScoredRow, MatchedShapes]]

    @property
    def truth(self) -> MatchedShapes:
        return next(iter(self.answers.values()))[1]

    @property
    def single(self) -> bool:
        return all("iou" in row for row, _ in self.answers.values())

    @property
    def mean_text(self) -> str:
        return number(self.mean, 2) if self.single else str(percent(self.mean))


def _cases(styles: Styles, scores: Scores, paired: PairedRuns) -> list[_ShapeCase]:
    """Select one question for each image, the one with the worst answers; the worst come first."""
    answers: dict[tuple[str, int], dict[str, tuple[ScoredRow, MatchedShapes]]] = defaultdict(dict)
    for name, seed in sorted(scores, key=lambda key: list(styles).index(key[0])):
        for row, own in zip(scores[name, seed], paired[name, seed], strict=True):
            answers[str(row["id"]), seed][name] = row, own
    cases: dict[tuple[str | None, str | None], _ShapeCase] = {}
    for id_, seed, error in worst_first(scores, lambda row: 1 - quality(row)):
        row, _ = next(iter(answers[id_, seed].values()))
        image = row["image"] if isinstance(row["image"], str) else None
        prompt, rank = str(row.get("prompt") or ""), len(cases) + 1
        case = _ShapeCase(id_, seed, image, prompt, 1 - error, rank, answers[id_, seed])
        cases.setdefault((image, None if image else id_), case)
    return list(cases.values())


def _gallery(
    folder: Path, styles: Styles, scores: Scores, paired: PairedRuns, answers: _Answers
) -> Section:
    every = _cases(styles, scores, paired)
    cases, total = worst_and_others(every), len(every)
    names, single = names_of(styles, scores), cases[0].single
    has_prompts = len({case.prompt for case in cases}) > 1
    shown = [_open(folder, case, f"image{i}", whole=has_prompts) for i, case in enumerate(cases)]
    several = len({seed for _, seed in scores}) > 1
    articles = [
        _article(case, on, styles, total, has_prompts=has_prompts, several_seeds=several)
        for case, on in zip(cases, shown, strict=True)
    ]
    drawn = gallery(
        "shape_gallery.html",
        articles,
        total,
        canvases=[(on, case.truth) for case, on in zip(cases, shown, strict=True)],
        single=single,
        answers=answers,
        has_ignored=any(case.truth.ignored for case in cases),
        found_iou=FOUND_IOU,
        is_alone=len(names) == 1,
    )
    rows = [_table_row(case, names, has_prompts=has_prompts) for case in cases]
    header = ["image", *["prompt"] * has_prompts, *(styles[name].cell() for name in names), "mean"]
    metric = "IoU" if single else f"F1 score of true and answered {answers}"
    intro = f"{order_text(metric, scores)} "
    intro += which_text(total, "image", ", so that not only failures are seen")
    intro += " Images with small shapes are cropped." * any(on.is_cropped for on in shown)
    if missing := sum(not on.is_image for on in shown):
        intro += f" {missing} of the {len(shown)} images could not be opened."
    return Section.of("gallery", "Answers on the image", intro, drawn, same_as_table(header, rows))


def _open(folder: Path, case: _ShapeCase, anchor: str, *, whole: bool) -> Canvas:
    path = None if case.image is None else folder / case.image
    answers = [own for _, own in case.answers.values()]
    return canvas(path, answers, anchor, whole=whole or case.single)


def _article(
    case: _ShapeCase,
    on: Canvas,
    styles: Styles,
    total: int,
    *,
    has_prompts: bool,
    several_seeds: bool,
) -> Article:
    about = [plain(case.id, 60)] if has_prompts else []
    about += [f"mean IoU {case.mean_text}" if case.single else f"mean F1 {case.mean_text}"]
    about += [f"seed {case.seed}"] * several_seeds
    about += [f"{case.rank:,} of {total:,} from the worst"]
    tiles = [
        shape_tile(style, *case.answers[name], on, f"{on.anchor}a{place}")
        for place, (name, style) in enumerate(styles.items())
        if name in case.answers
    ]
    title = f"“{plain(case.prompt, 120)}”" if has_prompts else plain(case.id, 60)
    return Article(title, " · ".join(about), tiles)


def _table_row(case: _ShapeCase, names: Sequence[str], *, has_prompts: bool) -> list[Cell | str]:
    prompt = [Cell(content=case.prompt, limit=120)] if has_prompts else []
    found = [case.answers[name][0] if name in case.answers else None for name in names]
    words = [Cell(content=answer_text(row) if row else None, limit=160) for row in found]
    return [Cell(content=case.id, limit=60), *prompt, *words, case.mean_text]
