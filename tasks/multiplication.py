"""Multiply two numbers of up to ``digits`` digits, as in the NTL paper (arXiv 2411.02083).

The question is that of the paper's data, which follow "Faith and Fate" (arXiv 2305.18654).

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
    """Multiply two numbers; extrapolation uses a longer factor."""

    categories: ClassVar[tuple[str, ...]] = ("interpolation", "extrapolation")

    digits: int = 5
    """Maximum number of digits of a factor in training and interpolation; all pairs of lengths are
    equally likely. In extrapolation one factor has one digit more, the other up to one more."""

    question: str = "What is {a} times {b}?"

    def __post_init__(self) -> None:
        """Validate the options."""
        super().__post_init__()
        if not 1 <= self.digits <= 100:
            raise ValueError(f"digits is 1 to 100, not {self.digits}")
        if "{a}" not in self.question or "{b}" not in self.question:
            raise ValueError(f"question needs {{a}} and {{b}} in it, not {self.question!r:.60}")

    @property
    def render_settings(self) -> dict[str, Any]:
        """Everything that rendered rows depend on except count, seed and categories."""
        return {name: value for name, value in asdict(self).items() if name != "prompt"}

    def describe(self) -> str:
        """Describe training and test questions in one sentence."""
        return (
            f"Trained on factors of 1 to {self.digits} digits; interpolation tests the same, "
            f"extrapolation one factor of {self.digits + 1}."
        )

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Render questions, and return the file of the rows."""
        draws = {
            "interpolation": partial(self._draw, longer=False),
            "extrapolation": partial(self._draw, longer=True),
        }
        return render_questions(folder, count, seed, draws, categories)

    def _draw(self, rng: random.Random, *, longer: bool) -> Drawn:
        """Draw a question and its answer."""
        lengths = [rng.randint(1, self.digits), rng.randint(1, self.digits)]
        if longer:
            lengths = [self.digits + 1, rng.randint(1, self.digits + 1)]
            rng.shuffle(lengths)
        a, b = (rng.randrange(10 ** (n - 1), 10**n) for n in lengths)
        return self.question.replace("{a}", str(a)).replace("{b}", str(b)), a * b
