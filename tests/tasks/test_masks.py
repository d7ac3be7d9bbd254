"""Detection with ``max_points``: masks as polygons, compared with masks as pycocotools does."""

import copy
import json
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import shapely
from coco_data import as_masks, crowded, evaluated, summarized
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask

from mm_numeric.answers import Instance, Instances, Polygon
from mm_numeric.data.augmentations import Scene, flip
from mm_numeric.evaluation.metrics.detection import LABELLED_DETECTION, scores_by_iou
from mm_numeric.evaluation.metrics.matching import match_rows
from mm_numeric.evaluation.score import score
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.geometry.masks import few_corners, mask_of, mask_region, mask_row
from mm_numeric.geometry.moves import KeptShare
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.prepare import prepare
from mm_numeric.tasks.detection import Detection

WIDTH, HEIGHT = 260, 250
FRAME = Frame(WIDTH, HEIGHT, Resize(kind="none").view(WIDTH, HEIGHT), COORDINATES["qwen3_vl"])
TASK = Detection(shape="polygon", max_points=8, order="rows")
ROW = {"id": "1", "image": "a.png", "width": WIDTH, "height": HEIGHT}


def read(task, *instances, **more):
    (example,) = task.examples(
        [("f, line 1", {**ROW, "instances": [*instances], **more})], training=False
    )
    return example.answer


# -- outlines -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 60)] * 2), min_size=3, max_size=30), st.integers(3, 9))
def test_an_outline_has_few_corners_of_the_largest_part(points, most):
    """Also of polygons that cross themselves; an outline of few corners stays as it is."""
    found = few_corners(shapely.Polygon(points), most)
    parts = shapely.get_parts(shapely.get_parts(shapely.make_valid(shapely.Polygon(points))))
    largest = max(parts, key=shapely.area)
    if not largest.area:
        assert found == ()
        return
    corners = list(map(tuple, shapely.get_coordinates(largest.exterior)[:-1].tolist()))
    assert set(found) <= set(corners)
    if len(corners) <= most:
        assert list(found) == corners
    elif found:
        assert 3 <= len(found) <= most


def test_the_corner_that_changes_the_area_least_is_left_out_first():
    """A slow loop: all triangles of neighbours are compared, for an outline of 12 corners."""
    rng = random.Random(3)
    angles = [2 * np.pi * (i + rng.random()) / 12 for i in range(12)]
    radii = [rng.uniform(20, 50) for _ in angles]
    points = [(r * np.cos(a), r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]
    kept = list(points)
    while len(kept) > 5:
        areas = [shapely.Polygon([kept[i - 1], kept[i], kept[(i + 1) % len(kept)]]).area
                 for i in range(len(kept))]  # fmt: skip
        del kept[areas.index(min(areas))]
    assert set(few_corners(shapely.Polygon(points), 5)) == set(kept)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_region_of_a_mask_has_its_pixels(height, width, rng):
    pixels = np.array([[rng.random() < 0.5 for _ in range(width)] for _ in range(height)])
    region = mask_region(mask_of(pixels.astype(np.uint8)))
    assert region.is_valid
    for y, x in product(range(height), range(width)):
        assert region.intersection(shapely.box(x, y, x + 1, y + 1)).area == pixels[y, x]


def test_the_first_object_of_instances_val2017_is_read_to_the_digit(tmp_path):
    """Annotation 1768 of COCO, as printed by PaddleRS (docs/data/coco_tools.md)."""
    outline = [
        510.66, 423.01, 511.72, 420.03, 510.45, 416.0, 510.34, 413.02, 510.77, 410.26, 510.77,
        407.5, 510.34, 405.16, 511.51, 402.83, 511.41, 400.49, 510.24, 398.16, 509.39, 397.31,
        504.61, 399.22, 502.17, 399.64, 500.89, 401.66, 500.47, 402.08, 499.09, 401.87, 495.79,
        401.98, 490.59, 401.77, 488.79, 401.77, 485.39, 398.58, 483.9, 397.31, 481.56, 396.35,
        478.48, 395.93, 476.68, 396.03, 475.4, 396.77, 473.92, 398.79, 473.28, 399.96, 473.49,
        401.87, 474.56, 403.47, 473.07, 405.59, 473.39, 407.71, 476.68, 409.41, 479.23, 409.73,
        481.56, 410.69, 480.4, 411.85, 481.35, 414.93, 479.86, 418.65, 477.32, 420.03, 476.04,
        422.58, 479.02, 422.58, 480.29, 423.01, 483.79, 419.93, 486.66, 416.21, 490.06, 415.57,
        492.18, 416.85, 491.65, 420.24, 492.82, 422.9, 493.56, 424.39, 496.43, 424.6, 498.02,
        423.01, 498.13, 421.31, 497.07, 420.03, 497.07, 415.15, 496.33, 414.51, 501.1, 411.96,
        502.06, 411.32, 503.02, 415.04, 503.33, 418.12, 501.1, 420.24, 498.98, 421.63, 500.47,
        424.39, 505.03, 423.32, 506.2, 421.31, 507.69, 419.5, 506.31, 423.32, 510.03, 423.01,
        510.45, 423.01,
    ]  # fmt: skip
    row = {"id": 1768, "image_id": 289343, "category_id": 18, "iscrowd": 0,
           "area": 702.1057499999998, "bbox": [473.07, 395.93, 38.65, 28.67],
           "segmentation": [outline]}  # fmt: skip
    image = {"id": 289343, "file_name": "000000289343.jpg", "width": 640, "height": 529}
    dataset = {"images": [image], "annotations": [row], "categories": [{"id": 18, "name": "dog"}]}
    (imported,) = imported_rows(tmp_path, dataset)
    assert imported["instances"] == [{"polygon": outline, "label": "dog"}]
    (item,) = next(TASK.examples([("f", imported)], training=False)).answer.items
    assert shapely.Polygon(np.reshape(outline, (-1, 2))).area == pytest.approx(row["area"])
    assert len(item.shape.points) <= 8
    wanted = mask.frPyObjects([outline], 529, 640)[0]
    assert mask.frPyObjects(mask_row(item.mask), 529, 640) == wanted


# -- what is read and written ---------------------------------------------------------------------


def imported_rows(folder, dataset):
    source, rows = folder / "instances.json", folder / "rows.jsonl"
    source.write_text(json.dumps(dataset), encoding="utf-8")
    assert prepare("coco", Coco(shape="polygon"), [source], rows).bad == 0
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]


RING = np.zeros((HEIGHT, WIDTH), np.uint8)
RING[20:80, 30:90] = 1
RING[40:60, 50:70] = 0  # a hole
RING[100:110, 100:110] = 1  # another part


def test_the_largest_part_is_written_and_the_row_keeps_its_mask():
    whole = mask_of(RING)
    (item,) = read(TASK, {"mask": mask_row(whole), "label": "ring"}).items
    assert item == Instance(Polygon(((30, 20), (90, 20), (90, 80), (30, 80))), "ring", mask=whole)
    text = TASK.format(Instances((item,)), FRAME).text
    (parsed,) = TASK.parse(text, FRAME).items
    assert text == '[{"poly_2d": [115, 80, 346, 80, 346, 320, 115, 320], "label": "ring"}]'
    assert np.array(parsed.shape.points) == pytest.approx(np.array(item.shape.points), abs=0.3)
    assert TASK.recorded(json.loads(json.dumps(TASK.record(Instances((item,)))))).items == (item,)
    answer = Instances((replace(item, mask=None),))
    columns = LABELLED_DETECTION.judge([answer], [Instances((item,))])
    iou = (60 * 60 - 20 * 20) / (60 * 60 + 10 * 10)
    assert columns["paired_iou"] == pytest.approx([iou])


def test_a_mirrored_outline_begins_at_its_topmost_corner():
    answer = read(TASK, {"polygon": [10, 50, 30, 20, 60, 60], "label": "a"})
    scene = Scene((Image.new("RGB", (WIDTH, HEIGHT)),), answer, "", KeptShare(0.75, 8),
                  lambda rng, count: [])  # fmt: skip
    (moved,) = TASK.moved_answer(flip(scene, random.Random(0)).answer).items
    assert moved == Instance(Polygon(((230, 20), (250, 50), (200, 60))), "a")


@pytest.mark.parametrize(
    ("options", "instance", "more", "message"),
    [
        ({"shape": "box"}, {}, {}, "max_points is 3 or more and requires shape: polygon, not 8"),
        ({"max_points": 2}, {}, {}, "max_points is 3 or more"),
        ({}, {"box": [1, 1, 9, 9]}, {}, r'instances\.0: max_points needs the outline of each'),
        ({}, {"polygon": [1, 1, 9, 1, 5, 1]}, {}, r"instances\.0: the object has no area"),
        ({}, {"mask": {"size": [2, 2], "counts": [0, 4]}}, {}, r"line 1: a mask has the size of"),
        ({}, {}, {"width": None, "height": None}, "need the width and height of the image; add"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_mask_is_one_sentence(options, instance, more, message):
    with pytest.raises(ValueError, match=message):
        read(replace(TASK, **options), {"label": "a", **instance}, **more)


# -- scores ---------------------------------------------------------------------------------------


def answers_to(dataset, results):
    """Return the texts of polygons of results as a model writes them, parsed, and their scores."""
    answers, scores = [], []
    names = {row["id"]: row["name"] for row in dataset["categories"]}
    for image in dataset["images"]:
        rows = [row for row in results if row["image_id"] == image["id"]]
        items = []
        for row in rows:
            x, y, w, h = row["bbox"]
            corners = (0.3, 0), (0.7, 0), (1, 0.4), (0.7, 1), (0.3, 1), (0, 0.4)
            inside = tuple((min(x + a * w, WIDTH), min(y + b * h, HEIGHT)) for a, b in corners)
            items.append(Instance(Polygon(inside), names[row["category_id"]]))
        answers.append(TASK.parse(TASK.format(Instances(tuple(items)), FRAME).text, FRAME))
        scores.append([row["score"] for row in rows])
    return answers, scores


@pytest.fixture(scope="module", params=[0, 1])
def judged(request, tmp_path_factory):
    """Rows with masks of several parts and crowds, imported from COCO's format, and answers."""
    dataset, results = crowded(request.param, 7)
    dataset["annotations"] = [  # all pixels of masks are inside their image
        row for row in dataset["annotations"] if row["bbox"][0] < 250 and row["bbox"][1] < 240
    ]
    dataset, _ = as_masks(dataset, results)
    for image in dataset["images"]:
        image["file_name"] = f"{image['id']}.jpg"
    rows = imported_rows(tmp_path_factory.mktemp("coco"), dataset)
    targets = [next(TASK.examples([("f", row)], training=False)).answer for row in rows]
    assert {"mask", "box", "label"} <= {key for row in rows for i in row["instances"] for key in i}
    answers, scores = answers_to(dataset, results)
    return dataset, targets, answers, scores


def rle_of(item):
    flat = [number for point in item.shape.points for number in point]
    return mask.frPyObjects([flat], HEIGHT, WIDTH)[0]


def test_segm_ap_equals_pycocotools(judged, tmp_path):
    dataset, targets, answers, scores = judged
    numbers = {row["name"]: row["id"] for row in dataset["categories"]}
    found = [
        {"image_id": image["id"], "category_id": numbers[item.label], "score": value,
         "segmentation": rle_of(item)}
        for image, answer, own in zip(dataset["images"], answers, scores, strict=True)
        for item, value in zip(answer.items, own, strict=True)
    ]  # fmt: skip
    expected = summarized(evaluated(copy.deepcopy(dataset), found, "segm"))
    assert 0.05 < expected["ap"] < 0.95
    lines = [
        {"id": str(i), "task": "detection", "target": TASK.record(target), "scores": own,
         "frame": FRAME.to_dict(),
         "text": TASK.format(answer, FRAME).text}
        for i, (target, answer, own) in enumerate(zip(targets, answers, scores, strict=True))
    ]  # fmt: skip
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    metrics = score(path, write=False).ranking.metrics
    assert metrics == pytest.approx(expected, abs=1e-9, nan_ok=True)


def slow_pairs(target, answer):
    """Match greedily by decreasing IoU of decoded pixels; return the IoUs of the pairs."""
    pixels = [
        [mask.decode(mask.frPyObjects(mask_row(i.mask), HEIGHT, WIDTH)) for i in target.items],
        [
            mask.decode(
                mask.frPyObjects([[n for p in i.shape.points for n in p]], HEIGHT, WIDTH)[0]
            )
            for i in answer.items
        ],
    ]
    found = []
    for t, a in product(range(len(target.items)), range(len(answer.items))):
        true, own = target.items[t], answer.items[a]
        both, either = (pixels[0][t] & pixels[1][a]).sum(), (pixels[0][t] | pixels[1][a]).sum()
        if true.label == own.label and not true.ignore and both:
            found.append((both / either, -t, -a))
    pairs, used = [], set()
    for iou, t, a in sorted(found, reverse=True):
        if iou >= 0.5 and not {("t", t), ("a", a)} & used:
            used |= {("t", t), ("a", a)}
            pairs.append(iou)
    return pairs


def test_pairs_equal_a_slow_loop_over_pixels(judged):
    _, targets, answers, _ = judged
    columns = LABELLED_DETECTION.judge(answers, targets)
    slow = [slow_pairs(*pair) for pair in zip(targets, answers, strict=True)]
    assert columns["paired_at_0.5"].tolist() == list(map(len, slow))
    assert sum(map(len, slow)) > 10
    assert columns["paired_iou"] == pytest.approx([sum(own) for own in slow])


def test_the_ceiling_of_ap_is_the_recall_at_each_threshold():
    """The right answers of a mask with a hole and of a square: one of the two fits from IoU .9."""
    square = {"polygon": [100, 100, 200, 100, 200, 200, 100, 200], "label": "a"}
    target = read(TASK, {"mask": mask_row(mask_of(RING)), "label": "a"}, square)
    answer = TASK.parse(TASK.format(target, FRAME).text, FRAME)
    scores = scores_by_iou([answer], [target])
    found = LABELLED_DETECTION.ranked.rank([answer], [target], scores).metrics
    (low, high) = sorted(
        mask.iou([mask.frPyObjects([np.ravel(a.shape.points).tolist()], HEIGHT, WIDTH)[0]],
                 [mask.frPyObjects(mask_row(t.mask), HEIGHT, WIDTH)], [0]).item()
        for a, t in zip(answer.items, target.items, strict=True)
    )  # fmt: skip
    recall = [np.mean([iou >= t - 1e-9 for iou in (low, high)]) for t in np.linspace(0.5, 0.95, 10)]
    assert 0.5 < low < 0.9 < high
    points = [51 / 101 if share == 0.5 else 1.0 for share in recall]  # 101 recalls, 0 to 1
    assert found["ap"] == pytest.approx(np.mean(points))


def test_reports_match_masks():
    target = read(TASK, {"mask": mask_row(mask_of(RING)), "label": "a"})
    parsed = TASK.record(Instances((replace(target.items[0], mask=None),)))
    (found,) = match_rows([{"target": TASK.record(target), "parsed": parsed}])
    assert found.ious == pytest.approx([3200 / 3700])
    assert found.truths[0].mask == mask_of(RING)
