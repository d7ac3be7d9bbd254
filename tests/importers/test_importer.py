"""Importers reject a row whose box has a number that is not finite, and name the row.

JSON of Python's writers holds NaN and Infinity, and a text of 400 digits becomes infinity. Objects
of an image are in ``test_invalid_objects.py``.
"""

import math
import pickle

import pytest
from importing import json_file, outcome

from mm_numeric.importers.llava import LlavaImporter
from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.refcoco import RefCoco

HUGE = "9" * 400
IMAGE = {"id": 1, "file_name": "1.jpg", "width": 640, "height": 480}
VALUES = [math.nan, math.inf, -math.inf, 10**400]


def coco(folder, bbox):
    annotation = {"id": 1, "image_id": 1, "category_id": 3, "bbox": bbox}
    return {
        "images": [IMAGE],
        "categories": [{"id": 3, "name": "car"}],
        "annotations": [annotation],
    }


def in_json(importer, row):
    """Return a function that imports one row, which ``row`` makes of a box with a bad number."""
    return lambda folder, box: outcome(importer, json_file(folder / "a.json", row(folder, box)))


def refcoco(folder, box):
    names = {"ref_id": 1, "ann_id": 1, "image_id": 1, "split": "val", "sentences": [{"sent": "a"}]}
    (folder / "refs(unc).p").write_bytes(pickle.dumps([names]))
    json_file(folder / "instances.json", coco(folder, box))
    return outcome(RefCoco(split="val", split_by="unc"), folder)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(refcoco, id="refcoco"),
        *(
            pytest.param(
                in_json(Rows(), lambda _, box, name=name: [
                    {"id": "1", "image": "1.jpg", "phrase": "a", name: box}
                ]),
                id=f"rows, {name}",
            )
            for name in ("box", "box_xyxy", "box_xywh")
        ),
    ],
)  # fmt: skip
def test_a_number_of_json_that_is_not_finite_is_a_bad_line(tmp_path, read, value):
    done = read(tmp_path, [0, 0, 5, value])
    assert done.rows == []
    (why,) = [line.why for line in done.bad]
    assert f"{value!r:.40} is not a finite number" in why


@pytest.mark.parametrize("before", ["", "[1, 2, 3, 4]; "])
def test_a_coordinate_of_a_conversation_beyond_any_image_is_a_bad_line(tmp_path, before):
    turns = [
        {"from": "human", "value": "<image>\nWhere?"},
        {"from": "gpt", "value": f"{before}[0, 0, 5, {HUGE}]"},
    ]
    path = json_file(tmp_path / "a.json", [{"image": "1.jpg", "conversations": turns}])
    importer = LlavaImporter(coordinates="pixels_original", size="640x480", per="answer")
    done = outcome(importer, path)
    assert done.rows == []
    assert done.why.startswith(f"a coordinate beyond any image: '{before}[0, 0, 5, 999")
