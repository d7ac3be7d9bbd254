"""LabelMe: shapes, and groups of them."""

import pytest
from importing import json_file, outcome

from mm_numeric.importers.labelme import LabelMe


def labelme(*shapes, **more):
    return {"imagePath": "..\\images\\1.jpg", "imageWidth": 640, "imageHeight": 480,
            "shapes": list(shapes), **more}  # fmt: skip


def shape(kind, points, label="dog"):
    return {"label": label, "shape_type": kind, "points": points, "flags": {}}


def test_labelme_has_rectangles_polygons_and_circles(tmp_path):
    raw = labelme(
        shape("rectangle", [[110, 90], [10, 20]]),
        shape("polygon", [[1, 2], [3, 4], [5, 9.5]], "cat"),
        shape("circle", [[100, 100], [103, 104]], "ball"),
        shape("line", [[1, 2], [3, 4]]),
    )
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert done.row == {
        "id": "1", "image": "1.jpg", "width": 640, "height": 480,
        "instances": [
            {"box": [10, 20, 110, 90], "label": "dog"},
            {"polygon": [1, 2, 3, 4, 5, 9.5], "label": "cat"},
            {"box": [95, 95, 105, 105], "label": "ball"},
        ],
    }  # fmt: skip
    assert done.left_out == {"shapes without an area ('line')": 1}


def test_shapes_of_labelme_with_one_group_are_one_object(tmp_path):
    """Such as a dog after a tree; another label or no group is another object."""
    parts = (
        shape("polygon", [[20, 10], [30, 10], [30, 20]]),
        shape("rectangle", [[1, 5], [4, 9]]),
        shape("polygon", [[50, 10], [60, 10], [60, 25]]),
    )
    cat = shape("rectangle", [[1, 2], [3, 4]], "cat")
    grouped = [{**own, "group_id": 1} for own in (*parts, cat)]
    raw = labelme(*grouped, {**parts[1], "group_id": 2}, {**parts[1], "group_id": None}, parts[1])
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert done.row["instances"] == [
        {"box": [1, 5, 60, 25], "label": "dog"},
        {"box": [1, 2, 3, 4], "label": "cat"},
        *[{"box": [1, 5, 4, 9], "label": "dog"}] * 3,
    ]
    assert done.left_out == {"further shapes of an object (group_id)": 2}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ([], 'not a file of LabelMe: there is no list "shapes"'),
        (labelme(imagePath=None), "imagePath must be a non-empty text"),
        (labelme(shape("rectangle", [[1, 2]])), "a rectangle has two points, not 1"),
        (labelme(shape("polygon", [[1, 2], [3, 4]])), "at least three points"),
        (labelme(shape("polygon", "no")), "points is a list"),
        (labelme(shape("rectangle", [[1, 2], [1, 9]])), "has no area"),
        (labelme(shape("rectangle", [[1, 2], [3, "x"]])), "'x' is not a number"),
        (labelme(7), "expected an object, found 7"),
    ],
)
def test_a_bad_file_of_labelme(tmp_path, raw, why):
    done = outcome(LabelMe(), json_file(tmp_path / "1.json", raw))
    assert why in done.why
    assert not done.rows
