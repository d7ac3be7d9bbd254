"""Draw an image and a box as each model family resizes it, with the coordinates that it writes.

`python scripts/docs_tables.py` writes the figure to docs/images/frames.svg.
"""

from svg import image, words

from mm_numeric.answers import Box, Instance
from mm_numeric.geometry.frame_presets import FAMILY_RESIZES, FrameRule
from mm_numeric.io.markup import element

SIZE_PX = (640, 480)
BOX = (50, 100, 320, 350)
HOW = {
    "squash": "squashed to a square",
    "letterbox": "padded to a square",
    "smart": "multiples of {}",
}
COLUMNS = 2
PANEL = (360, 236)
SIDE = 170
SCENE = (  # x, y, width, height and colour of rectangles, in pixels of the original image
    (0, 0, 640, 300, "#cfe3f5"),
    (0, 300, 640, 180, "#8f959c"),
    (110, 105, 150, 110, "#b3261e"),
    (52, 190, 266, 115, "#d8453a"),
    (85, 275, 60, 72, "#26282b"),
    (225, 275, 60, 72, "#26282b"),
    (430, 60, 120, 240, "#5f8f5a"),
)


def draw_frames() -> str:
    """Return the figure as SVG: a panel for each family with images."""
    rows = -(-len(FAMILY_RESIZES) // COLUMNS)
    title = f"The box {list(BOX)} of an image of {SIZE_PX[0]} x {SIZE_PX[1]} pixels"
    parts = [words(20, 28, title, "title")]
    for i, family in enumerate(FAMILY_RESIZES):
        x, y = 20 + i % COLUMNS * PANEL[0], 48 + i // COLUMNS * PANEL[1]
        parts.append(f'<g transform="translate({x} {y})">{_panel(family)}</g>')
    return image(20 + COLUMNS * PANEL[0], 48 + rows * PANEL[1], title, parts)


def _panel(family: str) -> str:
    rule = FrameRule.of_family(family)
    frame = rule.frame(*SIZE_PX)
    view, resize = frame.view, rule.resize
    zoom = SIDE / max(view.width_px, view.height_px)
    inside = " ".join(
        (
            f"scale({zoom:.5f})",
            f"translate({view.offset_x_px:.3f} {view.offset_y_px:.3f})",
            f"scale({view.scale_x:.5f} {view.scale_y:.5f})",
        )
    )
    scene = "".join(
        str(element("rect", x=x, y=y, width=w, height=h, fill=fill)) for x, y, w, h, fill in SCENE
    )
    x1, y1, x2, y2 = BOX
    box = element("rect", x=x1, y=y1, width=x2 - x1, height=y2 - y1, fill="none",
                  stroke="#0a62a9", stroke_width=3, vector_effect="non-scaling-stroke")  # fmt: skip
    width, height = round(view.width_px * zoom, 1), round(view.height_px * zoom, 1)
    padded = element("rect", x=0, y=0, width=width, height=height, fill="#e9e7e1", stroke="#59626f")
    size = f"{view.width_px} x {view.height_px}: {HOW[resize.kind].format(resize.factor)}"
    written = frame.write([Instance(Box(*BOX), "red car")]).text
    lines = [written[at : at + 54] for at in range(0, len(written), 54)]
    return "".join(
        [
            words(0, 12, family, "name"),
            words(110, 12, size),
            f'<g transform="translate(0 22)">{padded}<g transform="{inside}">{scene}{box}</g></g>',
            *(words(0, round(40 + height) + 16 * i, line) for i, line in enumerate(lines)),
        ]
    )
