"""Every importer rejects a box or polygon with a number that is not finite, and names the row.

JSON of Python's writers holds NaN and Infinity, and a text of 400 digits becomes infinity.
"""

import math
import pickle

import pytest
from importing import json_file, outcome, text_folder

from mm_numeric.importers.coco import Coco
from mm_numeric.importers.llava import LlavaImporter
from mm_numeric.importers.mmocr import MMOCR
from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.refcoco import RefCoco
from mm_numeric.importers.scene_text import CTW1500, Icdar2015, TotalText

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


def polygon(box):
    """Return a polygon with the numbers of a box, the last of which is bad."""
    return [0, 0, 9, 0, *box[2:]]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(in_json(Coco(), coco), id="coco"),
        pytest.param(refcoco, id="refcoco"),
        pytest.param(
            in_json(MMOCR(), lambda _, box: {"data_list": [
                {"img_path": "1.jpg", "instances": [{"bbox": box, "ignore": 0}]}
            ]}),
            id="mmocr",
        ),
        pytest.param(
            in_json(MMOCR(), lambda _, box: {"data_list": [
                {"img_path": "1.jpg", "instances": [{"polygon": polygon(box), "ignore": 0}]}
            ]}),
            id="mmocr polygon",
        ),
        *(
            pytest.param(
                in_json(Rows(), lambda _, box, name=name: [
                    {"id": "1", "image": "1.jpg", "phrase": "a", name: box}
                ]),
                id=f"rows, {name}",
            )
            for name in ("box", "box_xyxy", "box_xywh")
        ),
        pytest.param(
            in_json(Rows(), lambda _, box: [
                {"id": "1", "image": "1.jpg", "instances": [{"polygon": polygon(box)}]}
            ]),
            id="rows, polygon",
        ),
    ],
)  # fmt: skip
def test_a_number_of_json_that_is_not_finite_is_a_bad_line(tmp_path, read, value):
    done = read(tmp_path, [0, 0, 5, value])
    assert done.rows == []
    (why,) = [line.why for line in done.bad]
    assert f"{value!r:.40} is not a finite number" in why


def test_edges_that_overflow_are_a_bad_line(tmp_path):
    done = in_json(Coco(), coco)(tmp_path, [1e308, 0, 1e308, 5])
    assert done.bad[0].why == "right and bottom edge: inf is not a finite number."


@pytest.mark.parametrize(
    ("importer", "name", "line"),
    [
        (Icdar2015(), "gt_img_1__txt", f"0,0,9,0,9,9,{HUGE},9,word"),
        (CTW1500(), "0001001__txt", f"0,0,9,0,9,{HUGE},####word"),
        (CTW1500(), "1001__txt", ",".join(["0", "0", "9", "9", *["1"] * 27, HUGE])),
        (
            TotalText(),
            "poly_gt_img1__txt",
            f"x: [[1 9 {HUGE} 1]], y: [[1 1 5 5]], ornt: [u'h'], transcriptions: [u'a']",
        ),
    ],
)
def test_a_number_of_a_text_file_that_is_not_finite_is_a_bad_line(tmp_path, importer, name, line):
    done = outcome(importer, text_folder(tmp_path / "gt", **{name: line}))
    assert done.rows == []
    (why,) = [line.why for line in done.bad]
    assert why == "inf is not a finite number."


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
