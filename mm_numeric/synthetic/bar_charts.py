"""Generate images of bar charts, each with a question about one value or one year.

75 % of the questions ask for the value of a bar, the others for the year of the highest bar.
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.synthetic.drawing import with_noise
from mm_numeric.synthetic.generator import Drawing, SizedImages

_COLOURS = ((38, 84, 210), (214, 40, 40), (42, 157, 70), (140, 60, 180), (230, 130, 20))
_FIRST_YEAR = 2011
_GREY, _BLACK = (200, 200, 200), (20, 20, 20)


@dataclass(frozen=True, kw_only=True)
class Charts(SizedImages):
    """Bar charts, each with a question: rows of the task ``approximate_numbers``."""

    version: ClassVar[int] = 2  # 2: tolerance of years

    name: str = "charts"
    width_px: int = 168

    least: int = 3
    """Minimum number of bars."""

    most: int = 5
    """Maximum number of bars."""

    highest: int = 100
    """Highest value of a bar, and the end of the axis; values are whole numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.least <= self.most <= 8 or self.highest < 20:
            raise ValueError(
                "2 <= least <= most <= 8 and highest is at least 20, not "
                f"{self.least}, {self.most} and {self.highest}"
            )

    def draw(self, rng: random.Random) -> Drawing:
        """Return a chart, and the question about it with its answer."""
        lowest = self.highest // 20  # 5 % of a smaller value would be less than a pixel
        values = rng.sample(
            range(lowest, self.highest + 1), rng.randint(self.least, self.most)
        )  # all different, so that one is the highest
        bar = rng.randrange(len(values))
        row: dict[str, object] = {
            "question": f"What is the value in {_FIRST_YEAR + bar}?",
            "answer": values[bar],
        }
        if rng.random() < 0.25:
            answer = _FIRST_YEAR + values.index(max(values))
            row = {
                "question": "Which year has the highest value?",
                "answer": answer,
                "tolerance": 0,
            }
        return _draw(values, rng, self), self.sized(row)


def _draw(values: list[int], rng: random.Random, settings: Charts) -> Image.Image:
    """Draw bars with their years below, and an axis with five labelled lines."""
    width, height = settings.size_px
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=min(width, height) / 12)
    left = int(draw.textlength(str(settings.highest), font=font)) + 4
    top, bottom = height // 14, height - height // 8
    for step in range(5):
        y = bottom - (bottom - top) * step / 4
        draw.line((left, y, width, y), fill=_GREY)
        label = f"{settings.highest * step / 4:g}"
        draw.text((left - 2, y), label, fill=_BLACK, font=font, anchor="rm")
    colour, slot = rng.choice(_COLOURS), (width - left) / len(values)
    for i, value in enumerate(values):
        x = left + slot * i
        y = bottom - (bottom - top) * value / settings.highest
        draw.rectangle((x + slot * 0.2, y, x + slot * 0.8, bottom), fill=colour)
        year = str(_FIRST_YEAR + i)
        draw.text((x + slot / 2, bottom + 2), year, fill=_BLACK, font=font, anchor="mt")
    return with_noise(image, settings.image_noise, rng)
