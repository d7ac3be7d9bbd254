"""Task: multiply two numbers of up to ``digits`` digits, as in the NTL paper (arXiv 2411.02083).

The questions are worded as in the paper, which follows "Faith and Fate" (arXiv 2305.18654).

Rows     {"id": text, "question": "What is 12 times 345?", "answer": "4140",
          "category": "interpolation" or "extrapolation"}
Scorer   mm_numeric.evaluation.metrics.number_errors
"""

import random
from dataclasses import dataclass

from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.tasks.numbers import GeneratedNumbers


@dataclass(frozen=True, kw_only=True)
class Multiplication(GeneratedNumbers):
    """Task: multiply two numbers. Extrapolation questions have more digits than in training."""

    digits: int = 5
    """Maximum number of digits of each factor in training and interpolation. In extrapolation one
    factor has ``digits + 1`` digits, the other 1 to ``digits + 1``."""

    question: str = "What is {a} times {b}?"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.digits <= 100:
            raise ValueError(f"digits is 1 to 100, not {self.digits}")
        if "{a}" not in self.question or "{b}" not in self.question:
            raise ValueError(f"question needs {{a}} and {{b}} in it, not {self.question!r:.60}")

    def describe(self) -> str:
        """Describe the training and test questions in a sentence, for a report."""
        return (
            f"Trained on factors of 1 to {self.digits} digits; interpolation tests the same, "
            f"extrapolation one factor of {self.digits + 1}."
        )

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the products of two numbers of ``digits + 1`` digits."""
        return number_regex(0, (10 ** (self.digits + 1) - 1) ** 2)

    def draw(self, rng: random.Random, *, longer: bool) -> tuple[str, int]:
        """Return a random question (longer than in training if ``longer``) and its answer."""
        lengths = [rng.randint(1, self.digits), rng.randint(1, self.digits)]
        if longer:
            lengths = [self.digits + 1, rng.randint(1, self.digits + 1)]
            rng.shuffle(lengths)
        a, b = (rng.randrange(10 ** (n - 1), 10**n) for n in lengths)
        return self.question.replace("{a}", str(a)).replace("{b}", str(b)), a * b
