"""Task: count the objects in an image.

Rows     {"id": text, "image": path, "question": text, "answer": whole number}; optionally
         "category" (such as simple), for which metrics are reported separately
         "label": text may replace "question", as in PixMo-Count: what to count, such as ``dogs``
         "count" (PixMo-Count) or "number" (CountBench) may replace "answer"
Answer   the count, such as ``12``
Scorer   mm_numeric.evaluation.metrics.number_errors
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mm_numeric.answers import Example, Number
from mm_numeric.geometry.frames import Frame
from mm_numeric.geometry.grammar import number_regex
from mm_numeric.geometry.row_shapes import is_text, read_id, read_image
from mm_numeric.tasks.base import Rows
from mm_numeric.tasks.numbers import Numbers
from mm_numeric.tasks.rendering.scenes import COUNTED, SceneStyle, render_scenes

HIGHEST = 9999
"""Largest count."""


@dataclass(frozen=True, kw_only=True)
class Counting(Numbers):
    """Task: count objects in an image."""

    label_question: str = "How many {label} are there?"
    """Question for a row with a label instead of a question; ``{label}`` is replaced by it."""

    scene: SceneStyle = field(default_factory=lambda: SceneStyle(most=6))
    """Options for rendered scenes."""

    counted: tuple[str, ...] = COUNTED
    """What questions about rendered scenes count: some of circles, squares, triangles, shapes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{label}" not in self.label_question:
            raise ValueError(f"label_question needs {{label}} in it, not {self.label_question!r}")
        if not self.counted or set(self.counted) - set(COUNTED):
            raise ValueError(f"counted are some of {', '.join(COUNTED)}, not {self.counted}")

    def examples(self, rows: Rows, *, training: bool) -> Iterator[Example]:
        """Yield one example per row, which has an image, in training and in evaluation alike."""
        for where, row in rows:
            image, size_px = read_image(row, where)
            asked, label = row.get("question"), row.get("label")
            if not is_text(asked):
                if not is_text(label):
                    raise ValueError(f'{where}: no question; each row needs "question" or "label".')
                asked = self.label_question.replace("{label}", str(label))
            yield Example(
                id=read_id(row, ("id",), image),
                image=image,
                prompt=self.prompt.replace("{question}", str(asked)),
                answer=self.read_target(row, where),
                where=where,
                size_px=size_px,
                buckets={name: str(row[name]) for name in self.bucket_fields if row.get(name)},
            )

    def read_target(self, row: Mapping[str, Any], where: str) -> Number:
        """Return the count of a row from the field ``answer``, ``count`` or ``number``."""
        found = (row[name] for name in ("answer", "count", "number") if row.get(name) is not None)
        return self.read_answer(next(found, None), where)

    def read_answer(self, value: Any, where: str) -> Number:
        """Read a count; it must be a whole number from 0 to 9999."""
        answer = super().read_answer(value, where)
        if answer.exact.denominator != 1 or not 0 <= answer.exact <= HIGHEST:
            raise ValueError(f"{where}: a count is a whole number, 0 to {HIGHEST}, not {value}.")
        return Number(str(int(answer.exact)))

    def grammar(self, frame: Frame | None = None) -> str:
        """Return a regular expression of the whole numbers from 0 to 9999."""
        return number_regex(0, HIGHEST)

    @property
    def scorer(self) -> str:
        """Return the import path of the scorer of counts."""
        return "mm_numeric.evaluation.metrics.number_errors:COUNTS"

    @property
    def render_settings(self) -> dict[str, Any]:
        """Return the options that affect the generated images and rows."""
        return {**asdict(self.scene), "counted": self.counted}

    def render(self, folder: Path, count: int, seed: int, categories: Sequence[str] = ()) -> Path:
        """Generate images of coloured shapes; return the path of the file with their rows."""
        return render_scenes(folder, count, seed, self.scene, rows="count", counted=self.counted)
