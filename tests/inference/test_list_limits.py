"""Shortened lists: no duplicates are left, others are kept, and generation may end early."""

import random
from dataclasses import replace

import pytest
import torch
from PIL import Image
from tiny_models import TINY, tiny_folder

from mm_numeric.answers import Box, Example, Instance, Instances, Polygon
from mm_numeric.config.decoding import PredictConfig
from mm_numeric.evaluation.metrics.repeats import find_duplicates
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import published_frames
from mm_numeric.inference.candidates import PLAIN_SETTINGS
from mm_numeric.inference.constrain import Constrainer
from mm_numeric.inference.decode import check_rules
from mm_numeric.inference.generate import generate
from mm_numeric.inference.list_limits import IN_A_ROW, ListLimits, StopLists
from mm_numeric.registry import FAMILIES, choose
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.number_questions import Arithmetic
from mm_numeric.tasks.pointing import Pointing

FRAMES = {name: rule.frame(200, 160) for name, rule in published_frames().items()}
POINTS = FRAMES["--family qwen3_vl"]
MOLMO = replace(POINTS, coordinates=replace(POINTS.coordinates, max_value=100, format="molmo"))
LIMITS = [(0.9, None), (None, 3), (0.8, 4)]


def drawn(draw, *, points=False):
    """Return objects, many of which are repeated, some of them several times in succession."""
    items = []
    for _ in range(draw.randint(0, 8)):
        x, y = draw.randrange(0, 100, 20), draw.randrange(0, 80, 20)
        shape = Polygon(((x, y),)) if points else Box(x, y, x + 80, y + draw.choice((60, 61)))
        label = "" if points else draw.choice(("cat", "a dog"))
        items += [Instance(shape, label)] * draw.choice((1, 1, 2, 5))
    return items


def read(task, items, frame):
    text = frame.write(items).text
    return text, task.parse(text, frame)


def limits_of(task, least_iou=None, most=None):
    return ListLimits(task, PredictConfig(stop_duplicates=least_iou, max_objects=most))


def left(items, least_iou, most):
    """Return the objects to keep, by the definition."""
    is_duplicate = [False] * len(items)
    if least_iou:
        is_duplicate = find_duplicates([items], least_iou)[0].tolist()
    kept = []
    for i, item in enumerate(items):
        if i + 1 >= IN_A_ROW and all(is_duplicate[i + 1 - IN_A_ROW : i + 1]):
            break
        if not is_duplicate[i]:
            kept.append(item)
    return tuple(kept[:most])


@pytest.mark.parametrize("name", [*FRAMES, "points", "molmo"])
def test_what_is_left_has_no_duplicates_and_is_as_before_without_any(name):
    frame = {"points": POINTS, "molmo": MOLMO}.get(name) or FRAMES[name]
    is_points = name in ("points", "molmo")
    task, draw, shortened = Pointing() if is_points else Detection(), random.Random(0), 0
    for _ in range(6):
        text, answer = read(task, drawn(draw, points=is_points), frame)
        for least_iou, most in LIMITS:
            limits = limits_of(task, least_iou, most)
            short = limits.shorten(text, answer, frame)
            kept = left(answer.items, least_iou, most)
            if kept == answer.items:
                assert short is None
                continue
            shortened += 1
            assert task.parse(short.text, frame).items == short.answer.items == kept
            assert tuple(answer.items[i] for i in short.kept) == kept
            assert limits.shorten(short.text, short.answer, frame) is None
            if least_iou:
                assert not find_duplicates([kept], least_iou)[0].any()
    assert shortened > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least_iou", "most"),
    [
        ("--family paligemma", 0.9, None),
        ("--family qwen3_vl", 0.8, 4),
        ("--family florence2", None, 3),
    ],
)
def test_a_list_is_decided_only_if_no_continuation_changes_it(name, least_iou, most):
    task, frame, draw = Detection(), FRAMES[name], random.Random(1)
    limits, decided = limits_of(task, least_iou, most), 0
    for _ in range(5):
        text, answer = read(task, drawn(draw), frame)
        short = limits.shorten(text, answer, frame)
        first = next(
            (n for n in range(0, len(text), 3) if limits.is_decided(text[:n], frame)), None
        )
        if first is not None:
            decided += 1
            assert short is not None
            assert short.ended_by is not None
            for end in range(first, min(first + 40, len(text)), 3):
                begun = limits.shorten(text[:end], task.parse(text[:end], frame), frame)
                assert begun.answer.items == short.answer.items
    assert decided > 1


def loaded(name):
    cls, settings = choose(name, FAMILIES, "family", "test"), replace(TINY, family=name)
    folder = tiny_folder(name)
    return cls.load(folder, settings), settings, folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "paligemma", "qwen3_vl"])
def test_rows_of_a_batch_stop_by_themselves(name):
    family, *_ = loaded(name)
    task, frame = Detection(), family.frame(80, 60)
    limits = limits_of(task, 0.9)
    one, other = Instance(Box(4, 5, 40, 50), "cat"), Instance(Box(30, 5, 70, 50), "cat")
    texts = [frame.write(own).text for own in ([one, other], [one, other, *[one] * 40])]
    rows = [family.answer(text).ids for text in texts]
    width = max(map(len, rows))
    rows = torch.tensor([[7, 7, *ids, *[family.pad_id] * (width - len(ids))] for ids in rows])
    stop = StopLists(limits, family, [frame, frame], None, 2)
    ends = [stop(rows[:, :n], None).tolist() for n in range(3, rows.shape[1] + 1)]
    assert not any(own for own, _ in ends)
    end = [own for _, own in ends].index(True) + 1
    assert end < width / 3
    shorts = [
        limits.shorten(text, task.parse(text, frame), frame)
        for text in (family.text(rows[1, 2 : 2 + end].tolist()), texts[1])
    ]
    assert shorts[0].text == shorts[1].text == texts[0]
    assert shorts[0].ended_by == "stop_duplicates"


@pytest.mark.slow
def test_a_constrained_model_stops_with_the_answer_that_it_has_without_a_stop(
    tmp_path, monkeypatch
):
    family, settings, folder = loaded("qwen2_vl")
    torch.manual_seed(0)
    model = family.load_model(folder, settings).eval()
    monkeypatch.setitem(PLAIN_SETTINGS, "min_new_tokens", 160)  # a list of several objects
    examples = []
    for i, size in enumerate(((64, 48), (48, 64))):
        Image.new("RGB", size, (90 * i, 9, 9)).save(tmp_path / f"{i}.png")
        image = tmp_path / f"{i}.png"
        examples.append(Example(id=str(i), image=image, prompt=f"{i}", answer=None, where=""))
    task = Detection()
    limits = limits_of(task, 0.5, 1)
    answers = {}
    for own in (None, limits):
        found = generate(
            model, family, examples, 200, constrainer=Constrainer(task, family), limits=own
        )
        answers[own] = list(found)
    lengths = []
    for plain, stopped in zip(answers[None], answers[limits], strict=True):
        lengths.append([len(family.before_end(own.ids)) for own in (plain, stopped)])
        assert plain.text.startswith(stopped.text)
        short, other = (
            limits.shorten(own.text, task.parse(own.text, own.frame), own.frame)
            for own in (plain, stopped)
        )
        assert short == other
    assert any(stopped < plain for plain, stopped in lengths)


def test_thoughts_are_kept_and_their_shapes_are_not_in_the_list():
    task, frame, limits = Detection(), POINTS, limits_of(Detection(), 0.9)
    item, other = (Instance(Box(x, 0, x + 80, 60), "cat") for x in (0, 100))
    thoughts = f"<think>{frame.write([item, item, item, item]).text}</think>"
    text = f"{thoughts}<answer>{frame.write([item, other, item]).text}</answer> or so"
    assert not limits.is_decided(f"{thoughts[:-8]}", frame)
    short = limits.shorten(text, task.read(text, frame), frame)
    written = frame.write([item, other]).text
    assert short.text == f"{thoughts}<answer>{written}</answer> or so"
    assert short.kept == [0, 1]


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_a_list_in_another_layout_is_shortened_in_that_of_the_frame(order):
    task, text = Pointing(), "pyautogui.click(x=1, y=2) pyautogui.click(x=1, y=2)"
    frame = replace(POINTS, coordinates=replace(POINTS.coordinates, order=order))
    answer = task.parse(text, frame)
    assert len(answer.items) == 2
    short = limits_of(task, 0.9).shorten(text, answer, frame)
    assert short.text == f'[{{"point_2d": {[1, 2] if order == "xy" else [2, 1]}}}]'
    assert short.answer.items == answer.items[:1]


def test_an_answer_that_cannot_be_written_again_is_kept():
    item = '{"bbox_2d": [100, 0, 180, 60]}'  # after a label, Qwen2-VL cannot write one without
    text = f'[{{"bbox_2d": [0, 0, 80, 60], "label": "a"}}, {item}, {item}]'
    frame = replace(POINTS, coordinates=COORDINATES["qwen2_vl"])
    answer = Detection().parse(text, frame)
    assert len(answer.items) == 3
    assert limits_of(Detection(), 0.9).shorten(text, answer, frame) is None


@pytest.mark.parametrize(
    ("settings", "task", "answer", "message"),
    [
        ({"max_objects": 3}, Arithmetic(), 1.0, "answers of Arithmetic by greedy are others"),
        (
            {"stop_duplicates": 0.9, "decode": "mbr"},
            Detection(),
            Instances(()),
            "Detection by mbr are others",
        ),
    ],
)
def test_limits_that_do_not_fit_are_one_sentence(settings, task, answer, message):
    settings = PredictConfig(**settings)
    example = Example(id="a", image=None, prompt="", answer=answer, where="")
    with pytest.raises(ValueError, match=message):
        check_rules(settings, [settings.rule], task, [example])
    with pytest.raises(ValueError, match="an IoU above 0 and at most 1"):
        PredictConfig(stop_duplicates=1.5)
