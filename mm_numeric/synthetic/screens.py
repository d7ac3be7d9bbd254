"""Generate images of screens with buttons, each with an instruction that names one button.

A button has a word (``text``: the instruction is the word) or a coloured form (``icon``: the
instruction is, for example, ``the red circle``).
"""

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from mm_numeric.synthetic.drawing import with_noise
from mm_numeric.synthetic.generator import Drawing, SizedImages
from mm_numeric.synthetic.scenes import COLOURS, draw_shape

_WORDS = ("Open", "Save", "Copy", "Paste", "Undo", "Help", "Find", "Quit", "Send", "Print")
_COLOURS = ("red", "green", "blue", "purple")
_FORMS = ("circle", "square", "triangle")


@dataclass(frozen=True, kw_only=True)
class Screens(SizedImages):
    """Screens with buttons in a grid, each with an instruction: rows of the task ``click``."""

    name: str = "screens"
    width_px: int = 168

    grid: tuple[int, ...] = (3, 3)
    """Columns and rows of the grid."""

    buttons: int = 5
    """Number of buttons; the other cells of the grid are empty."""

    icons: float = 0.5
    """Probability that a button has an icon instead of a word."""

    absent: float = 0.1
    """Probability that an instruction names a button that is not on the screen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.icons <= 1 and 0 <= self.absent <= 1):
            raise ValueError(f"icons and absent are 0 to 1, not {self.icons} and {self.absent}")
        if len(self.grid) != 2 or not 1 <= self.buttons <= min(math.prod(self.grid), 9):
            raise ValueError(
                "grid is [columns, rows] and buttons is 1 to the number of cells, at most 9, not "
                f"{list(self.grid)} and {self.buttons}"
            )

    def draw(self, rng: random.Random) -> Drawing:
        """Return a screen, and the instruction with the button that it names."""
        icons = [f"the {colour} {form}" for colour in _COLOURS for form in _FORMS]
        kinds = ["icon" if rng.random() < self.icons else "text" for _ in range(self.buttons)]
        names = {"icon": rng.sample(icons, len(icons)), "text": rng.sample(_WORDS, len(_WORDS))}
        buttons = [(kind, names[kind].pop()) for kind in kinds]
        cells = rng.sample(range(math.prod(self.grid)), self.buttons)
        boxes = [_cell_box(cell, rng, self) for cell in cells]
        image = _draw(buttons, boxes, rng, self)
        if rng.random() < self.absent:
            kind = rng.choice(kinds)
            row: dict[str, object] = {"phrase": names[kind].pop(), "instances": []}
        else:
            at = rng.randrange(self.buttons)
            kind = kinds[at]
            row = {"phrase": buttons[at][1], "box": list(boxes[at])}
        return image, self.sized({**row, "ui_type": kind})


def _cell_box(cell: int, rng: random.Random, settings: Screens) -> tuple[int, int, int, int]:
    """Return the edges of a button, in pixels, at a random position within its cell."""
    columns, rows = settings.grid
    row, column = divmod(cell, columns)
    width, height = settings.width_px // columns, settings.height_px // rows
    w, h = round(width * 0.7), round(height * 0.6)
    x = column * width + rng.randint(1, max(1, width - w - 2))
    y = row * height + rng.randint(1, max(1, height - h - 2))
    return x, y, x + w, y + h


def _draw(
    buttons: list[tuple[str, str]],
    boxes: list[tuple[int, int, int, int]],
    rng: random.Random,
    settings: Screens,
) -> Image.Image:
    image = Image.new("RGB", settings.size_px, (225, 228, 232))
    draw = ImageDraw.Draw(image)
    for (kind, name), (x1, y1, x2, y2) in zip(buttons, boxes, strict=True):
        draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill="white", outline=(120, 120, 120))
        middle, side = ((x1 + x2) / 2, (y1 + y2) / 2), min(x2 - x1, y2 - y1) * 0.35
        if kind == "text":
            font = ImageFont.load_default(size=min((y2 - y1) * 0.6, (x2 - x1) * 0.3))
            draw.text(middle, name, fill=(20, 20, 20), font=font, anchor="mm")
            continue
        _, colour, form = name.split()
        edges = middle[0] - side, middle[1] - side, middle[0] + side, middle[1] + side
        draw_shape(draw, form, edges, COLOURS[colour])
    return with_noise(image, settings.image_noise, rng)
