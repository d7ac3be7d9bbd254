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
from pathlib import Path
from typing import Any, Literal

from mm_numeric.evaluation.metrics.matching import FOUND_IOU, MatchedShapes, match_rows
from mm_numeric.evaluation.metrics.pointing import match_points
from mm_numeric.evaluation.report import iou_sections, results, shape_tiles
from mm_numeric.evaluation.report.gallery import order_text, spread_evenly, worst_first
from mm_numeric.evaluation.report.iou_sections import mean_box_statistics, statistics_of
from mm_numeric.evaluation.report.page import Block, Section, fold, render
from mm_numeric.evaluation.report.results import ScoredRow, Scores, Styles
from mm_numeric.evaluation.table import Cell, Table, number, percent
from mm_numeric.io.escaping import plain

PairedRuns = Mapping[tuple[str, int], Sequence[MatchedShapes]]
"""Maps (objective, seed) to the matched true and answered shapes of each row."""

WORST, FOLDED, SPREAD = 8, 4, 4
_Answers = Literal["shapes", "points"]


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the report sections for boxes and polygons, or [] if no answer was scored."""
    scores = {key: rows for key, rows in scores.items() if rows}
    if not scores:
        return []
    single = all("iou" in row for rows in scores.values() for row in rows)
    paired = {key: _paired(rows, single) for key, rows in scores.items()}
    pooled = results.pooled_rows(styles, scores, ())
    found = [
        statistics_of(
            style, rows, [p for key in scores if key[0] == style.name for p in paired[key]]
        )
        for style, rows in pooled.items()
    ]
    first = next(iter(scores))
    mean = mean_box_statistics(scores[first], paired[first])
    if mean is not None:
        found.append(mean[1])
    chapters = [
        iou_sections.iou_section(found, mean and mean[0], single=single),
        iou_sections.size_section(found, pooled, single=single),
        _gallery(folder, styles, scores, paired, "shapes"),
        iou_sections.invalid_answers_section(pooled),
    ]
    return [chapter for chapter in chapters if chapter is not None]


def point_sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the gallery of clicks or points, or [] if no row has an object with a region."""
    paired: dict[tuple[str, int], list[MatchedShapes]] = {}
    counted: dict[tuple[str, int], list[ScoredRow]] = {}
    for key, rows in scores.items():
        kept = [row for row in rows if row.get("scored", 1)]
        pairs = [match_points(row) for row in kept]
        counts = [(sum(own.found), len(own.answers), len(own.truths)) for own in pairs]
        if kept:
            paired[key] = pairs
            counted[key] = [
                {**row, **dict(zip(shape_tiles.COUNTS, own, strict=True))}
                for row, own in zip(kept, counts, strict=True)
            ]
    return [_gallery(folder, styles, counted, paired, "points")] if counted else []


def _paired(rows: Sequence[ScoredRow], single: bool) -> list[MatchedShapes]:
    """Match true with predicted shapes per row; raise ValueError if a row has no scores (IoU)."""
    columns = ("iou",) if single else shape_tiles.COUNTS
    if not all(isinstance(row.get(column), int | float) for row in rows for column in columns):
        raise ValueError("a row has neither iou nor all of matched, detected and truths")
    return match_rows(rows)


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
    for id_, seed, error in worst_first(scores, lambda row: 1 - shape_tiles.quality(row)):
        row, _ = next(iter(answers[id_, seed].values()))
        image = row["image"] if isinstance(row["image"], str) else None
        prompt, rank = str(row.get("prompt") or ""), len(cases) + 1
        case = _ShapeCase(id_, seed, image, prompt, 1 - error, rank, answers[id_, seed])
        cases.setdefault((image, None if image else id_), case)
    return list(cases.values())


def _gallery(
    folder: Path, styles: Styles, scores: Scores, paired: PairedRuns, answers: _Answers
) -> Section:
    cases = _cases(styles, scores, paired)
    total = len(cases)
    is_folded = total > WORST + SPREAD
    if is_folded:
        cases = cases[:WORST] + spread_evenly(cases[WORST:], SPREAD)
    has_prompts = len({case.prompt for case in cases}) > 1
    shown = [_open(folder, case, f"image{i}", whole=has_prompts) for i, case in enumerate(cases)]
    drawn_cases = list(zip(cases, shown, strict=True))
    several = len({seed for _, seed in scores}) > 1
    articles = [
        _article(*pair, styles, total, has_prompts=has_prompts, several_seeds=several)
        for pair in drawn_cases
    ]
    names = [name for name in styles if any(name == own for own, _ in scores)]
    drawn = render(
        "shape_gallery.html",
        canvases=[(on, case.truth) for case, on in drawn_cases],
        single=cases[0].single,
        answers=answers,
        has_ignored=any(case.truth.ignored for case in cases),
        found_iou=FOUND_IOU,
        is_alone=len(names) == 1,
        first=articles[: FOLDED if is_folded else None],
        more=articles[FOLDED:WORST] if is_folded else [],
        others=articles[WORST:],
    )
    header = [styles[name].cell() for name in names]
    table = _table(cases, header, names, has_prompts=has_prompts)
    metric = "IoU" if cases[0].single else f"F1 score of true and answered {answers}"
    intro, folded = _intro(metric, total, scores, shown), fold("The same as a table", [table])
    return Section.of("gallery", "Answers on the image", intro, Block(drawn), folded)


def _open(folder: Path, case: _ShapeCase, anchor: str, *, whole: bool) -> shape_tiles.Canvas:
    """Load the image of a test question to draw shapes on; ``whole`` prevents cropping."""
    path = None if case.image is None else folder / case.image
    answers = [own for _, own in case.answers.values()]
    return shape_tiles.canvas(path, answers, anchor, whole=whole or case.single)


def _article(
    case: _ShapeCase,
    on: shape_tiles.Canvas,
    styles: Styles,
    total: int,
    *,
    has_prompts: bool,
    several_seeds: bool,
) -> dict[str, Any]:
    """Return the title, text and drawings of one gallery entry, for its HTML template."""
    about = [plain(case.id, 60)] if has_prompts else []
    about += [f"mean IoU {case.mean_text}" if case.single else f"mean F1 {case.mean_text}"]
    about += [f"seed {case.seed}"] * several_seeds
    about += [f"{case.rank:,} of {total:,} from the worst"]
    tiles = [
        shape_tiles.shape_tile(style, *case.answers[name], on, f"{on.anchor}a{place}")
        for place, (name, style) in enumerate(styles.items())
        if name in case.answers
    ]
    title = f"“{plain(case.prompt, 120)}”" if has_prompts else plain(case.id, 60)
    return {"title": title, "about": " · ".join(about), "tiles": tiles}


def _intro(metric: str, total: int, scores: Scores, shown: Sequence[shape_tiles.Canvas]) -> str:
    which = "The only image." if total == 1 else f"All {total} images."
    if total > WORST + SPREAD:
        which = (
            f"The {WORST} worst of {total:,} images, and {SPREAD} spread evenly over the rest, "
            "so that not only failures are seen."
        )
    intro = f"{order_text(metric, scores)} {which}"
    if any(on.is_cropped for on in shown):
        intro += " Images with small shapes are cropped."
    missing = sum(not on.is_image for on in shown)
    text = f" {missing} of the {len(shown)} images could not be opened."
    return intro + text if missing else intro


def _table(
    cases: Sequence[_ShapeCase], header: Sequence[Cell], names: Sequence[str], *, has_prompts: bool
) -> Table:
    rows = []
    for case in cases:
        found = [case.answers[name][0] if name in case.answers else None for name in names]
        words = [shape_tiles.answer_text(row) if row else None for row in found]
        cells = [Cell(content=case.id, limit=60)]
        cells += [Cell(content=case.prompt, limit=120)] if has_prompts else []
        cells += [Cell(content=text, limit=160) for text in words]
        rows.append([*cells, case.mean_text])
    columns = ["image", *(["prompt"] if has_prompts else []), *header, "mean"]
    return Table.of(columns, rows, title="The answers drawn above")
