"""Scenes and screens have the shapes, outlines and numbers that their rows name."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import shapely
from PIL import Image

from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.pointing import score_points
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.synthetic.scenes import Counts, Objects, Phrases, Points
from mm_numeric.synthetic.screens import Screens
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.pointing import Pointing


@pytest.mark.slow
def test_scenes_have_the_count_that_is_asked_for(tmp_path):
    scenes = [
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in (
            Counts(rows=60, seed=1).write(tmp_path / "counts"),
            Objects(rows=60, seed=1, most=6).write(tmp_path / "objects"),
        )
    ]
    for asked, shown in zip(*scenes, strict=True):
        forms = [f"{item['label']}s" for item in shown["instances"]]
        assert asked["count"] == (forms + ["shapes"] * len(forms)).count(asked["label"])
    counts = Counter(asked["count"] for asked in scenes[0])
    assert set(counts) >= {0, 1, 2, 3}
    assert counts.most_common(1)[0][1] < 30


@pytest.mark.slow
def test_outlines_are_those_of_the_shapes(tmp_path):
    task, drawn = Pointing(), Points(rows=30, seed=1)
    file = drawn.write(tmp_path / "all")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {len(row["instances"]) for row in rows} >= {0, 1, 2}
    present = replace(drawn, absent=False).write(tmp_path / "present")
    assert '"instances": []' not in present.read_text(encoding="utf-8")
    for example, row in zip(
        task.examples([("f", r) for r in rows], training=True), rows, strict=True
    ):
        frame = Frame(
            *example.size_px, Resize(kind="none").view(*example.size_px), COORDINATES["qwen2_5_vl"]
        )
        answer = task.parse(task.format(example.answer, frame).text, frame)
        columns = score_points([answer], [example.answer])
        assert (columns["f1"], columns["in_region"], row["id"]) == (1, 1, example.id)


def test_rotated_boxes_are_where_the_shapes_are(tmp_path):
    task = Detection(shape="rotated_box")
    drawn = Objects(rows=12, seed=1, shape="rotated_box", image_noise=0.0)
    source = DataSource(synthetic=drawn)
    for example in load_examples(task, source, tmp_path, training=True):
        pixels = np.asarray(Image.open(example.image), dtype=float)
        apart = np.abs(pixels - pixels[0, 0]).max(axis=-1)  # the corner is background
        y, x = np.nonzero(apart > 1)
        hulls = [shapely.Polygon(item.shape.points) for item in example.answer.items]
        inside = shapely.contains_xy(shapely.union_all(hulls).buffer(1), x + 0.5, y + 0.5)
        assert inside.all()
        for item, hull in zip(example.answer.items, hulls, strict=True):
            own = apart[y, x][shapely.contains_xy(hull.buffer(1), x + 0.5, y + 0.5)]
            wanted = 1 if item.label == "rectangle" else math.pi / 4
            # Pixels at the edge are partly painted.
            assert own.sum() / own.max() / hull.area == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow
def test_screens_have_words_and_icons_and_absent_elements(tmp_path):
    rows = Screens(rows=60, seed=1).write(tmp_path).read_text(encoding="utf-8").splitlines()
    found = [json.loads(row) for row in rows]
    assert {row["ui_type"] for row in found} == {"text", "icon"}
    assert 1 <= sum("instances" in row for row in found) <= 15


@pytest.mark.parametrize(
    ("generator", "settings", "message"),
    [
        (Phrases, {"least": 1}, "2 <= least <= most <= 6, not 1 and 4"),
        (Phrases, {"most": 7}, "2 <= least <= most <= 6, not 2 and 7"),
        (Objects, {"shape": "rotated_box", "least": 0}, "1 <= least <= most <= 6, not 0 and 4"),
        (Objects, {"shape": "outline"}, "shape is one of box, polygon, rotated_box, not 'outline'"),
        (Points, {"large": 2}, "large is 0 to 1, not 2"),
        (Counts, {"counted": ()}, "counted are some of circles, squares, triangles, shapes"),
        (Counts, {"counted": ("dogs",)}, "counted are some of circles"),
        (Screens, {"width_px": 40}, "width_px and height_px are at least 48, not 40 and 112"),
        (Screens, {"buttons": 10}, "buttons is 1 to the number of cells, at most 9, not"),
        (Screens, {"grid": (2,)}, r"grid is \[columns, rows\]"),
        (Screens, {"absent": 2}, "icons and absent are 0 to 1"),
    ],
)
def test_settings_that_cannot_be_drawn_are_rejected(generator, settings, message):
    with pytest.raises(ValueError, match=message):
        generator(**settings)
