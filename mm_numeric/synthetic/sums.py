"""Generate expressions with whole numbers, and products of two numbers.

The expressions are in the style of DeepMind's mathematics data set. They are similar to those of an
experiment in "Regress, Don't Guess" (arXiv 2411.02083, table 2), which trains on the file
``arithmetic__add_sub_multiple`` of the data set, and tests on the longer expressions in
``arithmetic__add_sub_multiple_longer``. ``mm-numeric prepare mathematics`` reads these files.
"""

import random
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mm_numeric.registry import unknown
from mm_numeric.synthetic.generator import Generator, write_rows

CATEGORIES = ("interpolation", "extrapolation")
_TRIES = 10_000  # attempts to draw an expression whose value is within the bound


@dataclass(frozen=True, kw_only=True)
class Sums(Generator):
    """Base class of generators of questions whose answer is a whole number."""

    categories: tuple[str, ...] = CATEGORIES[:1]
    """Categories of the rows, with equal numbers of rows: ``interpolation`` (questions as long as
    in training) and ``extrapolation`` (longer questions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for category in self.categories:
            if category not in CATEGORIES:
                raise unknown(category, CATEGORIES, "category", "categories")
        if not self.categories:
            raise ValueError(f"categories are some of {', '.join(CATEGORIES)}, not []")

    def write(self, folder: Path) -> Path:
        """Generate random questions as rows; return the path of the .jsonl file."""
        rows = []
        for i in range(self.rows):
            category = self.categories[i % len(self.categories)]
            rng = random.Random(f"{self.seed}:{category}:{i}")
            question, answer = self.draw(rng, longer=category == "extrapolation")
            row = {"id": f"{self.seed}-{i:06d}", "question": question, "answer": str(answer)}
            rows.append({**row, "category": category})
        return write_rows(folder, rows)

    @abstractmethod
    def draw(self, rng: random.Random, *, longer: bool) -> tuple[str, int]:
        """Return a random question (longer than in training if ``longer``) and its answer."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Sums):
    """Expressions with + - *: rows of the task ``arithmetic``."""

    name: str = "arithmetic"

    operators: str = "+-*"
    """Allowed operators, written without spaces; all are equally likely."""

    terms: tuple[int, ...] = (2, 4)
    """Smallest and largest count of numbers per expression for training and interpolation."""

    longer: tuple[int, ...] = (5, 6)
    """Smallest and largest count of numbers per expression for extrapolation."""

    numbers: tuple[int, ...] = (-99, 99)
    """Range of the numbers in an expression: smallest, largest."""

    largest_answer: int = 9999
    """Largest absolute value of an answer; expressions with larger values are discarded. The limit
    also holds for extrapolation, which thus differs only in length."""

    questions: tuple[str, ...] = (
        "What is {expression}?",
        "Calculate {expression}.",
        "Evaluate {expression}.",
        "What is the value of {expression}?",
    )
    """Question templates; ``{expression}`` is replaced by the expression."""

    def __post_init__(self) -> None:
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

    def describe(self) -> str:
        """Describe the questions, for a report."""
        counts = dict(zip(CATEGORIES, (self.terms, self.longer), strict=True))
        terms = " or ".join(
            f"{low} numbers" if low == high else f"{low} to {high} numbers"
            for low, high in map(counts.__getitem__, self.categories)
        )
        return (
            f"expressions of {terms}, {self.numbers[0]} to {self.numbers[1]}, with "
            f"{' '.join(self.operators)} and brackets"
        )

    def draw(self, rng: random.Random, *, longer: bool) -> tuple[str, int]:
        """Return a random question (longer than in training if ``longer``) and its answer."""
        bounds = self.longer if longer else self.terms
        for _ in range(_TRIES):
            found = _expression(rng, rng.randint(*bounds), self.operators, self.numbers)
            if abs(found.value) <= self.largest_answer:
                return rng.choice(self.questions).replace("{expression}", found.text), found.value
        raise ValueError(
            f"largest_answer: no expression of {bounds[0]} to {bounds[1]} numbers within "
            f"{self.largest_answer} in {_TRIES} tries; raise it, or lower numbers."
        )


class _Expression(NamedTuple):
    text: str
    value: int
    operator: str
    """The outermost operator; empty for a single number."""


def _expression(
    rng: random.Random, count: int, operators: str, numbers: tuple[int, ...]
) -> _Expression:
    """Return a random expression with ``count`` numbers, built recursively from shorter ones."""
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
    after = f"({right.text})" if right.operator in ("+", "-") else right.text
    before = f"({left.text})" if left.operator and rng.random() < 0.5 else left.text
    value = left.value + right.value if operator == "+" else left.value - right.value
    return _Expression(f"{before} {operator} {after}", value, operator)


@dataclass(frozen=True, kw_only=True)
class Multiplication(Sums):
    """Products of two numbers: rows of the task ``arithmetic``.

    The questions are worded as in the NTL paper (arXiv 2411.02083), which follows "Faith and Fate"
    (arXiv 2305.18654).
    """

    name: str = "multiplication"

    digits: int = 5
    """Maximum number of digits of each factor in training and interpolation. In extrapolation, one
    factor has ``digits + 1`` digits, the other factor 1 to ``digits + 1``."""

    question: str = "What is {a} times {b}?"
    """Question template; ``{a}`` and ``{b}`` are replaced by the factors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.digits <= 100:
            raise ValueError(f"digits is 1 to 100, not {self.digits}")
        if not ("{a}" in self.question and "{b}" in self.question):
            raise ValueError(f"question needs {{a}} and {{b}} in it, not {self.question!r:.60}")

    def describe(self) -> str:
        """Describe the questions, for a report."""
        factors = {
            "interpolation": f"two factors of 1 to {self.digits} digits",
            "extrapolation": f"two factors, one of {self.digits + 1} digits",
        }
        return " or ".join(map(factors.__getitem__, self.categories))

    def draw(self, rng: random.Random, *, longer: bool) -> tuple[str, int]:
        """Return a random question (longer than in training if ``longer``) and its answer."""
        lengths = [rng.randint(1, self.digits), rng.randint(1, self.digits)]
        if longer:
            lengths = [self.digits + 1, rng.randint(1, self.digits + 1)]
            rng.shuffle(lengths)
        a, b = (rng.randrange(10 ** (n - 1), 10**n) for n in lengths)
        return self.question.replace("{a}", str(a)).replace("{b}", str(b)), a * b
