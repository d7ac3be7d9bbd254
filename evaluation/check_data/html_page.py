"""The page of ``check-data``: samples with their boxes drawn from the labels that are trained.

Left   the image; the shapes that the labels say, read back through the frame, and under them,
       dashed, those of the row
Right  the tokens, as the model gets them: what is in the loss, and in it what is a number
"""

import base64
import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

from mm_numeric.answers import Instances, Shape, Unreadable
from mm_numeric.data.images import open_image
from mm_numeric.evaluation.check_data.findings import DataReport, Trained, kind_of
from mm_numeric.evaluation.check_data.text import facts, fault_title, frame_facts, verdict
from mm_numeric.evaluation.report.html import Section, html_page, html_text, plain
from mm_numeric.evaluation.report.images import outline
from mm_numeric.files import write_text

_SHOWN_PX = 640  # the longer edge of an image on the page
_TOKENS = 400  # of one sample

_CSS = """
.sample { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); gap: 26px;
  padding: 22px 0; border-bottom: 1px solid var(--faint); }
.sample svg { width: 100%; height: auto; background: var(--wash); }
.sample p { font-size: 13.5px; color: var(--soft); margin: 6px 0 0; }
.tokens { font: 14px/2 var(--mono); }
.tokens span { padding: 2px 1px; border-radius: 2px; color: var(--soft); white-space: pre-wrap; }
.tokens .loss { color: var(--ink); background: var(--wash); box-shadow: inset 0 -2px var(--faint); }
.tokens .loss.digit { color: var(--read); font-weight: 700; box-shadow: inset 0 -2px var(--read); }
.tokens .many { font-style: italic; }
.labels { fill: none; stroke: var(--read); stroke-width: 2.5; vector-effect: non-scaling-stroke; }
.row { fill: none; stroke: var(--true); stroke-width: 2; stroke-dasharray: 7 5;
  vector-effect: non-scaling-stroke; }
.keys b { font-weight: 600; } .keys .l { color: var(--read); } .keys .r { color: var(--true); }
.faults li { margin: 0 0 14px; } .faults small { display: block; color: var(--soft); }
@media (max-width: 700px) { .sample { grid-template-columns: minmax(0, 1fr); } }
"""


def write_check_page(report: DataReport, path: Path, *, samples: int = 12) -> None:
    """Write what was found, and samples spread over the rows, as one self-contained file.

    A sample whose image cannot be read, though its header can, is added to the faults.
    """
    config = report.config
    shown = _samples(report, samples)  # first: an image that cannot be shown is one more fault
    header = (
        f'<p class="kicker">mm-numeric check-data</p><h1>{html_text(config.title)}</h1>'
        f'<p class="about">{html_text(config.task_name)}, {html_text(report.family.name)}, '
        f"{html_text(config.model.name)}</p>"
        f'<p class="verdict">{html_text(verdict(report).capitalize())}.</p>'
    )
    sections = [_faults(report)] if not report.ready else []
    sections += [_figures(report), shown]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html_page(f"check-data {config.title}", header, sections))


def _faults(report: DataReport) -> Section:
    items = []
    for checkup in report.checkups:
        for kind, fault in checkup.faults.items():
            places = "".join(f"<small>{html_text(s, 400)}</small>" for s in fault.sentences[:5])
            advice = f"<small><b>{html_text(fault.advice, 400)}</b></small>" if fault.advice else ""
            title = html_text(fault_title(kind, fault), 200)
            items.append(f"<li>{checkup.name}: {title}{places}{advice}</li>")
    return Section(
        anchor="fix",
        title="What to fix",
        html=f'<ol class="faults">{"".join(items)}</ol>',
        markdown="",
    )


def _figures(report: DataReport) -> Section:
    """Write the same figures as the terminal shows."""
    parts = []
    named = [(f"{c.name}: {c.source}", facts(report, c)) for c in report.checkups]
    for title, pairs in [*named, ("The frame", frame_facts(report))]:
        rows = "".join(
            f"<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>" for name, value in pairs
        )
        parts.append(f"<h3>{html_text(title)}</h3><dl>{rows}</dl>")
    notes = "".join(f"<li>{html_text(note, 400)}</li>" for note in report.notes)
    parts.append(f'<ul class="caveats">{notes}</ul>' if notes else "")
    return Section(anchor="figures", title="What is there", html="".join(parts), markdown="")


def _samples(report: DataReport, count: int) -> Section:
    """Show samples, evenly spread over the rows of training."""
    trained = report.checkups[0].trained
    step = max(len(trained) / max(count, 1), 1)
    chosen = [trained[int(i * step)] for i in range(min(count, len(trained)))]
    shapes = (
        '<b class="l">Solid</b>: the shapes that the labels say, read back through the frame. '
        '<b class="r">Dashed</b>: those of the row. '
    )
    key = (
        f'<p class="keys note">{shapes if any(t.size_px for t in chosen) else ""}Tokens with a '
        'ground are in the loss; <b class="l">those in colour</b> are numbers to the numeric '
        "losses.</p>"
    )
    body = "".join(_sample(report, t) for t in chosen)
    return Section(
        anchor="samples", title="What is trained", html=key + body, markdown="", css=_CSS
    )


def _sample(report: DataReport, trained: Trained) -> str:
    where = html_text(trained.example.where, 200)
    said = [html_text(trained.example.id, 80)]
    if trained.size_px is not None and trained.frame is not None:
        view = trained.frame.view
        said.append(
            f"{trained.size_px[0]} x {trained.size_px[1]} pixels, seen at {view.width_px} x "
            f"{view.height_px}, {trained.image_tokens} image tokens"
        )
    if trained.size_px is not None and not trained.has_image:
        said.append("the image is missing")
    tokens = _tokens(report, trained)
    try:
        image = _image(trained)
    except ValueError as error:
        report.checkups[0].fault(kind_of(str(error)), str(error))
        image = ""
        said.append("the image cannot be read")
    return (
        f'<div class="sample"><figure>{image}<p>{"; ".join(said)}<br>{where}</p>'
        f'</figure><div class="tokens">{tokens}</div></div>'
    )


def _image(trained: Trained) -> str:
    """Draw an image with the shapes of its labels over it."""
    if trained.size_px is None:
        return ""
    width, height = trained.size_px
    shown = ""
    if trained.has_image:
        shown = f'<image href="{_data_url(open_image(trained.example))}" width="{width}" '
        shown += f'height="{height}" preserveAspectRatio="none"/>'
    drawn = [f'<path class="row" d="{outline(s)}"/>' for s in _shapes(trained.example.answer)]
    drawn += [f'<path class="labels" d="{outline(s)}"/>' for s in _shapes(trained.read_back)]
    text = html_text(trained.example.prompt, 120)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text}">{shown}'
        f"{''.join(drawn)}</svg>"
    )


def _data_url(image: Image.Image) -> str:
    image.thumbnail((_SHOWN_PX, _SHOWN_PX))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _shapes(answer: Any) -> Sequence[Shape]:
    """Return the shapes of an answer of any kind."""
    if isinstance(answer, Instances):
        return [item.shape for item in answer.items if not item.ignore]
    return [] if isinstance(answer, Unreadable) or not hasattr(answer, "points") else [answer]


def _tokens(report: DataReport, trained: Trained) -> str:
    """Write the tokens of a sample; a run of one token, as of image features, is written once."""
    names = report.family.tokenizer.convert_ids_to_tokens
    spans = []
    question = report.family.question(trained.example.prompt, trained.image_tokens)
    for token, run in groupby(question if trained.image_tokens else question[:_TOKENS]):
        count = len(list(run))
        text = html_text(_visible(names(token)), 60)
        if count > 3:
            spans.append(f'<span class="many">{text} &times; {count:,}</span>')
        else:
            spans += [f"<span>{text}</span>"] * count
    told = {p: n for n in trained.numbers for p in n.positions}
    answer = trained.answer.ids
    for position, token in enumerate(answer[:_TOKENS]):
        text = html_text(_visible(names(token)), 60)
        number = told.get(position)
        if number is None:
            spans.append(f'<span class="loss">{text}</span>')
        else:
            title = html_text(f"{number.role}: {number.value:g}")
            spans.append(f'<span class="loss digit" title="{title}">{text}</span>')
    if len(answer) > _TOKENS:
        spans.append(f"<span>... {len(answer) - _TOKENS:,} more</span>")
    return "".join(spans)


def _visible(token: str) -> str:
    """Return a token with its space and line marks as they are read."""
    return plain(token.replace("Ġ", "·").replace("▁", "·").replace("Ċ", "⏎").replace("\n", "⏎"))
