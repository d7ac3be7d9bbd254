"""ScreenSpot and OSWorld-G: instructions, and elements to click on."""

from importing import json_file, outcome

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.importers.clicks import OsWorldG, ScreenSpot
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.pointing import Click

NOTHING = Instances(())


def element(*edges):
    return Instances((Instance(Box(*edges)),))


def test_screenspot(tmp_path):
    one = {
        "img_filename": "web_3b0ad239.png",
        "bbox": [42, 1102, 197, 70],
        "instruction": "view the details of the item",
        "data_type": "text",
        "data_source": "shop",
    }
    pro = {
        "id": "blender_windows_0",
        "img_filename": "blender_windows/a.png",
        "bbox": [10, 20, 30, 50],
        "img_size": [3840, 2160],
        "instruction": "open the menu",
        "ui_type": "icon",
        "platform": "windows",
        "application": "blender",
        "group": "Creative",
    }
    bad = [{**one, "bbox": [1, 2, 0, 4]}, {**pro, "img_size": [1]}, {**one, "instruction": None}]
    path = json_file(tmp_path / "screenspot_web.json", [one, pro, *bad])
    found = outcome(ScreenSpot(), path)
    assert found.rows == [
        {
            "id": "screenspot_web.1",
            "image": "web_3b0ad239.png",
            "phrase": "view the details of the item",
            "box": [42, 1102, 239, 1172],
            "ui_type": "text",
            "platform": "web",
            "application": "shop",
        },
        {
            "id": "blender_windows_0",
            "image": "blender_windows/a.png",
            "width": 3840,
            "height": 2160,
            "phrase": "open the menu",
            "box": [10, 20, 30, 50],
            "ui_type": "icon",
            "platform": "windows",
            "application": "blender",
            "group": "Creative",
        },
    ]
    assert found.kinds == ["box", "image", "text"]
    done = prepare("screenspot", ScreenSpot(), [path], tmp_path / "rows.jsonl")
    assert done.record["task"] == "click"
    (example, _) = Click().examples([("f", row) for row in found.rows], training=False)
    assert example.answer == element(42, 1102, 239, 1172)
    assert example.buckets == {"ui_type": "text", "platform": "web", "application": "shop"}


def test_osworld_g(tmp_path):
    one = {
        "id": "0lp8IshCDB",
        "image_path": "0lp8IshCDB.png",
        "image_size": [1920, 1080],
        "instruction": "Select 'As Attachment'",
        "box_type": "bbox",
        "box_coordinates": [42, 1002, 197, 70],
        "GUI_types": ["Text", "Button"],
    }
    corners = [10, 10, 90, 10, 50, 70]
    area = {**one, "id": "b", "box_type": "polygon", "box_coordinates": corners, "GUI_types": []}
    none = {**one, "id": "c", "box_type": "refusal", "box_coordinates": [-1, -1, -1, -1]}
    bad = [{**one, "box_type": "circle"}, {**area, "box_coordinates": [1, 2, 3, 4]},
           {**one, "image_size": None}, {**one, "GUI_types": "Text"}]  # fmt: skip
    path = json_file(tmp_path / "OSWorld-G.json", [one, area, none, *bad])
    found = outcome(OsWorldG(), path)
    assert found.kinds == ["box_type", "polygon", "numbers", "GUI_types"]
    done = prepare("osworld_g", OsWorldG(), [path], tmp_path / "rows.jsonl")
    assert (done.record["task"], done.record["counts"]["rows"]) == ("click", 3)
    targets = list(Click().examples([("f", row) for row in found.rows], training=False))
    assert targets[0].answer == element(42, 1002, 239, 1072)
    assert (targets[0].size_px, targets[0].buckets) == ((1920, 1080), {"ui_type": "Text, Button"})
    (item,) = targets[1].answer.items
    assert item.shape == Polygon(((10, 10), (90, 10), (50, 70)))
    assert (targets[2].answer, targets[2].prompt) == (NOTHING, "Click on: Select 'As Attachment'")
