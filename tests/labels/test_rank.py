"""Ranked labels: their values against loops over the definitions, and ``labels RUN``."""

import base64
import csv
import io
import json
import math
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_runs import RUN, copy_and_enter
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor
from result_files import write_lines

from mm_numeric.answers import Box, ClockTime, Example, Instance, Instances, Number, Text
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import config_from_dict, read_config
from mm_numeric.data.examples import load_examples
from mm_numeric.geometry.row_shapes import read_instances
from mm_numeric.inference.draw import ANSWER_COLOUR, TRUE_COLOUR
from mm_numeric.inference.generate import LoadedModel, read_model
from mm_numeric.labels.page import keep_rows, labels_csv, labels_page
from mm_numeric.labels.rank import (
    BADLY_LOCATED,
    OVERLOOKED,
    SWAPPED,
    RankedLabel,
    check_rows,
    label_distance,
    object_faults,
    suspicion,
    token_losses,
    train_folds,
)
from mm_numeric.models.loading import load_family


def command(*words):
    return cli.main(["labels", *map(str, words)])


def lines(file):
    return Path(file).read_text("utf-8").splitlines()


def ranked(folder):
    """Return the rows of labels.csv."""
    return list(csv.DictReader(lines(f"{folder}/labels.csv")))


def items(*boxes):
    return Instances(tuple(Instance(Box(*box), label) for label, *box in boxes))


CUP, HAT = ("cup", 0, 0, 10, 10), ("hat", 50, 50, 60, 60)


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ([CUP, HAT], [(BADLY_LOCATED, 0.0, CUP), (BADLY_LOCATED, 0.0, HAT)]),
        ([CUP], [(OVERLOOKED, 0.5, HAT), (BADLY_LOCATED, 0.0, CUP)]),
        ([], [(OVERLOOKED, 0.8, CUP), (OVERLOOKED, 0.5, HAT)]),
        ([("hat", 0, 0, 10, 10), HAT],
         [(SWAPPED, 0.8, ("hat", 0, 0, 10, 10)), (BADLY_LOCATED, 0.0, HAT)]),
        ([("cup", 0, 0, 10, 5), HAT],
         [(BADLY_LOCATED, 0.4, ("cup", 0, 0, 10, 5)), (BADLY_LOCATED, 0.0, HAT)]),
        ([("hat", 0, 0, 10, 4), HAT], [(OVERLOOKED, 0.8, CUP), (BADLY_LOCATED, 0.0, HAT)]),
    ],
)  # fmt: skip
def test_the_fault_of_each_object_is_named(label, found):
    faults = object_faults(items(*label), items(CUP, HAT), [0.8, 0.5])
    wanted = [(kind, pytest.approx(score), *items(box).items) for kind, score, box in found]
    assert [tuple(fault) for fault in faults] == wanted


def test_ignored_objects_have_no_faults():
    label = Instances((Instance(Box(0, 0, 10, 10), "cup", ignore=True),))
    found = object_faults(label, items(CUP, HAT), [0.8, 0.5])
    assert found == [(OVERLOOKED, 0.5, items(HAT).items[0])]


def test_points_have_no_faults():
    points = read_instances({"instances": [{"point": [5, 5], "label": "cup"}]}, "", points=True)
    assert object_faults(points, points, [0.8]) == []


def overlap(one, two):
    wide = min(one.x2, two.x2) - max(one.x1, two.x1)
    high = min(one.y2, two.y2) - max(one.y1, two.y1)
    both = max(wide, 0) * max(high, 0)
    areas = [(box.x2 - box.x1) * (box.y2 - box.y1) for box in (one, two)]
    return both / (sum(areas) - both)


def slow_faults(label, answer, confidences):
    """Return the scores of the faults, by loops over all pairs of objects."""
    free, scores, left = [*label.items], {}, set(range(len(answer.items)))
    for same in (True, False):
        while True:
            pairs = [(overlap(answer.items[i].shape, own.shape), -at, -i)
                     for i in left for at, own in enumerate(free) if own is not None
                     and (own.label == answer.items[i].label) == same]  # fmt: skip
            iou, at, i = max(pairs, default=(0, 0, 0))
            if iou < (1e-12 if same else 0.5):
                break
            scores[-i] = confidences[-i] * (1 - iou if same else iou)
            left.remove(-i)
            free[-at] = None
    return sorted([*scores.values(), *(confidences[i] for i in left)])


@st.composite
def lists(draw):
    boxes = st.tuples(
        st.sampled_from(["cup", "hat"]), *[st.floats(0, 30)] * 2, *[st.floats(5, 20)] * 2
    )
    own = [(name, x, y, x + w, y + h) for name, x, y, w, h in draw(st.lists(boxes, max_size=5))]
    return items(*own)


@given(lists(), lists(), st.randoms(use_true_random=False))
def test_the_scores_of_faults_equal_a_loop(label, answer, rng):
    confidences = [rng.random() for _ in answer.items]
    found = object_faults(label, answer, confidences)
    assert sorted(fault.score for fault in found) == pytest.approx(
        slow_faults(label, answer, confidences), abs=1e-9
    )
    assert [fault.score for fault in found] == sorted((f.score for f in found), reverse=True)


@pytest.mark.parametrize(
    ("label", "answer", "log", "wanted"),
    [
        (ClockTime(11, 50), ClockTime(12, 10), False, 20),
        (Number("12"), Number("-8"), False, 20),
        (Number("999"), Number("-9"), True, 4),
        (ClockTime(11, 50), ClockTime(12, 10), True, 20),
        (Box(0, 0, 10, 10), Box(0, 0, 10, 5), False, 0.5),
        (Text("yes"), Text("no"), False, 1),
        (Text("yes"), Text("yes"), False, 0),
    ],
)
def test_the_distance_has_the_unit_of_the_answer(label, answer, log, wanted):
    assert label_distance(label, answer, log=log) == pytest.approx(wanted)


def test_a_suspicion_grows_with_both_values():
    example = Example(id="a", image=None, prompt="How many?", answer=Number("3"), where="")
    values = [(0.5, 4.0), (2.0, 1.0), (0.5, math.nan), (0.5, 4.0), (1.0, 9.0)]
    labels = [RankedLabel(example, {}, None, loss, 2, distance) for loss, distance in values]
    # Of five distances, that of two labels is the second and third; nan has no share.
    wanted = [0.5 * (1 + 2.5 / 5), 2 * (1 + 1 / 5), 0.5, 0.5 * (1 + 2.5 / 5), 1 + 4 / 5]
    assert suspicion(labels).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("label", "answer", "words"),
    [
        (items(CUP), items(CUP, HAT), "overlooked: hat at 50, 50, 60, 60; distance 0.5"),
        (Box(0, 0, 10, 10), Box(0, 0, 10, 5), "label a, model b; distance 0.5"),
        (ClockTime(7, 5), ClockTime(8, 5), "label a, model b; distance 0.5 min"),
        (ClockTime(7, 5), None, "label a, model unparseable; distance nan"),
        (Number("3"), Number("4"), "label a, model b; distance 0.5"),
    ],
)
def test_the_page_draws_the_label_and_the_answer(tmp_path, label, answer, words):
    Image.new("RGB", (80, 70)).save(tmp_path / "a.png")
    faults = object_faults(label, answer, [0.8, 0.5]) if isinstance(label, Instances) else ()
    example = Example(id="-a", image=tmp_path / "a.png", prompt="?", answer=label, where="")
    line, distance = {"target": "a", "parsed": "b"}, math.nan if answer is None else 0.5
    own = RankedLabel(example, line, answer, 1.0, 2, distance, faults)
    without = RankedLabel(replace(example, image=None), line, answer, 1.0, 2, distance, faults)
    page = labels_page([own, without], "rows.jsonl")
    assert page.count(f"{words}, improbability 1.00") == 2
    (data,) = re.findall('src="data:image/jpeg;base64,([^"]+)', page)
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    pixels = {tuple(pixel) for pixel in np.asarray(image).reshape(-1, 3) // 64}
    for colour, drawn in ((TRUE_COLOUR, label), (ANSWER_COLOUR, answer)):
        is_drawn = tuple(np.array(ImageColor.getrgb(colour)) // 64) in pixels
        assert is_drawn == (not isinstance(drawn, Number | None))
    assert labels_csv([own]).splitlines()[1].startswith("1,'-a,")


NEW, WRONG = 80, 8


@pytest.fixture
def run(finished_runs, tmp_path, monkeypatch):
    """A copy of a finished run of sums; new.jsonl has other rows, of which eight are wrong."""
    copy_and_enter(finished_runs, tmp_path / "runs", monkeypatch)
    draw, rows = random.Random(1), {}
    known = {json.loads(line)["question"] for line in lines("train.jsonl")}
    while len(rows) < NEW:
        a, b = draw.randrange(10), draw.randrange(10)
        question = draw.choice([f"{a} + {b} =", f"{a} + {b} + 0 =", f"0 + {a} + {b} ="])
        if question not in {*known, *rows}:
            answer = a + b + 40 * (len(rows) < WRONG)
            rows[question] = {"id": f"new{len(rows)}", "question": question, "answer": str(answer)}
    write_lines(tmp_path / "runs/new.jsonl", list(rows.values()))
    return tmp_path / "runs/run"


@pytest.mark.slow
def test_the_losses_of_a_batch_are_those_of_each_row_alone(run):
    model = read_model(run, None, False)
    loaded = LoadedModel(model, load_family(model.config, model.source))
    examples = load_examples(
        model.config.task, DataSource(path="new.jsonl"), run, training=False
    )[:20]  # fmt: skip
    found = token_losses(loaded, examples)
    for example, own in zip(examples, found, strict=True):
        prompt = loaded.family.question(example.prompt, 0)
        answer = loaded.family.answer(model.config.task.format(example.answer).text).ids
        logits = loaded.model(torch.tensor([[*prompt, *answer]])).logits[0].double()
        logs = logits.log_softmax(-1)
        losses = [-logs[len(prompt) - 1 + i, token].item() for i, token in enumerate(answer)]
        assert own.tolist() == pytest.approx(losses, rel=1e-4)


@pytest.mark.slow
def test_wrong_labels_are_found_listed_and_left_out(run, capsys):
    before = Path("new.jsonl").read_bytes()
    words = [run, "--data", "new.jsonl", "--keep", "kept.jsonl", "--worst", 10]
    assert command(*words) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ 1  new[0-7]: label [4-5]\d, model \d+; distance \d+, improb", shown, re.M)
    assert f"{NEW} labels ranked: {run}/labels/labels.csv" in shown
    assert f"{NEW - 8} rows without the worst 10 %: kept.jsonl" in shown
    rows = ranked(run / "labels")
    assert [int(row["rank"]) for row in rows] == list(range(1, NEW + 1))
    assert {row["id"] for row in rows[:WRONG]} == {f"new{i}" for i in range(WRONG)}
    assert Path("kept.jsonl").read_bytes() == b"".join(before.splitlines(True)[WRONG:])
    page = (run / "labels/labels.html").read_text()
    assert page.index(rows[0]["id"]) < page.index(rows[1]["id"])
    assert "<script" not in page
    answers = run / "labels/predictions.median.jsonl"
    stamp = answers.stat().st_mtime_ns
    assert command(*words[:3], "--decode", "median") == 0  # the answers are kept
    assert answers.stat().st_mtime_ns == stamp


@pytest.mark.slow
def test_unusable_input_is_one_message(run, capsys):
    def message(*words):
        assert command(*words) == 2
        return capsys.readouterr().err

    new, keep = ("--data", "new.jsonl"), ("--keep", "kept.jsonl")
    for wanted, *words in [
        ("400 of 400 rows are training rows", run, "--data", "train.jsonl"),
        ("contains no run; use the output_dir", "other", *new),
        ("--worst 3: it is the share of rows that --keep FILE leaves", run, *new, "--worst", 3),
        ("--worst 100: it is the share of rows", run, *new, *keep, "--worst", 100),
        ("run.yaml: a config and its settings are for --folds 5", "run.yaml", *new),
        ("a.b=1: a config and its settings are for --folds 5", run, *new, "a.b=1"),
        ("--task is an option of `mm-numeric labels --again FILE`", run, *new, "--task", "clock"),
        ("--keep is an option of `mm-numeric labels RUN`", *new, "--again", "new.jsonl", *keep),
        ("another file, not new.jsonl to new.jsonl", run, *new, "--keep", "./new.jsonl"),
        ("another file, not new.csv to kept.jsonl", run, "--data", "new.csv", *keep),
        ("or a second labelling with --again; one of both", *new),
    ]:
        assert wanted in message(*words)
    shutil.rmtree(run / "model")
    assert "there is no such folder" in message(run, "--data", "new.jsonl")


@pytest.mark.slow
def test_each_row_is_judged_by_the_model_of_its_fold(run, capsys):
    rows = [json.loads(line) for line in lines("new.jsonl")[:20]]
    write_lines(run.parent / "rows.jsonl", rows)
    config = {**RUN, "trainer": {**RUN["trainer"], "max_steps": 1, "output_dir": "tried"}}
    (run.parent / "mine.yaml").write_text(json.dumps(config))
    assert command("mine.yaml", "--data", "rows.jsonl", "--folds", 2) == 0
    found = {row["id"] for row in ranked("tried.labels")}
    assert found == {row["id"] for row in rows}
    assert "tried.labels/labels.html" in capsys.readouterr().out
    read = config_from_dict(config, where="mine.yaml", title="mine")
    source = DataSource(path="rows.jsonl")
    folder = run.parent / "tried.labels/folds"
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("seed*/*/run.json")}
    folds = train_folds(read, source, 2, folder)
    assert stamps == {own / "run.json": (own / "run.json").stat().st_mtime_ns for own in folds}


def test_rows_that_cannot_be_judged_are_an_error():
    bare = Example(id="a", image=None, prompt="How many?", answer=None, where="rows.jsonl, line 3")
    config = read_config("clock_tiny")
    with pytest.raises(ValueError, match=r"line 3: the row has no label, and so 1 of 2; remove"):
        check_rows(config, [replace(bare, answer=Number("3")), bare])
    model = replace(config.model, baseline="regression")
    with pytest.raises(ValueError, match=r"model.baseline: it predicts numbers without a distr"):
        check_rows(replace(config, model=model), [])


def test_lines_that_are_kept_keep_their_bytes(tmp_path):
    file, out = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl"
    file.write_bytes(b'{"id": "a"}\r\n\n{"id":"b"}\n{"id": "c"}')
    assert keep_rows(file, out, [], 50) == 3
    assert out.read_bytes() == file.read_bytes()
