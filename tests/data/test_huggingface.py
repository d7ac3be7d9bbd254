"""Objects of data sets on the hub become instances."""

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image

from mm_numeric.answers import Box, Instance
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import examples_and_errors, load_examples, rows_of
from mm_numeric.data.huggingface import with_instances
from mm_numeric.geometry.row_shapes import around
from mm_numeric.tasks.detection import Detection


def hub_folder(folder, objects, feature):
    """Save a data set with the column ``objects``, as on the hub; return its folder."""
    images = [Image.new("RGB", (100, 80), (i, 0, 0)) for i in range(len(objects))]
    columns = {"image_id": list(range(len(objects))), "image": images, "objects": objects}
    features = Features({"image_id": Value("int64"), "image": ImageFeature(), "objects": feature})
    Dataset.from_dict(columns, features=features).save_to_disk(folder)
    return DataSource(dataset=str(folder))


FIELDS = {
    "id": Value("int64"),
    "bbox": List(Value("float32"), length=4),
    "category": ClassLabel(names=["Coverall", "Mask"]),
}
CPPE5 = [
    {"id": [1, 2], "bbox": [[10.0, 20.0, 30.0, 40.0], [0.0, 0.0, 5.0, 6.0]], "category": [1, 0]},
    {"id": [], "bbox": [], "category": []},
]


@pytest.mark.slow
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_objects_of_a_hub_data_set_are_instances(tmp_path, lists, stream):
    """cppe-5 has lists of the same length; others have a list with a mapping for each object."""
    feature, objects = {key: List(kind) for key, kind in FIELDS.items()}, CPPE5
    if not lists:
        feature = List(FIELDS)
        objects = [[dict(zip(row, own, strict=True)) for own in zip(*row.values(), strict=True)]
                   for row in CPPE5]  # fmt: skip
    source = hub_folder(tmp_path / "hub", objects, feature)
    rows = [row.row for row in rows_of(source, None, tmp_path, stream=stream)]
    assert rows[0]["instances"] == [
        {"box": [10, 20, 40, 60], "label": "Mask"},
        {"box": [0, 0, 5, 6], "label": "Coverall"},
    ]
    assert rows[1]["instances"] == []
    found = load_examples(Detection(classes=("Mask", "Coverall")), source, tmp_path, training=True)
    assert around(found[0].answer.items[0].shape) == Box(10, 20, 40, 60)
    assert found[1].image is not None


def test_a_number_is_named_by_the_classes_of_its_own_field():
    """An object may have two numbers, of which one field has the names."""
    names = ("label", ["Coverall", "Mask"])
    objects = [
        {"bbox": [0, 0, 5, 6], "category": 0, "label": 1},
        {"bbox": [0, 0, 5, 6], "category": 17, "label": None},
        {"bbox": [0, 0, 5, 6], "category": "glove", "label": 1},
    ]
    row = with_instances({"objects": objects}, names, "row 0", xywh=True)
    assert [own["label"] for own in row["instances"]] == ["Mask", "17", "glove"]


def test_bad_objects_and_boxes_by_corners(tmp_path):
    feature = {"bbox": List(List(Value("float32"))), "category": List(Value("string"))}
    objects = [
        {"bbox": [[10.0, 20.0, 30.0, 40.0]], "category": ["mask"]},
        {"bbox": [[1.0, 2.0, 3.0]], "category": ["mask"]},
        {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": []},
    ]
    folder = hub_folder(tmp_path / "hub", objects, feature).dataset
    source = DataSource(dataset=folder, boxes="xyxy")
    (first, none), (_, three), (_, lengths) = examples_and_errors(
        Detection(), source, tmp_path, training=True
    )
    assert none is None
    assert first.answer.items == (Instance(Box(10, 20, 30, 40), "mask"),)
    assert "a box is [x1, y1, x2, y2], not 3 numbers" in str(three)
    assert "its lists have different lengths (bbox 1, category 0)" in str(lengths)
    with pytest.raises(ValueError, match="boxes require dataset"):
        DataSource(path="a.jsonl", boxes="xyxy")
    with pytest.raises(ValueError, match="boxes"):
        DataSource(dataset="a", boxes="corners")
