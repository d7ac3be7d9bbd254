"""The chosen answer is a text in the frame of its image."""

import json

import pytest

from mm_numeric.answers import Box
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference.calibrate import Calibration, Platt
from mm_numeric.inference.decision_rules import Candidate
from mm_numeric.inference.decode import candidates_of_texts, decode
from mm_numeric.tasks.base import task_class


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_boxes_beyond_the_image_have_a_mean_at_its_edge(rule):
    task = task_class("grounding", "test")()
    view = Resize(kind="squash", side=84).view(84, 84)
    frame = Frame(84, 84, view, COORDINATES["relative_1000"])
    texts = ["[100, 100, 900, 2000]", "[100, 200, 700, 4000]"]
    candidates = [Candidate(task.parse(text, frame), text, 0.5) for text in texts]
    assert all(each.answer.y2 > 84 for each in candidates)
    found = decode(task, frame, texts[0], candidates, rule, None)
    answer = task.parse(found.text, frame)
    assert isinstance(answer, Box)
    assert answer.y2 == 84
    assert answer.y1 < answer.y2


@pytest.mark.parametrize(("rule", "text"), [("mean", "36.7 °C"), ("raft", "36.7 °C")])
def test_a_mean_of_measurements_has_their_unit(rule, text):
    task = task_class("measurement", "test")()
    candidates = [Candidate(task.parse(each, None), each, 0.5) for each in ("36.6 °C", "36.8 °C")]
    assert decode(task, None, "36.6 °C", candidates, rule, None).text == text


def test_each_object_of_a_list_is_calibrated_and_the_f1_of_the_list_is_not():
    task = task_class("detection", "test")()
    frame = Frame(84, 84, Resize(kind="squash", side=84).view(84, 84), COORDINATES["relative_1000"])
    texts = [
        json.dumps([{"bbox_2d": box, "label": "a"} for box in boxes])
        for boxes in ([[0, 0, 500, 500]], [[0, 0, 500, 490], [600, 600, 900, 900]])
    ]
    candidates = candidates_of_texts(task, frame, {texts[0]: 0.5, texts[1]: 0.25})
    assert len(candidates) == 2
    platt = Platt(0.5, -1.0)
    fitted = Calibration(
        rule="mbr", settings={}, correct="", per_object=True, applied="platt", platt=platt,
        temperature=None, rows=1, left_out=0, checked=True, data="", reliability={},
    )  # fmt: skip
    rules = task, frame, texts[1], candidates, "greedy", None
    raw, found = decode(*rules, samples=4), decode(*rules, samples=4, calibration=fitted)
    assert raw.scores == pytest.approx((0.75, 0.25))
    assert found.scores == pytest.approx(platt([0.75, 0.25]).tolist())
    assert found.entries["decode"]["scores_raw"] == [0.75, 0.25]
    assert found.entries["decode"]["confidence"] == raw.entries["decode"]["confidence"]
    assert "confidence_raw" not in found.entries["decode"]
