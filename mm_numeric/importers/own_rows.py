"""Validate your own rows, which are already in the format of a task, and add image sizes.

    {"ref_id": 5044, "image": "1.jpg", "box_xyxy": [285, 23, 424, 146], "sentences": ["a bush"]}
    {"id": "7", "image": "2.jpg", "instances": [{"polygon": [...], "ignore": true}]}
    {"id": "8", "question": "What is 3 + 4?", "answer": 7}

The option ``--task`` names the task that checks each row. Without it, the task is ``detection`` for
a row with ``instances``, ``numbers`` for a row with a question and an answer but no image, and
``grounding`` for any other row. Fields that the task does not read stay in the row unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from mm_numeric.geometry.row_shapes import read_id, read_image
from mm_numeric.importers.importer import ImageImporter, Option, invalid_as
from mm_numeric.registry import TASKS
from mm_numeric.tasks.base import task_class

_OTHER_NAMES = {"file": "image", "img_path": "image", "box_xyxy": "box", "ref_id": "id"}


@dataclass(frozen=True, kw_only=True)
class Rows(ImageImporter):
    """Importer for your own JSON rows: checks that mm-numeric can read them, adds image sizes."""

    task: Annotated[str | None, Option("task that reads the rows", choices=TASKS)] = None

    def row(self, raw: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Validate a row, rename its fields (``file`` to ``image``), and add its image size."""
        has_image = any(raw.get(name) for name in ("image", "file", "img_path"))
        guess = "grounding" if raw.get("instances") is None else "detection"
        if {"question", "answer"} <= set(raw) and not has_image:
            guess = "numbers"
        with invalid_as("row", identity):
            task = task_class(self.task or guess, "--task")()
            list(task.examples([(identity, raw)], training=True))
            if not has_image:  # a question without image, or about a video's frames
                return {**raw, "id": str(raw.get("id", identity))}
            image, size_px = read_image(raw, identity)
            own_id = read_id(raw, ("id", "ref_id"), image)
        kept: dict[str, Any] = {}
        for name, value in raw.items():
            current = _OTHER_NAMES.get(name, name)
            if kept.get(current) is None:  # a null "box" does not replace "box_xyxy"
                kept[current] = value
        return {**kept, "id": own_id, **self.folder.fields(str(image), size_px)}
