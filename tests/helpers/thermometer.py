"""The module of a user: a task, a generator and a report chapter, outside the package."""

import sys

MODULE = "thermometer_of_a_user"
NAME = f"{MODULE}:Thermometer"
BARS = f"{MODULE}:Bars"

SOURCE = '''
"""Read the temperature off a bar."""

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from mm_numeric.answers import Example, Mark, Number, Unreadable, Written
from mm_numeric.evaluation.report.page import Section, paragraph
from mm_numeric.synthetic.generator import ImageGenerator
from mm_numeric.tasks.base import BaseTask
from mm_numeric.tasks.number_questions import last_number


@dataclass(frozen=True, kw_only=True)
class Thermometer(BaseTask):
    """Images of a bar in, degrees out."""

    version: ClassVar[int] = 3
    reads_by: ClassVar[tuple[str, ...]] = ("highest",)
    report_sections: ClassVar[tuple[str, ...]] = ("numbers", f"{__name__}:sections")

    prompt: str = "How warm is it?"
    highest: int = 40

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


@dataclass(frozen=True, kw_only=True)
class Bars(ImageGenerator):
    """Bars whose height is a temperature, cold and warm ones by turns."""

    name: str = f"{__name__}:Bars"

    def drawings(self):
        for i in range(self.rows):
            category = ("cold", "warm")[i % 2]
            degrees = (self.seed + i) % 10 + (30 if category == "warm" else 0)
            image = Image.new("RGB", (64, 60), (6 * degrees, 0, 0))
            yield image, {"degrees": str(degrees), "category": category}


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
