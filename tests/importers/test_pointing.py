"""Points and masks of PixMo-Points, Where2Place and RefSpatial-Bench."""

import hashlib

import numpy as np
from importing import json_file, outcome
from PIL import Image

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.evaluation.metrics.pointing import score_points
from mm_numeric.importers.pointing import PixMoPoints, RefSpatial, Where2Place
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.pointing import Pointing


def points(*places):
    return Instances(tuple(Instance(Polygon((place,))) for place in places))


def test_where2place_and_refspatial(tmp_path):
    """Two questions with masks: a binary PNG, and a JPEG with grey pixels at the border."""
    pixels = np.zeros((30, 40), np.uint8)
    pixels[10:20, 8:30] = 255
    folders = {name: tmp_path / name for name in ("images", "masks", "Location/image",
                                                  "Location/mask")}  # fmt: skip
    for folder in folders.values():
        folder.mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(folders["images"] / "00.jpg")
    Image.new("RGB", (40, 30)).save(folders["Location/image"] / "0.png")
    Image.fromarray(pixels).save(folders["masks"] / "00.jpg", quality=70)
    Image.fromarray(np.stack([pixels] * 3, -1)).save(folders["Location/mask"] / "0.png")
    form = "Your answer should be formatted as a list of tuples, i.e. [(x1, y1), (x2, y2), ...]."
    lines = [{"question_id": 0, "image": "00.jpg", "text": f"Locate some points on it. {form}"}]
    file = json_file(tmp_path / "point_questions.jsonl", [*lines, {**lines[0], "question_id": 1}])
    where = Where2Place(images=folders["images"], masks=folders["masks"])
    found = outcome(where, file)
    assert "01: no image with this name" in found.why
    spatial = RefSpatial(images=tmp_path / "Location")
    one = {"id": 0, "object": "the orange box", "prompt": "Please point out the orange box.",
           "suffix": form, "rgb_path": "image/0.png", "mask_path": "mask/0.png",
           "category": "location", "step": 2}  # fmt: skip
    json_file(tmp_path / "question.json", [one, {**one, "mask_path": "image/0.png"}])
    other = outcome(spatial, tmp_path / "question.json")
    assert "0.png has no pixel above 0" in other.why
    done = prepare("refspatial", spatial, [tmp_path / "question.json"], tmp_path / "rows.jsonl")
    assert done.record["task"] == "pointing"
    assert found.row["phrase"] == "Locate some points on it."
    assert (found.row["id"], other.row["id"]) == ("0", "location-0")
    (first, second) = Pointing().examples([("f", found.row), ("f", other.row)], training=False)
    assert second.buckets == {"category": "location", "step": "2"}
    assert second.prompt == "Point at: the orange box"
    for example in (first, second):
        assert example.size_px == (40, 30)
        (region,) = example.answer.items
        assert region.shape == Box(8, 10, 30, 20)
        assert sum(region.mask.counts[1::2]) == 220


def test_pixmo_points(tmp_path):
    one = {"image_url": "https://a.org/b.jpg", "image_sha256": "0", "label": "dogs", "count": 2,
           "points": [{"x": 35.5, "y": 40}, {"x": 100.2, "y": 0}],
           "collection_method": "counting"}  # fmt: skip
    name = hashlib.sha256(one["image_url"].encode()).hexdigest()
    Image.new("RGB", (200, 100)).save(tmp_path / name, format="JPEG")
    bad = [{**one, "points": [[1, 2]]}, {**one, "points": [{"x": 1}]}, {**one, "image": "c.jpg"}]
    bad.append({**one, "points": [{"x": 150, "y": 80}]})  # pixels
    file = json_file(tmp_path / "pixmo_points.jsonl", [one, {**one, "points": []}, *bad])
    found = outcome(PixMoPoints(images=tmp_path), file)
    assert found.kinds == ["points", "numbers", "image", "points"]
    assert "x and y are percent of width and height, from 0 to 100" in found.bad[-1].why
    assert found.rows[0] == {
        "id": "pixmo_points.1", "image": name, "width": 200, "height": 100, "phrase": "dogs",
        "points": [[71, 40], [200, 0]], "category": "counting",
    }  # fmt: skip
    (first, none) = Pointing().examples([("f", row) for row in found.rows], training=False)
    assert (first.answer, none.answer) == (points((71, 40), (200, 0)), points())
    assert "give --images" in outcome(PixMoPoints(), file).bad[0].why

    masks = np.zeros((2, 100, 200), bool)
    masks[0, 30:50, 60:80] = masks[1, 0, 150:] = True
    same = {**one, "masks": masks.tolist()}
    bad = [{**same, "masks": same["masks"][:1]}, {**same, "masks": [[[True]], [[True, False]]]}]
    file = json_file(tmp_path / "eval.jsonl", [same, {**same, "points": [], "masks": []}, *bad])
    found = outcome(PixMoPoints(images=tmp_path), file)
    assert found.kinds == ["masks", "masks"]
    (first, none) = Pointing().examples([("f", row) for row in found.rows], training=False)
    assert [item.point for item in first.answer.items] == [(71, 40), (200, 0)]
    assert none.answer == points()
    answers = [(61, 31), (160, 0.5), (160, 1)]  # the last one is just outside
    columns = score_points([points(*answers[:2]), points(*answers[1:])], [first.answer] * 2)
    assert list(columns["f1"]) == [1, 0.5]
