"""Boxes in space: the published answer of Qwen3-VL, write and parse as inverses, rendered boxes."""

import json
import random
import re

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reference_boxes_3d import SIGNS, corners, half_spaces

from mm_numeric.answers import Box3D, Boxes3D, Unreadable
from mm_numeric.tasks.boxes_3d import DetectBoxes3D
from mm_numeric.tasks.rendering.cuboids import CuboidStyle

TASK = DetectBoxes3D()
CARS = Boxes3D(
    (
        Box3D((2.88, 0.56, 6.28, 4.45, 1.7, 1.84, 0.75, 0.49, 0.75), "car"),
        Box3D((2.83, 0.58, 14.78, 4.43, 1.56, 1.77, 0.82, 0.49, 0.82), "car"),
    )
)
CAMERA = {"fx": 500, "fy": 501.5, "cx": 320, "cy": 240}


def examples(task=TASK, **fields):
    row = {"id": "7", "image": "a.png", "instances": TASK.record(CARS), **fields}
    return list(task.examples([("r, line 1", row)], training=True))


def test_the_answer_of_qwens_cookbook_is_read():
    """QwenLM/Qwen3-VL, cookbooks/3d_grounding.ipynb, example 1: the two cars that are printed."""
    text = (
        '```json\n[\n\t{"bbox_3d":[2.88,0.56,6.28,4.45,1.7,1.84,0.75,0.49,0.75],"label":"car"},\n'
        '\t{"bbox_3d":[2.83,0.58,14.78,4.43,1.56,1.77,0.82,0.49,0.82],"label":"car"}\n]\n```'
    )
    assert TASK.parse(text) == CARS
    assert TASK.format(CARS).text == (
        '[{"bbox_3d": [2.88, 0.56, 6.28, 4.45, 1.7, 1.84, 0.75, 0.49, 0.75], "label": "car"}, '
        '{"bbox_3d": [2.83, 0.58, 14.78, 4.43, 1.56, 1.77, 0.82, 0.49, 0.82], "label": "car"}]'
    )


def test_numeric_losses_see_signed_decimals_and_no_digit_of_the_format():
    box = Box3D((-0.349, -0.001, 12, 0.001, 1.7, 1.84, -1, 0.5, 0), "3D 7")
    text, marks, format_digits = TASK.format(Boxes3D((box,)))
    numbers = [text[mark.start : mark.end] for mark in marks]
    assert numbers == ["-0.35", "0.0", "12.0", "0.01", "1.7", "1.84", "-1.0", "0.5", "0.0"]
    assert {(mark.role, mark.group) for mark in marks} == {("free", -1)}
    assert [text[i - 5 : i + 2] for i in format_digits] == ["bbox_3d"]


coordinates = st.floats(-99_999, 99_999)
boxes = st.builds(
    lambda centre, sizes, turns, label: Box3D((*centre, *sizes, *turns), label),
    st.tuples(coordinates, coordinates, coordinates),
    st.tuples(*3 * [st.floats(0.001, 99)]),
    st.tuples(*3 * [st.floats(-1, 1)]),
    st.text('ab"\\é7[]{},: ', min_size=1, max_size=9),
)


@given(st.lists(boxes, max_size=3), st.integers(1, 4))
def test_parse_undoes_format(items, decimals):
    task = DetectBoxes3D(decimals=decimals)
    text = task.format(Boxes3D(tuple(items))).text
    found = task.parse(text)
    assert task.format(found).text == text
    assert re.fullmatch(task.grammar(), text, re.DOTALL)
    assert sorted(item.label for item in found.items) == sorted(item.label for item in items)
    nearest = sorted(items, key=lambda item: item.numbers[2])
    for item, wanted in zip(found.items, nearest, strict=True):
        assert abs(item.numbers[2] - wanted.numbers[2]) <= 0.51 * 10**-decimals
        assert min(item.numbers[3:6]) > 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[]", Boxes3D(())),
        ("```json\n[]\n```", Boxes3D(())),
        ("", Unreadable("empty answer")),
        ("no car", Unreadable("no bbox_3d with nine numbers")),
        ('[{"bbox_3d": [1, 2, 3', Unreadable("cut off within a box")),
        ('[{"bbox_3d": [1, 2, 3], "label": "a"}]', Unreadable("no bbox_3d with nine numbers")),
    ],
)
def test_texts_without_boxes(text, wanted):
    assert TASK.parse(text) == wanted


def test_a_truncated_list_and_a_malformed_box_are_reported():
    whole = TASK.format(CARS).text
    found = TASK.parse(whole[: whole.rindex("0.82")])
    assert (found.items, found.cut) == (CARS.items[:1], True)
    found = TASK.parse(whole.replace("2.83, 0.58, ", "2000000, 0.58, "))
    assert (found.items, found.malformed) == (CARS.items[:1], 1)
    start, end = found.spans[0]
    assert whole[start:end].startswith('"bbox_3d": [2.88')


def test_classes_are_asked_for_as_in_detection():
    task = DetectBoxes3D(classes=("car", "van"), ask="each", prompt="{classes}; {camera}")
    found = examples(task, camera=CAMERA)
    assert [own.id for own in found] == ["7.car", "7.van"]
    assert [own.prompt for own in found] == [
        f"{name}; fx=500, fy=501.5, cx=320, cy=240" for name in ("car", "van")
    ]
    assert [own.answer for own in found] == [CARS, Boxes3D(())]
    assert examples()[0].prompt.startswith("Find all objects of these classes in this image: every")


def test_invalid_rows_are_named():
    flat = [{"bbox_3d": [1, 2, 3, 4, 0, 6, 0, 0, 0], "label": "car"}]
    for fields, message in (
        ({"instances": None}, 'r, line 1: no "instances"'),
        ({"instances": flat}, r"r, line 1, instances\.0, bbox_3d: expected \[x_center.*above 0"),
        ({"instances": [{"bbox_3d": [1] * 9}]}, r'instances\.0: expected \{"bbox_3d"'),
    ):
        with pytest.raises(ValueError, match=message):
            examples(**fields)
    with pytest.raises(ValueError, match=r'line 1: the prompt has \{camera\}, and needs "camera"'):
        examples(DetectBoxes3D(prompt="{classes}{camera}"), camera={"fx": 1})
    with pytest.raises(ValueError, match="decimals is 1 to 4, not 0"):
        DetectBoxes3D(decimals=0)


def faces(numbers, camera):
    """The image of each face that a camera sees, from the corners of the box, one by one."""
    x, y, z = corners(numbers).T
    points = np.stack(
        [camera["cx"] + camera["fx"] * x / z, camera["cy"] + camera["fy"] * y / z], axis=1
    )
    for i, (_, distance) in enumerate(half_spaces(numbers)):
        if distance < 0:  # the camera is outside
            on_face = np.array(SIGNS)[:, i // 2] == (1, -1)[i % 2]
            yield shapely.MultiPoint(points[on_face]).convex_hull


@pytest.mark.parametrize("most", [1, 3])
def test_an_answer_projected_by_the_camera_of_its_row_is_drawn(most, tmp_path):
    task = DetectBoxes3D(cuboids=CuboidStyle(width_px=150, height_px=100, noise=0, most=most))
    file = task.render(tmp_path, 8, 7)
    x, y = np.meshgrid(np.arange(150) + 0.5, np.arange(100) + 0.5)
    shades, boxes = [], 0
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        (example,) = task.examples([("", row)], training=True)
        answer = task.parse(task.format(example.answer).text)
        assert set(answer.items) == set(example.answer.items)
        pixels = np.asarray(Image.open(tmp_path / row["image"])).astype(int)
        seen = [own for box in answer.items for own in faces(box.numbers, row["camera"])]
        silhouettes = shapely.union_all(seen)
        assert shapely.box(0, 0, 150, 100).contains(silhouettes)
        assert shapely.get_num_geometries(silhouettes) == len(answer.items)
        empty = shapely.distance(silhouettes, shapely.points(x, y)) > 1
        ground = np.where((y < 50)[..., None], pixels[0, 0], pixels[-1, 0])
        assert (pixels == ground)[empty].all()
        for face in seen:
            inside = shapely.contains_xy(face.buffer(-1), x, y)
            assert len(np.unique(pixels[inside], axis=0)) <= 1
            assert not (pixels == ground)[inside].all(axis=1).any()
            shades += np.unique(pixels[inside], axis=0).tolist()
        boxes += len(answer.items)
        on_ground = [box.numbers[1] + box.numbers[4] / 2 for box in answer.items]
        assert on_ground == pytest.approx([1.5] * len(on_ground), abs=0.011)
    assert (boxes > 8) == (most > 1)
    assert len({tuple(shade) for shade in shades}) > 1.5 * boxes


def test_invalid_settings_of_cuboids_are_named():
    with pytest.raises(ValueError, match=r"size_m is \[from, to\], 0.1 to 100, not \[2.0, 1.0\]"):
        CuboidStyle(size_m=(2.0, 1.0))
    with pytest.raises(ValueError, match="most is at least 1, not 0"):
        CuboidStyle(most=0)
    with pytest.raises(ValueError, match=r"no cuboid of size_m \[9.0, 9.0\] at depth_m \[1.0, 2.0"):
        CuboidStyle(size_m=(9.0, 9.0), depth_m=(1.0, 2.0)).draw(random.Random(0))
