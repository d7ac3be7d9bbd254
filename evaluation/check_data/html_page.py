"""The HTML page of ``check-data``: training samples with their images, shapes and tokens.

Left   the image with the true shapes: from the row (dashed), and parsed from tokens (solid)
Right  the tokens of the sample: supervised tokens have a background, tokens of numbers a colour
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from mm_numeric.answers import Example, Instance, Instances, Shape
from mm_numeric.config.schema import Config
from mm_numeric.data.augment import Augmenter
from mm_numeric.data.framing import compute_frame
from mm_numeric.data.images import open_image
from mm_numeric.evaluation.check_data.findings import DataReport, EncodedExample, problem_kind
from mm_numeric.evaluation.check_data.text import facts, frame_facts, problem_title, verdict
from mm_numeric.evaluation.report.gallery import data_url, outline
from mm_numeric.evaluation.report.page import Block, Section, fact_list, heading, render
from mm_numeric.io.escaping import plain
from mm_numeric.io.files import write_text
from mm_numeric.io.markup import element

_SHOWN_PX = 640  # the longer edge of an image on the page
_AUGMENTED = 4  # number of rows that are shown with their augmented images
_EPOCHS = 3  # number of augmented images per row, one for each epoch
_TOKENS = 400  # the maximum number of shown tokens of a sample


def page_of(config: Config) -> Path:
    """Return the path of the page of a config, next to its run folder."""
    folder = config.output_dir.resolve()  # "." has no name
    return folder.with_name(f"{folder.name}.check-data.html")


def write_check_page(report: DataReport, path: Path, *, samples: int = 12) -> None:
    """Write problems, statistics and some training samples as one self-contained HTML page."""
    config = report.config
    shown = _samples(report, samples)  # before the other sections: it may add problems
    sections = [_faults(report)] if not report.ready else []
    sections += [_statistics(report), shown]
    if report.augment is not None:
        sections.append(_augmented(report, report.augment))
    page = render(
        "page.html",
        title=plain(f"check-data {config.title}"),
        kicker="mm-numeric check-data",
        about=plain(f"{config.task_name}, {report.family.name}, {config.model.name}"),
        verdict=f"{verdict(report).capitalize()}.",
        caveats=[],
        sections=sections,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)


def _faults(report: DataReport) -> Section:
    faults = [
        (f"{source.name}: {problem_title(kind, problem)}", problem)
        for source in report.sources
        for kind, problem in source.problems.items()
    ]
    drawn = Block(render("check_data_faults.html", faults=faults, plain=plain))
    return Section.of("fix", "What to fix", drawn)


def _statistics(report: DataReport) -> Section:
    named = [(f"{c.name}: {c.description}", facts(report, c)) for c in report.sources]
    blocks: list[Block] = []
    for title, pairs in [*named, ("The frame", frame_facts(report))]:
        blocks += [heading(title), fact_list(list(pairs))]
    if report.notes:
        lines = (element("li", plain(note, 400)) for note in report.notes)
        blocks.append(Block(element("ul", *lines, class_="caveats")))
    return Section.of("figures", "Statistics", *blocks)


class _Token(NamedTuple):
    text: str
    css: str = ""
    title: str = ""


def _spread(encoded: Sequence[EncodedExample], count: int) -> list[EncodedExample]:
    """Return up to ``count`` evenly spaced examples, beginning with the first."""
    step = max(len(encoded) / max(count, 1), 1)
    return [encoded[int(i * step)] for i in range(min(count, len(encoded)))]


def _samples(report: DataReport, count: int) -> Section:
    chosen = _spread(report.sources[0].examples, count)
    drawn = render(
        "check_data_samples.html",
        has_images=any(t.size_px for t in chosen),
        samples=[_sample(report, t) for t in chosen],
    )
    return Section.of("samples", "Training samples", Block(drawn))


def _sample(report: DataReport, encoded: EncodedExample) -> dict[str, Any]:
    about = [plain(encoded.example.id, 80)]
    if encoded.size_px is not None and encoded.frame is not None:
        view = encoded.frame.view
        about.append(
            f"{encoded.size_px[0]} x {encoded.size_px[1]} pixels, resized to {view.width_px} x "
            f"{view.height_px}, {encoded.image_tokens} image tokens"
        )
    if encoded.size_px is not None and not encoded.has_image:
        about.append("the image is missing")
    try:
        drawing = _image(encoded)
    except ValueError as error:
        report.sources[0].add_problem(problem_kind(str(error)), str(error))
        drawing = Markup("")
        about.append("the image cannot be read")
    tokens = [*_question_tokens(report, encoded), *_answer_tokens(report, encoded)]
    where = plain(encoded.example.where, 200)
    return {"drawing": drawing, "about": "; ".join(about), "where": where, "tokens": tokens}


def _augmented(report: DataReport, augment: Augmenter) -> Section:
    found = [e for e in report.sources[0].examples if e.has_image]
    rows = [_figures(encoded, augment) for encoded in _spread(found, _AUGMENTED)]
    drawn = Block(render("check_data_augmented.html", rows=rows))
    return Section.of("augmented", "Augmented training rows", drawn)


def _figures(encoded: EncodedExample, augment: Augmenter) -> list[dict[str, Any]]:
    """Draw the image of a row without augmentation, and its augmented image in three epochs."""
    collator, example = encoded.collator, encoded.example
    figures = [{"drawing": _image(encoded), "about": plain(example.prompt, 120)}]
    for epoch in range(_EPOCHS):
        found = augment.draw(example, epoch)
        size, own = found.example.size_px or encoded.size_px, found.example
        assert size is not None
        frame = compute_frame(collator.family, own, size)
        answer = collator.answer(own, frame).tokens
        parsed = collator.task.read(collator.family.text(answer.ids), frame)
        about = f"epoch {epoch}: {', '.join(found.applied) or 'unchanged'}"
        if own.prompt != example.prompt:
            about += f"; {plain(own.prompt, 120)}"
        figures.append({"drawing": _drawing(own, size, parsed), "about": about})
    return figures


def _image(encoded: EncodedExample) -> Markup:
    if encoded.size_px is None:
        return Markup("")
    shown = encoded.has_image
    return _drawing(encoded.example, encoded.size_px, encoded.parsed, has_image=shown)


def _drawing(
    example: Example, size_px: tuple[int, int], parsed: Any, *, has_image: bool = True
) -> Markup:
    width, height = size_px
    parts = []
    if has_image:
        url = data_url(open_image(example), _SHOWN_PX)
        size = {"width": width, "height": height, "preserveAspectRatio": "none"}
        parts.append(element("image", href=url, **size))
    for css, answer in (("row", example.answer), ("labels", parsed)):
        parts += [element("path", class_=css, d=outline(item)) for item in _items(answer)]
    label = plain(example.prompt, 120)
    return element("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _items(answer: Any) -> Sequence[Instance]:
    if isinstance(answer, Instances):
        return [item for item in answer.items if not item.ignore]
    return [Instance(answer)] if isinstance(answer, Shape) else []


def _question_tokens(report: DataReport, encoded: EncodedExample) -> Iterator[_Token]:
    """Yield the tokens of the question as text.

    If more than 3 consecutive tokens are equal, as image tokens are, one is shown with the count.
    """
    names = report.family.tokenizer.convert_ids_to_tokens
    question = report.family.question(encoded.example.prompt, encoded.image_tokens)
    for token, run in groupby(question if encoded.image_tokens else question[:_TOKENS]):
        count = len(list(run))
        text = _visible(names(token))
        if count > 3:
            yield _Token(f"{text} × {count:,}", "many")
        else:
            yield from [_Token(text)] * count


def _answer_tokens(report: DataReport, encoded: EncodedExample) -> Iterator[_Token]:
    names = report.family.tokenizer.convert_ids_to_tokens
    numbers = {p: n for n in encoded.numbers for p in n.positions}
    answer = encoded.answer.ids
    for position, token in enumerate(answer[:_TOKENS]):
        text = _visible(names(token))
        number = numbers.get(position)
        about = "" if number is None else plain(f"{number.role}: {number.value:g}")
        yield _Token(text, "loss digit" if about else "loss", about)
    if len(answer) > _TOKENS:
        yield _Token(f"... {len(answer) - _TOKENS:,} more")


def _visible(token: str) -> str:
    text = token.replace("Ġ", "·").replace("▁", "·").replace("Ċ", "⏎").replace("\n", "⏎")
    return plain(text, 60)
