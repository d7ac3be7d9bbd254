"""The program of a model card: its arithmetic of boxes, and the metadata that the hub reads."""

import itertools
import json
import re
from types import SimpleNamespace

import pytest
from result_files import sections
from tiny_models import small_config

from mm_numeric.answers import Box, Instance, Polygon
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.models.model_card import CardResults, _boxes, _metadata, _standard_imports
from mm_numeric.tasks.clock import Clock
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.text_detection import TextDetection
from mm_numeric.tasks.text_spotting import TextSpotting

RESIZES = {
    "squash": Resize(kind="squash", side=448),
    "letterbox": Resize(kind="letterbox", side=336),
    "smart": Resize(kind="smart", factor=28, min_pixels=3136, max_pixels=200_000),
    "none": Resize(kind="none"),
}


class Sees:
    """The geometry of a family."""

    takes_images = True
    image_processor = SimpleNamespace(patch_size=14)

    def __init__(self, resize, coordinates):
        self.resize, self.coordinates = resize, coordinates

    def frame(self, width, height):
        return Frame(width, height, self.resize.view(width, height), self.coordinates)


def printed_by(task, family, text, width, height):
    """Return what the program of a card prints for a text: a list of arguments for each box.

    Its tokens are characters, after one that the program removes. Digits have a probability of 0.6.
    """
    frame = family.frame(width, height)
    rows, columns = frame.view.height_px // 14, frame.view.width_px // 14
    grid = SimpleNamespace(tolist=lambda size=(1, rows, columns): size)
    printed = []
    found = {
        "text": text,
        "ids": f" {text}",
        "processor": SimpleNamespace(decode=str),
        "probs": [0.6 if character.isdigit() else 1.0 for character in f" {text}"],
        "image": SimpleNamespace(size=(width, height)),
        "inputs": {"image_grid_thw": [grid]},
        "print": lambda *values: printed.append(values),
    }
    code = "\n".join(_boxes(SimpleNamespace(task=task), family))
    imports = "\n".join(_standard_imports(code.splitlines()))
    exec(f"{imports}\n{code}", found)
    return printed


LABELS = ["red 7", "", "a cat", "a cat", 'the "big" one', "naïve"]


@pytest.mark.parametrize(
    "task", [Detection(), TextSpotting(shape="box"), TextDetection(shape="box"), Grounding()]
)
@pytest.mark.parametrize("preset", COORDINATES)
def test_the_program_prints_labels_with_their_boxes(task, preset):
    family = Sees(RESIZES["none"], COORDINATES[preset])
    frame = task.text_frame(family.frame(640, 480))
    text_format = frame.coordinates.text
    labels = [own for own in LABELS if own or not text_format.shares_labels]
    boxes = [Box(64 * i, 48, 64 * i + 32, 480 - 32 * i) for i in range(len(labels))]
    if isinstance(task, Grounding):
        labels, boxes = [""], boxes[:1]
    elif isinstance(task, TextDetection):
        labels = [""] * len(boxes)
    items = [Instance(*pair) for pair in zip(boxes, labels, strict=True)]
    text = frame.write(items).text
    printed = printed_by(task, family, text, 640, 480)
    if text_format.points:  # a word has four corners, and no box
        assert printed == []
        return
    assert len(printed) == len(boxes)
    if isinstance(task, Detection | TextSpotting):
        parsed = task.parse(text, family.frame(640, 480))
        assert [values[0] for values in printed] == [item.label for item in parsed.items] == labels
    else:
        assert all(len(values) == 2 for values in printed)
    for numbers, (*_, confidence) in zip(boxes, printed, strict=True):
        box = frame.write([Instance(numbers)]).text
        (written,) = (m[0] for m in re.finditer(frame.coordinates.text.box_pattern, box))
        digits = sum(map(str.isdigit, written))
        assert confidence == pytest.approx(1 - 0.4 * digits / len(written), abs=1e-4)


def test_polygons_of_location_tokens_are_not_printed_as_boxes():
    family = Sees(RESIZES["none"], COORDINATES["paligemma"])
    corners = Polygon(((10, 10), (90, 10), (90, 50), (10, 50)))
    text = family.frame(640, 480).write([Instance(corners)]).text
    assert printed_by(TextDetection(), family, text, 640, 480) == []


@pytest.mark.parametrize(("kind", "preset"), itertools.product(RESIZES, COORDINATES))
def test_the_program_prints_the_boxes_that_the_task_parses(kind, preset):
    family = Sees(RESIZES[kind], COORDINATES[preset])
    for width, height in ((640, 480), (333, 501)):
        frame = family.frame(width, height)
        boxes = [Box(10.2, 20, 300.7, 400), Box(0, 0, width, height), Box(31, 7, 60, 80)]
        text = frame.write([Instance(box, "red 7") for box in boxes]).text
        values = printed_by(Detection(), family, text, width, height)
        assert [label for label, *_ in values] == ["red 7"] * 3
        printed = [box for _, box, _ in values]
        parsed = [instance.shape for instance in frame.read(text).items]
        assert len(printed) == len(parsed) == 3
        steps = frame.step_px  # parsing moves what is less than half a step outside to the edge
        for numbers, box in zip(printed, parsed, strict=True):
            wanted = [box.x1, box.y1, box.x2, box.y2]
            assert numbers == pytest.approx(wanted, abs=max(steps) / 2 + 1e-9)
        inner = [parsed[0].x1, parsed[0].y1]
        assert printed[0][:2] == pytest.approx(inner, abs=1e-9)


def test_only_tasks_with_boxes_print_boxes():
    family = Sees(RESIZES["none"], COORDINATES["relative_1000"])
    assert _boxes(SimpleNamespace(task=Grounding()), family)
    assert not _boxes(SimpleNamespace(task=Clock()), family)
    family.takes_images = False
    assert not _boxes(SimpleNamespace(task=Grounding()), family)


@pytest.mark.parametrize("folder", ["/data/models/base", "runs/other/model", "../base"])
def test_the_base_and_the_rows_of_a_moved_run_may_be_gone(tmp_path, folder):
    paths = (f"model.name={folder}", f"data.train={{dataset: {folder}}}")
    family = Sees(RESIZES["none"], COORDINATES["relative_1000"])
    family.encoder_decoder = False
    found = _metadata(small_config(tmp_path, *paths), family, CardResults({}), "mine")
    assert not {"base_model", "datasets", "license"} & found.keys()
    on_hub = [words.replace(folder, "org/name") for words in paths]
    found = _metadata(small_config(tmp_path, *on_hub), family, CardResults({}), "mine")
    assert (found["base_model"], found["datasets"]) == ("org/name", ["org/name"])


def test_the_card_has_the_average_precision_of_coco(tmp_path):
    view = {"width_px": 100, "height_px": 100, "scale_x": 1, "scale_y": 1}
    row = {
        "id": "1",
        "task": "detection",
        "text": "<|box_start|>(100,100),(200,200)<|box_end|>",
        "scores": [0.5],
        "target": [{"box": [10, 10, 20, 20]}],
        "frame": {
            "width_px": 100,
            "height_px": 100,
            "view": view,
            "coordinates": {"max_value": 1000, "format": "qwen_vl"},
        },
    }
    two = [row, {**row, "id": "2", "scores": [0.75]}]
    file = tmp_path / "predictions.jsonl"
    file.write_text("".join(json.dumps(own) + "\n" for own in two), encoding="utf-8")
    score(file, protocol="coco_ap")
    found = CardResults(sections(tmp_path))
    assert {"type": "ap", "value": pytest.approx(1)} in found.values
    assert "ap_large" not in [own["type"] for own in found.values]
    assert "| ap | 1 | 0.1581 to 1 |" in found.table
    assert found.table.endswith("\n2 rows, 0 answers could not be parsed.")
