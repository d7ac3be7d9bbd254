"""The chapters of a report on shapes in images: overlap, sizes, a gallery, broken answers.

Rows     as ``scores.jsonl`` has them: id, image, target, text, parsed, reason, and of the scorer
         iou, or matched, detected and truths; prompt, cut and malformed where they are there
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mm_numeric.evaluation.metrics.matching import Paired, pair
from mm_numeric.evaluation.report.charts import Mark
from mm_numeric.evaluation.report.clock_gallery import Row, Scores
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Section,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
    number,
    percent,
    plain,
)
from mm_numeric.evaluation.report.iou_sections import broken_section, overlap_section, size_section
from mm_numeric.evaluation.report.iou_statistics import fit, mean_box_fit
from mm_numeric.evaluation.report.results import COMPARE_AGAIN
from mm_numeric.evaluation.report.shape_tiles import (
    COUNTS,
    CSS,
    Canvas,
    canvas,
    keys,
    quality,
    tile,
    told,
)

PairedRuns = Mapping[tuple[str, int], Sequence[Paired]]  # by objective and seed

WORST, FOLDED, SPREAD = 8, 4, 4
_CSS = """
.shown { padding: 20px 0 22px; border-bottom: 1px solid var(--faint); }
.asked { margin: 0 0 12px; font-size: 17px; font-weight: 600; max-width: none; }
.asked small { display: block; font-size: 13.5px; font-weight: 400; color: var(--soft);
  font-variant-numeric: tabular-nums; }
.shown .tiles { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 18px 16px; }
.shown .tile { max-width: 300px; }
.several .tiles { grid-template-columns: repeat(auto-fit, minmax(270px, 1fr)); }
.several .tile { max-width: 420px; }
.alone { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 0 28px; }
.alone .tiles { display: block; }
@media (max-width: 700px) {
  .shown .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px 12px; }
  .shown.several .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
"""


def sections(folder: Path, marks: Mapping[str, Mark], scores: Scores) -> list[Section]:
    """Return the chapters; none if no answer was scored.

    Raises:
        ValueError: If a row lacks its columns, or holds something that is no shape.
    """
    scores = {key: rows for key, rows in scores.items() if rows}
    if not scores:
        return []
    one_each = all("iou" in row for rows in scores.values() for row in rows)
    paired = {key: _paired(folder, key, rows, one_each) for key, rows in scores.items()}
    runs = {name: [key for key in scores if key[0] == name] for name in marks}
    runs = {name: keys for name, keys in runs.items() if keys}
    pooled = {name: [row for key in keys for row in scores[key]] for name, keys in runs.items()}
    fits = [
        fit(marks[name], pooled[name], [own for key in keys for own in paired[key]])
        for name, keys in runs.items()
    ]
    first = next(iter(scores))
    mean = mean_box_fit(scores[first], paired[first])
    if mean is not None:
        fits.append(mean[1])
    found = [
        overlap_section(fits, mean and mean[0], one_each=one_each),
        size_section(fits, pooled, one_each=one_each),
        gallery_section(folder, marks, scores, paired),
        broken_section(marks, pooled),
    ]
    return [section for section in found if section is not None]


def _paired(
    folder: Path, key: tuple[str, int], rows: Sequence[Row], one_each: bool
) -> list[Paired]:
    """Check the rows of a run and pair their shapes."""
    where = f"{folder}, scores.jsonl of {key[0]}, seed {key[1]}"
    columns = ("iou",) if one_each else COUNTS
    if not all(isinstance(row.get(column), int | float) for row in rows for column in columns):
        what = "a row has no iou, and not all of matched, detected and truths"
        raise ValueError(f"{where}: {what}. {COMPARE_AGAIN}")
    try:
        return pair(rows, where)
    except ValueError as error:
        raise ValueError(f"{error}. {COMPARE_AGAIN}") from error


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One test row, and what each objective made of it with one seed."""

    id: str
    image: str | None
    prompt: str
    mean: float
    """Of the quality of its answers."""

    rank: int
    answers: Mapping[str, tuple[Row, Paired]]

    @property
    def truth(self) -> Paired:
        """What is to be found, whichever objective is asked."""
        return next(iter(self.answers.values()))[1]

    @property
    def one_each(self) -> bool:
        """Whether an answer is one shape."""
        return all("iou" in row for row, _ in self.answers.values())

    @property
    def figure(self) -> str:
        """The mean, written."""
        return number(self.mean, 2) if self.one_each else percent(self.mean)


def _cases(marks: Mapping[str, Mark], scores: Scores, paired: PairedRuns, seed: int) -> list[_Case]:
    """Return every image once, with the worst of its rows, worst first."""
    answers: dict[str, dict[str, tuple[Row, Paired]]] = defaultdict(dict)
    for name in marks:
        if (name, seed) in scores:
            for row, own in zip(scores[name, seed], paired[name, seed], strict=True):
                answers[str(row["id"])][name] = row, own
    means = {
        id_: sum(quality(row) for row, _ in found.values()) / len(found)
        for id_, found in answers.items()
    }
    cases: dict[tuple[str | None, str | None], _Case] = {}
    for id_ in sorted(answers, key=lambda i: (means[i], i)):
        row, _ = next(iter(answers[id_].values()))
        image = row["image"] if isinstance(row["image"], str) else None
        key = (image, None if image else id_)
        if key not in cases:
            cases[key] = _Case(
                id=id_,
                image=image,
                prompt=str(row.get("prompt") or ""),
                mean=means[id_],
                rank=len(cases) + 1,
                answers=answers[id_],
            )
    return list(cases.values())


def gallery_section(
    folder: Path, marks: Mapping[str, Mark], scores: Scores, paired: PairedRuns
) -> Section:
    """Write the chapter that draws the answers over their images."""
    seeds = sorted({seed for _, seed in scores})
    cases = _cases(marks, scores, paired, seeds[0])
    total = len(cases)
    folded = total > WORST + SPREAD
    if folded:
        rest = cases[WORST:]
        cases = cases[:WORST] + [rest[len(rest) * (k + 1) // SPREAD - 1] for k in range(SPREAD)]
    asked = len({case.prompt for case in cases}) > 1
    shown = [_show(folder, case, f"image{i}", asked=asked) for i, case in enumerate(cases)]
    names = [name for name in marks if (name, seeds[0]) in scores]
    articles = [
        _article(case, marks, on, total, asked=asked) for case, on in zip(cases, shown, strict=True)
    ]
    intro = _intro(cases[0], total, seeds)
    if any(on.is_cut for on in shown):
        intro += " Where shapes are small, the image is cut to where they are."
    missing = sum(not on.is_image for on in shown)
    intro += f" {missing} of the {len(cases)} images could not be opened." if missing else ""
    definitions = (on.definition(case.truth) for case, on in zip(cases, shown, strict=True))
    ignored = any(case.truth.ignored for case in cases)

    def group(some: Sequence[str]) -> str:
        # One objective leaves room for several images beside each other.
        return f'<div class="{"alone" if len(names) == 1 else "all"}">{"".join(some)}</div>'

    html = (
        f'<svg class="store" aria-hidden="true"><defs>{"".join(definitions)}</defs></svg>'
        f"<p>{intro}</p>{keys(one_each=cases[0].one_each, ignored=ignored)}"
        + group(articles[: FOLDED if folded else None])
    )
    if folded:
        more, others = group(articles[FOLDED:WORST]), group(articles[WORST:])
        html += (
            f"<details><summary>{WORST - FOLDED} more of the worst</summary>{more}</details>"
            f"<h3>From the rest, to the best</h3>{others}"
        )
    return Section(
        anchor="gallery",
        title="On the image",
        html=html,
        markdown=f"{intro}\n\n{_twin(cases, names, asked=asked)}",
        css=CSS + _CSS,
    )


def _show(folder: Path, case: _Case, anchor: str, *, asked: bool) -> Canvas:
    """Open the image of a case; a question may speak of all of it, and then it is not cut."""
    path = None if case.image is None else folder / case.image
    answers = [own for _, own in case.answers.values()]
    return canvas(path, answers, anchor, whole=asked or case.one_each)


def _article(case: _Case, marks: Mapping[str, Mark], on: Canvas, total: int, *, asked: bool) -> str:
    """Draw what all objectives made of one image, beside each other."""
    tiles = "".join(
        tile(mark, *case.answers[name], on, f"{on.anchor}a{place}")
        for place, (name, mark) in enumerate(marks.items())
        if name in case.answers
    )
    title = f"“{plain(case.prompt, 120)}”" if asked else plain(case.id, 60)
    about = [plain(case.id, 60)] if asked else []
    about += [f"mean IoU {case.figure}" if case.one_each else f"{case.figure} matched on average"]
    about += [f"{case.rank:,} of {total:,} from the worst"]
    return (
        f'<article class="{"shown" if case.one_each else "shown several"}">'
        f'<p class="asked">{html_text(title)}<small>{html_text(" · ".join(about))}</small></p>'
        f'<div class="tiles">{tiles}</div></article>'
    )


def _intro(worst: _Case, total: int, seeds: Sequence[int]) -> str:
    """Say which images are shown, and whose answers."""
    which = "The only image" if total == 1 else f"All {total} images, the worst first"
    if total > WORST + SPREAD:
        which = (
            f"The {WORST} worst of {total:,} images, and {SPREAD} spread evenly over the rest, "
            "so that not only failures are seen"
        )
    figure = "IoU" if worst.one_each else "share of shapes, true and answered, that matched"
    other = ", the first; the others count everywhere but here" if len(seeds) > 1 else ""
    return (
        f"{which}; what counts is the mean {figure} over the objectives. The answers are those of "
        f"seed {seeds[0]}{other}."
    )


def _twin(cases: Sequence[_Case], names: Sequence[str], *, asked: bool) -> str:
    """List the images that are shown: what each objective made of them."""
    rows = []
    for case in cases:
        found = [case.answers[name][0] if name in case.answers else None for name in names]
        words = [NOTHING if row is None else markdown_text(told(row), 160) for row in found]
        question = [markdown_text(case.prompt, 120)] if asked else []
        rows.append([markdown_text(case.id, 60), *question, *words, case.figure])
    head = ["image", *(["question"] if asked else []), *map(markdown_name, names), "mean"]
    return markdown_table(head, rows)
