"""What score says about texts whose key or label is not what the frame or the rows have."""

import re

import pytest
from result_files import write_lines

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.score_text import similar_labels

SIZE = {"image": "a.png", "width": 640, "height": 480}


def scored(folder, capsys, texts, frame, label="nut", task="detection"):
    rows = [
        {"id": str(i), **SIZE, "instances": [{"box": [10, 20, 110, 220], "label": label}]}
        if task == "detection"
        else {"id": str(i), **SIZE, "phrase": "a nut", "box": [10, 20, 110, 220]}
        for i in range(len(texts))
    ]
    answers = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    words = [str(write_lines(folder / "answers.jsonl", answers)), "--task", task, "--rows"]
    words += [str(write_lines(folder / "rows.jsonl", rows)), *frame]
    assert cli.main(["score", *words]) == 0
    return capsys.readouterr()


ORIGINAL = ["--frame", "pixels_original"]


def test_json_is_scored_in_a_frame_of_lists(tmp_path, capsys):
    text = '[{"bbox_2d": [10, 20, 110, 220], "label": "nut"}]'
    out = scored(tmp_path, capsys, [text] * 3, ORIGINAL).out
    assert re.search(r"nut +3 +3 +100\.00 %", out)
    assert "labels that no row has" not in out


@pytest.mark.parametrize("label", ["Nuts", "nuts", "NUT", "nu t", "nu_t"])
def test_a_label_that_differs_by_its_spelling_is_named(tmp_path, capsys, label):
    text = f'[{{"bbox_2d": [10, 20, 110, 220], "label": "{label}"}}]'
    out = scored(tmp_path, capsys, [text] * 3, ORIGINAL).out
    assert re.search(r"nut +3 +0 +0\.00 %", out)
    assert f"labels that no row has and that count as wrong: {label} (of 3 objects) for nut" in out


@pytest.mark.parametrize(
    ("own", "true"),
    [("buses", "bus"), ("bus", "buses"), ("Hard_Hat", "hard hat"), ("berries", "berry"),
     ("glasses", "glass"), ("t-shirt", "T shirt"), ("car", None), ("s", None), ("", None)],
)  # fmt: skip
def test_similar_labels(own, true):
    truths = ["bus", "buses", "hard hat", "berry", "glass", "T shirt", "nut"]
    truths = [name for name in truths if name != own and (own != "bus" or name == "buses")]
    rows = [{"name": name, "truths": 2, "detections": 0} for name in truths]
    rows.append({"name": own, "truths": 0, "detections": 5})
    assert similar_labels(rows) == ({own: (true, 5)} if true else {})
    rows[-1]["detections"] = 0  # in ignored regions
    assert similar_labels(rows) == {}


@pytest.mark.parametrize("task", ["detection", "grounding"])
def test_an_order_that_a_key_contradicts_is_a_warning_with_the_remedy(tmp_path, capsys, task):
    texts = [f'{{"{key}": [10, 20, 110, 220]}}' for key in ("box_2d", "box_2d", "bbox_2d")]
    said = scored(tmp_path, capsys, texts, ORIGINAL, task=task).err.splitlines()
    about = [line.partition("answers.jsonl: ")[2] for line in said if "box_2d" in line]
    assert about == [
        "in 2 of 3 answers, 'box_2d' is read with x first, as the frame declares, and Gemini and "
        "Gemma write it with y first; set order: yx in the coordinates of the frame if they are "
        "right (--frame gemma3 for 0 to 1000)."
    ]
    said = scored(tmp_path, capsys, texts, ["--frame", "gemma3"], task=task).err
    assert "in 1 of 3 answers, 'bbox_2d' is read with y first" in said
    assert "set order: xy" in said
    assert "'box_2d'" not in said


def test_a_box_of_coco_is_read_as_two_corners_with_a_line_that_names_it(tmp_path, capsys):
    said = scored(tmp_path, capsys, ['{"bbox": [10, 20, 110, 220], "label": "nut"}'], ORIGINAL).err
    assert "in 1 of 1 answers, 'bbox' is read as two corners, not as x, y, width, height" in said
