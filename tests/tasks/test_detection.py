"""The task `detection`: what is asked, in which order and form it is answered, and its scores."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from synthetic_rows import rows_for

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.comparison.summary import read_run_scores
from mm_numeric.comparison.tables import metric_tables
from mm_numeric.config.data import DataSource
from mm_numeric.config.reader import config_from_dict
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.detection import count_labels
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frame_presets import FrameRule
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.tasks.base import task_class
from mm_numeric.tasks.class_counts import ClassCounts
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.pointing import Pointing

SHARED = Path(__file__).parents[3] / "shared" / "data"
INSTANCES = SHARED / "coco" / "instances_val2014_100.json"

CUP, DOG, CROWD = (
    {"box": [10, 60, 50, 90], "label": "cup"},
    {"box": [0, 0, 99, 59], "label": "dog"},
    {"box": [1, 1, 9, 9], "label": "cup", "ignore": True},
)
ROW = {"id": "7", "image": "a.png", "width": 100, "height": 100, "instances": [CUP, DOG, CROWD]}
RESIZE = Resize(kind="none")


def examples(task, row=ROW, *, training=True):
    return list(task.examples([("f, line 1", row)], training=training))


def frame_of(name):
    return Frame(100, 100, RESIZE.view(100, 100), COORDINATES[name])


def test_questions_depend_on_the_declared_classes_and_never_on_the_objects():
    asked = Detection(classes=("cup", "dog", "cat"))
    for row in (ROW, {**ROW, "instances": []}, {**ROW, "instances": [DOG]}):
        (example,) = examples(asked, row)
        assert example.prompt == "Locate every object of these classes: cup, dog, cat."
        assert example.id == "7"
        (example,) = examples(Detection(), row)
        assert example.prompt == "Locate every object of these classes: every object."
    (example,) = examples(asked, {**ROW, "classes": ["dog", "cup"]})
    assert "cup, dog, cat" in example.prompt  # the config restricts what the rows offer
    (example,) = examples(Detection(), {**ROW, "classes": ["dog", "cup"]})
    assert "dog, cup" in example.prompt
    (example,) = examples(asked, {**ROW, "phrase": "things on the table"})
    assert "classes: things on the table." in example.prompt


def test_a_label_that_is_not_asked_for_is_an_error_or_dropped():
    with pytest.raises(ValueError, match=r"^f, line 1: the label 'dog' is not among .*\(cup\); a"):
        examples(Detection(classes=("cup",)))
    many = tuple(f"long class {i}" for i in range(80))
    with pytest.raises(ValueError, match=r"\(long class 0, .*, long class 6 and 73 more\); add it"):
        examples(Detection(classes=many))
    with pytest.raises(ValueError, match=r"\(cup\); add it to \"classes\" of the row, or remove t"):
        examples(Detection(), {**ROW, "classes": ["cup"]})
    (example,) = examples(Detection(classes=("cup",), other_labels="drop"))
    assert [item.label for item in example.answer.items] == ["cup", "cup"]
    assert example.dropped == ("dog",)


@pytest.mark.parametrize("ask", ["together", "each"])
def test_objects_are_counted_by_class_and_a_class_without_any_is_a_warning(ask):
    task = Detection(classes=("cup", "dogs"), other_labels="drop", ask=ask)
    counts = task.count_classes(examples(task))
    assert list(counts.facts()) == [
        ("objects", "1 cup, 0 dogs"),
        ("dropped objects", "1 dog; these classes are not asked for"),
    ]
    assert list(counts.warnings({})) == [
        "the class 'dogs' is in no row of the training data; did you mean 'dog'?"
    ]
    assert list(counts.warnings({"dogs": 1200})) == [
        "the class 'dogs' is in no row that is trained on: the rows with its objects (1,200) are "
        "longer than data.max_tokens; raise it."
    ]
    asked = Detection(classes=("cup", "cups", "dog")).count_classes(examples(Detection()))
    assert list(asked.warnings({})) == ["the class 'cups' is in no row of the training data."]
    asked = Detection(classes=("cup", "hat", "cat")).count_classes(examples(Detection()))
    (several,) = asked.warnings({})
    assert several == "2 classes are in no row of the training data: hat, cat."
    everything = Detection().count_classes(examples(Detection()))
    assert (dict(everything.objects), dict(everything.dropped)) == ({"cup": 1, "dog": 1}, {})
    many = ClassCounts({f"class {i}": i for i in range(23)}, {"mat": 1})
    text = dict(many.facts())["objects"]
    assert text.startswith("22 class 22, 21 class 21, ")
    assert text.endswith(", 3 class 3, and 3 more classes, 1 of them without objects")


def test_one_question_per_class_has_negatives():
    task = Detection(classes=("cup", "dog", "cat", "cow"), ask="each")
    found = {e.id: e for e in examples(task)}
    assert list(found) == ["7.cup", "7.dog", "7.cat", "7.cow"]
    assert found["7.cow"].prompt == "Locate every object of these classes: cow."
    assert found["7.cow"].answer == Instances(())
    assert [i.ignore for i in found["7.cup"].answer.items] == [False, True]
    few = replace(task, negatives=1)
    kept = [e.id for e in examples(few)]
    assert kept[:2] == ["7.cup", "7.dog"]
    assert len(kept) == 3
    assert kept == [e.id for e in examples(few)]
    assert len(examples(few, training=False)) == 4  # a test that left some out would be easier
    drawn = {examples(few, {**ROW, "id": str(i)})[2].id.partition(".")[2] for i in range(20)}
    assert drawn == {"cat", "cow"}
    assert [e.id for e in examples(replace(task, negatives=0))] == ["7.cup", "7.dog"]


def test_a_class_with_ignored_objects_alone_is_neither_there_nor_absent():
    """A crowd of cups: to train on no cups, or on one box around them, would both be wrong."""
    task, row = Detection(classes=("cup", "dog"), ask="each"), {**ROW, "instances": [CROWD, DOG]}
    assert [e.id for e in examples(task, row)] == ["7.dog"]
    assert [e.id for e in examples(task, row, training=False)] == ["7.cup", "7.dog"]
    unlabelled = {**CROWD, "label": ""}
    found = examples(task, {**ROW, "instances": [unlabelled, DOG]}, training=False)
    assert [[i.label for i in e.answer.items] for e in found] == [[""], ["", "dog"]]


@pytest.mark.parametrize(
    ("name", "text", "nothing"),
    [
        (
            "qwen2_5_vl",
            '[{"bbox_2d": [0, 0, 99, 59], "label": "dog"}, '
            '{"bbox_2d": [10, 60, 50, 90], "label": "cup"}]',
            "[]",
        ),
        (
            "qwen3_vl",
            '[{"bbox_2d": [0, 0, 990, 590], "label": "dog"}, '
            '{"bbox_2d": [100, 600, 500, 900], "label": "cup"}]',
            "[]",
        ),
        (
            "paligemma",
            "<loc0000><loc0000><loc0604><loc1013> dog ; <loc0614><loc0102><loc0921><loc0512> cup",
            "none",
        ),
        (
            "qwen2_vl",
            "<|object_ref_start|>dog<|object_ref_end|><|box_start|>(0,0),(990,590)<|box_end|>"
            "<|object_ref_start|>cup<|object_ref_end|><|box_start|>(100,600),(500,900)<|box_end|>",
            "none",
        ),
    ],
)
def test_each_family_writes_its_own_format(name, text, nothing):
    """Sorted by y; ignored regions are not written; an absent class has an answer of its own."""
    task, frame = Detection(), frame_of(name)
    (example,) = examples(task)
    assert task.format(example.answer, frame).text == text
    assert [item.label for item in task.parse(text, frame).items] == ["dog", "cup"]
    assert task.format(Instances(()), frame).text == nothing
    assert task.parse(nothing, frame) == Instances(())


def test_the_order_is_declared():
    boxes = [Box(5, 40, 10, 45), Box(0, 10, 90, 90), Box(60, 10, 70, 20)]
    answer = Instances(tuple(map(Instance, boxes)))
    frame = frame_of("qwen2_5_vl")

    def written(order):
        task = Detection(order=order)
        return [item.shape for item in task.parse(task.format(answer, frame).text, frame).items]

    assert written("rows") == boxes
    assert written("raster") == [boxes[1], boxes[2], boxes[0]]
    assert written("area") == [boxes[1], boxes[2], boxes[0]]
    assert sorted(written("random"), key=str) == sorted(boxes, key=str)
    assert written("random") == written("random")


@pytest.mark.parametrize("order", ["raster", "area", "random", "rows"])
def test_shapes_are_sorted_by_what_is_written(order):
    """Coordinates that are equal after rounding do not decide; the text is that of its parse."""
    boxes = [
        (Box(80, 103.51, 120, 140), "b"), (Box(20, 103.84, 60, 140.3), "b"),  # both have y1 104
        (Box(19.8, 103.7, 59.9, 140), "a"), (Box(300, 50.2, 340, 86.7), "c"),
    ]  # fmt: skip
    answer = Instances(tuple(Instance(box, label) for box, label in boxes))
    frame = Frame(640, 480, Resize(kind="none").view(640, 480), COORDINATES["pixels_original"])
    task = Detection(order=order)
    text = task.format(answer, frame).text
    parsed = task.parse(text, frame)
    assert task.format(parsed, frame).text == text
    if order != "rows":
        assert task.format(replace(answer, items=answer.items[::-1]), frame).text == text
    if order in ("raster", "area"):  # of the same area, and then of the same box
        same = [(item.shape.x1, item.label) for item in parsed.items]
        assert same == [(300, "c"), (20, "a"), (20, "b"), (80, "b")]


@pytest.mark.skipif(not INSTANCES.is_file(), reason="the COCO sample is not on this machine")
def test_real_answers_are_parsed_as_they_are_written():
    raw = json.loads(INSTANCES.read_text(encoding="utf-8"))
    labels = {category["id"]: category["name"] for category in raw["categories"]}
    for image in raw["images"][:30]:
        own = [a for a in raw["annotations"] if a["image_id"] == image["id"]]
        boxes = [(a["bbox"], labels[a["category_id"]]) for a in own if not a["iscrowd"]]
        items = [Instance(Box(x, y, x + w, y + h), label) for (x, y, w, h), label in boxes]
        frame = FrameRule.of_family("qwen2_vl").frame(image["width"], image["height"])
        for task in (Detection(), Pointing()):
            text = task.format(Instances(tuple(items)), frame).text
            assert task.format(task.parse(text, frame), frame).text == text


@pytest.mark.parametrize(
    ("family", "prompt", "between"),
    [
        ("paligemma", "detect {classes}", " ; "),
        ("qwen3_vl", 'categories: "{classes}". Report bbox', ", "),
        ("yi_vl", "Locate every object of", ", "),
    ],
)
def test_the_prompt_is_the_family_s_habit(tmp_path, family, prompt, between):
    raw = {
        "task": "detection",
        "data": {"train": rows_for("detection", 1), "test": rows_for("detection", 1)},
        "model": {"name": "tiny", "family": family},
        "trainer": {"output_dir": str(tmp_path)},
    }
    task = config_from_dict(raw, where="a", title="a").task
    assert prompt in task.prompt
    assert task.between_classes == between


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "Find all."}, r"prompt needs \{classes\} in it"),
        ({"ask": "one"}, "ask is one of together, each, not 'one'"),
        ({"negatives": 2}, "negatives is 0 or more and requires ask: each"),
        ({"negatives": -1, "ask": "each"}, "negatives is 0 or more"),
        ({"classes": ("a", "a")}, "classes: expected a list of different names"),
        ({"order": "name"}, "order is one of raster"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Detection(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instances": None}, r'^f, line 1: no "instances" \(a list\)'),
        ({"classes": "cup"}, r"^f, line 1, classes: expected a list of different names"),
        ({"phrase": 3}, r"^f, line 1: no phrase"),
        (
            {"instances": [CUP, {"polygon": [0, 5, 9, 5, 4, 5], "label": "cup"}]},
            r"^f, line 1, instances\.1: the box around the polygon, \[0, 5, 9, 5\], has no area",
        ),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        examples(Detection(), {**ROW, **change})
    with pytest.raises(ValueError, match=r"^f, line 1: ask: each needs classes and no phrase"):
        examples(Detection(ask="each"))
    grounding = {"id": "1", "image": "a.png", "phrase": "cup", "box": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match=r'^f, line 1: the row has one "box".* `task: grounding`'):
        examples(Detection(), grounding)


def test_an_ignored_region_without_an_area_is_left_out():
    line = {"polygon": [0, 5, 9, 5, 4, 5], "label": "cup", "ignore": True}
    (example,) = examples(Detection(), {**ROW, "instances": [CUP, line]})
    assert example.answer == Instances((Instance(Box(10, 60, 50, 90), "cup"),))
    assert Detection().recorded(Detection().record(example.answer)) == example.answer


@pytest.mark.parametrize("name", ["clock", "grounding", "numbers", "gsm8k"])
def test_another_task_names_detection_for_rows_with_instances(tmp_path, name):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW), encoding="utf-8")
    source, task = DataSource(path=str(path)), task_class(name, "test")()
    message = rf'line 1: the row has "instances", which the task {name} does not read; set `task: d'
    with pytest.raises(ValueError, match=message):
        load_examples(task, source, tmp_path, training=True)


LABELS = ("cup", "dog", "cat")


def scenes(seed, images=14):
    """Return true and predicted objects with confidences: moved, missing, doubled, mislabelled."""
    rng = random.Random(seed)
    targets, answers, scores = [], [], []
    for _ in range(images):
        true, found = [], []
        for _ in range(rng.randint(0, 5)):
            x, y = rng.randint(0, 60), rng.randint(0, 60)
            box = Box(x, y, x + rng.randint(5, 40), y + rng.randint(5, 40))
            true.append(Instance(box, rng.choice(LABELS), ignore=rng.random() < 0.1))
            for _ in range(rng.choice([0, 1, 1, 1, 2])):
                by = rng.choice([0, 0, 1, 2, 9])
                label = true[-1].label if rng.random() < 0.8 else rng.choice(LABELS)
                moved = Box(box.x1 + by, box.y1, box.x2 + by, box.y2)
                found.append(Instance(moved, label))
        targets.append(Instances(tuple(true)))
        answers.append(Instances(tuple(found)))
        scores.append([round(rng.random(), 6) for _ in found])
    return targets, answers, scores


def predictions_file(folder, targets, answers, scores, task):
    """Write predictions of the task, in pixels of the original image."""
    frame = Frame(100, 110, RESIZE.view(100, 110), replace(COORDINATES["llava"], space="original",
                  max_value=None, decimals=0)).to_dict()  # fmt: skip
    lines = [
        {"id": str(i), "task": "detection", "target": task.record(target), "scores": own,
         "text": task.format(answer, Frame.from_dict(frame)).text, "frame": frame}
        for i, (target, answer, own) in enumerate(zip(targets, answers, scores, strict=True))
    ]  # fmt: skip
    path = folder / "predictions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def coco_rows(instances, image, scores=None):
    return [
        {
            "image_id": image,
            "category_id": LABELS.index(item.label),
            "bbox": [item.shape.x1, item.shape.y1, item.shape.x2 - item.shape.x1,
                     item.shape.y2 - item.shape.y1],
            "area": (item.shape.x2 - item.shape.x1) * (item.shape.y2 - item.shape.y1),
            "iscrowd": int(item.ignore),
            **({} if scores is None else {"score": scores[i]}),
        }
        for i, item in enumerate(instances.items)
    ]  # fmt: skip


def pycocotools_ap(targets, answers, scores):
    """Return AP, AP50, AP75 and the AP of each label, by pycocotools."""
    truth = COCO()
    rows = [row for i, t in enumerate(targets) for row in coco_rows(t, i)]
    truth.dataset = {
        "images": [{"id": i} for i in range(len(targets))],
        "categories": [{"id": i, "name": name} for i, name in enumerate(LABELS)],
        "annotations": [{"id": n, **row} for n, row in enumerate(rows, start=1)],
    }
    truth.createIndex()
    found = [row for i, a in enumerate(answers) for row in coco_rows(a, i, scores[i])]
    evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    by_label = {name: precision[:, :, k].mean() for k, name in enumerate(LABELS)}
    return evaluation.stats[:3], by_label


@pytest.mark.parametrize("seed", range(3))
def test_ap_equals_pycocotools_together_and_per_class(tmp_path, seed):
    """A question per class gives the same AP: COCO matches each class of an image on its own."""
    targets, answers, scores = scenes(seed)
    task = Detection(order="rows")
    expected, by_label = pycocotools_ap(targets, answers, scores)
    found = score(predictions_file(tmp_path, targets, answers, scores, task), write=False)
    split = [
        [(Instances(tuple(i for i in side.items if i.label == name))) for side in (target, answer)]
        + [[s for s, i in zip(own, answer.items, strict=True) if i.label == name]]
        for target, answer, own in zip(targets, answers, scores, strict=True)
        for name in LABELS
    ]
    each = score(predictions_file(tmp_path, *zip(*split, strict=True), task), write=False)
    for result in (found, each):
        metrics = result.ranking.metrics
        assert [metrics[n] for n in ("ap", "ap_50", "ap_75")] == pytest.approx(expected, abs=1e-12)
        assert {r["name"]: r["ap"] for r in result.label_rows()} == pytest.approx(by_label)
        assert re.search(rf"AP +{100 * expected[0]:.2f} %", results_table(result))


def test_ap_is_compared_like_other_metrics(tmp_path):
    """Two seeds of two objectives: paired differences, and 0 for a run that finds nothing."""
    task, runs, expected = Detection(order="rows"), {}, {}
    targets, answers, scores = scenes(0)
    half = [[own if i % 2 else 0.0 for i, own in enumerate(row)] for row in scores]
    nothing = [Instances(())] * len(targets)
    perfect = [Instances(tuple(i for i in own.items if not i.ignore)) for own in targets]
    falling = [[1 - i / 9 for i, _ in enumerate(own.items)] for own in perfect]
    for name, seeds in {
        "ce": [(answers, scores), (answers, half)],
        "emd": [(perfect, falling)] * 2,
        "none": [(nothing, [[]] * len(targets))] * 2,
    }.items():
        runs[name, "greedy"] = []
        for seed, (found, ranks) in enumerate(seeds):
            folder = tmp_path / f"{name}{seed}"
            folder.mkdir()
            predictions_file(folder, targets, found, ranks, task)
            runs[name, "greedy"].append(read_run_scores(folder))
            if name != "none":
                (expected[name, seed], *_), _ = pycocotools_ap(targets, found, ranks)
    tables = metric_tables(runs, {"ce": None, "emd": "ce", "none": "ce"})
    names = [metric.name for metric in tables.metrics]
    assert names.index("ap") < 8  # in a table of the report that is not folded
    ce, emd, none = (tables.table[name]["ap"] for name in ("ce", "emd", "none"))
    assert ce["seeds"] == pytest.approx([expected["ce", 0], expected["ce", 1]])
    assert 0 < ce["low"] < ce["value"] < ce["high"] < 1
    apart = [expected["emd", i] - expected["ce", i] for i in range(2)]
    assert emd["difference"]["seeds"] == pytest.approx(apart)
    assert emd["difference"]["low"] < emd["difference"]["value"] < emd["difference"]["high"]
    assert none["seeds"] == [0, 0]
    assert none["difference"]["seeds"] == pytest.approx([-own for own in ce["seeds"]])


def overlap(a, b):
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    return max(width, 0) * max(height, 0)


def area(box):
    return (box.x2 - box.x1) * (box.y2 - box.y1)


def slow_counts(answers, targets):
    """Count per label with loops: greedy by decreasing IoU, ignored regions as the docs say."""
    counts = {name: [0, 0, 0, 0, 0] for name in LABELS}
    for answer, target in zip(answers, targets, strict=True):
        truths = [t for t in target.items if not t.ignore]
        ignored = [t for t in target.items if t.ignore]
        candidates = []
        for t, truth in enumerate(truths):
            counts[truth.label][0] += 1
            for d, found in enumerate(answer.items):
                both = overlap(truth.shape, found.shape)
                iou = both / (area(truth.shape) + area(found.shape) - both)
                if truth.label == found.label and iou >= 0.5:
                    candidates.append((-iou, t, d))
        used_truths, used = set(), set()
        for iou, t, d in sorted(candidates):
            if t not in used_truths and d not in used:
                used_truths.add(t)
                used.add(d)
                for k, threshold in enumerate((0.5, 0.75, 0.9)):
                    counts[truths[t].label][2 + k] += -iou >= threshold
        for d, found in enumerate(answer.items):
            inside = any(
                region.label == found.label
                and overlap(region.shape, found.shape) > 0.5 * area(found.shape)
                for region in ignored
            )
            counts[found.label][1] += d in used or not inside
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_counts_per_label_equal_a_slow_reference(seed):
    targets, answers, _ = scenes(seed, images=30)
    found = {name: own.tolist() for name, own in count_labels(answers, targets).items()}
    assert found == slow_counts(answers, targets)


def test_without_confidences_ap_is_not_computed(tmp_path):
    """Equal scores give an AP that depends on the order of the images."""
    targets, answers, scores = scenes(0)
    for constant in ([[1.0] * len(own) for own in scores], [None] * len(scores)):
        found = score(
            predictions_file(tmp_path, targets, answers, constant, Detection(order="rows")),
            write=False,
        )
        assert found.ranking is None
        text = results_table(found)
        assert "AP: not computed, because" in text
        assert "F1@0.5" in text


TRIANGLE = Polygon(((1.0, 1.0), (9.0, 1.0), (5.0, 9.0)))
QUAD = Polygon(((1.0, 1.0), (9.0, 1.0), (9.0, 9.0), (1.0, 9.0)))


@pytest.mark.parametrize(
    ("options", "shape", "label", "allowed"),
    [
        ({}, Box(1, 1, 9, 9), "cat", True),
        ({}, Box(1, 1, 9, 9), "car", False),
        ({"classes": ()}, Box(1, 1, 9, 9), "car", True),
        ({}, TRIANGLE, "cat", False),
        ({"shape": "polygon"}, TRIANGLE, "cat", True),
        ({"shape": "rotated_box"}, TRIANGLE, "cat", False),
        ({"shape": "rotated_box"}, QUAD, "cat", True),
        ({}, Box(-5, -5, 1, 1), "cat", True),
        ({}, Box(-5, -5, 0, 9), "cat", False),
        ({}, Box(100, 1, 120, 9), "cat", False),
        ({}, Box(1, 50, 9, 60), "cat", False),
    ],
)
def test_mbr_may_choose_objects_of_the_classes_and_the_shape_in_the_image(
    options, shape, label, allowed
):
    task = Detection(**{"classes": ("cat", "dog"), **options})
    frame = Frame(100, 50, Resize(kind="none").view(100, 50), COORDINATES["pixels_original"])
    good = Instance(Box(1, 1, 9, 9) if task.shape == "box" else QUAD, "cat")
    assert task.allows(Instances((good,)), frame)
    assert task.allows(Instances((good, Instance(shape, label))), frame) == allowed
    assert task.allows(Instances(()), frame)
