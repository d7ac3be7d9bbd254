"""Work out whole-number expressions, rendered in the manner of DeepMind's mathematics data set.

It is the ablation of "Regress, Don't Guess" (arXiv 2411.02083, table 2), which takes the modules
``arithmetic__add_sub_multiple`` to train and to interpolate and ``..._longer`` to extrapolate; the
task ``mathematics`` reads those files themselves.

Rows     {"id": text, "question": "What is 3 - (-2 + 4*5)?", "answer": "-15",
          "category": "interpolation" or "extrapolation"}
Score    mm_numeric.evaluation.metrics.numbers
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mm_numeric.tasks.numbers import Drawn, Numbers, render_questions

QUESTIONS = (
    "What is {expression}?",
    "Calculate {expression}.",
    "Evaluate {expression}.",
    "What is the value of {expression}?",
)

_TRIES = 10_000  # to draw an expression whose value is within the bound


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Numbers):
    """Sums, differences and products of whole numbers, longer ones to extrapolate."""

    categories: ClassVar[tuple[str, ...]] = ("interpolation", "extrapolation")

    operators: str = "+-*"
    """Those that are drawn from."""

    terms: tuple[int, ...] = (2, 4)
    """How many numbers an expression holds, from and to: what is trained, and interpolated."""

    longer: tuple[int, ...] = (5, 6)
    """How many the expressions of extrapolation hold, from and to."""

    numbers: tuple[int, ...] = (-99, 99)
    """What they are drawn from: the smallest and the largest."""

    largest_answer: int = 9999
    """Expressions with a value beyond this, or minus this, are drawn again; in both categories, so
    that what extrapolation extrapolates is the length."""

    questions: tuple[str, ...] = QUESTIONS
    """How it is asked; ``{expression}`` stands for the expression."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        super().__post_init__()
        if not self.operators or set(self.operators) - set("+-*"):
            raise ValueError(f"operators are some of + - *, not {self.operators!r}")
        for name, bounds in (("terms", self.terms), ("longer", self.longer)):
            if len(bounds) != 2 or not 2 <= bounds[0] <= bounds[1]:
                raise ValueError(f"{name} is [from, to], at least 2, not {list(bounds)}")
        if len(self.numbers) != 2 or not self.numbers[0] <= self.numbers[1]:
            raise ValueError(f"numbers is [smallest, largest], not {list(self.numbers)}")
        if max(map(abs, self.numbers)) > self.largest_answer:
            raise ValueError(
                f"largest_answer {self.largest_answer} is less than a number of {self.numbers}"
            )
        if not self.questions or not all("{expression}" in q for q in self.questions):
            raise ValueError("questions each need {expression} in them, and there is at least one")

    @property
    def render_settings(self) -> dict[str, Any]:
        """What a rendered row depends on, beside the count and the seed."""
        return {name: value for name, value in asdict(self).items() if name != "prompt"}

    def describe(self) -> str:
        """Say in a sentence what is trained and what is tested."""
        terms, longer = (
            f"{low} numbers" if low == high else f"{low} to {high} numbers"
            for low, high in (self.terms, self.longer)
        )
        return (
            f"Trained on expressions of {terms}, {self.numbers[0]} to {self.numbers[1]}, with "
            f"{' '.join(self.operators)} and brackets; interpolation tests the same, extrapolation "
            f"{longer}."
        )

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Write rows, and return their file."""
        draws = {
            "interpolation": partial(self._draw, self.terms),
            "extrapolation": partial(self._draw, self.longer),
        }
        return render_questions(folder, count, seed, draws, categories)

    def _draw(self, bounds: tuple[int, ...], rng: random.Random) -> Drawn:
        """Return a question and its answer."""
        for _ in range(_TRIES):
            found = _expression(rng, rng.randint(*bounds), self.operators, self.numbers)
            if abs(found.value) <= self.largest_answer:
                question = rng.choice(self.questions).replace("{expression}", found.text)
                return question, found.value
        raise ValueError(
            f"task.largest_answer: no expression of {bounds[0]} to {bounds[1]} numbers within "
            f"{self.largest_answer} in {_TRIES} tries; raise it, or lower task.numbers."
        )


class _Expression(NamedTuple):
    text: str
    value: int
    operator: str
    """The last that is applied; empty for a number alone."""


def _expression(
    rng: random.Random, count: int, operators: str, numbers: tuple[int, ...]
) -> _Expression:
    """Draw an expression of so many numbers, of any shape."""
    if count == 1:
        number = rng.randint(*numbers)
        return _Expression(str(number), number, "")
    operator = rng.choice(operators)
    left_count = rng.randint(1, count - 1)
    left = _expression(rng, left_count, operators, numbers)
    right = _expression(rng, count - left_count, operators, numbers)
    if operator == "*":
        texts = [
            f"({side.text})" if side.operator in ("+", "-") or side.text.startswith("-")
            else side.text
            for side in (left, right)
        ]  # fmt: skip
        return _Expression("*".join(texts), left.value * right.value, operator)
    behind = f"({right.text})" if right.operator in ("+", "-") else right.text
    before = f"({left.text})" if left.operator and rng.random() < 0.5 else left.text
    value = left.value + right.value if operator == "+" else left.value - right.value
    return _Expression(f"{before} {operator} {behind}", value, operator)
