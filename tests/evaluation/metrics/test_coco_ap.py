"""COCO AP: pycocotools' figures where scores differ, one figure whatever the order of ties."""

import contextlib
import io
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from intervals import estimate
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from result_files import section, write_lines

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.cli import main as cli
from mm_numeric.evaluation.metrics.coco_ap import METRIC_NAMES, Rules, rank_answers, rank_rows
from mm_numeric.evaluation.metrics.ranking import ranking_metrics
from mm_numeric.evaluation.score import score

REAL = Path(__file__).parents[4] / "shared" / "data" / "coco" / "instances_val2014_100.json"


def by_pycocotools(dataset, results):
    """What pycocotools says of data in its own format."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {
        n: math.nan if v == -1 else v for n, v in zip(METRIC_NAMES, evaluation.stats, strict=True)
    }


def made_up(seed, count=30, levels=None):
    """A data set and detections near its boxes; ``levels`` is the number of different scores."""
    draw = np.random.default_rng(seed)
    annotations, results = [], []
    for image in range(1, count + 1):
        for _ in range(draw.integers(0, 6)):
            x, y = draw.uniform(0, 300, 2)
            width, height = draw.uniform(5, 200, 2)
            category = int(draw.integers(1, 4))
            row = {"image_id": image, "category_id": category}
            annotations.append(
                {
                    **row,
                    "id": len(annotations) + 1,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": int(draw.random() < 0.1),
                }
            )
            for _ in range(draw.integers(0, 3)):
                moved = np.array([x, y, width, height]) * draw.uniform(0.9, 1.1, 4)
                score = draw.random() if levels is None else draw.integers(levels) / levels
                if draw.random() < 0.2:
                    row = {**row, "category_id": int(draw.integers(1, 4))}
                results.append({**row, "bbox": moved.tolist(), "score": float(score)})
    categories = [{"id": number, "name": str(number)} for number in (1, 2, 3)]
    images = [{"id": image} for image in range(1, count + 1)]
    return {"images": images, "annotations": annotations, "categories": categories}, results


def as_answers(dataset, results):
    """The same as answers, and the scores."""
    sides = {}
    for name, rows in (("truth", dataset["annotations"]), ("found", results)):
        for row in rows:
            x, y, width, height = row["bbox"]
            item = Instance(Box(x, y, x + width, y + height), str(row["category_id"]),
                            bool(row.get("iscrowd")))  # fmt: skip
            sides.setdefault((name, row["image_id"]), []).append((item, row.get("score")))
    images = [image["id"] for image in dataset["images"]]
    targets, found = (
        [Instances(tuple(item for item, _ in sides.get((name, image), ()))) for image in images]
        for name in ("truth", "found")
    )
    scores = [[score for _, score in sides.get(("found", image), ())] for image in images]
    return found, targets, scores


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [None, 5])
def test_official_figures_are_those_of_pycocotools(seed, levels):
    dataset, results = made_up(seed, levels=levels)
    expected = by_pycocotools(dataset, results)
    assert 0 < expected["ap"] < expected["ap_50"] < 1
    assert rank_rows(dataset, results).metrics == pytest.approx(expected, nan_ok=True)
    answers, targets, scores = as_answers(dataset, results)
    mine = rank_answers(answers, targets, scores).metrics
    assert mine == pytest.approx(expected, nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_averaging_changes_nothing_where_scores_differ(seed):
    dataset, results = made_up(seed)
    official = rank_rows(dataset, results).metrics
    averaged = rank_rows(dataset, results, rules=Rules(ties="averaged")).metrics
    assert averaged == pytest.approx(official, nan_ok=True, abs=1e-12)


def relabelled(dataset, results, seed):
    """The same data with other image ids."""
    count = len(dataset["images"])
    ids = dict(enumerate((np.random.default_rng(seed).permutation(count) + 1).tolist(), start=1))
    moved = [[{**row, "image_id": ids[row["image_id"]]} for row in rows]
             for rows in (dataset["annotations"], results)]  # fmt: skip
    return {**dataset, "annotations": moved[0]}, moved[1]


@pytest.mark.parametrize("levels", [1, 4])
def test_averaged_ties_know_no_order_of_images(levels):
    dataset, results = made_up(9, levels=levels)
    averaged = rank_rows(dataset, results, rules=Rules(ties="averaged")).metrics
    official = by_pycocotools(dataset, results)
    seen = set()
    for seed in range(5):
        other = relabelled(dataset, results, seed)
        assert rank_rows(*other, rules=Rules(ties="averaged")).metrics == pytest.approx(
            averaged, nan_ok=True
        )
        seen.add(round(by_pycocotools(*other)["ap_50"], 6))
    assert len(seen) > 1  # pycocotools itself does depend on it
    assert abs(averaged["ap_50"] - official["ap_50"]) < 0.05
    for name in METRIC_NAMES[6:]:
        assert averaged[name] == pytest.approx(official[name], nan_ok=True)


def test_an_averaged_tie_is_the_mean_over_its_orders():
    """Six detections of one score, three right: the hits after n are the mean over 720 orders."""
    right = [1, 1, 1, 0, 0, 0]
    orders = np.array([np.cumsum(order) for order in itertools.permutations(right)])
    curve = orders.mean(axis=0)
    precision = np.maximum.accumulate((curve / np.arange(1, 7))[::-1])[::-1]
    recall = curve / 4
    at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    expected = np.mean([precision[i] if i < 6 else 0 for i in at])
    targets = [Instances((Instance(Box(0, 0, 10, 10)),)) for _ in range(4)]
    hit, miss = Instance(Box(0, 0, 10, 10)), Instance(Box(50, 50, 60, 60))
    answers = [Instances((hit, miss)), Instances((miss, hit)), Instances((hit, miss)), None]
    figures = rank_answers(answers, targets, rules=Rules(ties="averaged")).metrics
    assert figures["ap_50"] == pytest.approx(expected, abs=1e-12)
    assert figures["ap_50"] == pytest.approx(0.5 * 76 / 101)
    assert figures["ar_100"] == 0.75


@pytest.mark.parametrize(
    ("scores", "ties", "message"),
    [
        ([[0.5], [0.5]], "official", r"all 2 scores are 0\.5: AP would depend on the order of the"),
        (
            None,
            "official",
            r"detection 1: no score, but AP ranks .* or average ties \(ties='averaged', --ties av",
        ),
        ([[0.5], None], "averaged", r"detection 2: no score, but AP ranks .* of its tokens\."),
        (
            [[0.5], [0.5, 0.1]],
            "official",
            "image 2: 2 scores for 1 detections; give one per detection",
        ),
        ([[0.5], [math.nan]], "official", "detection 2: the score is nan; give a finite number"),
        ([[0.5], [0.4]], "mean", "ties is one of official, averaged, not 'mean'"),
    ],
)
def test_what_is_no_ranking_is_one_sentence(scores, ties, message):
    answers = [Instances((Instance(Box(0, 0, 10, 10)),))] * 2
    with pytest.raises(ValueError, match=message):
        rank_answers(answers, answers, scores, rules=Rules(ties=ties))


def test_nothing_found_and_nothing_to_find_are_sentences():
    something, nothing = Instances((Instance(Box(0, 0, 10, 10)),)), Instances(())
    with pytest.raises(ValueError, match="there are no detections to rank, so AP is undefined"):
        rank_answers([None, nothing], [something] * 2, rules=Rules(ties="averaged"))
    with pytest.raises(ValueError, match="the ground truth has no annotations"):
        rank_answers([something], [nothing], rules=Rules(ties="averaged"))
    with pytest.raises(ValueError, match=r"detection 1: the image 9 is not among the 1 of the gro"):
        rank_rows(
            {"images": [{"id": 1}], "annotations": [{"id": 1}], "categories": []},
            [{"image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 1.0}],
        )


def test_an_annotation_with_the_id_0_is_found_too():
    dataset, results = made_up(3)
    expected = rank_rows(dataset, results).metrics
    shifted = [{**row, "id": row["id"] - 1} for row in dataset["annotations"]]
    assert rank_rows({**dataset, "annotations": shifted}, results).metrics == expected


def test_ignored_regions_are_crowds_and_polygons_the_boxes_around_them():
    triangle = Polygon(((0.0, 0.0), (10.0, 0.0), (0.0, 10.0)))
    region = Instance(Box(50, 50, 90, 90), ignore=True)
    target = Instances((Instance(triangle), region))
    answer = Instances((Instance(Box(0, 0, 10, 10)), Instance(Box(60, 60, 70, 70))))
    figures = rank_answers([answer], [target], [[0.1, 0.9]]).metrics
    assert figures["ap"] == pytest.approx(1)
    assert math.isnan(figures["ap_large"])


def test_the_protocol_says_what_becomes_of_ties():
    assert "the same score for all is an error" in Rules().protocol("token probability")["ties"]
    averaged = Rules(ties="averaged").protocol("none")
    assert "mean of its tie" in averaged["ties"]
    assert averaged["scores"] == "none"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason="the sample is not here")
def test_real_annotations_are_scored_as_pycocotools_scores_them():
    dataset = json.loads(REAL.read_text(encoding="utf-8"))
    draw = np.random.default_rng(0)
    results = [
        {
            "image_id": row["image_id"],
            "category_id": row["category_id"],
            "bbox": (np.array(row["bbox"]) * draw.uniform(0.9, 1.1, 4)).tolist(),
            "score": float(draw.random()),
        }
        for row in dataset["annotations"]
        if draw.random() < 0.8
    ]
    expected = by_pycocotools(dataset, results)
    assert rank_rows(dataset, results).metrics == pytest.approx(expected, nan_ok=True)
    assert expected["ap_50"] > 0.3


def ranked_rows(scores):
    """Three images of two boxes each, the second of each next to the truth."""
    size = {"width_px": 100, "height_px": 100}
    frame = {
        **size, "view": {**size, "scale_x": 1, "scale_y": 1}, "coordinates": {"format": "json"},
    }  # fmt: skip
    text = '[{"bbox_2d": [0, 0, 40, 20]}, {"bbox_2d": [50, 50, 90, 80]}]'
    target = [{"box": [0, 0, 40, 20]}]
    row = {"task": "text_detection", "text": text, "target": target, "frame": frame}
    return [{**row, "id": str(i), "scores": s} for i, s in enumerate(scores)]


def test_predictions_are_ranked_by_the_scores_of_their_row(tmp_path, capsys):
    scores = [[0.9, 0.2], [0.8, 0.85], [0.7, 0.1]]
    path = write_lines(tmp_path / "predictions.jsonl", ranked_rows(scores))
    found = Instances((Instance(Box(0, 0, 40, 20)), Instance(Box(50, 50, 90, 80))))
    truth = Instances((Instance(Box(0, 0, 40, 20)),))
    wanted = rank_answers([found] * 3, [truth] * 3, scores).metrics
    assert 0.5 < wanted["ap_50"] < 1
    assert cli.main(["score", str(path), "--protocol", "coco_ap"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"AP 50 {100 * wanted['ap_50']:.2f} %" in shown
    results = section(tmp_path)
    assert results["metrics"]["ap_50"]["value"] == wanted["ap_50"]
    assert results["rules"]["all"]["scores"].endswith("mean probability of tokens)")
    assert results["rules"]["all"]["thresholds"][::9] == [0.5, 0.95]
    assert results["rules"]["all"]["comparison"] == "IoU >= t"
    assert (results["task"], results["rows"]) == ("text_detection", 3)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([None, None, None], "no score, but AP ranks detections by score"),
        ([[0.5, 0.5]] * 3, "all 6 scores are 0.5"),
        ([[0.5]] * 3, r'line 1: "scores" is \[0\.5\], and the text holds 2 shapes; write one numb'),
        ([["a", "b"]] * 3, "line 1: .scores. is .* write one number for each shape, or"),
    ],
)
def test_what_does_not_rank_predictions_is_one_sentence(tmp_path, scores, message):
    path = write_lines(tmp_path / "predictions.jsonl", ranked_rows(scores))
    with pytest.raises(ValueError, match=message):
        score(path, protocol="coco_ap")


def test_predictions_without_scores_have_an_ap_of_averaged_ties(tmp_path):
    path = write_lines(tmp_path / "predictions.jsonl", ranked_rows([None] * 3))
    assert 0.4 < score(path, protocol=Rules(ties="averaged")).ranking.metrics["ap_50"] < 0.6
    path.write_text('{"task": "clock", "id": "a", "text": "7:05", "target": "7:05"}')
    with pytest.raises(ValueError, match="'coco_ap' scores shapes in an image, but answers of"):
        score(path, protocol="coco_ap")


def test_an_ignored_region_without_a_label_is_a_crowd_of_each_label():
    """As in the counts of F1; a detection inside of it is neither right nor wrong."""
    region, small = Box(0, 0, 50, 50), Box(1, 1, 20, 20)
    animals = [Instance(Box(100 * i, 100, 100 * i + 50, 150), n) for i, n in enumerate("ab")]
    answers = [Instance(small, "a"), Instance(small, "b"), *animals]
    for ignored in ([Instance(region, "", True)], [Instance(region, n, True) for n in "ab"]):
        target = Instances((*ignored, *animals))
        ranking = rank_answers([Instances(tuple(answers))], [target], [[0.9, 0.8, 0.7, 0.6]])
        assert ranking.metrics["ap_50"] == pytest.approx(1)
        assert [(own["name"], own["truths"]) for own in ranking.labels] == [("a", 1), ("b", 1)]


def copies_of_images(rows, dataset, results):
    """Return the data set and the results of drawn images: each copy is an image of its own."""
    ids = [image["id"] for image in dataset["images"]]
    copied = []
    for side in (dataset["annotations"], results):
        copied.append([
            {**row, "image_id": copy, "id": len(rows) * row.get("id", 0) + copy}
            for copy, drawn in enumerate(rows.tolist(), start=1)
            for row in side
            if row["image_id"] == ids[drawn]
        ])  # fmt: skip
    images = [{"id": copy} for copy in range(1, len(rows) + 1)]
    return {**dataset, "images": images, "annotations": copied[0]}, copied[1]


@pytest.mark.parametrize("seed", range(3))
def test_ap_of_drawn_images_is_that_of_pycocotools_on_copies_of_them(seed):
    """Each image is matched once; a resample only changes its weight."""
    dataset, results = made_up(seed)
    ranking = rank_rows(dataset, results)
    drawn = np.random.default_rng(seed).integers(30, size=(4, 30))
    figures = ranking.take(drawn).metrics
    for i, rows in enumerate(drawn):
        expected = by_pycocotools(*copies_of_images(rows, dataset, results))
        found = {name: values[i] for name, values in figures.items()}
        assert found == pytest.approx(expected, nan_ok=True, abs=1e-9)
    assert ranking.take(np.arange(30)).metrics == ranking.metrics


def interval_of(ranking, name, groups=None):
    """Return ``value``, ``low`` and ``high`` of a metric, by a bootstrap over images."""
    (metric,) = ranking_metrics([name])
    found = estimate(metric, {"ranking": ranking}, groups)
    return dict(zip(("value", "low", "high"), found, strict=True))


def test_ap_has_the_interval_of_drawn_images(tmp_path):
    """Percentiles over resamples, whose mean is shifted to the value."""
    dataset, results = made_up(5)
    ranking = rank_rows(dataset, results)
    drawn = np.random.default_rng(0).integers(30, size=(2000, 30))
    expected = ranking.take(drawn).metrics["ap_50"]
    found = interval_of(ranking, "ap_50")
    assert found["value"] == ranking.metrics["ap_50"]
    expected += found["value"] - expected.mean()
    assert [found["low"], found["high"]] == pytest.approx(np.percentile(expected, [2.5, 97.5]))
    assert found["low"] < found["value"] < found["high"]
    groups = np.repeat(np.arange(10, dtype=np.uint64), 3)
    wide = interval_of(ranking, "ap_50", groups)
    assert wide["low"] != found["low"]


def test_averaged_ties_of_drawn_images_are_those_of_copies():
    dataset, results = made_up(1, levels=3)
    rules = Rules(ties="averaged")
    ranking = rank_rows(dataset, results, rules)
    rows = np.random.default_rng(1).integers(30, size=30)
    copied = rank_rows(*copies_of_images(rows, dataset, results), rules).metrics
    # The curve has a point per object, of which copies of an image share one.
    assert ranking.take(rows).metrics == pytest.approx(copied, nan_ok=True, abs=0.02)


def test_a_metric_without_true_shapes_or_that_never_varies():
    """AP of a size that no image has is nan; 0 of 30 images has the exact interval of a share."""
    dataset, results = made_up(2)
    far = [{**row, "bbox": [900, 900, 5, 5]} for row in results]
    found = interval_of(rank_rows(dataset, far), "ap")
    with_truths = {row["image_id"] for row in dataset["annotations"] if not row["iscrowd"]}
    assert found["value"] == found["low"] == 0
    assert found["high"] == pytest.approx(1 - 0.025 ** (1 / len(with_truths)))
    small = [row for row in dataset["annotations"] if row["area"] < 32**2]
    found = interval_of(rank_rows({**dataset, "annotations": small}, results), "ap_large")
    assert all(math.isnan(own) for own in found.values())


def test_an_interval_of_ap_contains_its_value_though_resamples_are_biased():
    """With three labels and a few objects of each, copies of images have a higher AP."""
    dataset, results = made_up(8, count=12)
    ranking = rank_rows(dataset, results)
    drawn = np.random.default_rng(0).integers(12, size=(2000, 12))
    found, mean = interval_of(ranking, "ap"), np.nanmean(ranking.take(drawn).metrics["ap"])
    assert mean > found["value"] + 0.005
    assert (found["low"] + found["high"]) / 2 == pytest.approx(found["value"], abs=0.03)
