"""The task `click`: each family's points, the official rule in loops, and what is read wrongly."""

import json
import random
import re

import pytest
from result_files import section

from mm_numeric.answers import Box, Instance, Instances, Polygon, Unreadable
from mm_numeric.evaluation.metrics.pointing import CLICKS, score_clicks
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.inference.decision_rules import Candidate, decide
from mm_numeric.inference.risks import find_risk
from mm_numeric.rewards import reward
from mm_numeric.tasks.pointing import Click

SIZE = (100, 200)
PIXELS = Frame(*SIZE, Resize(kind="none").view(*SIZE), COORDINATES["qwen2_5_vl"])
NOTHING = Instances(())


def element(*edges):
    return Instances((Instance(Box(*edges)),))


def click(x, y):
    return Instances((Instance(Polygon(((x, y),))),))


@pytest.mark.parametrize(
    ("name", "text", "nothing"),
    [
        ("qwen2_5_vl", '[{"point_2d": [30, 80]}]', "[]"),
        ("qwen3_vl", '[{"point_2d": [300, 400]}]', "[]"),
        ("gemma3", '[{"point": [400, 300]}]', "[]"),
        ("paligemma", "<loc0409><loc0307>", "none"),
        ("llava", "[0.300, 0.400]", "none"),
        ("yi_vl", "(300,400)", "none"),
    ],
)
def test_each_family_writes_the_centre_in_its_own_format(name, text, nothing):
    frame, task = Frame(*SIZE, PIXELS.view, COORDINATES[name]), Click()
    assert task.format(element(20, 60, 40, 100), frame).text == text
    ((point,),) = (item.shape.points for item in task.parse(text, frame).items)
    assert point == pytest.approx((30, 80), abs=0.3)
    assert task.parse(nothing, frame) == task.parse(task.format(NOTHING, frame).text, frame)
    for answer in (text, nothing):
        assert re.fullmatch(task.grammar(frame), answer)


def test_a_box_is_read_as_its_centre_and_a_label_is_kept():
    text = '```json\n[{"bbox_2d": [20, 60, 40, 100], "label": "OK"}]\n```'
    (found,) = Click().parse(text, PIXELS).items
    assert found == Instance(Polygon(((30, 80),)), "OK")
    fenced = '```json\n[\n\t{"point_2d": [30, 80], "label": "OK"}\n]\n```'
    assert Click().parse(fenced, PIXELS).items == (found,)
    (found,) = Click().parse("click (30, 80)", PIXELS).items
    assert found.shape == Polygon(((30, 80),))
    assert Click().parse("scrolled(30, 80)", PIXELS) == Unreadable("no coordinates")


def test_a_concave_element_is_clicked_inside():
    corner = Polygon(((0, 0), (90, 0), (90, 10), (10, 10), (10, 90), (0, 90)))
    target = Instances((Instance(corner),))
    text = Click().format(target, PIXELS).text
    assert score_clicks([Click().parse(text, PIXELS)], [target])["correct"] == [1]
    assert score_clicks([click(45, 45)], [target])["correct"] == [0]


def official(bbox, point):
    """eval_screenspot_pro.py: eval_sample_positive_gt, in pixels."""
    if point is None:
        return "wrong_format"
    inside = bbox[0] <= point[0] <= bbox[2] and bbox[1] <= point[1] <= bbox[3]
    return "correct" if inside else "wrong"


def test_clicks_are_right_as_in_the_official_loop():
    rng = random.Random(0)
    boxes = [(10, 20, 10 + rng.randint(1, 30), 50) for _ in range(300)]
    points = [
        None if rng.random() < 0.1 else (rng.randint(8, 42), rng.choice([19.9, 20, 35, 50, 51]))
        for _ in boxes
    ]
    answers = [None if point is None else click(*point) for point in points]
    columns = score_clicks(answers, [element(*box) for box in boxes])
    wanted = [official(box, point) for box, point in zip(boxes, points, strict=True)]
    assert list(columns["correct"]) == [found == "correct" for found in wanted]
    assert list(columns["unreadable"]) == [found == "wrong_format" for found in wanted]
    assert {"correct", "wrong", "wrong_format"} == set(wanted)


def test_absent_elements_are_right_without_a_point():
    answers = [NOTHING, click(1, 1), None, NOTHING]
    columns = score_clicks(answers, [NOTHING, NOTHING, NOTHING, element(0, 0, 9, 9)])
    assert list(columns["correct"]) == [1, 0, 0, 0]
    found = {metric.name: float(metric.value(columns)) for metric in CLICKS.metrics}
    assert found == {
        "accuracy": 0.25,
        "present_accuracy": 0,
        "absent_accuracy": pytest.approx(1 / 3),
        "unreadable": 0.25,
    }


def test_a_group_is_the_share_of_its_rows(tmp_path):
    """The published trap: 10 right of 40 are 25 %, not 10 %, which weighs by size squared."""
    task, target = Click(), element(20, 60, 40, 100)
    sizes = {"web": (10, "[30, 80]"), "mobile": (30, "[90, 80]")}
    lines = [
        {
            "id": f"{platform}{i}",
            "task": "click",
            "text": f'{{"point_2d": {point}}}',
            "target": task.record(target),
            "frame": PIXELS.to_dict(),
            "buckets": {"ui_type": "text", "platform": platform},
        }
        for platform, (count, point) in sizes.items()
        for i in range(count)
    ]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    score(path, task_name="click")
    results = section(tmp_path)
    assert results["metrics"]["accuracy"]["value"] == 0.25
    stats = {"web:text": [1] * 10, "mobile:text": [0] * 30}  # vlmeval/dataset/GUI/screenspot.py
    texts = [own for name, own in stats.items() if name.endswith("text") for _ in own]
    texts = [right for own in texts for right in own]
    assert sum(texts) / len(texts) == 0.1
    groups = results["buckets"]
    assert groups["ui_type"]["text"]["metrics"]["accuracy"]["value"] == 0.25
    found = [groups["platform"][p]["metrics"]["accuracy"]["value"] for p in sizes]
    assert found == [1, 0]


def test_rewards_of_clicks():
    target, text = element(20, 60, 40, 100), '[{"point_2d": [30, 80]}]'
    gaussian, correct = (reward(name, task="click") for name in ("point_gaussian", "correct"))
    assert gaussian.score(text, target, PIXELS).value == 1
    edge = gaussian.score('[{"point_2d": [40, 80]}]', target, PIXELS).value
    assert edge == pytest.approx(0.6065, abs=1e-4)  # one of two standard deviations
    assert correct.score('[{"point_2d": [40, 80]}]', target, PIXELS).value == 1
    assert reward("format", task="click").score(text, target, PIXELS).value == 1
    assert gaussian.score("[]", NOTHING, PIXELS).value == 1
    assert gaussian.score("[]", target, PIXELS).value == 0
    assert gaussian.score(text, NOTHING, PIXELS).value == 0
    with pytest.raises(ValueError, match="point_gaussian needs one object, not 2"):
        gaussian.score(text, Instances(target.items * 2), PIXELS)
    for name in ("iou", "f1"):
        with pytest.raises(ValueError, match="needs a task that pairs objects"):
            reward(name, task="click").score(text, target, PIXELS)


def test_decoding_finds_the_most_probable_point():
    texts = {"(30,80)": 0.3, "(31,80)": 0.5, "none": 0.2}
    frame = Frame(*SIZE, PIXELS.view, COORDINATES["yi_vl"])
    candidates = [Candidate(Click().parse(t, frame), t, p) for t, p in texts.items()]
    risk = find_risk(Click().risk, "test")
    found = decide("mbr", candidates, risk)
    assert (found.text, found.confidence) == ("(31,80)", pytest.approx(0.5))
    assert found.object_confidences is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instances": [{"box": [1, 2, 3, 4]}] * 2}, "2 instances; a click has one element or n"),
        ({"box": None}, "no box; each row needs"),
        ({"phrase": ""}, "no phrase"),
        ({"box": None, "polygon": [1, 2, 3]}, "polygon: a polygon is"),
        ({"instances": [{"box": [1, 2, 3, 4], "point": [1]}]}, "instances.0, point: a point is"),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence(change, message):
    row = {"id": "1", "image": "a.png", "phrase": "OK", "box": [1, 2, 3, 4], **change}
    with pytest.raises(ValueError, match=rf"^f, line 1[:,] ?{message}"):
        list(Click().examples([("f, line 1", row)], training=True))


def test_wrong_options_are_one_sentence():
    with pytest.raises(ValueError, match=r"prompt needs \{phrase\}"):
        Click(prompt="Click.")
