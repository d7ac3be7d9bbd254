"""Validate your own rows, which are already in the format of a task, and add image sizes.

    {"ref_id": 5044, "image": "1.jpg", "box_xyxy": [285, 23, 424, 146], "sentences": ["a bush"]}
    {"id": "7", "image": "2.jpg", "instances": [{"polygon": [...], "ignore": true}]}
    {"id": "8", "question": "What is 3 + 4?", "answer": 7}

The option ``--task`` names the task that checks each row. Without it, the task is ``detection`` for
a row with ``instances``, ``numbers`` for a row with a question and an answer but no image, and
``grounding`` for any other row. Fields that the task does not read stay in the row unchanged.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from mm_numeric.geometry.row_shapes import read_id, read_image
from mm_numeric.importers.importer import (
    ImageImporter,
    ImportedItem,
    InvalidRowError,
    Option,
    Row,
    image_row,
    invalid_as,
)
from mm_numeric.registry import TASKS
from mm_numeric.tasks.base import task_class

_SHAPES = ("box", "box_xyxy", "box_xywh", "polygon", "rotated_box", "mask", "point")
_OTHER_NAMES = {"file": "image", "img_path": "image", "box_xyxy": "box", "ref_id": "id"}


@dataclass(frozen=True, kw_only=True)
class Rows(ImageImporter):
    """Importer for your own JSON rows: checks that mm-numeric can read them, adds image sizes."""

    task: Annotated[str | None, Option("task that reads the rows", choices=TASKS)] = None

    def items(self, where: str, identity: str, raw: Mapping[str, Any]) -> Iterator[ImportedItem]:
        """Yield an error per invalid instance, and the row with the others."""
        given = raw.get("instances")

        def with_instances(own: list[Any]) -> dict[str, Any]:
            return self.row({**raw, "instances": own}, identity)

        def instance(own: Any) -> dict[str, Any]:
            try:
                return with_instances([own])["instances"][0]
            except InvalidRowError as error:
                why = str(error).removeprefix("instances.0").lstrip(",: ")
                found = InvalidRowError("instance", why)
                if isinstance(own, Mapping):
                    shape = {name: own[name] for name in _SHAPES if name in own}
                    with suppress(InvalidRowError):
                        with_instances([{**shape, "ignore": True}])
                        found.shape = shape
                raise found from error

        try:
            row = self.row(raw, identity)
        except InvalidRowError as error:
            if not isinstance(given, list) or not given:
                raise
            try:
                with_instances([])
            except InvalidRowError:  # not only instances are invalid
                raise error from None
            objects = ((f"instances.{i}", own) for i, own in enumerate(given))
            *errors, valid = image_row(where, {}, objects, instance)
            yield from errors
            assert isinstance(valid, Row)
            row = with_instances(valid.fields["instances"])
        yield Row(where, row)

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
