"""Multiply two numbers of so many digits each, as the NTL paper does (arXiv 2411.02083).

The question is that of its data, which follow "Faith and Fate" (arXiv 2305.18654).

Rows     {"id": text, "question": "What is 12 times 345?", "answer": "4140",
          "category": "interpolation" or "extrapolation"}
Score    mm_numeric.evaluation.metrics.numbers
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mm_numeric.tasks.numbers import Drawn, Numbers, render_questions


@dataclass(frozen=True, kw_only=True)
class Multiplication(Numbers):
    """Two factors in, their product out; a longer factor to extrapolate."""

    categories: ClassVar[tuple[str, ...]] = ("interpolation", "extrapolation")

    digits: int = 5
    """Factors of 1 to so many digits are trained, each pair of lengths as often as any other, and
    interpolated; in extrapolation one factor has one digit more, the other up to as many."""

    question: str = "What is {a} times {b}?"

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        super().__post_init__()
        if not 1 <= self.digits <= 100:
            raise ValueError(f"digits is 1 to 100, not {self.digits}")
        if "{a}" not in self.question or "{b}" not in self.question:
            raise ValueError(f"question needs {{a}} and {{b}} in it, not {self.question!r:.60}")

    @property
    def render_settings(self) -> dict[str, Any]:
        """What a rendered row depends on, beside the count and the seed."""
        return {name: value for name, value in asdict(self).items() if name != "prompt"}

    def describe(self) -> str:
        """Say in a sentence what is trained and what is tested."""
        return (
            f"Trained on factors of 1 to {self.digits} digits; interpolation tests the same, "
            f"extrapolation one factor of {self.digits + 1}."
        )

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Write rows, and return their file."""
        draws = {
            "interpolation": partial(self._draw, longer=False),
            "extrapolation": partial(self._draw, longer=True),
        }
        return render_questions(folder, count, seed, draws, categories)

    def _draw(self, rng: random.Random, *, longer: bool) -> Drawn:
        """Return a question and its answer."""
        lengths = [rng.randint(1, self.digits), rng.randint(1, self.digits)]
        if longer:
            lengths = [self.digits + 1, rng.randint(1, self.digits + 1)]
            rng.shuffle(lengths)
        a, b = (rng.randrange(10 ** (n - 1), 10**n) for n in lengths)
        return self.question.replace("{a}", str(a)).replace("{b}", str(b)), a * b
