"""Format the results of ``check-data`` as text for a terminal."""

from collections.abc import Iterator, Sequence
from statistics import median

from mm_numeric.evaluation.check_data.findings import Checkup, DataReport, Fault
from mm_numeric.evaluation.score import in_unit

_SHOWN = 3  # rows shown for each fault
_METRICS = 9  # metrics shown in a ceiling


def report_text(report: DataReport) -> str:
    """Return all results; the last line is the verdict."""
    lines = []
    for checkup in report.checkups:
        lines += [f"{checkup.name}: {checkup.source}"]
        lines += [f"  {name:<18}{value}" for name, value in facts(report, checkup)]
    lines += ["the model", *(f"  {name:<18}{value}" for name, value in frame_facts(report))]
    lines += [f"note: {note}" for note in report.notes]
    faults = [(c.name, kind, fault) for c in report.checkups for kind, fault in c.faults.items()]
    for number, (name, kind, fault) in enumerate(faults, start=1):
        lines += [f"fix {number} ({name}): {fault_title(kind, fault)}"]
        lines += [f"    {sentence}" for sentence in fault.sentences[:_SHOWN]]
        if len(fault.sentences) > _SHOWN:
            lines.append(f"    ... and {len(fault.sentences) - _SHOWN:,} more")
        if fault.advice:
            lines.append(f"    {fault.advice}")
    return "\n".join([*lines, verdict(report)])


def verdict(report: DataReport) -> str:
    """Return ``ready``, or the number of things to fix."""
    if report.ready:
        return "ready"
    count = sum(len(checkup.faults) for checkup in report.checkups)
    return f"not ready: {count} thing{'s' if count > 1 else ''} to fix"


def fault_title(kind: str, fault: Fault) -> str:
    """Return the kind of a fault, with the number of rows that have it."""
    count = len(fault.sentences)
    return f"{count:,} x {kind}" if count > 1 else kind


def facts(report: DataReport, checkup: Checkup) -> Iterator[tuple[str, str]]:
    """Yield name and value of each statistic of one data source."""
    trained = checkup.trained
    yield "questions", f"{checkup.questions:,} read, {len(trained):,} usable"
    if not trained:
        return
    sizes = [t.size_px for t in trained if t.size_px is not None]
    if sizes:
        there = sum(t.has_image for t in trained)
        widths, heights = zip(*sizes, strict=True)
        yield (
            "images",
            f"{there:,} of {len(sizes):,} found, {_spread(widths)} wide and {_spread(heights)} "
            "high, in pixels",
        )
        yield "image tokens", _spread([t.image_tokens for t in trained])
    included = ", including the image" if sizes else ""
    yield "question tokens", _spread([t.question_tokens for t in trained]) + included
    limit = report.config.predict.max_new_tokens
    lengths = _spread([t.answer_tokens for t in trained])
    stop = f"; predict.max_new_tokens is {limit}" if checkup.name == "test" else ""
    yield "answer tokens", f"{lengths}, including the end token{stop}"
    if report.positions:
        total = max(t.question_tokens + t.answer_tokens for t in trained)
        yield (
            "longest",
            f"{total:,} tokens of the model's {report.positions:,}; nothing is truncated",
        )
    supervised = sum(t.answer_tokens for t in trained)
    numbers = sum(t.number_tokens for t in trained)
    yield (
        "in the loss",
        f"{supervised:,} tokens, {numbers:,} of them numbers "
        f"({in_unit(numbers / supervised, '%')}); no token of a question",
    )
    yield "ceiling", ceiling_text(checkup)


def ceiling_text(checkup: Checkup) -> str:
    """Return the best reachable value of the first metrics."""
    if checkup.scorer is None or not checkup.ceiling:
        return "none: no answer can be scored"
    strict = [m for m in checkup.scorer.metrics if not m.name.startswith("lenient_")]
    shown = [m for m in strict if m.name != "unreadable"][:_METRICS]
    return ", ".join(f"{m.label} {in_unit(checkup.ceiling[m.name], m.unit)}" for m in shown)


def frame_facts(report: DataReport) -> Iterator[tuple[str, str]]:
    """Yield end tokens, image resizing and coordinate format of the family, each with a name."""
    family = report.family
    names = family.tokenizer.convert_ids_to_tokens(family.stop_ids)
    yield "answers end with", f"{names[0]}; generation stops at {', '.join(names)}"
    if not family.takes_images:
        return
    coordinates, resize = family.coordinates, family.resize
    settings = {
        "squash": f"squashed to {resize.side} x {resize.side} pixels",
        "letterbox": f"padded to a square, then {resize.side} x {resize.side} pixels",
        "smart": f"resized to multiples of {resize.factor}, between {resize.min_pixels:,} and "
        f"{resize.max_pixels:,} pixels",
        "none": "not resized",
    }
    yield "images are", settings[resize.kind]
    top = "the pixels of the image" if coordinates.max_value is None else str(coordinates.max_value)
    decimals = f", {coordinates.decimals} decimals" if coordinates.decimals else ""
    last = "" if coordinates.clamp == "inclusive" else ", without the last step"
    yield (
        "coordinates are",
        f"0 to {top}{last}{decimals}, of the image as "
        f"{'resized' if coordinates.space == 'resized' else 'in its file'}, "
        f"{'x' if coordinates.order == 'xy' else 'y'} first, format {coordinates.format}",
    )
    steps = [max(t.frame.step_px) for c in report.checkups for t in c.trained if t.frame]
    if steps:
        yield "one step is", f"{_spread(steps, 2)} pixels of the original image"


def _spread(values: Sequence[float], decimals: int = 0) -> str:
    """Format the median of numbers, with their minimum and maximum if they differ."""
    low, middle, high = min(values), median(values), max(values)
    text = f"{middle:,.{decimals}f}"
    return text if low == high else f"{text} ({low:,.{decimals}f} to {high:,.{decimals}f})"
