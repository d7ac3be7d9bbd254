"""Draw the figures of the NTL paper (arXiv 2411.02083) for every loss term of this library.

    python scripts/figures_losses.py --out figures
    python scripts/benchmarks/bench_losses.py --json bench.json
    python scripts/figures_losses.py --out figures --bench bench.json

predicted_digit     loss of each term if the model is nearly certain of one digit (figure 1)
                    (with --pages: only the terms of a page, without title)
two_probabilities   loss of some terms if the probability is split between digits (figure 2)
overhead            duration of a step of each objective (figure 3): from bench.json, or from a run
                    of a few seconds at a small size

Each figure is an SVG file, with its numbers in a JSON file of the same name.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints two lines a time
sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not
sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

import torch
from _bench import CE, DIGITS, FULL, Setting, Stand, blocks, known_names
from _measure import machine, measure
from svg import colour_bar, heat, image, placed, words
from torch import Tensor

from mm_numeric.evaluation.report.charts import Axis, Line, line_chart, nice_ticks, tick_text
from mm_numeric.losses.term import NumberClasses, NumberLogits, make_term
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import TERMS

LABEL = 5  # in the first figure
CERTAINTY = 0.99
SPLIT = (0, 4, 8)  # in the second figure; the label is the middle one
STEPS = 30  # even, so that 0.5 is one of the steps
LEAST = 1e-4  # replaces a probability of 0, so that cross-entropy stays finite
HEAT_TERMS = {  # formulas for these digits; a and b are the probabilities of 0 and 8
    "ce": "−log(1 − a − b)",
    "ntl_was": "4 (a + b)",
    "ntl_mse": "16 (b − a)²",
    "rps": "4 (a² + b²)",
}
PAGES = {  # pages of docs/losses, and the terms that they explain
    "cross-entropy": ["digit_ce"],
    "ntl": ["ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "nl_ntl"],
    "ntil": ["emd_exp", "relative", "magnitude"],
    "soft-targets": ["gce"],
    "proper-scores": ["rps"],
    "raft": ["raft"],
}
SMALL = Setting(vocabulary=32000, rows=256)


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output folder; created if missing"
    )
    parser.add_argument(
        "--bench", type=Path, metavar="FILE", help="output of bench_losses.py --json"
    )
    parser.add_argument(
        "--pages", action="store_true", help="only draw the figures of the pages of docs/losses"
    )
    options = parser.parse_args()
    if options.pages:
        numbers = predicted_digit()
        options.out.mkdir(parents=True, exist_ok=True)
        for page, names in PAGES.items():
            drawn = panels_of_terms(numbers, names, across=len(names), top=10)
            (options.out / f"predicted_digit_{page}.svg").write_text(drawn, encoding="utf-8")
        return
    try:
        bench = read_bench(options.bench) if options.bench else small_bench()
        options.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for name, numbers, draw in (
        ("predicted_digit", predicted_digit(), draw_predicted_digit),
        ("two_probabilities", two_probabilities(), draw_two_probabilities),
        ("overhead", bench, draw_overhead),
    ):
        path = options.out / f"{name}.svg"
        path.write_text(draw(numbers), encoding="utf-8")
        path.with_suffix(".json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")
        print(path)


def losses_of(name: str, probs: Tensor, label: int) -> list[float]:
    """Return the loss of a term for digit probabilities [k, 10], with one digit as the label.

    Args:
        name: A key of ``TERMS``, or ``ce``.
        probs: Probabilities of the ten digits; each row sums to 1.
        label: The correct digit.
    """
    if name == "ce":
        return (-probs[:, label].log()).tolist()
    vocabulary = NumberVocabulary.from_tokenizer(Stand(100))
    labels = torch.full((len(probs), 1), DIGITS[str(label)])
    spans = NumberSpans.from_labels(labels, vocabulary)
    classes = NumberClasses.of(vocabulary, torch.device("cpu"), torch.float64)
    logits = probs.log()
    numbers = NumberLogits.at(logits, logits.logsumexp(dim=-1), classes, spans.target)
    return make_term(name, {})(numbers, spans).tolist()


def predicted_digit() -> dict[str, Any]:
    """Return the loss of each term by the digit of which the model is nearly certain."""
    rest = (1 - CERTAINTY) / 9
    probs = torch.full((10, 10), rest, dtype=torch.float64).fill_diagonal_(CERTAINTY)
    names = ["ce", *TERMS]
    return {
        "label": LABEL,
        "certainty": CERTAINTY,
        "digits": list(range(10)),
        "losses": {name: losses_of(name, probs, LABEL) for name in names},
    }


def two_probabilities() -> dict[str, Any]:
    """Return the loss of some terms by the probabilities of two wrong digits."""
    low, label, high = SPLIT
    pairs = [(i / STEPS, j / STEPS) for i in range(STEPS + 1) for j in range(STEPS + 1 - i)]
    probs = torch.full((len(pairs), 10), LEAST, dtype=torch.float64)
    for row, (of_low, of_high) in zip(probs, pairs, strict=True):
        row[[low, label, high]] += torch.tensor([of_low, 1 - of_low - of_high, of_high]).to(row)
    probs /= probs.sum(dim=1, keepdim=True)
    return {
        "label": label,
        "digits": [low, high],
        "probabilities": pairs,
        "losses": {name: losses_of(name, probs, label) for name in HEAT_TERMS},
    }


def small_bench() -> dict[str, Any]:
    """Run the benchmark at a small size."""
    made = [each for each in blocks(SMALL, known_names(), repeats=3) if each.title == FULL]
    results = measure(made, SMALL.device, backward=True, report=lambda line: None)
    size = {"vocabulary": SMALL.vocabulary, "rows": SMALL.rows, "digits": SMALL.digits}
    return overhead(machine(SMALL.device), size, False, [result.summary() for result in results])


def read_bench(path: Path) -> dict[str, Any]:
    """Read the output of ``bench_losses.py --json``."""
    try:
        bench = json.loads(path.read_text(encoding="utf-8"))
        settings = bench["settings"]
        return overhead(bench, settings, settings["forward"], bench["results"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"--bench: {path} is not from bench_losses.py --json") from error


def overhead(
    machine: Mapping[str, Any], size: Mapping[str, Any], forward: bool, results: Sequence[Any]
) -> dict[str, Any]:
    """Return the step times of the contenders that start from logits, and the hardware."""
    return {
        **{key: machine[key] for key in ("machine", "threads", "torch")},
        **{key: size[key] for key in ("vocabulary", "rows", "digits")},
        "forward": forward,
        "milliseconds": {
            each["name"]: each["milliseconds"]
            for each in results
            if each["block"] == FULL and not each["compiled"]
        },
    }


def draw_predicted_digit(numbers: Mapping[str, Any]) -> str:
    """Draw a panel per term under a title."""
    title = (
        f"The loss of a model that gives {numbers['certainty']:.0%} to one digit, "
        f"where {numbers['label']} is right"
    )
    about = (
        "Solid: the term, as a share of its largest value, shown above it. "
        "Dashed: cross-entropy, scaled likewise. Each label is a number of one digit."
    )
    texts = [words(20, 28, title, "title"), words(20, 48, about)]
    names = [name for name in numbers["losses"] if name != "ce"]
    return panels_of_terms(numbers, names, across=6, top=74, texts=texts)


def panels_of_terms(
    numbers: Mapping[str, Any],
    names: Sequence[str],
    *,
    across: int,
    top: float,
    texts: Sequence[str] = (),
) -> str:
    """Draw a panel per term, with cross-entropy dashed; each curve is scaled to its maximum."""
    losses = numbers["losses"]
    ticks = [(digit, str(digit)) for digit in numbers["digits"]]
    panels = []
    for i, name in enumerate(names):
        is_last = i + across >= len(names)
        x = Axis(low=0, high=9, ticks=ticks, label="predicted digit" if is_last else "")
        points = (list(enumerate(map(float, losses[own]))) for own in (name, "ce"))
        panels.append(Panel(name, x, *points))
    return draw_panels(panels, "by predicted digit", across, top, texts)


class Panel(NamedTuple):
    """The loss of a term, and cross-entropy, by what the model predicts."""

    name: str
    x: Axis
    points: Sequence[tuple[float, float]]
    of_ce: Sequence[tuple[float, float]]


def draw_panels(
    panels: Sequence[Panel], by: str, across: int, top: float, texts: Sequence[str] = ()
) -> str:
    """Draw panels of which each curve is scaled to its maximum."""
    wide, tall = 190, 170
    y = Axis(low=0, high=1.06, ticks=[(0, "0"), (0.5, "0.5"), (1, "1")])
    parts = [*texts]
    for i, panel in enumerate(panels):
        at = (20 + wide * (i % across), top + tall * (i // across))
        lines = [
            Line(points=scaled(panel.of_ce), colour="var(--base)", width=1.6, dash="4 3"),
            Line(points=scaled(panel.points), colour="var(--ours)", width=2.4),
        ]
        most = max(loss for _, loss in panel.points)
        parts.append(words(at[0] + 12, at[1] + 12, panel.name, "name"))
        parts.append(words(at[0] + wide - 10, at[1] + 12, f"max {most:.3g}", anchor="end"))
        about = f"{panel.name} {by}"
        chart = line_chart(lines, panel.x, y, description=about, width=wide, height=tall - 20).svg
        parts.append(placed(chart, at[0], at[1] + 16, wide, tall - 20))
    down = -(-len(panels) // across)
    return image(40 + across * wide, top + down * tall + 4, f"Loss {by}", parts)


def scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a curve whose largest value is 1."""
    most = max(value for _, value in points)
    return [(x, value / most) for x, value in points]


def draw_two_probabilities(numbers: Mapping[str, Any]) -> str:
    """Draw a triangle per term, coloured by its loss."""
    low, high = numbers["digits"]
    side, gap, left, top = 240, 70, 66, 92
    parts = [
        words(
            20,
            28,
            f"The loss where {numbers['label']} is right and the probability is split between "
            f"{low}, {numbers['label']} and {high}",
            "title",
        ),
        words(
            20,
            48,
            "Light is low, dark is high, each to its own scale. The corner at 0, 0 is the perfect "
            f"answer; the ring is half on {low} and half on {high}. A probability of 0 counts as "
            f"{LEAST:g}.",
        ),
    ]
    cell = side / (STEPS + 1)
    for panel, (name, losses) in enumerate(numbers["losses"].items()):
        x0, y0 = left + panel * (side + gap), top + side
        largest = max(losses)
        parts.append(words(x0, top - 12, name, "name"))
        parts.append(words(x0 + side, top - 12, HEAT_TERMS[name], anchor="end"))
        for (of_low, of_high), loss in zip(numbers["probabilities"], losses, strict=True):
            x, y = x0 + of_low * STEPS * cell, y0 - (of_high * STEPS + 1) * cell
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell + 0.4:.1f}" height="{cell + 0.4:.1f}" '
                f'fill="{heat(loss / largest)}" shape-rendering="crispEdges"/>'
            )
        edge = f"M{x0},{top}V{y0}H{x0 + side}V{y0 - cell:.1f}L{x0 + cell:.1f},{top}Z"
        parts.append(f'<path d="{edge}" fill="none" stroke="var(--base)" stroke-width="0.8"/>')
        half = losses[numbers["probabilities"].index((0.5, 0.5))]
        ring = (x0 + (STEPS / 2 + 0.5) * cell, y0 - (STEPS / 2 + 0.5) * cell)
        circle = f'<circle cx="{ring[0]:.1f}" cy="{ring[1]:.1f}" r="6" fill="none" '
        parts += [
            circle + 'stroke="#fff" stroke-width="5"/>',
            circle + 'stroke="var(--ink)" stroke-width="2"/>',
            words(ring[0] + 10, ring[1] - 8, f"{abs(half):.2f}", "name"),
            words(x0 + side / 2, y0 + 38, f"a, probability of {low}", anchor="middle"),
            colour_bar(x0 + side - 92, top + 8, largest),
        ]
        parts += _tick_labels(x0, y0, cell)
        x, y = x0 - 34, y0 - side / 2
        parts.append(
            f'<text x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">'
            f"b, probability of {high}</text>"
        )
    width = left + len(numbers["losses"]) * (side + gap)
    return image(width, top + side + 54, "Loss by the probabilities of two wrong digits", parts)


def _tick_labels(x0: float, y0: float, cell: float) -> list[str]:
    """Return the labels of both axes of a triangle whose origin is at x0, y0."""
    labels = []
    for value in (0, 0.5, 1):
        at = (value * STEPS + 0.5) * cell
        labels.append(words(x0 + at, y0 + 18, tick_text(value), anchor="middle"))
        labels.append(words(x0 - 6, y0 - at + 4, tick_text(value), anchor="end"))
    return labels


def draw_overhead(numbers: Mapping[str, Any]) -> str:
    """Draw a bar per contender with median and range, and torch's cross-entropy as a line."""
    times = numbers["milliseconds"]
    medians = {name: statistics.median(values) for name, values in times.items()}
    left, wide, row, top = 230, 560, 20, 84
    end = 1.04 * max(max(values) for values in times.values())
    passes = "forward" if numbers["forward"] else "forward and backward"
    size = f"{numbers['rows']:,} rows, vocabulary {numbers['vocabulary']:,}"
    parts = [
        words(20, 28, f"Time of a step of the loss, {passes}, in milliseconds", "title"),
        words(
            20,
            48,
            f"{size}, {numbers['digits']:.0%} digits; {numbers['machine']}, "
            f"{numbers['threads']} threads, torch {numbers['torch']}.",
        ),
        words(
            20,
            66,
            f"Median and range of {min(map(len, times.values()))} rounds or more; dashed: "
            "torch's cross-entropy alone.",
        ),
    ]
    bottom = top + row * len(times)
    for tick in nice_ticks(0, end, 6):
        x = left + wide * tick / end
        parts.append(f'<path d="M{x:.1f},{top}V{bottom}" stroke="var(--grid)"/>')
        parts.append(words(x, bottom + 18, tick_text(tick), anchor="middle"))
    for i, (name, values) in enumerate(times.items()):
        y = top + row * i
        colour = "--base" if name == CE else "--other" if name.startswith(CE) else "--ours"
        low, high = (left + wide * value / end for value in (min(values), max(values)))
        parts += [
            words(left - 8, y + 15, name, "name", anchor="end"),
            f'<rect x="{left}" y="{y + 3}" width="{wide * medians[name] / end:.1f}" '
            f'height="{row - 6}" fill="var({colour})"/>',
            f'<path d="M{low:.1f},{y + row / 2}H{high:.1f}" stroke="var(--ink)" '
            'stroke-width="1.5"/>',
            words(left + wide + 8, y + 15, f"{medians[name]:,.1f}"),
        ]
    x = left + wide * medians[CE] / end
    parts.append(f'<path d="M{x:.1f},{top}V{bottom}" stroke="var(--ink)" stroke-dasharray="4 3"/>')
    return image(left + wide + 80, bottom + 34, "Time of a step of each objective", parts)


if __name__ == "__main__":
    main()
