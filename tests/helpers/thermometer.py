"""The module of a user: a task, a scorer and a report chapter, written outside the package."""

import sys

MODULE = "thermometer_of_a_user"
NAME = f"{MODULE}:Thermometer"

SOURCE = '''
"""Read the temperature off a bar."""

import json
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from mm_numeric.answers import Example, Mark, Number, Unreadable, Written
from mm_numeric.evaluation.report.page import Section, paragraph
from mm_numeric.tasks.base import BaseTask
from mm_numeric.tasks.number_questions import last_number


@dataclass(frozen=True, kw_only=True)
class Thermometer(BaseTask):
    """Images of a bar in, degrees out."""

    version: ClassVar[int] = 3
    reads_by: ClassVar[tuple[str, ...]] = ("highest",)
    categories: ClassVar[tuple[str, ...]] = ("cold", "warm")
    report_sections: ClassVar[tuple[str, ...]] = ("numbers", f"{__name__}:sections")

    prompt: str = "How warm is it?"
    highest: int = 40

    @property
    def render_settings(self):
        return {"highest": self.highest}

    def examples(self, rows, *, training):
        for where, row in rows:
            yield Example(
                id=row["id"], image=row.get("image"), prompt=self.prompt, where=where,
                answer=Number(row["degrees"]), buckets={"category": row["category"]},
            )

    def format(self, answer, frame=None):
        return Written(answer.text, (Mark(0, len(answer.text)),))

    def parse(self, text, frame=None):
        found = last_number(text)
        if isinstance(found, Number) and found.exact > self.highest:
            return Unreadable("above the scale", lenient=found)
        return found

    def record(self, answer):
        return answer.text

    def recorded(self, value):
        return Number(value)

    def describe(self):
        return f"Bars of 0 to {self.highest} degrees."

    def render(self, folder, count, seed, categories=()):
        lines = []
        for i in range(count):
            category = (categories or self.categories)[i % len(categories or self.categories)]
            degrees = (seed + i) % 10 + (30 if category == "warm" else 0)
            Image.new("RGB", (64, 60), (6 * degrees, 0, 0)).save(folder / f"{seed}-{i}.png")
            row = {"id": f"{seed}-{i}", "image": f"{seed}-{i}.png", "degrees": str(degrees)}
            lines.append(json.dumps({**row, "category": category}))
        rows = folder / "rows.jsonl"
        rows.write_text("\\n".join(lines), encoding="utf-8")
        return rows


def sections(folder, marks, scores):
    rows = sum(map(len, scores.values()))
    text = f"{rows} readings of {len(marks)} objectives."
    return [Section(anchor="degrees", title="Degrees", blocks=[paragraph(text)])]
'''


def install(folder, monkeypatch):
    """Write the module into a folder, and put the folder on the path."""
    (folder / f"{MODULE}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
