"""Label Studio's JSON export: percent, rotation, and regions of several results."""

import math

import pytest
from importing import json_file, make_image, outcome

from mm_numeric.geometry.row_shapes import read_polygon
from mm_numeric.importers.label_studio import LabelStudio


def studio(*results, **more):
    annotation = {"result": list(results), "was_cancelled": False}
    image = "http://localhost:8080/data/upload/2/0ab1c2d3-1%20a.jpg"
    return {"id": 12, "data": {"image": image}, "annotations": [annotation], **more}


def result(value, kind="rectanglelabels", **more):
    size = {"original_width": 200, "original_height": 100}
    return {"type": kind, **size, "value": {kind: ["dog"], **value}, **more}


RECTANGLE = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0}


def test_label_studio_has_percent_and_rotation(tmp_path):
    results = [
        result(RECTANGLE),
        result({**RECTANGLE, "rotation": 90}),
        result({"points": [[10, 10], [50, 10], [50, 50]]}, "polygonlabels"),
        result({"format": "rle"}, "brushlabels"),
    ]
    tasks = [
        studio(*results),
        {"id": 13, "data": {"image": "/data/local-files/?d=x/2.jpg"}, "annotations": []},
        {
            **studio(),
            "id": 14,
            "annotations": [{"was_cancelled": True}, *studio()["annotations"] * 2],
        },
    ]
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", tasks))
    assert not done.bad
    box, turned, polygon = done.rows[0]["instances"]
    assert done.rows[0]["image"] == "0ab1c2d3-1 a.jpg"
    assert box == {"box": [20, 20, 80, 60], "label": "dog"}
    assert turned["polygon"] == pytest.approx([20, 20, 20, 80, -20, 80, -20, 20])
    assert polygon["polygon"] == [20, 10, 100, 10, 100, 50]
    assert [row["id"] for row in done.rows] == ["12", "14"]
    assert done.rows[1]["instances"] == []
    assert done.left_out == {
        "tasks without an annotation": 1,
        "further annotations of the same task": 1,
        "results that are neither boxes nor polygons ('brushlabels')": 1,
    }
    make_image(tmp_path / "images" / "1 a.jpg", (200, 100))
    found = outcome(LabelStudio(images=tmp_path / "images"), tmp_path / "a.json")
    assert found.rows[0]["image"] == "1 a.jpg"


def test_label_studio_has_regions_of_the_template_for_ocr(tmp_path):
    """A region has one result for each tag: <Rectangle> or <Polygon>, <Labels>, <TextArea>."""
    box = {name: RECTANGLE[name] for name in ("x", "y", "width", "height")}
    points = {"points": [[10, 10], [50, 10], [50, 50]]}
    results = [
        {**result(own, kind), "id": name}
        for name, own, kinds in (
            ("a", box, ("rectangle", "labels", "textarea")),
            ("b", points, ("polygon", "labels", "textarea")),
            ("c", box, ("rectangle", "textarea")),  # no label was chosen
            ("d", {"start": 0, "end": 5}, ("labels",)),
        )
        for kind in kinds
    ]
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [studio(*results)]))
    assert done.row["instances"] == [
        {"box": [20, 20, 80, 60], "label": "dog"},
        {"polygon": [20, 10, 100, 10, 100, 50], "label": "dog"},
        {"box": [20, 20, 80, 60]},
    ]
    assert done.left_out == {
        "results that are neither boxes nor polygons ('textarea')": 3,
        "results that are neither boxes nor polygons ('labels')": 1,
    }
    local = studio(data={"image": "/data/local-files/?d=x%5C2.jpg"})  # of Windows
    assert outcome(LabelStudio(), json_file(tmp_path / "b.json", [local])).row["image"] == "2.jpg"


def test_the_size_of_an_image_is_that_of_the_first_result_with_one(tmp_path):
    indoor = {"type": "choices", "value": {"choices": ["indoor"]}}
    done = outcome(
        LabelStudio(), json_file(tmp_path / "a.json", [studio(indoor, result(RECTANGLE))])
    )
    assert (done.row["width"], done.row["height"]) == (200, 100)


def test_rotation_turns_clockwise_about_a_corner(tmp_path):
    """A square of 2 x 2 pixels turned by 45 degrees: its right corner goes down."""
    square = result({"x": 50, "y": 50, "width": 1, "height": 2, "rotation": 45})
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [studio(square)]))
    points = read_polygon(done.row["instances"][0]["polygon"], "test").points
    half = math.sqrt(2)
    assert points[1] == pytest.approx((100 + half, 50 + half), abs=1e-5)
    assert points[3] == pytest.approx((100 - half, 50 + half), abs=1e-5)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"image": "1.jpg", "label": []}, 'no list "annotations"; export as JSON, not as JSON-MIN'),
        (studio(data={}), "data.image must be a non-empty text"),
        (studio(result({**RECTANGLE, "x": None})), "None is not a number"),
        (studio(result({**RECTANGLE, "width": 0})), "has no area"),
        (studio(result(RECTANGLE, original_width=None)), "not a size in pixels"),
        (studio(result({**RECTANGLE, "rectanglelabels": []})), "has one label, not []"),
        (studio(3), "result is a list of objects"),
    ],
)
def test_a_bad_task_of_label_studio(tmp_path, raw, why):
    done = outcome(LabelStudio(), json_file(tmp_path / "a.json", [raw]))
    assert why in done.bad[0].why
    assert not done.rows
