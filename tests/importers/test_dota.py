"""DOTA: four corners, a class and a flag."""

from importing import outcome

from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.importers.dota import Dota
from mm_numeric.tasks.detection import Detection


def test_dota_is_imported(tmp_path):
    text = """imagesource:GoogleEarth\ngsd:0.25
1054 1028 1063 1011 1111 1040 1112 1062 ship 1\r
478.5 214 488 202 908 628 895 640 small-vehicle 0\n1 1 9 1 9 5 1 5 harbor\n"""
    folder = tmp_path / "labelTxt"
    folder.mkdir()
    (folder / "P0706.txt").write_text(text, encoding="utf-8")
    (folder / "P1.txt").write_text("1 2 3 4 5 6 7 ship\n", encoding="utf-8")
    (folder / "P2.txt").write_text("1 1 9 1 9 5 1 5 ship maybe\n", encoding="utf-8")
    done = outcome(Dota(), folder)
    assert (done.row["id"], done.row["image"]) == ("P0706", "P0706.png")
    assert done.row["instances"] == [
        {
            "polygon": [1054, 1028, 1063, 1011, 1111, 1040, 1112, 1062],
            "label": "ship",
            "ignore": True,
        },
        {"polygon": [478.5, 214, 488, 202, 908, 628, 895, 640], "label": "small-vehicle"},
        {"polygon": [1, 1, 9, 1, 9, 5, 1, 5], "label": "harbor"},
    ]
    assert done.kinds == ["file", "file"]
    task = Detection(shape="rotated_box")
    example = next(task.examples([("P0706", done.row)], training=True))
    text = task.format(example.answer, Frame(1200, 1200, Resize(kind="none").view(1200, 1200),
                                             COORDINATES["qwen2_5_vl"])).text  # fmt: skip
    assert "harbor" in text
    assert "ship" not in text
    assert "[1, 1, 9, 1, 9, 5, 1, 5]" in text
