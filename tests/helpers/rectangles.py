"""Coloured images of dark rectangles and where they are, for a tiny model to learn."""

import json

from PIL import Image, ImageDraw
from tiny_models import tiny_checkpoint

from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import TrainingCollator
from mm_numeric.data.examples import load_examples
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.tasks.grounding import Grounding

COLOURS = ("red", "lime", "blue", "yellow", "cyan", "magenta", "orange", "white")


def boxes(count=8, width=80, height=60):
    """Return boxes that differ in every coordinate, [x1, y1, x2, y2] in pixels."""
    found = []
    for i in range(count):
        x, y = 5 + (i * 23) % (width // 2), 4 + (i * 17) % (height // 2)
        found.append([x, y, x + 16 + 3 * (i % 4), y + 12 + 4 * (i % 3)])
    return found


def write_rectangles(folder, count=8, width=80, height=60):
    """Write ``count`` images and ``rows.jsonl`` into a folder; return the file of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, box in enumerate(boxes(count, width, height)):
        image = Image.new("RGB", (width, height), COLOURS[i % 8])
        ImageDraw.Draw(image).rectangle([*box[:2], box[2] - 1, box[3] - 1], (20, 20, 20))
        image.save(folder / f"{i}.png")
        row = {"id": str(i), "image": f"{i}.png", "phrase": "box", "box": box}
        lines.append(json.dumps(row) + "\n")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(lines), encoding="utf-8")
    return rows


def large(folder, width=400, height=300):
    """Return an example whose image takes many tokens, and a collator for it."""
    rows = write_rectangles(folder, 2, width, height)
    model = ModelConfig(name="tiny", dtype="float32", image_size={"max_pixels": 400 * 300})
    family = Qwen2VL.load(tiny_checkpoint(), model)
    examples = load_examples(Grounding(), DataSource(path=str(rows)), folder, training=True)
    return examples, TrainingCollator(family, Grounding(), family.vocabulary())
