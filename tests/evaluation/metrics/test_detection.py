"""Detection: equal to slow loops that say each protocol, and by hand."""

import json

import numpy as np
import pytest
from intervals import interval
from reference_detection import best_first, hmean, icdar2015, outline, share
from result_files import section
from shape_images import KINDS, made_up

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.evaluation.metrics.detection import (
    LABELLED_DETECTION,
    TEXT_DETECTION,
    count_labels,
    median_size_of,
    number_of,
    objects_right,
    score_instances,
)
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.scores import label_rows


def found(*shapes, label=""):
    return Instances(tuple(Instance(shape, label) for shape in shapes))


def wanted(*shapes, ignore=()):
    return Instances(tuple(Instance(s, ignore=i in ignore) for i, s in enumerate(shapes)))


def figures(predictions, targets, scorer=TEXT_DETECTION):
    columns = scorer.judge(predictions, targets)
    return {metric.name: float(metric.value(columns)) for metric in scorer.metrics}


def box(x, y, width=10.0, height=10.0):
    return Box(x, y, x + width, y + height)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_matches_are_those_of_the_loop(kind):
    predictions, targets = made_up(60, 0, kind)
    columns = score_instances(predictions, targets)
    rows = icdar2015(predictions, targets)
    names = ("matched", "detected", "truths")
    assert np.stack([columns[n] for n in names], axis=1).tolist() == [list(row) for row in rows]
    matched, detected, truths = (sum(row[i] for row in rows) for i in range(3))
    assert matched > 20
    assert detected > matched
    figure = figures(predictions, targets)
    precision, recall = share(matched, detected), share(matched, truths)
    assert (figure["precision"], figure["recall"]) == (precision, recall)
    assert figure["hmean"] == hmean(precision, recall)


@pytest.mark.slow
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_those_of_the_loop(kind, labelled):
    predictions, targets = made_up(80, 7, kind)
    columns = score_instances(predictions, targets, labelled=labelled)
    rows = best_first(predictions, targets, labelled=labelled)
    assert columns["counted"].tolist() == [sum(counted) for _, counted in rows]
    for t in (0.5, 0.75, 0.9):
        assert columns[f"paired_at_{t}"].tolist() == [
            sum(overlap >= t for overlap, _, _ in pairs) for pairs, _ in rows
        ]
    sums = [sum(overlap for overlap, _, _ in pairs) for pairs, _ in rows]
    assert columns["paired_iou"] == pytest.approx(sums, abs=1e-9)
    assert sum(sums) > 10


@pytest.mark.parametrize("labelled", [False, True])
def test_an_object_is_correct_if_the_loop_pairs_it(labelled):
    predictions, targets = made_up(150, 7, KINDS[0])
    found = objects_right(predictions, targets, labelled=labelled)
    values = set()
    for own, (pairs, counted) in zip(
        found, best_first(predictions, targets, labelled=labelled), strict=True
    ):
        paired = {d for _, _, d in pairs}
        wanted = [float(d in paired) if counts else np.nan for d, counts in enumerate(counted)]
        np.testing.assert_array_equal(own, wanted)
        values |= set(map(str, wanted))
    assert values == {"0.0", "1.0", "nan"}


def size(shape):
    area = outline(shape).area
    return "small" if area < 1024 else "medium" if area < 9216 else "large"


def test_sizes_are_counted_by_the_truth_and_by_the_detection_without_one():
    predictions, targets = made_up(80, 11)
    grown = [[p, t] for p, t in zip(predictions, targets, strict=True)]
    for factor in (3, 12):
        for prediction, target in zip(predictions, targets, strict=True):
            larger = [
                item and Instances(tuple(Instance(times(i.shape, factor), i.label, i.ignore)
                                         for i in item.items))
                for item in (prediction, target)
            ]  # fmt: skip
            grown.append(larger)
    predictions, targets = zip(*grown, strict=True)
    columns = score_instances(predictions, targets)
    slow = {f"{what}_{name}": 0 for what in ("paired", "counted", "truths")
            for name in ("small", "medium", "large")}  # fmt: skip
    for (pairs, counted), prediction, target in zip(
        best_first(predictions, targets), predictions, targets, strict=True
    ):
        truth_of = {d: g for _, g, d in pairs}
        for g in truth_of.values():
            slow[f"paired_{size(target.items[g].shape)}"] += 1
        for d, counts in enumerate(counted):
            items = target.items if d in truth_of else prediction.items
            slow[f"counted_{size(items[truth_of.get(d, d)].shape)}"] += counts
        for item in target.items:
            slow[f"truths_{size(item.shape)}"] += not item.ignore
    assert {name: columns[name].sum() for name in slow} == slow
    assert min(slow.values()) > 0
    for what, total in (("paired", "paired_at_0.5"), ("counted",) * 2, ("truths",) * 2):
        parts = sum(columns[f"{what}_{name}"] for name in ("small", "medium", "large"))
        assert (parts == columns[total]).all()


def test_a_detection_in_a_pair_is_as_large_as_its_truth():
    columns = score_instances([found(box(0, 0, 31, 31), box(90, 0))], [wanted(box(0, 0, 32, 32))])
    assert (columns["paired_medium"], columns["counted_medium"]) == (1, 1)
    assert (columns["paired_small"], columns["counted_small"]) == (0, 1)


def times(shape, factor):
    points = [(x * factor, y * factor) for x, y in shape.points]
    return Box(*points[0], *points[1]) if isinstance(shape, Box) else Polygon(tuple(points))


def test_a_truth_takes_the_first_detection_that_fits_not_the_best():
    truth, near, exact = box(0, 0), box(0, 0, 10, 7), box(0, 0)
    other = box(0, 0, 10, 8)  # fits the first detection too, and comes too late
    columns = score_instances([found(near, exact)], [wanted(truth, other)])
    assert columns["matched"] == 2
    crowded = score_instances([found(exact)], [wanted(other, truth)])
    assert (crowded["matched"], crowded["paired_iou"]) == (1, 1)


def test_half_is_no_match_and_makes_a_pair():
    columns = score_instances([found(box(0, 0, 10, 5))], [wanted(box(0, 0))])
    assert (columns["matched"], columns["paired_at_0.5"]) == (0, 1)
    figure = figures([found(box(0, 0, 10, 5))], [wanted(box(0, 0))])
    assert (figure["hmean"], figure["f1_at_0.5"], figure["ntil_accuracy_at_0.5"]) == (0, 1, 1)
    assert (figure["f1_at_0.75"], figure["mean_iou_of_pairs"]) == (0, 0.5)


def test_a_detection_half_in_an_ignored_region_still_counts():
    region = box(0, 0)
    half, more = box(5, 0), box(4, 0)
    columns = score_instances([found(half), found(more)], [wanted(region, ignore=[0])] * 2)
    assert columns["detected"].tolist() == [1, 0]
    assert columns["truths"].tolist() == [0, 0]
    # two regions that hold it together do not count together
    sides = wanted(box(0, 0, 5), box(5, 0, 5), ignore=[0, 1])
    assert score_instances([found(box(0, 0))], [sides])["detected"] == 1


def test_an_ignored_detection_matches_nothing_even_if_it_fits():
    target = wanted(box(0, 0), box(0, 0), ignore=[0])
    columns = score_instances([found(box(0, 0))], [target])
    assert (columns["matched"], columns["detected"], columns["truths"]) == (0, 0, 1)
    assert (columns["paired_at_0.9"], columns["counted"]) == (1, 1)  # a pair is not left out


def test_the_ground_truth_is_a_perfect_answer_for_pairs():
    _, targets = made_up(60, 8, "quads")
    figure = figures(targets, targets)
    assert (figure["f1_at_0.9"], figure["mean_iou_of_pairs"]) == (1, pytest.approx(1))
    assert figure["precision_at_0.5"] == 1
    assert figure["recall"] < 1  # the script leaves out what lies in ignored regions first


def test_what_was_not_read_keeps_its_ground_truth():
    targets = [wanted(box(0, 0)), wanted(box(0, 0), box(20, 20))]
    figure = figures([found(box(0, 0)), None], targets)
    assert (figure["precision"], figure["recall"]) == (1, 1 / 3)
    assert (figure["hmean"], figure["unreadable"]) == (pytest.approx(0.5), 0.5)


def test_nothing_is_zero():
    nothing = figures([None, Instances(())], [wanted(box(0, 0)), wanted()])
    assert nothing.pop("unreadable") == 0.5
    unknown = {name for name, value in nothing.items() if np.isnan(value)}
    sizes = {f"precision_{size}" for size in ("small", "medium", "large")}
    assert unknown == {"mean_iou_of_pairs", "truncated", "recall_medium", "recall_large", *sizes}
    assert {nothing[name] for name in nothing.keys() - unknown} == {0}
    assert figures([Instances(())], [wanted()])["hmean"] == 0


def test_invalid_shapes_are_made_valid_and_counted():
    bow = Polygon(((0.0, 0.0), (10.0, 10.0), (10.0, 0.0), (0.0, 10.0)))
    backwards, point = Box(10, 0, 0, 10), Polygon(((1.0, 1.0),))
    columns = score_instances([found(bow, backwards, point, box(0, 0))], [wanted(bow, box(50, 50))])
    assert (columns["invalid_detections"], columns["invalid_truths"]) == (3, 1)
    # The truth's loops cancel: the box, not the same bow tie, has IoU 50 / (100 + 0 - 50) with it.
    assert (columns["matched"], columns["detected"]) == (1, 4)
    assert score_instances([found(bow)], [wanted(bow)])["matched"] == 0
    assert columns["paired_at_0.9"] == 1  # with the repaired bow tie
    figure = figures([found(bow, box(0, 0))], [wanted(bow)])
    assert figure["invalid_detections"] == 0.5


def test_labels_must_be_equal_where_they_are_looked_at():
    target = Instances((Instance(box(0, 0), "cat"), Instance(box(30, 0), "dog")))
    prediction = Instances((Instance(box(0, 0), "dog"), Instance(box(30, 0), "dog")))
    assert figures([prediction], [target])["f1_at_0.5"] == 1
    assert figures([prediction], [target], LABELLED_DETECTION)["f1_at_0.5"] == 0.5
    region = Instances((Instance(box(0, 0), "cat", ignore=True),))
    assert score_instances([prediction], [region], labelled=True)["counted"] == 2
    region = Instances((Instance(box(0, 0), "", ignore=True),))
    assert score_instances([prediction], [region], labelled=True)["counted"] == 1


def test_each_label_has_its_own_counts_and_scores():
    target = Instances((Instance(box(0, 0), "cat"), Instance(box(30, 0), "dog")))
    prediction = Instances(tuple(Instance(box(x, 0), "cat") for x in (0, 50, 70)))
    cat, dog = label_rows(count_labels([prediction], [target]))
    assert cat == {
        "name": "cat", "truths": 1, "detections": 3, "precision_at_0.5": 1 / 3, "recall_at_0.5": 1,
        "f1_at_0.5": 0.5, "f1_at_0.75": 0.5, "f1_at_0.9": 0.5,
    }  # fmt: skip
    assert (dog["f1_at_0.9"], dog["precision_at_0.5"], dog["recall_at_0.5"]) == (0, None, 0)


def test_the_order_of_an_answer_does_not_change_the_pairs():
    predictions, targets = made_up(100, 3, "quads")
    turned = [p and Instances(p.items[::-1]) for p in predictions]
    forth, back = (score_instances(side, targets) for side in (predictions, turned))
    for name in ("paired_at_0.5", "paired_at_0.75", "counted", "detected", "truths"):
        assert (forth[name] == back[name]).all()


def test_counts_are_reported(tmp_path):
    folders = {name: tmp_path / name for name in ("gt", "res")}
    for path in folders.values():
        path.mkdir()
    square, other = "0,0,10,0,10,10,0,10", "50,0,60,0,60,10,50,10"
    (folders["gt"] / "gt_1.txt").write_text(f"{square},x\n{other},y\n9,9,90,9,90,90,9,90,###")
    (folders["res"] / "res_1.txt").write_text(f"{square}\n20,20,30,20,30,30,20,30\n{other[:-2]}0")
    expected = {
        "icdar2015": {"matched": 1, "truths": 2, "detections": 2, "invalid detections": 0},
        "labelled": {"matched": 0, "truths": 2, "detections": 2, "invalid detections": 0},
        "deteval_total_text": {"truths": 2, "detections": 2},
    }
    for protocol, counts in expected.items():
        scores = score(folders["res"], truth=folders["gt"], protocol=protocol, out=tmp_path / "o")
        saved = section(tmp_path / "o", protocol)["counts"]
        assert saved == scores.counts()
        assert counts.items() <= saved.items(), protocol


def test_images_may_come_in_parts():
    predictions, targets = made_up(60, 4)
    whole = score_instances(predictions, targets)
    parts = [score_instances(predictions[i::2], targets[i::2]) for i in (0, 1)]
    for name, values in whole.items():
        assert values[0::2].tolist() == parts[0][name].tolist()
        assert values.sum() == pytest.approx(sum(part[name].sum() for part in parts))


def test_pairs_may_be_looked_at_a_few_at_a_time(monkeypatch):
    predictions, targets = made_up(60, 5)
    whole = score_instances(predictions, targets)
    monkeypatch.setattr("mm_numeric.evaluation.metrics.polygon_iou._MAX_PAIRS", 7)
    few = score_instances(predictions, targets)
    assert {name: v.tolist() for name, v in few.items()} == {
        k: v.tolist() for k, v in whole.items()
    }


def test_figures_are_taken_over_the_last_axis():
    predictions, targets = made_up(30, 6)
    columns = TEXT_DETECTION.judge(predictions, targets)
    drawn = np.random.default_rng(0).integers(30, size=(5, 30))
    resampled = {name: values[drawn] for name, values in columns.items()}
    for metric in TEXT_DETECTION.metrics:
        each = [metric.value({k: v[at] for k, v in columns.items()}) for at in drawn]
        np.testing.assert_allclose(metric.value(resampled), each)
        low, high = interval(columns, metric.value, resamples=50)
        assert not low > high


def test_as_many_predictions_as_targets():
    with pytest.raises(ValueError, match="1 predictions for 2 targets"):
        score_instances([None], [wanted(), wanted()])
    assert {len(values) for values in score_instances([], []).values()} == {0}


@pytest.mark.parametrize(
    ("count", "name"), [(0, "0"), (1, "1"), (2, "2 to 5"), (6, "6 to 20"), (21, "more than 20")]
)
def test_images_are_sorted_by_how_much_there_is_to_be_found(count, name):
    assert number_of(wanted(*[box(0, 0)] * (count + 1), ignore=[0])) == name


def test_images_are_sorted_by_the_median_size():
    assert median_size_of(wanted(box(0, 0), box(0, 0, 50, 50), box(0, 0, 99, 99))) == "medium"
    assert median_size_of(wanted(box(0, 0), ignore=[0])) == "nothing to be found"


def test_text_detection_is_scored_from_its_predictions(tmp_path):
    square = [0, 0, 10, 0, 10, 10, 0, 10]
    frame = {
        "width_px": 100,
        "height_px": 100,
        "view": {"width_px": 100, "height_px": 100, "scale_x": 1, "scale_y": 1},
        "coordinates": {"format": "json"},
    }
    target = [{"polygon": square}, {"box": [50, 50, 60, 60], "ignore": True}]
    texts = {
        "a": '[{"poly_2d": [0, 0, 10, 0, 10, 9, 0, 9]}, {"bbox_2d": [51, 51, 59, 59]}]',
        "b": "no idea",
    }
    lines = [
        json.dumps({"id": k, "task": "text_detection", "target": target, "frame": frame, "text": t})
        for k, t in texts.items()
    ]
    file = tmp_path / "predictions.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    scores = score(file)
    results = section(tmp_path)
    assert {k: v["value"] for k, v in results["metrics"].items()} == {
        k: v["value"] for k, v in scores.metrics().items()
    }
    assert results["metrics"]["hmean"]["value"] == pytest.approx(2 / 3)
    assert results["metrics"]["mean_iou_of_pairs"]["value"] == pytest.approx(0.9)
    assert results["failures"] == {"no coordinates": 1}
    assert results["buckets"]["instances"]["1"]["rows"] == 2
    rule = results["rules"]["hmean, precision, recall"]
    assert (rule["thresholds"], rule["comparison"]) == ([0.5], "IoU > t")
