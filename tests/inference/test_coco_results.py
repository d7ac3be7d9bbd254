"""Predictions as COCO results: pycocotools reads them, and finds what was predicted."""

import json
from types import SimpleNamespace

import pytest
from importing import json_file
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from result_files import write_lines

from mm_numeric.cli.predict import coco_results
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.prepare import prepare
from mm_numeric.inference.coco_results import write_coco_results
from mm_numeric.tasks.detection import Detection


def predicted(objects, identity="7", **more):
    found = [{"box": box, "label": label} for label, box, _ in objects]
    return {"id": identity, "parsed": found, "scores": [s for *_, s in objects], **more}


@pytest.mark.parametrize("ask", ["together", "each"])
def test_pycocotools_finds_the_objects_of_a_prepared_file(tmp_path, ask, logged):
    sparse = {"cat": 17, "dog": 90}  # as in COCO
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 99, "height": 99} for i in (7, 8)]
    boxes = [(7, "cat", [1, 2, 30, 40.5]), (7, "dog", [50, 50, 20, 20]), (8, "dog", [5, 5, 9, 9])]
    annotations = [
        {"id": i, "image_id": image, "category_id": sparse[name], "bbox": box, "iscrowd": 0,
         "area": box[2] * box[3]}
        for i, (image, name, box) in enumerate(boxes, start=1)
    ]  # fmt: skip
    categories = [{"id": own, "name": name} for name, own in sparse.items()]
    raw = {"images": images, "annotations": annotations, "categories": categories}
    truth = json_file(tmp_path / "instances.json", raw)
    rows = tmp_path / "rows.jsonl"
    prepare("coco", Coco(), [truth], rows)
    lines = []
    for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
        objects = [(own["label"], own["box"], 0.75) for own in row["instances"]]
        if ask == "each":
            lines += [predicted([own], f"{row['id']}.{own[0]}") for own in objects]
        else:
            lines.append(predicted([*objects, ("car", [1, 1, 2, 2], 0.5)], row["id"]))
    lines.append({"id": "9", "parsed": None})
    path = write_lines(tmp_path / "predictions.jsonl", lines)
    config = SimpleNamespace(task=Detection(ask=ask, classes=("cat", "dog")))
    out = coco_results(SimpleNamespace(path=path, config=config), str(rows))
    assert out == tmp_path / "predictions.coco.json"
    assert ("2 objects with labels that are no class of the task" in logged.getvalue()) == (
        ask == "together"
    )
    read = COCO(str(truth))
    evaluation = COCOeval(read, read.loadRes(str(out)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)
    first = {"image_id": 7, "category_id": 17, "score": 0.75, "bbox": [1, 2, 30, 40.5]}
    assert json.loads(out.read_text(encoding="utf-8"))[0] == first


def test_classes_are_counted_from_1_and_polygons_are_kept(tmp_path, logged):
    """A reversed box of an answer is left out."""
    rows = [predicted([("dog", [1, 2, 3, 4], 0.5), ("dog", [9, 9, 2, 2], 0.9)], "a/1.jpg")]
    rows[0]["parsed"][0] = {"polygon": [1, 1, 9, 1, 5, 7], "label": "dog"}
    path = write_lines(tmp_path / "p.jsonl", rows)
    config = SimpleNamespace(
        task=Detection(classes=("cat", "dog")),
        data=SimpleNamespace(test=SimpleNamespace(path=None)),
    )
    out = coco_results(SimpleNamespace(path=path, config=config), None)
    assert json.loads(out.read_text(encoding="utf-8")) == [
        {"image_id": "a/1.jpg", "category_id": 2, "score": 0.5, "bbox": [1, 1, 8, 6],
         "segmentation": [[1, 1, 9, 1, 5, 7]]}
    ]  # fmt: skip
    assert "1 objects with invalid shapes are left out" in logged.getvalue()


@pytest.mark.parametrize(
    ("change", "why"),
    [({"scores": None}, "line 1: the objects have no confidences"),
     ({"parsed": {"box": [1, 2, 3, 4]}}, "line 1: the answer is no list of objects")],
)  # fmt: skip
def test_what_is_no_result_is_one_sentence(tmp_path, change, why):
    line = predicted([("cat", [1, 2, 3, 4], 0.5)]) | change
    with pytest.raises(ValueError, match=why):
        write_coco_results(write_lines(tmp_path / "p.jsonl", [line]), {"cat": 1})
