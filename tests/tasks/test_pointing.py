"""The task `pointing`: assignment, F1, masks and counts equal to slow loops and to pycocotools."""

import json
import random
from itertools import permutations
from math import dist

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.evaluation.metrics.pointing import POINTS, assign, contains, score_points
from mm_numeric.geometry.coordinates import COORDINATES
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.geometry.masks import mask_of
from mm_numeric.rewards import reward
from mm_numeric.tasks.pointing import Pointing

SIZE = (100, 100)
PIXELS = Frame(*SIZE, Resize(kind="none").view(*SIZE), COORDINATES["qwen2_5_vl"])
ROW = {"id": "1", "image": "a.png", "width": 100, "height": 100, "phrase": "cups"}


def points(*places):
    return Instances(tuple(Instance(Polygon((place,))) for place in places))


def regions(*items):
    return Instances(tuple(Instance(Box(*box), point=point) for box, point in items))


def examples(**fields):
    return list(Pointing().examples([("f, line 1", {**ROW, **fields})], training=True))


def slow_pointing(answer, target):
    """PointingEval of Molmo, with every assignment tried, and RoboPoint's share of points."""
    given = [item.shape.points[0] for item in answer.items]
    true = [(item.shape, item.point) for item in target.items]
    if not true or not given:
        return (float(not true and not given),) * 4

    def inside(point, box):
        return box.x1 <= point[0] <= box.x2 and box.y1 <= point[1] <= box.y2

    short, long = sorted((len(given), len(true)))
    best = min(
        (
            list(enumerate(order)) if len(given) == short else [(g, t) for t, g in enumerate(order)]
            for order in permutations(range(long), short)
        ),
        key=lambda pairs: sum(dist(given[g], true[t][1]) for g, t in pairs),
    )
    right = sum(inside(given[g], true[t][0]) for g, t in best)
    precision, recall = right / len(given), right / len(true)
    f1 = 0.0 if right == 0 else 2 * precision * recall / (precision + recall + 1e-10)
    share = np.mean([any(inside(point, box) for box, _ in true) for point in given])
    return f1, precision, recall, share


def test_every_score_is_that_of_a_slow_loop():
    rng = random.Random(0)
    answers, targets = [], []
    for _ in range(150):
        boxes = [(rng.uniform(0, 80), rng.uniform(0, 80)) for _ in range(rng.randint(0, 5))]
        found = [((x, y, x + 20, y + 15), (x + rng.uniform(0, 20), y + 5)) for x, y in boxes]
        near = [point for _, point in found if rng.random() < 0.8]
        moved = [(x + rng.gauss(0, 8), y + rng.gauss(0, 8)) for x, y in near]
        more = [(rng.uniform(0, 100), rng.uniform(0, 100)) for _ in range(rng.randint(0, 2))]
        answers.append(points(*moved, *more))
        targets.append(regions(*found))
    columns = score_points(answers, targets)
    names = ("f1", "precision", "recall", "in_region")
    for i, (answer, target) in enumerate(zip(answers, targets, strict=True)):
        assert [columns[name][i] for name in names] == pytest.approx(
            slow_pointing(answer, target), abs=1e-9
        )
        assert columns["count_error"][i] == abs(len(answer.items) - len(target.items))
    assert 0.1 < columns["f1"].mean() < 0.9


def test_an_assignment_has_the_least_sum_of_costs():
    rng = np.random.default_rng(0)
    for rows, columns in [(1, 1), (3, 3), (2, 5), (5, 2), (4, 5), (1, 6), (0, 3), (3, 0)]:
        for _ in range(20):
            costs = rng.integers(0, 6, (rows, columns)).astype(float)
            pairs = assign(costs)
            least = min(
                sum(costs.T[c, r] if rows > columns else costs[r, c] for r, c in found)
                for found in (
                    [(order[i], i) if rows > columns else (i, order[i]) for i in range(len(order))]
                    for order in permutations(range(max(costs.shape)), min(costs.shape))
                )
            )
            assert sum(costs[pair] for pair in pairs) == least
            assert len(pairs) == min(rows, columns) == len({r for r, _ in pairs})
            assert len({c for _, c in pairs}) == len(pairs)


def test_a_point_is_in_a_polygon_as_for_shapely_and_in_the_mask_of_pycocotools():
    corners = [(10, 10), (60, 20), (80, 80), (40, 50), (15, 85)]
    region = Instance(Polygon(tuple(corners)))
    pixels = mask.decode(mask.frPyObjects([[n for c in corners for n in c]], *SIZE)[0])
    places = [(x + 0.5, y + 0.5) for y in range(100) for x in range(100)]
    found = contains(region, places)
    polygon = shapely.Polygon(corners)
    assert [bool(value) for value in found] == [polygon.covers(shapely.Point(p)) for p in places]
    far = np.array([polygon.boundary.distance(shapely.Point(p)) > 1 for p in places])
    assert (found == pixels.ravel().astype(bool))[far].all()
    assert contains(region, corners).all()  # the region is closed
    assert not contains(Instance(Polygon(((5, 5),))), [(5, 5)]).any()


def robopoint(point, pixels):
    """summarize_vqa.py of RoboPoint: truncate to a pixel, and look it up if it is in the image."""
    x, y = int(point[0]), int(point[1])
    return 0 <= x < pixels.shape[1] and 0 <= y < pixels.shape[0] and bool(pixels[y, x])


@pytest.mark.slow
@given(
    rows=st.integers(1, 6).flatmap(
        lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1)
    ),
    seed=st.integers(0, 99),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_a_point_is_in_a_mask_as_in_a_loop_and_for_pycocotools(rows, seed):
    pixels = np.array(rows)
    wanted = mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
    for scale in (1, 255):
        found = mask_of((pixels * scale).astype(np.uint8))
        runs = {"size": list(found.size), "counts": list(found.counts)}
        assert mask.frPyObjects(runs, *found.size) == wanted
    if not pixels.any():
        with pytest.raises(ValueError, match="the mask has no pixel; leave the object out"):
            examples(instances=[{"mask": runs}])
        return
    text = {"size": wanted["size"], "counts": wanted["counts"].decode()}
    size = dict(zip(("height", "width"), pixels.shape, strict=True))
    (own,), (same,) = (examples(instances=[{"mask": counts}], **size) for counts in (runs, text))
    assert own.answer == same.answer == Pointing().recorded(Pointing().record(own.answer))
    (region,) = own.answer.items
    x, y, width, height = mask.toBbox(wanted)
    assert region.shape == Box(x, y, x + width, y + height)
    assert robopoint(region.point, pixels)
    rng = random.Random(seed)
    height, width = pixels.shape
    places = [(rng.uniform(0, width + 1), rng.uniform(0, height + 1)) for _ in range(20)]
    places += [(x, y) for x in range(width + 1) for y in range(height + 1)]
    assert list(contains(region, places)) == [robopoint(place, pixels) for place in places]
    assert not contains(region, [(-0.5, 0), (0, -0.5), (1e300, 0), (0, -1e300)]).any()
    columns = score_points([points(*places)], [own.answer])
    assert columns["in_region"] == np.mean([robopoint(place, pixels) for place in places])


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ({"size": [2, 2]}, "counts are a list or a text, not None"),
        ({"size": [2], "counts": [4]}, r"a mask is \{\"size\": \[height, width\], \"counts\""),
        ("a.png", "a mask is"),
        (
            {"size": [2, 2], "counts": [1, 2]},
            "the counts hold 3 pixels, but an image of 2 x 2 has 4",
        ),
        ({"size": [2, 2], "counts": [-1, 5]}, "counts are lengths in pixels"),
        ({"size": [2, 2], "counts": "04~"}, "the text of the counts is damaged"),
        ({"size": [10**9, 10**9], "counts": [0, 10**18]}, "a mask has at most 134217728 pixels"),
    ],
)
def test_damaged_masks_are_one_sentence(region, message):
    with pytest.raises(ValueError, match=f"^f, line 1, instances.0, mask: {message}"):
        examples(instances=[{"mask": region}])


def test_a_mask_of_another_size_than_its_image_is_one_sentence():
    """Its pixels would be those of a smaller image."""
    instances = [{"mask": {"size": [10, 10], "counts": [0, 4, 96]}}]
    message = r"a mask has the size of its image, \[{}\] \(height, width\), not \[10, 10\]"
    with pytest.raises(ValueError, match=f"^f, line 1: {message.format('40, 20')}"):
        examples(instances=instances, width=20, height=40)
    (example,) = examples(instances=instances, width=None, height=None)
    with pytest.raises(ValueError, match=f"^{message.format('100, 100')}"):
        Pointing().format(example.answer, PIXELS)


def test_a_point_in_another_object_is_wrong_and_a_second_one_too():
    """The nearest annotated point decides, as in the official script, not the region."""
    cups = regions(((0, 0, 20, 20), (10, 10)), ((30, 0, 50, 20), (40, 10)))
    columns = score_points([points((11, 10), (12, 10)), points((40, 10), (9, 9))], [cups] * 2)
    assert list(columns["f1"]) == [0.5, 1]
    assert list(columns["in_region"]) == [1, 1]
    assert list(columns["same_count"]) == [1, 1]


def test_unparseable_answers_and_objects_without_a_region():
    cup = regions(((0, 0, 20, 20), None))
    columns = score_points([None, points(), points((3, 3))], [cup, cup, points((5, 5))])
    assert list(columns["scored"]) == [1, 1, 0]
    found = {metric.name: float(metric.value(columns)) for metric in POINTS.metrics}
    assert (found["f1"], found["in_region"]) == (0, 0)
    assert found["count_accuracy"] == found["unreadable"] == pytest.approx(1 / 3)
    only = score_points([points((3, 3))], [points((5, 5))])
    assert np.isnan(float(POINTS.metrics[0].value(only)))


def test_rows_have_regions_or_points():
    (one,) = examples(instances=[{"box": [10, 10, 30, 30], "point": [12, 13]}, {"point": [70, 5]}])
    (two,) = examples(points=[[50, 60], [10, 20]])
    text = Pointing().format(one.answer, PIXELS).text
    assert text == '[{"point_2d": [70, 5]}, {"point_2d": [12, 13]}]'
    assert Pointing().format(two.answer, PIXELS).text.startswith('[{"point_2d": [10, 20]}')
    assert Pointing().format(examples(points=[])[0].answer, PIXELS).text == "[]"
    for example in (one, two):
        record = json.loads(json.dumps(Pointing().record(example.answer)))
        assert Pointing().recorded(record) == example.answer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r', line 1: no "instances" \(a list\)'),
        ({"points": [[1, 2, 3]]}, r", line 1, instances.0, point: a point is \[x, y\], not 3"),
        ({"points": [["a", 2]]}, r", line 1, instances.0, point: 'a' is not a number"),
        ({"points": [], "phrase": None}, ", line 1: no phrase"),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence(fields, message):
    with pytest.raises(ValueError, match=f"^f{message}"):
        examples(**fields)
    with pytest.raises(ValueError, match=r"prompt needs \{phrase\}"):
        Pointing(prompt="Point.")


def test_rewards_of_points():
    cups = regions(((0, 0, 20, 20), None), ((30, 0, 50, 20), None))
    text = '[{"point_2d": [10, 10]}, {"point_2d": [12, 10]}]'
    assert reward("point_f1", task="pointing").score(text, cups, PIXELS).value == 0.5
    assert reward("correct", task="pointing").score(text, cups, PIXELS).value == 0
    assert reward("format", task="pointing").score(text, cups, PIXELS).value == 1
    with pytest.raises(ValueError, match="point_f1 needs the task pointing, and a polygon"):
        reward("point_f1", task="pointing").score(text, points((1, 1)), PIXELS)
