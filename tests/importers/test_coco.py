"""COCO instances: a row an image or a category, and one of each fault."""

import shlex

import pytest
from importing import examples, json_file, make_image, outcome

from mm_numeric.answers import Box
from mm_numeric.cli import prepare as prepare_command
from mm_numeric.config.reader import read_config
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.prepare import prepare

CATEGORIES = [{"id": 1, "name": "dog"}, {"id": 7, "name": "red car"}]


def image(key, **more):
    return {"id": key, "file_name": f"{key}.jpg", "width": 640, "height": 480, **more}


def thing(key, image_id, box, category_id=1, **more):
    return {"id": key, "image_id": image_id, "category_id": category_id, "bbox": box, **more}


def coco(path, images=(), annotations=(), categories=CATEGORIES):
    raw = {"images": images, "annotations": annotations, "categories": categories}
    return json_file(path / "instances.json", {k: list(v) for k, v in raw.items()})


GOOD = (
    [image(3), image(4), image(5)],
    [
        thing(10, 3, [61.87, 276.25, 296.42, 103.18]),
        thing(11, 4, [0, 0, 10, 20]),
        thing(12, 3, [1, 2, 3, 4], 7),
        thing(13, 4, [5, 5, 100, 50], iscrowd=1),
        thing(14, 4, [9, 9, 9, 9], 7),
    ],
)


def test_a_row_an_image(tmp_path):
    done = outcome(Coco(), coco(tmp_path, *GOOD))
    assert done.rows[0] == {
        "id": "3",
        "image": "3.jpg",
        "width": 640,
        "height": 480,
        "instances": [
            {"box": [61.87, 276.25, 358.29, 379.43], "label": "dog"},
            {"box": [1, 2, 4, 6], "label": "red car"},
        ],
    }
    crowd = {"box": [5, 5, 105, 55], "label": "dog", "ignore": True}
    assert done.rows[1]["instances"][1] == crowd
    assert done.rows[2]["instances"] == []
    assert not done.bad


def test_images_of_lvis_have_a_url_alone(tmp_path):
    lvis = image(3, coco_url="http://images.cocodataset.org/val2017/000000000003.jpg")
    del lvis["file_name"]
    path = coco(tmp_path, [lvis, {**lvis, "id": 4, "coco_url": 7}], [thing(10, 3, [1, 2, 3, 4])])
    done = outcome(Coco(), path)
    assert done.row["image"] == "val2017/000000000003.jpg"
    assert "coco_url" in done.why


def test_a_row_a_category_that_stands_once(tmp_path):
    done = outcome(Coco(per="category"), coco(tmp_path, *GOOD))
    assert [(r["id"], r["phrase"], r["box"]) for r in done.rows] == [
        ("3.1", "dog", [61.87, 276.25, 358.29, 379.43]),
        ("3.7", "red car", [1, 2, 4, 6]),
        ("4.7", "red car", [9, 9, 18, 18]),
    ]
    assert done.left_out == {"categories that occur more than once in an image": 1}


def test_a_crowd_alone_is_no_phrase(tmp_path):
    path = coco(tmp_path, [image(3)], [thing(1, 3, [1, 2, 3, 4], iscrowd=1)])
    assert not outcome(Coco(per="category"), path).rows


@pytest.mark.parametrize("per", ["image", "category"])
def test_tasks_read_it(tmp_path, per):
    found = examples(Coco(per=per), [coco(tmp_path, *GOOD)], tmp_path)
    assert len(found) == 3
    if per == "category":
        assert found[1].prompt == "Locate: red car"
        assert found[1].answer == Box(1, 2, 4, 6)
    else:
        assert [i.ignore for i in found[1].answer.items] == [False, True, False]


def test_a_bad_image_is_one_fault(tmp_path):
    path = coco(tmp_path, [image(3, width=0), image(4)], [thing(1, 3, [1, 2, 3, 4])])
    done = outcome(Coco(), path)
    assert done.kinds == ["image"]
    assert done.bad[0].where == f"{path}, image 3"
    assert done.row["id"] == "4"


def test_a_repeated_image(tmp_path):
    done = outcome(Coco(), coco(tmp_path, [image(3), image(3), image(4)]))
    assert done.kinds == ["id"]
    assert done.row["id"] == "4"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"images": [], "annotations": [{', "not valid or not complete JSON"),
        ("", "not valid or not complete JSON"),
        pytest.param("[" * 100_000, "nested too deep", id="many brackets"),
        ("[]", 'there is no list "images"'),
        ('{"images": [], "annotations": {}, "categories": []}', 'no list "annotations"'),
        (b'{"images": "\xe9"}', "not UTF-8"),
    ],
)
def test_an_invalid_file(tmp_path, text, why):
    path = tmp_path / "instances.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=why):
        outcome(Coco(), path)


def test_images_are_compared_with_the_file(tmp_path):
    path = coco(tmp_path, [image(3), image(4), image(5)])
    make_image(tmp_path / "images" / "3.jpg")
    make_image(tmp_path / "images" / "4.jpg", turned=True)
    done = outcome(Coco(images=tmp_path / "images"), path)
    assert done.row["id"] == "3"
    assert "declared size is 640 x 480, but the upright image has 480 x 640" in done.bad[0].why
    assert f"there is no image {tmp_path / 'images' / '5.jpg'}" in done.bad[1].why


def test_the_report_names_the_task_and_the_classes(tmp_path, capsys):
    path, rows = coco(tmp_path, *GOOD), tmp_path / "rows.jsonl"
    prepare_command.run("coco", [str(path), "--out", str(rows)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "objects: 2 dog, 2 red car"  # and a crowd
    start = "settings to train on these rows"
    task = "task.name=detection 'task.classes=[dog, red car]'"
    assert lines[-2] == f"{start}: data.train.path={rows} {task}"
    assert lines[-1] == f"settings to test on these rows: data.test.path={rows}"
    prepare_command.run("coco", [str(path), "--out", str(rows), "--force", "--per", "category"])
    text = f"{start}: data.train.path={rows} task.name=grounding"
    assert capsys.readouterr().out.splitlines()[-2] == text


def test_the_settings_that_are_printed_can_be_copied(tmp_path, capsys):
    """All classes are in them, however many they are, and whatever their names are."""
    names = ["no", "1", "red car", "a, b", "it's", "été", *(f"class {i}" for i in range(60))]
    categories = [{"id": i, "name": name} for i, name in enumerate(names)]
    boxes = [thing(i, 3, [1, 2, 3, 4], i) for i in range(len(names))]
    path, rows = coco(tmp_path, [image(3)], boxes, categories), tmp_path / "my rows.jsonl"
    prepare_command.run("coco", [str(path), "--out", str(rows)])
    *_, train, test = (x.partition(": ")[2] for x in capsys.readouterr().out.splitlines())
    words = shlex.split(train) + shlex.split(test)
    config = read_config("detection_qwen2_5_vl_lora", words)
    assert sorted(config.task.classes) == sorted(names)
    assert config.data.train.path == config.data.test.path == str(rows)


def test_the_classes_are_those_that_the_file_declares(tmp_path, capsys):
    """Also those without objects, so that the files of one data set have the same classes."""
    many = [{"id": i, "name": f"class, {99 - i}"} for i in range(30)]
    path = coco(tmp_path, [image(3)], [thing(1, 3, [1, 2, 3, 4], 7)], many)
    rows = tmp_path / "rows.jsonl"
    prepare_command.run("coco", [str(path), "--out", str(rows)])
    text = capsys.readouterr().out
    assert "objects: 1 class, 92\nclasses without objects: 29 of 30 (class, 99, class, 98, " in text
    *_, train, _ = (line.partition(": ")[2] for line in text.splitlines())
    config = read_config("detection_qwen2_5_vl_lora", shlex.split(train))
    assert list(config.task.classes) == [category["name"] for category in many]
    parent = {"id": 0, "name": "animals", "supercategory": "none"}
    inside = [{**category, "supercategory": "animals"} for category in CATEGORIES]
    path = coco(tmp_path, [image(3)], [thing(1, 3, [1, 2, 3, 4])], [parent, *inside])
    record = prepare("coco", Coco(), [path], rows, force=True).record
    assert record["task"]["classes"] == ["dog", "red car"]
    assert record["labels"] == {"dog": 1, "red car": 0}


def test_a_wrong_folder_of_images_leaves_no_file(tmp_path, capsys):
    """Images of a partial folder get rows, and the others are counted."""
    path, rows = coco(tmp_path, [image(3), image(4), image(5)]), tmp_path / "rows.jsonl"
    words = [str(path), "--out", str(rows), "--images", str(tmp_path / "images")]
    (tmp_path / "images").mkdir()
    assert not prepare_command.run("coco", words)
    assert f"no row could be converted; {rows} is not written." in capsys.readouterr().out
    assert not list(tmp_path.glob("rows*"))
    make_image(tmp_path / "images" / "3.jpg")
    assert prepare_command.run("coco", words)
    assert len(rows.read_text(encoding="utf-8").splitlines()) == 1
    report = capsys.readouterr().out
    start = f"invalid: 2 rows left out\n  2 image (row left out), first at {path}, image 4: "
    assert start in report
    assert report.endswith(f" data.test.images={tmp_path / 'images'}\n")
    with pytest.raises(ValueError, match=r"prepared\.json exists; name another file"):
        prepare_command.run("coco", words)


def test_the_coco_file_of_roboflow_is_read(tmp_path):
    """It has a category for the project, which no object has, and images without objects."""
    raw = {
        "info": {"year": "2024", "url": "https://public.roboflow.com"},
        "licenses": [{"id": 1, "url": "", "name": "CC BY 4.0"}],
        "categories": [
            {"id": 0, "name": "hard-hats", "supercategory": "none"},
            {"id": 1, "name": "helmet", "supercategory": "hard-hats"},
        ],
        "images": [
            {"id": i, "license": 1, "file_name": f"{i}_png.rf.0a.jpg", "height": 416, "width": 416,
             "date_captured": "2024-01-01T00:00:00+00:00", "extra": {"name": "a.png"}}
            for i in range(2)
        ],
        "annotations": [
            {"id": 0, "image_id": 0, "category_id": 1, "bbox": [179, 85, 18, 16.5], "area": 297,
             "segmentation": [], "iscrowd": 0}
        ],
    }  # fmt: skip
    path = json_file(tmp_path / "_annotations.coco.json", raw)
    done = prepare("coco", Coco(), [path], tmp_path / "rows.jsonl")
    assert done.bad == 0
    assert done.record["task"] == {"name": "detection", "classes": ["helmet"]}
    assert done.record["counts"]["rows without instances"] == 1
