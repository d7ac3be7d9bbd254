"""Low ceilings and shapes outside their images are reported with their likely cause."""

import pytest
from check_data_runs import config_of, kinds
from result_files import write_lines

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.geometry.coordinate_range import CoordinateRange


def check(folder, boxes, size=(640, 480), task="grounding", coordinates="qwen2_vl"):
    width, height = size
    rows = [
        {"id": str(i), "image": "a.png", "phrase": "a", "box": list(box)}
        for i, box in enumerate(boxes)
    ]
    file = write_lines(folder / "rows.jsonl", rows)
    model = {"name": "tiny", "coordinates": coordinates}
    config = config_of(folder, file, task=task, model=model, predict={})
    return check_data(config, size_px=(width, height))


def advice(report, kind):
    (found,) = (p.advice for name, p in report.sources[0].problems.items() if kind in name)
    return found


def test_normalised_boxes_are_not_ready_and_the_reason_is_named(tmp_path):
    report = check(tmp_path, [(0.1, 0.2, 0.4, 0.5), (0.3, 0.1, 0.9, 0.95)])
    del report.sources[0].problems["the image is missing"]
    assert kinds(report) == {"a low ceiling": 1}
    text = report_text(report)
    assert "and parsed, have Acc@0.5 0.00 %; no model can score higher.\n" in text
    assert "    All coordinates are from 0 to 1, whatever the size of the image: they seem to be "\
        "normalised (as in the frame llava), and rows have pixels. Multiply x by width and y by "\
        "height of the image.\n" in text  # fmt: skip
    assert not [note for note in report.notes if "All coordinates" in note]  # not said twice
    assert text.endswith("things to fix")


def test_boxes_of_another_range_or_image_size_are_named(tmp_path):
    many = [(47 * i, 40 * i, 47 * i + 50, 40 * i + 100) for i in range(20)]  # up to 943 and 860
    report = check(tmp_path, many)
    assert "from 0 to 1000, what" in advice(report, "is outside the image")
    assert "x by width / 1000" in advice(report, "is outside the image")
    report = check(tmp_path, many, size=(4000, 3000))
    assert any(n.startswith("train data: All coordinates are from 0 to 1000") for n in report.notes)
    double = [(100 + i, 100 + i, 1260 + i, 930 + i) for i in range(20)]
    clipped = {"name": "grounding", "outside": "clip"}
    report = check(tmp_path, double, task=clipped)
    expected = "shapes extend beyond their image, up to 2.00 times its width and 1.98 times its"
    assert expected in advice(report, "a low ceiling")
    few = [*many[:9], (600, 400, 700, 470)]
    assert advice(check(tmp_path, few), "outside").startswith("Correct the shapes, or clip them")


def test_reversed_boxes_may_have_width_and_height(tmp_path):
    report = check(tmp_path, [(300, 200, 50, 60), (10, 20, 50, 60)])
    assert 'the field is "box_xywh".' in advice(report, "is reversed")


def test_coarse_coordinates_are_the_reason_for_small_shapes(tmp_path):
    small = [(13 * i, 9 * i, 13 * i + 7, 9 * i + 5) for i in range(10)]
    report = check(tmp_path, small, coordinates="unit_2")
    assert advice(report, "a low ceiling").startswith(
        "The median shape is 5 pixels wide or high, and one step of the coordinates is 6.4 pixels"
    )


@pytest.mark.parametrize(
    ("largest", "size_px", "top"),
    [
        ((1.0, 0.4), (640, 480), 1),
        ((1.0, 0.4), (1, 1), None),  # pixels of an image of one pixel
        ((95.0, 99.0), (640, 480), 100),
        ((95.0, 99.0), (100, 100), None),
        ((95.0, 60.0), (640, 480), None),
        ((990.0, 1000.0), (640, 480), 1000),
        ((990.0, 1000.0), (4000, 3000), 1000),
        ((990.0, 1000.0), (1000, 1000), None),
        ((990.0, 1023.0), (640, 480), 1024),
        ((1200.0, 960.0), (640, 480), None),
    ],
)
def test_the_range_of_relative_coordinates_is_found(largest, size_px, top):
    found = CoordinateRange()
    for i in range(1, 21):
        found.add(Box(0, 0, largest[0] * i / 20, largest[1] * i / 20), size_px)
    assert found.relative_to() == top
    few = CoordinateRange()
    few.add(Box(0, 0, *largest), size_px)
    assert few.relative_to() == (top if top == 1 else None)


def test_ignored_shapes_and_other_answers_have_no_range():
    found = CoordinateRange()
    found.add(Instances((Instance(Box(0, 0, 900, 900), ignore=True),)), (100, 100))
    found.add("7", (100, 100))
    assert (found.shapes, found.relative_to(), found.cause(1.0)) == (0, None, "")
    found.add(Polygon(((300, 20),)), (100, 100))
    assert (found.shapes, found.outside, found.shares) == (1, 1, (3.0, 0.2))
