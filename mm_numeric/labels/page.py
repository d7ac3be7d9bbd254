"""Write ranked labels: a page with images, a CSV for a labelling tool, and the rows to keep."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mm_numeric.answers import ClockTime
from mm_numeric.data.images import open_sized
from mm_numeric.evaluation.report.gallery import Tile, data_url
from mm_numeric.evaluation.report.page import Block, Section, note, render
from mm_numeric.evaluation.table import number
from mm_numeric.inference.draw import ANSWER_COLOUR, TRUE_COLOUR, drawn_answers
from mm_numeric.io.atomic_files import atomic_file
from mm_numeric.io.escaping import csv_text, plain
from mm_numeric.io.markup import element
from mm_numeric.labels.rank import RankedLabel

_SHOWN, _SIDE_PX = 50, 360  # labels on the page; longer edge of their images
_WHOLE = 10**7  # characters: csv_text does not shorten labels


def label_fields(own: RankedLabel) -> dict[str, str]:
    """Return the columns of a label in labels.csv, without its rank.

    Labels and answers are texts, or JSON if they are shapes, in pixels.
    """
    label, answer = (
        value or "" if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)
        for value in (own.line["target"], own.line["parsed"])
    )
    kind = place = ""
    if own.faults:
        kind, _, item = own.faults[0]
        at = ", ".join(number(value, 0) for point in item.shape.points for value in point)
        place = f"{item.label or 'object'} at {at}"
    return {
        "id": own.example.id,
        "image": str(own.example.image or ""),
        "label": label,
        "answer": answer,
        "improbability": f"{own.improbability:.6g}",
        "distance": "" if own.answer is None else f"{own.distance:.6g}",
        "fault": kind,
        "object": place,
    }


def label_words(own: RankedLabel) -> str:
    """Describe a label and how it differs from the answer of the model, in one line."""
    fields, unit = label_fields(own), " min" * isinstance(own.answer, ClockTime)
    label, answer = (plain(fields[name], 60) for name in ("label", "answer"))
    words = f"label {label}, model {'unparseable' if own.answer is None else answer}"
    if own.faults:
        words = plain("{fault}: {object}".format(**fields), 100)
    return f"{words}; distance {own.distance:.3g}{unit}, improbability {own.improbability:.2f}"


def labels_csv(labels: Sequence[RankedLabel]) -> str:
    """Return a CSV with a line for each label, in their order."""
    fields = [label_fields(own) for own in labels]
    rows = [["rank", *fields[0]]]
    for rank, own in enumerate(fields, start=1):
        rows.append([str(rank), *(csv_text(word, _WHOLE) for word in own.values())])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def keep_rows(file: Path, out: Path, labels: Sequence[RankedLabel], worst: float) -> int:
    """Copy the lines of a .jsonl file without the first ``worst`` % of labels; return their number.

    The lines keep their order and their bytes.
    """
    bad = {own.example.where for own in labels[: round(worst / 100 * len(labels))]}
    lines = file.read_bytes().splitlines(keepends=True)
    kept = [line for at, line in enumerate(lines, start=1) if f"{file}, line {at}" not in bad]
    with atomic_file(out) as opened:
        opened.write(b"".join(kept))
    return sum(bool(line.strip()) for line in kept)


def labels_page(labels: Sequence[RankedLabel], about: str) -> str:
    """Return the page of the first labels, with images, as one HTML file without scripts."""
    cases = []
    for rank, own in enumerate(labels[:_SHOWN], start=1):
        tile = Tile(Markup(""), _drawing(own), label_words(own), "off")
        title = f"{rank}. {plain(own.example.id, 60)}"
        cases.append((title, plain(own.example.prompt, 120), [tile]))
    key = "Blue, with names above: the label. Orange, with names below: the answer of the model."
    layout = {"canvases": [], "css": "shown several", "is_alone": True, "more": [], "others": []}
    gallery = Block(render("gallery.html", key=note(key).html, first=cases, **layout))
    title = f"The {len(cases)} labels that fit the model least"
    return render(
        "page.html",
        title=plain(f"Labels of {about}", 120),
        kicker="mm-numeric labels",
        about="A label at the top is wrong, or the model is: look at the image.",
        verdict=f"{len(labels):,} labels ranked; labels.csv has all of them.",
        caveats=[],
        sections=[Section.of("labels", title, gallery)],
    )


def _drawing(own: RankedLabel) -> Markup:
    """Draw the label and the answer on the image of their row."""
    if own.example.image is None:
        return Markup("")
    answers = {TRUE_COLOUR: own.example.answer, ANSWER_COLOUR: own.answer}
    image = drawn_answers(*open_sized(own.example), answers, limits_px=(_SIDE_PX, _SIDE_PX))
    return element("img", src=data_url(image, _SIDE_PX), alt="", style="width: 100%")
