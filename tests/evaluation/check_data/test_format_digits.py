"""Digits of the text format, such as the 2 of bbox_2d, are not numbers."""

import json

import pytest
from check_data_runs import config_of
from rectangles import boxes, write_rectangles
from result_files import write_lines

from mm_numeric.answers import Box, Instance, Polygon
from mm_numeric.evaluation.check_data.check import check_data
from mm_numeric.evaluation.check_data.text import report_text
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize


def report_of(folder, coordinates, label="", **changes):
    """Return the report of four images with a labelled box each, in a list of one box."""
    rows = write_rectangles(folder / "rows", 4)
    lines = [
        {
            "id": str(i),
            "image": f"{i}.png",
            "phrase": "box",
            "instances": [{"box": box, "label": label}],
        }
        for i, box in enumerate(boxes(4))
    ]
    write_lines(rows, lines)
    model = {"name": "tiny", "dtype": "float32", "coordinates": coordinates}
    return check_data(config_of(folder, rows, task="detection", model=model, **changes))


@pytest.mark.parametrize("coordinates", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_the_2_of_bbox_2d_is_not_an_unmarked_digit(tmp_path, coordinates):
    report = report_of(tmp_path, coordinates)
    assert '_2d": [' in report.sources[0].examples[0].written.text
    assert [source.unmarked_digits for source in report.sources] == [0, 0]
    assert "in no marked number" not in report_text(report)


def test_the_digits_of_a_label_are_counted(tmp_path):
    report = report_of(tmp_path, "qwen3_vl", label="route 66")
    assert report.sources[0].unmarked_digits == 2 * 4
    assert "16 digits of answers are in no marked number" in report_text(report)


def test_numbers_from_text_leave_the_digits_of_the_format_out(tmp_path):
    objective = {"preset": "emd", "numbers_from": "text"}
    report = report_of(tmp_path, "qwen3_vl", label="route 66", objective=objective)
    example = report.sources[0].examples[0]
    coordinates = json.loads(example.written.text)[0]["bbox_2d"]
    assert [number.value for number in example.numbers] == [*coordinates, 66]


def test_the_format_digits_of_polygons_and_boxes_are_found():
    frame = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["qwen3_vl"])
    quad = Polygon(((1.0, 1.0), (9.0, 1.0), (9.0, 9.0)))
    written = frame.write([Instance(Box(1, 2, 3, 4), "a 2"), Instance(quad)])
    found = [written.text[i - 1 : i + 2] for i in sorted(written.format_digits)]
    assert found == ["_2d", "_2d"]
