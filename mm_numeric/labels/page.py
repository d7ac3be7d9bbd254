"""Write ranked labels: a page with images, a CSV for a labelling tool, and the rows to keep."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mm_numeric.answers import Box, ClockTime, Instances, Polygon
from mm_numeric.data.images import UnreadableImageError, open_image
from mm_numeric.evaluation.metrics.matching import is_drawable
from mm_numeric.evaluation.report.gallery import Canvas, ImageRegion, Tile, outline
from mm_numeric.evaluation.report.page import Block, Section, note, render
from mm_numeric.evaluation.report.shape_gallery import TAG_SHARE, label_tags
from mm_numeric.evaluation.table import number
from mm_numeric.geometry.row_shapes import around
from mm_numeric.inference.draw import objects_of
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.escaping import csv_text, plain
from mm_numeric.io.files import write_text
from mm_numeric.io.markup import element
from mm_numeric.labels.rank import OVERLOOKED, ObjectFault, RankedLabel

SHOWN = 50
"""Number of labels on the page."""

_SIDE_PX = 480
_COLUMNS = (
    "rank", "id", "image", "label", "answer", "improbability", "distance", "fault", "object",
)  # fmt: skip
_WHOLE = 10**7  # characters: csv_text does not shorten labels


def fault_text(fault: ObjectFault) -> str:
    """Describe the fault of an object, such as ``swapped class: cup at 10, 20, 60, 80``."""
    at = ", ".join(number(value, 0) for point in fault.item.shape.points for value in point)
    return f"{fault.kind}: {fault.item.label or 'object'} at {at}"


def label_words(own: RankedLabel) -> str:
    """Describe a label and how it differs from the answer of the model, in one line."""
    label, answer = (plain(text, 60) for text in own.texts)
    words = f"label {label}, model {answer}"
    if own.answer is None:
        words = f"label {label}, no parseable answer"
    elif own.faults:
        words = plain(fault_text(own.faults[0]), 100)
    return f"{words}; distance {_distance(own)}, improbability {own.improbability:.2f}"


def _distance(own: RankedLabel) -> str:
    if math.isnan(own.distance):
        return "unknown"
    return f"{own.distance:.3g}" + " min" * isinstance(own.answer, ClockTime)


def labels_csv(labels: Sequence[RankedLabel]) -> str:
    """Return a CSV with a line for each label, the worst first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for own in labels:
        kind, _, item = fault_text(own.faults[0]).partition(": ") if own.faults else ("", "", "")
        image = "" if own.example.image is None else str(own.example.image)
        words = (csv_text(word, _WHOLE) for word in (own.example.id, image, *own.texts))
        distance = "" if math.isnan(own.distance) else f"{own.distance:.6g}"
        fault = distance, kind, csv_text(item)
        writer.writerow((own.rank, *words, f"{own.improbability:.6g}", *fault))
    return text.getvalue()


def keep_rows(file: Path, out: Path, labels: Sequence[RankedLabel], worst: float) -> int:
    """Copy the lines of a .jsonl file except those of the worst labels; return how many are left.

    ``worst`` is the share of the labels that are left out, in percent. The other lines keep their
    order and their bytes.
    """
    count = round(worst / 100 * len(labels))
    bad = {own.example.where for own in labels[:count]}
    lines = file.read_bytes().splitlines(keepends=True)
    kept = [line for at, line in enumerate(lines, start=1) if f"{file}, line {at}" not in bad]
    with atomic_file(out) as opened:
        opened.write(b"".join(kept))
    return sum(bool(line.strip()) for line in kept)


def write_page(path: Path, labels: Sequence[RankedLabel], about: str) -> None:
    """Write the page of the worst labels, with images, as one HTML file without scripts."""
    shown = labels[:SHOWN]
    canvases = [_canvas(own) for own in shown]
    cases = []
    for own, on in zip(shown, canvases, strict=True):
        title = f"{own.rank}. {plain(own.example.id, 60)}"
        cases.append((title, plain(own.example.prompt, 120), [_tile(own, on)]))
    is_clock = isinstance(shown[0].example.answer, ClockTime)
    gallery = render(
        "gallery.html",
        canvases=canvases,
        key=render("labels_key.html", is_clock=is_clock),
        css="shown" if is_clock else "shown several",
        is_alone=True,
        first=cases,
        more=[],
        others=[],
    )
    kinds = Counter(own.faults[0].kind for own in shown if own.faults)
    faults = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    section = Section.of(
        "labels",
        "Labels to look at",
        note(f"The {len(shown)} labels that fit the model least. {faults}"),
        Block(gallery),
    )
    page = render(
        "page.html",
        title=plain(f"Labels of {about}", 120),
        kicker="mm-numeric labels",
        about="A label at the top is wrong, or the model is: look at the image.",
        verdict=f"{len(labels):,} labels ranked; labels.csv has all of them.",
        caveats=[],
        sections=[section],
    )
    write_text(path, page)


def _canvas(own: RankedLabel) -> Canvas:
    """Return the image of a row, on which the label and the answer are drawn."""
    anchor, example = f"image{own.rank}", own.example
    try:
        if example.image is None:
            raise UnreadableImageError("no image")
        image = open_image(example)
    except UnreadableImageError:
        return Canvas.empty(None, anchor, 100, 100)
    on = Canvas.of(image, anchor, ImageRegion(0, 0, *image.size), _SIDE_PX)
    true = element("path", id=f"{anchor}t", d=_outlines(example.answer), **_FIXED)
    return replace(on, more=true)


_FIXED = {"vector-effect": "non-scaling-stroke"}


def _outlines(answer: Any) -> str:
    return "".join(outline(item, 1) for item in objects_of(answer) if is_drawable(item.shape))


def _tile(own: RankedLabel, on: Canvas) -> Tile:
    """Draw a label and the model's answer on their image."""
    words, label, answer = label_words(own), own.example.answer, own.answer
    width, height = on.region.width, on.region.height
    drawing = Markup("")
    if isinstance(label, ClockTime):
        times = [(label.minutes, "true")]
        if answer is not None and answer != label:
            times.append((answer.minutes, "answer"))
        drawing = render("clock_tile.html", canvas=on, name=str(own.rank), words=words, times=times)
    elif isinstance(label, Box | Polygon | Instances) and on.is_image:
        worst = own.faults[0] if own.faults else None
        marked = "" if worst is None or not is_drawable(worst.item.shape) else outline(worst.item)
        is_new = worst is not None and worst.kind == OVERLOOKED
        em = max(share * side for share, side in zip(TAG_SHARE, (width, height), strict=True))
        named = [
            (css, plain(item.label, 24), around(item.shape))
            for css, side in (("true", label), ("answered", answer))
            for item in objects_of(side)
            if item.label and is_drawable(item.shape)
        ]
        drawing = render(
            "shape_tile.html",
            view=f"0 0 {width} {height}",
            em=em,
            tags=label_tags(named, Box(0, 0, width, height), em),
            name=str(own.rank),
            words=words,
            image=on.anchor,
            anchor=f"{on.anchor}a",
            missed="" if is_new else marked,
            matched=_outlines(answer),
            wrong=marked if is_new else "",
        )
    elif on.is_image:
        used = element("use", href=f"#{on.anchor}")
        drawing = element(
            "svg", used, viewBox=f"0 0 {width} {height}", role="img", aria_label=words
        )
    return Tile(Markup(""), drawing, words, "off")
