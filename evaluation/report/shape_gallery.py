"""The chapters of a report on shapes in images: IoU, object sizes, a gallery, invalid answers.

Rows     those of ``scores.jsonl``: id, image, target, text, parsed, reason, and the scorer's iou,
         or its matched, detected and truths; optionally prompt, cut and malformed
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.evaluation.markup import joined, plain
from mm_numeric.evaluation.metrics.matching import MatchedShapes, match_rows
from mm_numeric.evaluation.report.html import render
from mm_numeric.evaluation.report.iou_sections import (
    invalid_answers_section,
    iou_section,
    size_section,
)
from mm_numeric.evaluation.report.iou_statistics import mean_box_statistics, statistics_of
from mm_numeric.evaluation.report.results import (
    COMPARE_AGAIN,
    ScoredRow,
    Scores,
    Styles,
    spread_evenly,
)
from mm_numeric.evaluation.report.sections import Block, Section, fold, paragraph
from mm_numeric.evaluation.report.shape_tiles import (
    COUNTS,
    Canvas,
    answer_text,
    canvas,
    line_keys,
    quality,
    shape_tile,
)
from mm_numeric.evaluation.table import Cell, Table, number, percent

PairedRuns = Mapping[tuple[str, int], Sequence[MatchedShapes]]
"""The paired shapes of each row, by objective and seed."""

WORST, FOLDED, SPREAD = 8, 4, 4


def sections(folder: Path, styles: Styles, scores: Scores) -> list[Section]:
    """Return the chapters; none if no answer was scored.

    Raises:
        ValueError: If a row lacks a column of the scorer, or has an invalid shape.
    """
    scores = {key: rows for key, rows in scores.items() if rows}
    if not scores:
        return []
    single = all("iou" in row for rows in scores.values() for row in rows)
    paired = {key: _paired(folder, key, rows, single) for key, rows in scores.items()}
    runs = {name: [key for key in scores if key[0] == name] for name in styles}
    runs = {name: keys for name, keys in runs.items() if keys}
    pooled = {
        styles[name]: [row for key in keys for row in scores[key]] for name, keys in runs.items()
    }
    found = [
        statistics_of(styles[name], pooled[styles[name]], [p for key in keys for p in paired[key]])
        for name, keys in runs.items()
    ]
    first = next(iter(scores))
    mean = mean_box_statistics(scores[first], paired[first])
    if mean is not None:
        found.append(mean[1])
    chapters = [
        iou_section(found, mean and mean[0], single=single),
        size_section(found, pooled, single=single),
        _gallery(folder, styles, scores, paired),
        invalid_answers_section(pooled),
    ]
    return [chapter for chapter in chapters if chapter is not None]


def _paired(
    folder: Path, key: tuple[str, int], rows: Sequence[ScoredRow], single: bool
) -> list[MatchedShapes]:
    """Validate the rows of a run, and pair their shapes."""
    where = f"{folder}, scores.jsonl of {key[0]}, seed {key[1]}"
    columns = ("iou",) if single else COUNTS
    if not all(isinstance(row.get(column), int | float) for row in rows for column in columns):
        what = "a row has neither iou nor all of matched, detected and truths"
        raise ValueError(f"{where}: {what}. {COMPARE_AGAIN}")
    try:
        return match_rows(rows, where)
    except ValueError as error:
        raise ValueError(f"{error}. {COMPARE_AGAIN}") from error


@dataclass(frozen=True, kw_only=True)
class _ShapeCase:
    """One test row, and the answers of all objectives with one seed."""

    id: str
    image: str | None
    prompt: str
    mean: float
    """The mean quality of its answers."""

    rank: int
    answers: Mapping[str, tuple[ScoredRow, MatchedShapes]]

    @property
    def truth(self) -> MatchedShapes:
        """The true shapes, which are the same for all objectives."""
        return next(iter(self.answers.values()))[1]

    @property
    def single(self) -> bool:
        """Whether each answer is one shape."""
        return all("iou" in row for row, _ in self.answers.values())

    @property
    def mean_text(self) -> str:
        """The mean quality as text."""
        return number(self.mean, 2) if self.single else str(percent(self.mean))


def _cases(styles: Styles, scores: Scores, paired: PairedRuns, seed: int) -> list[_ShapeCase]:
    """Return every image once, with the worst of its rows, worst first."""
    answers: dict[str, dict[str, tuple[ScoredRow, MatchedShapes]]] = defaultdict(dict)
    for name in styles:
        if (name, seed) in scores:
            for row, own in zip(scores[name, seed], paired[name, seed], strict=True):
                answers[str(row["id"])][name] = row, own
    means = {
        id_: sum(quality(row) for row, _ in found.values()) / len(found)
        for id_, found in answers.items()
    }
    cases: dict[tuple[str | None, str | None], _ShapeCase] = {}
    for id_ in sorted(answers, key=lambda i: (means[i], i)):
        row, _ = next(iter(answers[id_].values()))
        image = row["image"] if isinstance(row["image"], str) else None
        key = (image, None if image else id_)
        if key not in cases:
            cases[key] = _ShapeCase(
                id=id_,
                image=image,
                prompt=str(row.get("prompt") or ""),
                mean=means[id_],
                rank=len(cases) + 1,
                answers=answers[id_],
            )
    return list(cases.values())


def _gallery(folder: Path, styles: Styles, scores: Scores, paired: PairedRuns) -> Section:
    """Return the chapter that draws the answers on their images."""
    seeds = sorted({seed for _, seed in scores})
    cases = _cases(styles, scores, paired, seeds[0])
    total = len(cases)
    is_folded = total > WORST + SPREAD
    if is_folded:
        cases = cases[:WORST] + spread_evenly(cases[WORST:], SPREAD)
    has_prompts = len({case.prompt for case in cases}) > 1
    shown = [_open(folder, case, f"image{i}", whole=has_prompts) for i, case in enumerate(cases)]
    articles = [
        _article(case, styles, on, total, has_prompts=has_prompts)
        for case, on in zip(cases, shown, strict=True)
    ]
    names = [name for name in styles if (name, seeds[0]) in scores]
    definitions = (on.definition(case.truth) for case, on in zip(cases, shown, strict=True))
    drawn = render(
        "shape_gallery.html",
        definitions=joined(*definitions),
        keys=line_keys(single=cases[0].single, ignored=any(case.truth.ignored for case in cases)),
        is_alone=len(names) == 1,
        first=articles[: FOLDED if is_folded else None],
        more=articles[FOLDED:WORST] if is_folded else [],
        others=articles[WORST:],
    )
    table = _table(cases, [styles[name].cell() for name in names], names, has_prompts=has_prompts)
    return Section(
        anchor="gallery",
        title="Answers on the image",
        blocks=[
            paragraph(_intro(cases[0], total, seeds, shown)),
            Block(drawn),
            fold("The same as a table", [table]),
        ],
    )


def _open(folder: Path, case: _ShapeCase, anchor: str, *, whole: bool) -> Canvas:
    """Open the image of a case; it is not cropped if its prompt may refer to all of it."""
    path = None if case.image is None else folder / case.image
    answers = [own for _, own in case.answers.values()]
    return canvas(path, answers, anchor, whole=whole or case.single)


def _article(
    case: _ShapeCase, styles: Styles, on: Canvas, total: int, *, has_prompts: bool
) -> dict[str, Any]:
    """Return the answers of all objectives to one image, next to each other."""
    about = [plain(case.id, 60)] if has_prompts else []
    about += [f"mean IoU {case.mean_text}" if case.single else f"mean F1 {case.mean_text}"]
    about += [f"{case.rank:,} of {total:,} from the worst"]
    tiles = [
        shape_tile(style, *case.answers[name], on, f"{on.anchor}a{place}")
        for place, (name, style) in enumerate(styles.items())
        if name in case.answers
    ]
    title = f"“{plain(case.prompt, 120)}”" if has_prompts else plain(case.id, 60)
    return {"title": title, "about": " · ".join(about), "single": case.single, "tiles": tiles}


def _intro(worst: _ShapeCase, total: int, seeds: Sequence[int], shown: Sequence[Canvas]) -> str:
    """Return which images and whose answers are shown."""
    which = "The only image" if total == 1 else f"All {total} images, the worst first"
    if total > WORST + SPREAD:
        which = (
            f"The {WORST} worst of {total:,} images, and {SPREAD} spread evenly over the rest, "
            "so that not only failures are seen"
        )
    metric = "IoU" if worst.single else "F1 score of true and answered shapes"
    other = ", the first; this chapter shows no other seed" if len(seeds) > 1 else ""
    intro = (
        f"{which}. They are ranked by the mean {metric} over the objectives. The answers are those "
        f"of seed {seeds[0]}{other}."
    )
    if any(on.is_cropped for on in shown):
        intro += " Images with small shapes are cropped."
    missing = sum(not on.is_image for on in shown)
    return intro + (
        f" {missing} of the {len(shown)} images could not be opened." if missing else ""
    )


def _table(
    cases: Sequence[_ShapeCase], header: Sequence[Cell], names: Sequence[str], *, has_prompts: bool
) -> Table:
    """Return the images that are shown, and the result of each objective."""
    rows = []
    for case in cases:
        found = [case.answers[name][0] if name in case.answers else None for name in names]
        words = [Cell(content=answer_text(row), limit=160) if row else Cell() for row in found]
        prompt = [Cell(content=case.prompt, limit=120)] if has_prompts else []
        rows.append([Cell(content=case.id, limit=60), *prompt, *words, case.mean_text])
    return Table.of(["image", *(["prompt"] if has_prompts else []), *header, "mean"], rows)
