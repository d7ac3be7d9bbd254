"""Plant errors in labels, and measure how well ``mm-numeric labels`` finds them.

    python scripts/experiments/planted_labels.py noise    errors estimated from a second labelling

``noise`` plants errors in 200 rows, and estimates them from the correct labels; seed s of ``--draws
200`` draws is s. It prints, for each planted value, the mean and the root mean squared error of the
estimates, and the share of the draws whose 95 % interval contains the value. It takes a minute on
one core. Clocks have the errors of the generator ``clocks``.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mm_numeric.answers import Box, ClockTime, Example, Instance, Instances, Number
from mm_numeric.evaluation.metrics.clock import with_hands_swapped
from mm_numeric.labels.again import compare_labels
from mm_numeric.synthetic.clock_faces import EXPONENTIAL, Clocks

ROWS, DRAWS = 200, 200
NOISE, BIAS, RANDOM, SWAPPED = (
    "noise (standard deviation)",
    "bias",
    "random labels",
    "hands swapped",
)
LARGER, MISSING, CLASS = "larger on each side", "missing objects", "another class"
Labels = tuple[Any, Any]
"""A label, and the correct one."""


def clocks(
    noise: float, random_share: float = 0.0, swapped: float = 0.0, *, shift: int = 0, **more: Any
) -> Callable[[random.Random], Labels]:
    """Return a function that draws a clock label with errors, and the correct one."""

    def draw(rng: random.Random) -> Labels:
        time = ClockTime.from_minutes(rng.randrange(720))
        clock = Clocks(
            noise_minutes=noise, outliers=random_share, noise_seed=rng.getrandbits(32), **more
        )
        shown = with_hands_swapped(time) if rng.random() < swapped else time
        noisy = clock.with_label_noise({"id": "0", "time": str(shown)})["time"]
        minutes = ClockTime(*map(int, noisy.split(":"))).minutes
        return ClockTime.from_minutes(minutes + shift), time

    return draw


def number(rng: random.Random) -> Labels:
    """Draw a number between 0 and 100, which is too large by 2, with noise of 3, or random."""
    correct = rng.uniform(0, 100)
    label = rng.uniform(0, 100) if rng.random() < 0.05 else correct + rng.gauss(2, 3)
    return Number(f"{label:.1f}"), Number(f"{correct:.1f}")


def price(rng: random.Random) -> Labels:
    """Draw a price, too large by 10 %, with noise of 5 %; in 3 % of them the point has moved."""
    correct = rng.lognormvariate(3, 1) + 1
    label = correct * math.exp(rng.gauss(0.1, 0.05)) * (10 if rng.random() < 0.03 else 1)
    return Number(f"{label:.4f}"), Number(f"{correct:.4f}")


def larger(edges: Sequence[float], rng: random.Random) -> Box:
    """Return a box that is larger by 3 on each side, with noise of 4."""
    shifts = (-3, -3, 3, 3)
    return Box(*(e + rng.gauss(shift, 4) for e, shift in zip(edges, shifts, strict=True)))


def box(rng: random.Random) -> Labels:
    """Draw a box in 640 x 480 pixels: larger by 3, with noise of 4, 5 % random, 3 % swapped."""

    def correct() -> list[float]:
        x, y = rng.uniform(20, 400), rng.uniform(20, 300)
        return [x, y, x + rng.uniform(40, 200), y + rng.uniform(40, 160)]

    true = correct()
    x1, y1, x2, y2 = correct() if (kind := rng.random()) < 0.05 else true
    if kind > 0.97:
        x1, y1, x2, y2 = y1, x1, y2, x2
    return larger((x1, y1, x2, y2), rng), Box(*true)


def objects(rng: random.Random) -> Labels:
    """Draw three objects: 10 % missing, 5 % of another class, larger by 3 with noise of 4."""
    labels, correct = [], []
    for left in (20, 220, 420):
        size = rng.uniform(40, 180)
        edges, name = (left, 50, left + size, 50 + rng.uniform(40, 180)), rng.choice("ab")
        correct.append(Instance(Box(*edges), name))
        shifted = larger(edges, rng)
        if rng.random() >= 0.1:
            labels.append(Instance(shifted, name if rng.random() >= 0.05 else "c"))
    return Instances(tuple(labels)), Instances(tuple(correct))


PLANTED: dict[str, tuple[Callable[[random.Random], Labels], dict[str, Any], dict[str, float]]] = {
    "exact times": (clocks(0), {}, {NOISE: 0, BIAS: 0, RANDOM: 0}),
    "times, noise 2": (clocks(2), {}, {NOISE: 2, BIAS: 0, RANDOM: 0}),
    "times, noise 5, wrong ones": (
        clocks(5, 0.05, 0.03), {}, {NOISE: 5, BIAS: 0, RANDOM: 0.05, SWAPPED: 0.03 * 0.95}
    ),
    "times, noise 5, 4 min late": (
        clocks(5, 0.05, shift=4), {}, {NOISE: 5, BIAS: 4, RANDOM: 0.05, SWAPPED: 0}
    ),
    "times, noise 10": (clocks(10, 0.05), {}, {NOISE: 10, BIAS: 0, RANDOM: 0.05, SWAPPED: 0}),
    "times, late by an exponential of 5": (
        clocks(5, 0.05, noise_distribution=EXPONENTIAL), {}, {NOISE: 5, BIAS: 5, RANDOM: 0.05}
    ),
    "numbers": (number, {}, {NOISE: 3, BIAS: 2, RANDOM: 0.05}),
    "prices, --log": (price, {"log": True}, {NOISE: 0.05, BIAS: 0.1, RANDOM: 0.03}),
    "boxes": (
        box, {}, {NOISE: 4, LARGER: 3, "right": 0, RANDOM: 0.05, "x and y swapped": 0.03}
    ),
    "lists of objects": (objects, {}, {NOISE: 4, LARGER: 3, MISSING: 0.1, CLASS: 0.05}),
}  # fmt: skip
"""Kind of labels -> how a row is drawn, options of ``compare_labels``, and the planted values."""


def example(answer: Any, row: int) -> Example:
    """Return a row with an answer."""
    return Example(id=str(row), image=None, prompt="", answer=answer, where=f"row {row}")


def estimates(kind: str, rows: int, draws: int) -> dict[str, np.ndarray]:
    """Return the estimates with their intervals [draws, 3] of each planted value."""
    draw, options, planted = PLANTED[kind]
    found: dict[str, list[Any]] = {name: [] for name in planted}
    for seed in range(draws):
        rng = random.Random(seed)
        labels = [draw(rng) for _ in range(rows)]
        pairs = [(example(one, i), example(other, i)) for i, (one, other) in enumerate(labels)]
        lines = {name: own for name, own, _ in compare_labels(pairs, **options)[0]}
        for name in planted:
            found[name].append(lines[name])
    return {name: np.array(own) for name, own in found.items()}


def noise(rows: int, draws: int) -> Iterator[str]:
    """Yield the lines of a table of planted and estimated errors."""
    yield f"{rows} rows; {draws} draws, seeds 0 to {draws - 1}\n"
    yield "| labels | error | planted | mean estimate | RMSE | coverage |"
    yield "|---|---|---|---|---|---|"
    for kind, (_, _, planted) in PLANTED.items():
        for name, own in estimates(kind, rows, draws).items():
            value = planted[name]
            mean = round(own[:, 0].mean(), 6) + 0.0
            error = round(math.sqrt(((own[:, 0] - value) ** 2).mean()), 6)
            covered = ((own[:, 1] <= value + 1e-9) & (own[:, 2] >= value - 1e-9)).mean()
            yield f"| {kind} | {name} | {value:.3g} | {mean:.3g} | {error:.2g} | {covered:.3f} |"


def main(argv: list[str] | None = None) -> None:
    """Print the table of a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_noise = commands.add_parser("noise", help="errors estimated from a second labelling")
    of_noise.add_argument("--rows", type=int, default=ROWS)
    of_noise.add_argument("--draws", type=int, default=DRAWS)
    arguments = parser.parse_args(argv)
    for line in noise(arguments.rows, arguments.draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
