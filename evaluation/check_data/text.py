"""Format the results of ``check-data`` as text for a terminal."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from mm_numeric.data.lengths import row_tokens
from mm_numeric.evaluation.check_data.findings import DataReport, Problem, SourceReport
from mm_numeric.evaluation.score_text import in_unit
from mm_numeric.evaluation.table import Cell, Column, Table
from mm_numeric.geometry.coordinates import Coordinates

_SHOWN = 3  # messages shown for each problem
_METRICS = 9  # maximum number of metrics in a ceiling


def report_text(report: DataReport) -> str:
    """Return the results of ``check-data`` as text. The last line is the verdict: ready or not."""
    lines = []
    for source in report.sources:
        lines += [f"{source.name}: {source.description}", _aligned(facts(report, source))]
    lines += ["the model", _aligned(frame_facts(report))]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, *filter(None, [fixes_text(report)]), verdict(report)])


def fixes_text(report: DataReport) -> str:
    """Return each problem with its first messages and advice; "" if there is none."""
    lines: list[str] = []
    problems = [(s.name, *found) for s in report.sources for found in s.problems.items()]
    for number, (name, kind, problem) in enumerate(problems, start=1):
        lines += [f"fix {number} ({name}): {problem_title(kind, problem)}"]
        lines += [f"    {message}" for message in problem.messages[:_SHOWN]]
        if len(problem.messages) > _SHOWN:
            lines.append(f"    ... and {len(problem.messages) - _SHOWN:,} more")
        if problem.advice:
            lines.append(f"    {problem.advice}")
    return "\n".join(lines)


def _aligned(pairs: Iterable[tuple[str, str]]) -> str:
    columns = [Column(header=Cell(), align="left", min_width=width) for width in (16, 0)]
    rows = ((name, Cell(content=value, limit=1000)) for name, value in pairs)
    return Table.of(columns, rows).to_terminal(header=False, indent=2)


def verdict(report: DataReport) -> str:
    """Return ``ready``, or the number of problems, such as ``not ready: 2 things to fix``."""
    if report.ready:
        return "ready"
    count = sum(len(source.problems) for source in report.sources)
    return f"not ready: {count} thing{'s' if count > 1 else ''} to fix"


def problem_title(kind: str, problem: Problem) -> str:
    """Return the title of a problem, such as ``12 x the image is missing`` for 12 rows."""
    count = len(problem.messages)
    return f"{count:,} x {kind}" if count > 1 else kind


def facts(report: DataReport, source: SourceReport) -> Iterator[tuple[str, str]]:
    """Yield statistics of the training or test data as pairs of texts (name, value)."""
    examples = source.examples
    usable = f"{len(examples) + source.unanswered:,} usable"
    if source.unanswered:
        usable += f", {source.unanswered:,} of them without an answer to score"
    yield "questions", f"{source.questions:,} read, {usable}"
    if not examples:
        return
    sizes = [e.size_px for e in examples if e.size_px is not None]
    if sizes:
        found = sum(e.has_image for e in examples)
        widths, heights = zip(*sizes, strict=True)
        pixels = f"{_spread(widths)} wide and {_spread(heights)} high, in pixels"
        yield "images", f"{found:,} of {len(sizes):,} found, {pixels}"
        yield "image tokens", _spread([e.image_tokens for e in examples])
    included = ", including the image" if sizes else ""
    yield "question tokens", _spread([e.question_tokens for e in examples]) + included
    limit = report.max_new_tokens
    answers = _spread([e.answer_tokens for e in examples])
    stop = f"; predict.max_new_tokens is {limit}" if source.name == "test" else ""
    yield "answer tokens", f"{answers}, including the end token{stop}"
    if report.positions:
        lengths = [(e.question_tokens, e.answer_tokens) for e in examples]
        total = max(row_tokens(report.family, *pair) for pair in lengths)
        most = f"the model's {report.positions:,}"
        yield "longest", f"{total:,} tokens of {most}; nothing is truncated"
    if counts := report.config.task.count_classes(e.example for e in examples):
        yield from counts.facts()
    supervised = sum(e.answer_tokens for e in examples)
    numbers = sum(e.number_tokens for e in examples)
    yield (
        "in the loss",
        f"{supervised:,} tokens, {numbers:,} of them numbers "
        f"({in_unit(numbers / supervised, '%')}); no token of a question",
    )
    yield "ceiling", ceiling_text(source)


def ceiling_text(source: SourceReport) -> str:
    """Format the ceiling: the highest scores that a model can reach with rounded coordinates."""
    if source.scorer is None or not source.ceiling:
        return "none: no answer can be scored"
    ranked = source.scorer.ranked
    metrics = source.scorer.metrics if ranked is None else ranked.metrics
    strict = [m for m in metrics if not m.name.startswith("lenient_")]
    known = [m for m in strict if not math.isnan(source.ceiling.get(m.name, math.nan))]
    shown = [m for m in known if m.name != "unreadable"][:_METRICS]
    return ", ".join(f"{m.label} {in_unit(source.ceiling[m.name], m.unit)}" for m in shown)


def frame_facts(report: DataReport) -> Iterator[tuple[str, str]]:
    """Yield facts about the model (memory, end tokens, images, coordinates) as (name, value)."""
    family = report.family
    names = family.tokenizer.convert_ids_to_tokens(family.stop_ids)
    if report.memory is not None:
        yield "training needs", report.memory.text()
    yield "answers end with", f"{names[0]}; generation stops at {', '.join(names)}"
    if not family.takes_images:
        return
    coordinates, resize = family.coordinates, family.resize
    settings = {
        "squash": f"squashed to {resize.side} x {resize.side} pixels",
        "letterbox": f"padded to a square, then {resize.side} x {resize.side} pixels",
        "smart": f"resized to multiples of {resize.factor}, between {resize.min_pixels:,} and "
        f"{resize.max_pixels:,} pixels",
        "none": "resized as the processor of the model does",
    }
    yield "images are", settings[resize.kind]
    yield "coordinates are", _coordinates_text(coordinates)
    steps = [max(e.frame.step_px) for s in report.sources for e in s.examples if e.frame]
    if steps:
        yield "one step is", f"{_spread(steps, 2)} pixels of the original image"


def _coordinates_text(coordinates: Coordinates) -> str:
    image = "resized image" if coordinates.space == "resized" else "original image"
    decimals = coordinates.decimals
    step = 0 if coordinates.clamp == "inclusive" else 10**-decimals
    if coordinates.max_value is None:
        less = f" - {step:.{decimals}f}" if step else ""
        values = f"pixels of the {image}, from 0 to width{less} and height{less}"
    else:
        values = f"0 to {coordinates.max_value - step:.{decimals}f} across the {image}"
    order = "x before y" if coordinates.order == "xy" else "y before x"
    return f"{values}; {order}; format {coordinates.format}"


def _spread(values: Sequence[float], decimals: int = 0) -> str:
    """Format range and median of numbers: ``9 to 15 (median 12)``, or ``12`` if all are equal."""
    low, middle, high = (f"{own(values):,.{decimals}f}" for own in (min, median, max))
    return low if min(values) == max(values) else f"{low} to {high} (median {middle})"
