"""The chapters of a report on how well shapes fit: IoU, by size, and answers that are broken.

Units    IoU 0 to 1; shares of all true shapes, those in answers that could not be read included
"""

from collections.abc import Mapping, Sequence

from mm_numeric.answers import Instance
from mm_numeric.evaluation.metrics.boxes import THRESHOLDS
from mm_numeric.evaluation.metrics.matching import FIND
from mm_numeric.evaluation.report.charts import Axis, Line, Mark, line_chart, nice_ticks, who
from mm_numeric.evaluation.report.html import (
    NOTHING,
    Section,
    html_table,
    html_text,
    markdown_name,
    markdown_table,
    markdown_text,
    number,
    percent,
)
from mm_numeric.evaluation.report.iou_statistics import BINS, MEAN_BOX, Fit, Row

SIZES = {
    "small": "below 32 × 32 pixels",
    "medium": "below 96 × 96",
    "large": "from 96 × 96",
}
_CSS = """
.fits { display: grid; gap: 22px 30px; margin-top: 14px;
  grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); }
.fits > figure > svg { width: 100%; height: auto; }
.fits .share { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; }
.fits .share tspan { font-weight: 600; fill: var(--ink); }
"""


def overlap_section(fits: Sequence[Fit], answer: Instance | None, *, one_each: bool) -> Section:
    """Write the chapter on IoU: its curve, its table and its histogram.

    Args:
        fits: Of the objectives, that of the mean box last.
        answer: The mean box.
        one_each: Whether each answer is one shape.
    """
    share = "Acc" if one_each else "recall"
    apart = ["unreadable", "no overlap"]
    labels = [f"{share}@{t:g}" for t in THRESHOLDS] + ["mean IoU"]
    labels += apart if one_each else [f"precision@{FIND:g}", *apart]
    cells = [_overlap_cells(own, one_each=one_each) for own in fits]
    what, worth = _what(answer, one_each=one_each), _worth(fits, answer, one_each=one_each)
    told = f"{what} All seeds together. {worth}"
    note = (
        "Every bar is the share of true shapes with an IoU in a range of 0.05; apart from them, on "
        "the left, those whose answer could not be read and those that nothing overlaps, cut at "
        "the top where they are the most. All panels have one scale."
    )
    top = max(max(own.bins()[2:]) for own in fits) or 1.0
    reading = (
        "Where a curve crosses 0.5, 0.75 and 0.9 are the shares of the table. A curve that is "
        "higher on the left finds more; one that falls late on the right fits them better."
    )
    html = (
        '<div class="halves"><figure class="panels wide">'
        f"{_curves(fits)}</figure><div><p>{html_text(told, 900)}</p>"
        f'<p class="note">{reading}</p></div></div>'
        + html_table(["objective", *labels], _html_rows(fits, cells))
        + f'<h3>How much they overlap</h3><p class="note">{note}</p>'
        f'<div class="fits">{"".join(_histogram(own, top) for own in fits)}</div>'
    )
    bins = [f"{bin_ / BINS:.2f} to {(bin_ + 1) / BINS:.2f}" for bin_ in range(BINS)]
    shares = zip([*apart, *bins], *(own.bins() for own in fits), strict=True)
    twin = [
        markdown_text(told, 900),
        markdown_table(["objective", *labels], _twin_rows(fits, cells)),
        markdown_table(
            ["IoU", *(markdown_name(own.mark.name) for own in fits)],
            [[label, *map(percent, values)] for label, *values in shares],
        ),
    ]
    return Section(
        anchor="overlap", title="Overlap", html=html, markdown="\n\n".join(twin), css=_CSS
    )


def _what(answer: Instance | None, *, one_each: bool) -> str:
    """Say what IoU is."""
    if one_each:
        return "IoU is the area that the answered and the true box share, over what either covers."
    alike = " of the same label" if answer and answer.label else ""
    return (
        f"Every true shape is paired with at most one answered shape{alike}, the highest IoU "
        "first; IoU is the area that both share over what either covers, and 0 without a pair."
    )


def _worth(fits: Sequence[Fit], answer: Instance | None, *, one_each: bool) -> str:
    """Say what a model gets that does not look."""
    if answer is None:
        return "There is nothing to be found in these images."
    edges = ", ".join(f"{edge:.0f}" for point in answer.shape.points for edge in point)
    own = fits[-1]
    figures = [f"{'Acc' if one_each else 'recall'}@{FIND:g} {_percent(own.at(FIND))}"]
    figures += [] if one_each else [f"precision@{FIND:g} {_percent(own.precision)}"]
    return (
        f"The mean box, [{edges}] in pixels, is the mean of the test rows’ own boxes. Answering it "
        f"{'every time' if one_each else 'once in every image'}"
        f"{f', as “{answer.label}”,' if answer.label else ''} comes to "
        f"{', '.join(figures)} and a mean IoU of {_iou(own.mean_iou())}: what is no better has "
        "not seen the image."
    )


def _overlap_cells(own: Fit, *, one_each: bool) -> list[str]:
    cells = [_percent(own.at(t)) for t in THRESHOLDS] + [_iou(own.mean_iou())]
    cells += [] if one_each else [_percent(own.precision)]
    return [*cells, percent(own.unreadable), percent(own.nothing)]


def size_section(
    fits: Sequence[Fit], rows: Mapping[str, Sequence[Row]], *, one_each: bool
) -> Section | None:
    """Write the table by the size of the true shapes, as COCO has it; None where there is none.

    Args:
        fits: Of the objectives, that of the mean box last.
        rows: Of each objective: the scorer's columns say the precision by size, where they are.
        one_each: Whether each answer is one shape.
    """
    there = [size for size in SIZES if (fits[-1].sizes == size).any()]
    if not there:
        return None
    sums = {name: _precisions(found, there) for name, found in rows.items()}
    by_size = not one_each and any(sums.values())
    names = [f"Acc@{FIND:g}" if one_each else f"recall@{FIND:g}"]
    names += ["mean IoU"] if one_each or not by_size else [f"precision@{FIND:g}"]
    labels = [f"{name}, {size}" for name in names for size in there]
    cells = []
    for own in fits:
        found = [_percent(own.at(FIND, size)) for size in there]
        if by_size:
            precisions = sums.get(own.mark.name) or {}
            found += [_percent(precisions.get(size)) for size in there]
        else:
            found += [_iou(own.mean_iou(size)) for size in there]
        cells.append(found)
    counts = [f"{size}, {SIZES[size]}: {(fits[-1].sizes == size).sum():,}" for size in there]
    note = f"By the area of the true shape, as COCO has it ({'; '.join(counts)} in the test rows)."
    if by_size:
        note += " An answered shape without a pair has its own size."
    return Section(
        anchor="sizes",
        title="By size",
        html=f'<p class="note">{note}</p>'
        + html_table(["objective", *labels], _html_rows(fits, cells)),
        markdown=f"{note}\n\n" + markdown_table(["objective", *labels], _twin_rows(fits, cells)),
    )


def _precisions(rows: Sequence[Row], sizes: Sequence[str]) -> dict[str, float | None]:
    """Return the precision of each size from the scorer's columns, nothing where they are not."""
    columns = [f"{part}_{size}" for part in ("paired", "detected") for size in sizes]
    if not all(isinstance(row.get(column), int | float) for row in rows for column in columns):
        return {}
    sums = {column: sum(row[column] for row in rows) for column in columns}
    return {
        size: sums[f"paired_{size}"] / sums[f"detected_{size}"]
        if sums[f"detected_{size}"]
        else None
        for size in sizes
    }


_BROKEN = {
    "cut": "end within a shape",
    "malformed": "hold malformed shapes",
    "invalid_detections": "hold invalid polygons",
}
"""What each column counts that an answer can be broken by."""


def broken_section(marks: Mapping[str, Mark], rows: Mapping[str, Sequence[Row]]) -> Section | None:
    """Count the answers that could be read and are broken; None where the rows do not say it."""
    there = [c for c in _BROKEN if any(c in row for found in rows.values() for row in found)]
    if not there:
        return None
    note = (
        "Answers that could be read in part: the shapes that are whole were scored. All seeds "
        "together; malformed are three numbers in brackets and the like, invalid are polygons "
        "that cross themselves or cover nothing."
    )
    counts = {
        name: [sum(bool(row.get(column)) for row in found) for column in there]
        for name, found in rows.items()
    }
    lines = [
        (f"answers that {_BROKEN[column]}", [f"{counts[name][i]:,}" for name in rows])
        for i, column in enumerate(there)
    ]
    lines.insert(0, ("answers", [f"{len(found):,}" for found in rows.values()]))
    body = "".join(
        f"<tr><th>{label}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>"
        for label, cells in lines
    )
    return Section(
        anchor="broken",
        title="Broken answers",
        html=f'<p class="note">{note}</p>'
        + html_table(["", *(who(marks[name]) for name in rows)], body),
        markdown=f"{note}\n\n"
        + markdown_table(
            ["", *map(markdown_name, rows)], [[label, *cells] for label, cells in lines]
        ),
    )


def _curves(fits: Sequence[Fit]) -> str:
    """Draw the share of shapes with at least so much IoU."""
    steps = [step / 100 for step in range(1, 101)]
    lines = [
        Line(
            points=[(step, own.at(step) or 0.0) for step in steps],
            colour=own.mark.colour,
            dash=own.mark.dash,
            width=2.2,
        )
        for own in fits
    ]
    return line_chart(
        lines[::-1],
        Axis(
            low=0,
            high=1,
            ticks=[(t, f"{t:g}") for t in (0, 0.25, *THRESHOLDS, 1)],
            label="IoU of at least",
        ),
        Axis(low=0, high=1, ticks=[(s / 4, f"{25 * s}%") for s in range(5)]),
        spoken="Share of true shapes with at least so much IoU, a curve for each objective.",
        width=460,
        height=290,
    )


def _histogram(own: Fit, most: float) -> str:
    """Draw how many shapes have which IoU, with the shares from 0.5, 0.75 and 0.9 on."""
    left, right, head, foot = 108, 296, 48, 168
    wide, tall = right - left, foot - head
    step = wide / BINS
    unreadable, nothing, *shares = own.bins()
    parts = []
    for tick in nice_ticks(0, most, 4):
        y = foot - tall * tick / most
        parts.append(
            f'<line x1="34" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--grid)"/>'
            f'<text x="29" y="{y + 4:.1f}" text-anchor="end">{100 * tick:g}%</text>'
        )
    for x, value, label in ((53, unreadable, "unread"), (86, nothing, "none")):
        bar = tall * min(value / most, 1)
        parts.append(
            f'<rect x="{x - 8}" y="{foot - bar:.1f}" width="16" height="{bar:.1f}" '
            f'fill="{own.mark.colour}" fill-opacity=".45"/>'
            f'<text x="{x}" y="{foot - bar - 4:.1f}" text-anchor="middle" class="tiny">'
            f'{100 * value:.0f}%</text><text x="{x}" y="{foot + 13}" text-anchor="middle" '
            f'class="tiny">{label}</text>'
        )
    for index, value in enumerate(shares):
        bar = tall * value / most
        words = f"IoU {index / BINS:.2f} to {(index + 1) / BINS:.2f}: {percent(value)}"
        parts.append(
            f'<rect x="{left + index * step + 0.6:.1f}" y="{foot - bar:.1f}" '
            f'width="{step - 1.2:.1f}" height="{bar:.1f}" fill="{own.mark.colour}">'
            f"<title>{words}</title></rect>"
        )
    shown = ""
    for place, threshold in enumerate(THRESHOLDS):
        at, y = left + wide * threshold, 11 + 13 * place
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y + 4}" y2="{foot}" stroke="var(--ink)" '
            'stroke-dasharray="2 3"/>'
        )
        shown += (
            f'<text x="{right}" y="{y}" text-anchor="end" class="share">'
            f"<tspan>{_percent(own.at(threshold))}</tspan> ≥ {threshold:g}</text>"
        )
    parts.append(shown)  # over the lines
    parts.append(f'<line x1="34" x2="{right}" y1="{foot}" y2="{foot}" stroke="var(--soft)"/>')
    parts += [
        f'<text x="{left + wide * t:.1f}" y="{foot + 14}" text-anchor="middle">{t:g}</text>'
        for t in (0, 0.25, *THRESHOLDS, 1)
    ]
    spoken = html_text(f"{own.mark.name}: IoU of {len(own.ious):,} true shapes.")
    return (
        f"<figure><figcaption>{who(own.mark)}</figcaption>"
        f'<svg viewBox="0 0 300 188" role="img" aria-label="{spoken}"><title>{spoken}</title>'
        f"{''.join(parts)}</svg></figure>"
    )


def _html_rows(fits: Sequence[Fit], cells: Sequence[Sequence[str]]) -> str:
    return "".join(
        ('<tr class="aside">' if own.mark is MEAN_BOX else "<tr>")
        + f"<th>{who(own.mark)}</th>{''.join(f'<td>{cell}</td>' for cell in found)}</tr>"
        for own, found in zip(fits, cells, strict=True)
    )


def _twin_rows(fits: Sequence[Fit], cells: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[markdown_name(o.mark.name), *found] for o, found in zip(fits, cells, strict=True)]


def _percent(share: float | None) -> str:
    return NOTHING if share is None else percent(share)


def _iou(value: float | None) -> str:
    return NOTHING if value is None else number(value, 3)
