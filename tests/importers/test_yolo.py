"""YOLO data sets: data.yaml and one file of labels per image."""

import pytest
from importing import make_image, outcome

from mm_numeric.answers import Box, Instance
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.yolo import Yolo
from mm_numeric.tasks.detection import Detection


def yolo_folder(folder, labels, config="train: images/train\nnames: [helmet, vest]\n"):
    """Write a YOLO data set of images of 200 x 100; return its folder."""
    for name, text in labels.items():
        make_image(folder / "images" / "train" / f"{name}.jpg", (200, 100))
        if text is not None:
            file = folder / "labels" / "train" / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    (folder / "data.yaml").write_text(config, encoding="utf-8")
    return folder


LABELS = {"1": "0 0.5 0.5 0.2 0.4\n1 0.1 0.1 0.4 0.1 0.4 0.3\n", "2": "", "3": None}


def test_yolo_has_boxes_polygons_and_images_without_objects(tmp_path):
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, LABELS))
    assert not done.bad
    first = {"image": "images/train/1.jpg", "width": 200, "height": 100}
    assert done.rows[0] == {
        "id": "images/train/1.jpg",
        **first,
        "instances": [
            {"box": [80, 30, 120, 70], "label": "helmet"},
            {"polygon": [20, 10, 80, 10, 80, 30], "label": "vest"},
        ],
    }
    assert [row["instances"] for row in done.rows[1:]] == [[], []]
    files = Yolo(split="train").files([tmp_path / "data.yaml"])
    assert [file.name for file in files] == ["data.yaml", "1.txt", "2.txt"]
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [helmet, vest, boot]\n")
    done = prepare("yolo", Yolo(split="train"), [tmp_path], tmp_path / "rows.jsonl")
    assert done.record["task"] == {"name": "detection", "classes": ["helmet", "vest", "boot"]}
    assert done.record["labels"] == {"helmet": 1, "vest": 1, "boot": 0}
    source = DataSource(path=str(tmp_path / "rows.jsonl"), images=str(tmp_path))
    found = load_examples(Detection(classes=("helmet", "vest")), source, tmp_path, training=True)
    assert found[0].answer.items[1] == Instance(Box(20, 10, 80, 30), "vest")
    assert found[0].prompt == found[2].prompt


def test_lines_of_yolo_that_ultralytics_accepts(tmp_path):
    """Small numbers as %g writes them, rounding beyond the edge, and an object twice."""
    lines = ("0 5e-05 0.1 0.4 0.1 0.4 1.0000001", "1 0.5 0.5 1.000001 1", "1 0.50 0.5 1 1.0")
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, {"1": "\n".join(lines)}))
    assert done.row["instances"] == [
        {"polygon": [0.01, 10, 80, 10, 80, 100], "label": "helmet"},
        {"box": [0, 0, 200, 100], "label": "vest"},
    ]
    assert done.left_out == {"repeated objects": 1}


def test_a_line_of_yolo_may_end_with_a_carriage_return_alone(tmp_path):
    text = "0 0.5 0.5 0.2 0.4\r0 0.5 0.5 0.4 0.4\r0 0.5 0.5 0.6 0.4\r"
    done = outcome(Yolo(split="train"), yolo_folder(tmp_path, {"1": text}))
    assert [list(found) for found in done.row["instances"]] == 3 * [["box", "label"]]


@pytest.mark.parametrize(
    "config",
    [
        "path: .\ntrain: [images/train]\nnames: {0: helmet, 1: vest}\n",
        "train: ../images/train\nval: ../valid/images\nnc: 2\nnames: [helmet, vest]\n",  # Roboflow
        "path: /no/such/folder\ntrain: list.txt\nnames: [helmet, vest]\n",
    ],
)
def test_each_form_of_data_yaml_has_the_same_rows(tmp_path, config):
    expected = outcome(Yolo(split="train"), yolo_folder(tmp_path / "a", LABELS)).rows
    folder = yolo_folder(tmp_path / "b" / "c", LABELS, config)
    lines = "".join(f"./images/train/{name}.jpg\n" for name in LABELS)
    (folder / "list.txt").write_text(lines, encoding="utf-8")
    assert outcome(Yolo(split="train"), folder).rows == expected


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("train: images/train\n", r"data\.yaml: no names \(a list of classes"),
        ("names: [a]\nval: images/train\n", r"no split 'train' \(a folder of images\); it has val"),
        ("names: [a]\ntrain: images/none\n", r"the images of train are missing"),
        ("- a\n", r"data\.yaml: expected settings as"),
        # Four keypoints of x and y are eight more numbers: as many as a polygon may have.
        ("names: [a]\ntrain: images/train\nkpt_shape: [4, 2]\n", r"kpt_shape declares keypoints"),
    ],
)
def test_a_bad_data_yaml_is_one_sentence(tmp_path, config, why):
    folder = yolo_folder(tmp_path, {"1": ""}, config)
    with pytest.raises(ValueError, match=why):
        outcome(Yolo(split="train"), folder)
    with pytest.raises(ValueError, match="there is no such YAML file"):
        outcome(Yolo(split="train"), folder / "images")
