"""Convert the objects in predictions.jsonl to a COCO result file, which pycocotools reads."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mm_numeric.answers import Instance, Polygon
from mm_numeric.geometry.row_shapes import around, read_instances
from mm_numeric.io.files import read_rows, write_text
from mm_numeric.io.log import logger


def write_coco_results(
    predictions: Path, category_ids: Mapping[str, Any], *, asks_each: bool = False
) -> Path:
    """Write predictions.coco.json next to predictions.jsonl, and return its path.

    Args:
        predictions: Answers that are lists of objects with confidences.
        category_ids: Maps each label to the id of its category. Objects with other labels or an
            invalid shape, such as a reversed box, are left out, and counted in a warning.
        asks_each: True if there is a question for each image and class (``task.ask: each``).
    """
    results: list[dict[str, Any]] = []
    others = invalid = 0
    for where, row in read_rows(predictions):
        for raw, score in _objects(row, where):
            try:
                (item,) = read_instances({"instances": [raw]}, where).items
            except ValueError:  # as `score` does, which counts it as an invalid detection
                invalid += 1
                continue
            if item.label in category_ids:
                image = _image_id(row["id"], item.label if asks_each else "")
                results.append(_result(item, score, image, category_ids[item.label]))
            else:
                others += 1
    for count, what in (
        (others, "labels that are no class of the task"),
        (invalid, "invalid shapes"),
    ):
        if count:
            logger.warning("%s: %d objects with %s are left out.", predictions, count, what)
    out = predictions.with_name(f"{predictions.stem}.coco.json")
    write_text(out, json.dumps(results) + "\n")
    return out


def _image_id(question: str, label: str) -> int | str:
    """Return the id of the image of a question: a whole number, as in COCO, or a text.

    With ``ask: each`` of the task, the id of a question ends with a point and its class, ``label``.
    """
    name = question.removesuffix(f".{label}") if label else question
    return int(name) if name.isdecimal() and str(int(name)) == name else name


def _objects(row: Mapping[str, Any], where: str) -> Iterator[tuple[Any, float]]:
    parsed, scores = row["parsed"], row.get("scores")
    if parsed is None:  # an answer that cannot be parsed has no objects
        return
    if not isinstance(parsed, list):
        raise ValueError(f"{where}: the answer is no list of objects, which COCO results are.")
    if parsed and (scores is None or len(scores) != len(parsed)):
        raise ValueError(f"{where}: the objects have no confidences, which COCO results need.")
    yield from zip(parsed, scores or (), strict=True)


def _result(item: Instance, score: float, image: int | str, category: Any) -> dict[str, Any]:
    box = around(item.shape)
    numbers = (box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1)
    found = {"image_id": image, "category_id": category, "score": score}
    if isinstance(item.shape, Polygon):
        found["segmentation"] = [[n for point in item.shape.points for n in point]]
    return {**found, "bbox": [round(number, 6) for number in numbers]}
