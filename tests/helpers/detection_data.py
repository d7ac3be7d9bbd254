"""A COCO file of helmets and vests, drawn as red and blue squares, with its images."""

import json
from pathlib import Path

from PIL import Image

CLASSES = {"helmet": "red", "vest": "blue"}


def draw_coco(folder: Path, split: str, count: int) -> None:
    """Write ``instances_SPLIT.json`` and the folder SPLIT; every third image has no object."""
    (folder / split).mkdir()
    images, boxes = [], []
    for i in range(count):
        image = Image.new("RGB", (112, 84), "white")
        image.paste("gray", (0, 80, 112, 84))
        for k, color in enumerate(list(CLASSES.values())[: i % 3]):
            x, y = 10 + i + 50 * k, 20 + 9 * k
            image.paste(color, (x, y, x + 40, y + 40))
            box = {"image_id": i, "category_id": k, "bbox": [x, y, 40, 40], "area": 1600}
            boxes.append({"id": len(boxes) + 1, "iscrowd": 0, **box})
        image.save(folder / split / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 112, "height": 84})
    names = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    data = {"images": images, "annotations": boxes, "categories": names}
    (folder / f"instances_{split}.json").write_text(json.dumps(data), encoding="utf-8")
