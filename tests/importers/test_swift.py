"""ms-swift's rows: placeholders in messages, and boxes in objects."""

import pytest
from importing import examples, json_file, make_image, outcome

from mm_numeric.importers.swift import Swift


def swift_row(user, assistant, ref=(), bbox=(), images=("1.jpg",), **objects):
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    said = {"ref": list(ref), "bbox": list(bbox), **objects}
    return {"messages": turns, "images": list(images), "objects": said}


def swift(tmp_path, *rows, **options):
    return outcome(Swift(**options), json_file(tmp_path / "rows.jsonl", list(rows)))


DOG, WOMAN = [331.5, 61.4, 453.5, 159.8], [10, 20, 30, 40]


def test_each_ref_has_its_box(tmp_path):
    text = "<ref-object><bbox> and <ref-object><bbox> are playing"
    done = swift(tmp_path, swift_row("<image>What?", text, ["a dog", "a woman"], [DOG, WOMAN]))
    assert done.rows == [
        {"id": "rows.1.1", "image": "1.jpg", "phrase": "a dog", "box": DOG},
        {"id": "rows.1.2", "image": "1.jpg", "phrase": "a woman", "box": WOMAN},
    ]
    assert not done.bad


@pytest.mark.parametrize(
    ("user", "assistant", "ref"),
    [
        ("<image>Find the <ref-object>", "<bbox>", ["sheep"]),
        ("<image>Find the <ref-object>", "<ref-object><bbox>", ["any", "sheep"]),
        ("<image>sheep", "<bbox>", []),
    ],
)
def test_whose_a_box_is(tmp_path, user, assistant, ref):
    done = swift(tmp_path, swift_row(user, assistant, ref, [DOG]))
    assert (done.row["phrase"], done.row["box"]) == ("sheep", DOG)


def test_labels_after_boxes_in_json(tmp_path):
    """As in the documentation of ms-swift, for ``QWENVL_BBOX_FORMAT=new``."""
    box = '{"bbox_2d": <bbox>, "label": "<ref-object>"}'
    row = swift_row("<image>What?", f"[{box}, {box}]", ["a dog", "a woman"], [DOG, WOMAN])
    done = swift(tmp_path, row, per="image")
    named = [(instance["label"], instance["box"]) for instance in done.row["instances"]]
    assert named == [("a dog", DOG), ("a woman", WOMAN)]


def test_points(tmp_path):
    row = swift_row("<image>Point", "<bbox><bbox>", [], [[1, 2], [3.5, 4]])
    assert swift(tmp_path, row).row["points"] == [[1, 2], [3.5, 4]]
    points = [{"point": p, "label": "Point"} for p in ([1, 2], [3.5, 4])]
    assert swift(tmp_path, row, per="image").row["instances"] == points


def test_several_boxes_of_a_ref(tmp_path):
    row = swift_row("Find the <ref-object>", "<bbox><bbox>", ["sheep"], [DOG, WOMAN])
    assert "2 boxes for 'sheep'; use --per image" in swift(tmp_path, row).why
    done = swift(tmp_path, row, per="image")
    assert done.row["instances"] == [{"box": b, "label": "sheep"} for b in (DOG, WOMAN)]


def test_boxes_of_several_images(tmp_path):
    more = {"images": ["1.jpg", {"path": "2.jpg"}], "image_id": [1, 0]}
    row = swift_row("x", "<ref-object><bbox><ref-object><bbox>", ["a", "b"], [DOG, WOMAN], **more)
    done = swift(tmp_path, row)
    assert [(r["phrase"], r["image"]) for r in done.rows] == [("a", "2.jpg"), ("b", "1.jpg")]
    done = swift(tmp_path, row, per="image")
    there = [(r["id"], r["image"]) for r in done.rows]
    assert there == [("rows.1.1", "2.jpg"), ("rows.1.0", "1.jpg")]


def test_boxes_of_0_to_1(tmp_path):
    row = swift_row("a", "<bbox>", bbox=[[0, 0.25, 0.5, 1]], bbox_type="norm1")
    assert "its size is unknown" in swift(tmp_path, row).why
    assert swift(tmp_path, row, size="640x480").row["box"] == [0, 120, 320, 480]
    images = make_image(tmp_path / "images" / "1.jpg", (100, 200)).parent
    done = swift(tmp_path, row, images=images)
    assert (done.row["box"], done.row["width"]) == ([0, 50, 50, 200], 100)


def test_what_is_left_out(tmp_path):
    done = swift(
        tmp_path,
        {**swift_row("a", "b"), "objects": None},
        swift_row("a", "b"),
        swift_row("What is at <bbox>?", "<ref-object>", ["sheep"], [DOG]),
    )
    assert done.left_out == {"rows without objects": 2, "boxes in questions": 1}
    assert not done.rows
    assert not done.bad


@pytest.mark.parametrize(
    ("row", "kind", "why"),
    [
        (swift_row("a", "<bbox>", bbox=[DOG, DOG]), "placeholders", "1 <bbox> in the messages, b"),
        (swift_row("a", "<bbox>", ["x"], [DOG]), "placeholders", "0 <ref-object> in the messages"),
        (
            swift_row("<ref-object> <ref-object>", "<bbox><bbox>", ["x", "y"], [DOG, DOG]),
            "placeholders",
            "2 <ref-object> before a <bbox>",
        ),
        (swift_row("a", "<bbox>", bbox=[[615, 226, 9]]), "box", "not 3 numbers"),
        (swift_row("a", "<bbox>", bbox=[[1, 2, 3]]), "box", "not 3 numbers"),
        (swift_row("a", "<bbox>", bbox=[[1, 2, 3, "4"]]), "numbers", "'4' is not a number"),
        (swift_row("a", "<bbox>", bbox=[7]), "numbers", "expected a list of numbers, found 7"),
        (swift_row("a", "<bbox>", bbox=[[9, 2, 3, 4]]), "box", "is reversed"),
        (swift_row("a", "<bbox>", bbox=[DOG], bbox_type="norm1000"), "box", "must be real or norm"),
        (
            swift_row("a", "<bbox>", bbox=[DOG], bbox_type="norm1"),
            "range",
            "not in the range 0 to 1",
        ),
        (swift_row("a", "<bbox>", bbox=[DOG], image_id=[1]), "image", "refers to image 1, but"),
        (swift_row("a", "<bbox>", bbox=[DOG], image_id=1), "objects", "image_id must be a list"),
        (swift_row("a", "<bbox>", bbox=[DOG], images=[]), "image", "refers to image 0, but"),
        (swift_row("a", "<ref-object><bbox>", [7], [DOG]), "text", "a ref must be a non-empty te"),
        (swift_row("<image>", "<bbox>", bbox=[DOG]), "text", "the question must be a non-empty"),
        ({**swift_row("a", "b"), "objects": [7]}, "objects", "objects must be an object, not [7]"),
        ({**swift_row("a", "b"), "objects": {"bbox": {1: 2}}}, "objects", "must be lists"),
        ({"objects": {"bbox": [DOG]}}, "messages", "there is no list"),
    ],
)
def test_a_bad_row_of_swift(tmp_path, row, kind, why):
    done = swift(tmp_path, row, swift_row("a", "<bbox>", bbox=[DOG]))
    assert done.kinds == [kind]
    assert why in done.why
    assert "line 1" in done.bad[0].where
    assert done.row["id"] == "rows.2.1"


def test_the_task_reads_rows_of_swift(tmp_path):
    path = json_file(tmp_path / "a.json", [swift_row("Find <ref-object>", "<bbox>", ["b"], [DOG])])
    (example,) = examples(Swift(), [path], tmp_path)
    assert example.prompt == "Locate: b"


@pytest.mark.parametrize("field", ["messages", "conversations"])
def test_boxes_as_text_name_the_importer_that_reads_them(tmp_path, field):
    text = "<|object_ref_start|>man<|object_ref_end|><|box_start|>(493,169),(539,297)<|box_end|>"
    row = swift_row("<image>Where?", text)
    turns = row.pop("messages")
    done = swift(tmp_path, {**row, field: turns, "objects": None})
    assert "`mm-numeric prepare llava --coordinates qwen2_vl`" in done.bad[0].why
