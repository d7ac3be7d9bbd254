"""COCO AP and AR equal pycocotools to 1e-9: crowds, ties, labels, area ranges and masks."""

import copy
import json
import math
import re

import pytest
from coco_data import as_masks, crowded, evaluated, summarized
from result_files import section

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.answers.detections import read_coco_results
from mm_numeric.evaluation.metrics.coco_ap import METRIC_NAMES, Rules, rank_rows
from mm_numeric.evaluation.metrics.coco_rows import read_mask
from mm_numeric.evaluation.score_text import in_unit

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
NAN_BOX = [math.nan] * 4


def close(expected):
    return pytest.approx(expected, abs=1e-9, rel=0, nan_ok=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("whole", [False, True])
def test_boxes_equal_pycocotools_with_crowds_and_equal_ious(seed, whole):
    dataset, results = crowded(seed, whole=whole)
    expected = summarized(evaluated(copy.deepcopy(dataset), results))
    assert 0.05 < expected["ap"] < 0.95
    metrics = rank_rows(dataset, results).metrics
    assert metrics == close(expected)
    assert tuple(metrics) == METRIC_NAMES


def test_other_limits_and_areas_equal_pycocotools():
    dataset, results = crowded(7)
    areas = {"tiny": (0, 900), "rest": (900, 1e10)}
    expected = summarized(
        evaluated(copy.deepcopy(dataset), results, max_detections=(2, 5), areas=areas)
    )
    rules = Rules(max_detections=(5, 2), areas=areas)
    assert rank_rows(dataset, results, rules).metrics == close(expected)
    assert {"ap_tiny", "ar_rest", "ar_2", "ar_5"} < set(expected)


def test_each_label_has_the_ap_of_pycocotools():
    dataset, results = crowded(8)
    dataset["categories"].append({"id": 9, "name": "never there"})
    precision = evaluated(copy.deepcopy(dataset), results).eval["precision"][:, :, :, 0, -1]
    rows = rank_rows(dataset, results).labels
    assert [row["name"] for row in rows] == ["label 1", "label 2", "label 3", "never there"]
    for k, row in enumerate(rows[:3]):
        assert row["ap"] == close(precision[:, :, k].mean())
        assert row["ap_75"] == close(precision[5, :, k].mean())
        there = [a for a in dataset["annotations"] if a["category_id"] == k + 1]
        assert row["truths"] == sum(not a["iscrowd"] for a in there)
    assert math.isnan(rows[3]["ap"])


@pytest.mark.parametrize(("seed", "images"), [(0, 12), (1, 12), (2, 12), (3, 40)])
def test_masks_equal_pycocotools(seed, images):
    dataset, results = as_masks(*crowded(seed, images))
    assert (len(results) > 255) == (images > 12)  # more than mask.area takes at once
    expected = summarized(evaluated(copy.deepcopy(dataset), copy.deepcopy(results), "segm"))
    assert 0.05 < expected["ap"] < 0.95
    assert rank_rows(dataset, results, Rules(iou="segm")).metrics == close(expected)


def test_detections_of_an_unknown_label_do_not_count():
    dataset, results = crowded(3)
    expected = rank_rows(dataset, results).metrics
    other = {**results[0], "category_id": 77, "score": 0.99}
    assert rank_rows(dataset, [other, *results]).metrics == expected
    assert summarized(evaluated(dataset, [other, *results])) == close(expected)


def test_detections_of_unknown_labels_only_have_an_ap_of_0():
    dataset, results = crowded(3)
    other = [{**row, "category_id": 77} for row in results]
    assert rank_rows(dataset, other).metrics["ap"] == 0
    metrics = rank_rows({**dataset, "categories": []}, results).metrics
    assert all(map(math.isnan, metrics.values()))


def test_boxes_of_nan_are_an_error_though_pycocotools_pays_for_them(tmp_path):
    dataset, results = crowded(5)
    spoiled = [{**row, "bbox": NAN_BOX} for row in results]
    honest, paid = (summarized(evaluated(copy.deepcopy(dataset), r)) for r in (results, spoiled))
    assert paid["ap_75"] > honest["ap_75"]  # nan < threshold is false, so that it matches
    path = tmp_path / "results.json"
    path.write_text(json.dumps(spoiled))
    with pytest.raises(ValueError, match=r"result 1: bbox: nan is not a finite number"):
        read_coco_results(path, dataset)


@pytest.mark.parametrize(
    ("area", "message"),
    [
        (None, 'annotation 2: no "area", which AP by size needs; give the area of the mask, or'),
        (math.nan, "annotation 2: the area nan is not a number from 0, which AP"),
        ("9", "annotation 2: the area '9' is not a number"),
        (-1, "annotation 2: the area -1 is not"),
    ],
)
def test_a_truth_without_an_area_is_one_sentence(area, message):
    dataset, results = crowded(5)
    dataset["annotations"][1]["area"] = area
    with pytest.raises(ValueError, match=message):
        rank_rows(dataset, results)


SIZE = (4, 3)  # height, width


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": [4, 3], "counts": [2, 3]}, "the counts hold 5 pixels, but an image of 3 x 4"),
        ({"size": [4, 3], "counts": "23"}, "the counts hold 5 pixels, but an image of 3 x 4"),
        ({"size": [4, 3], "counts": [2, -2, 12]}, "counts are lengths in pixels, not"),
        ({"size": [4, 3], "counts": "2\x7f"}, "the text of the counts is damaged at run 2"),
        ({"size": [4, 3], "counts": "2P"}, "the text of the counts is truncated or damaged"),
        ({"size": [4, 3], "counts": "ooooooooo0"}, "the text of the counts is damaged at run 1"),
        ({"size": [4, 3], "counts": 5}, "counts are a list or a text, not 5"),
        ({"size": [3, 4], "counts": [12]}, r"its size \(height, width\) is \[3, 4\], but that of"),
        ([[0, 0, 1, 1]], "polygon 1: at least three points are required"),
        ([[0, 0, 1, 1, math.nan, 2]], "polygon 1: nan is not a finite number"),
        ([[0, 0, 1, 1, 0, 2], [0, 0, 1, 1, 1e9, 2]], "polygon 2: a coordinate is beyond 1000"),
        ([], r"expected polygons \[\[x1, y1, ...\], ...\], or .* found \[\]"),
        ("x", "expected polygons"),
    ],
)  # fmt: skip
def test_a_damaged_mask_is_one_sentence(value, message):
    with pytest.raises(ValueError, match=f"^result 1, segmentation.*{message}"):
        read_mask(value, SIZE, "result 1, segmentation")


def test_masks_need_the_size_of_their_image_and_a_segmentation():
    dataset, results = as_masks(*crowded(1))
    rules = Rules(iou="segm")
    with pytest.raises(
        ValueError, match='detection 1: no "segmentation", which --iou segm compares'
    ):
        rank_rows(dataset, [{**results[0], "segmentation": None}], rules)
    dataset["images"] = [{"id": image["id"]} for image in dataset["images"]]
    with pytest.raises(ValueError, match="masks need its height and width in pixels, not None and"):
        rank_rows(dataset, results, rules)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iou": "masks"}, "iou is one of bbox, segm, not 'masks'"),
        ({"max_detections": (0, 5)}, r"max_detections are at least 1, not \(0, 5\)"),
        ({"areas": {"a": (9, 3)}}, "the area range 'a' is 9 to 3; give it a name"),
        ({"areas": {"50": (0, 3)}}, "the area range '50' is 0 to 3; give it a name that begins"),
    ],
)
def test_a_bad_setting_is_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        Rules(**settings)


def written(folder, dataset, results):
    for name, content in (("truth.json", dataset), ("found.json", results)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return ["score", str(folder / "found.json"), "--truth", str(folder / "truth.json")]


def test_the_command_line_scores_masks_with_limits_and_areas(tmp_path, capsys):
    dataset, results = as_masks(*crowded(2))
    words = written(tmp_path, dataset, results)
    options = ["--protocol", "coco_ap", "--iou", "segm", "--max-dets", "1", "50", "--areas"]
    options += ["tiny=0:900", "rest=900:1e10", "--out", str(tmp_path / "out")]
    assert cli.main([*words, *options]) == 0
    areas = {"tiny": (0, 900), "rest": (900, 1e10)}
    expected = summarized(evaluated(dataset, results, "segm", (1, 50), areas))
    saved = section(tmp_path / "out")
    assert {name: own["value"] for name, own in saved["metrics"].items()} == close(expected)
    assert saved["rules"]["all"]["areas"] == {"tiny": [0, 900], "rest": [900, 1e10]}
    assert saved["labels"][2]["name"] == "label 3"
    printed = capsys.readouterr().out
    assert "AP by the rules of COCO for masks, of objects ranked by confidence" in printed
    lines = [re.split(" {2,}", line) for line in printed.splitlines()]
    shown = {
        words[1]: words[-1 if words[1].startswith("label ") else 2]
        for words in lines
        if len(words) > 2
    }
    assert shown["AP rest"] == in_unit(expected["ap_rest"], "%")
    assert shown["label 3"] == in_unit(saved["labels"][2]["metrics"]["ap"]["value"], "%")


def test_scores_of_coco_results_recommend_coco_ap(tmp_path, capsys):
    words = written(tmp_path, *crowded(2))
    assert cli.main(words) == 0
    hint = "AP: not computed by this protocol; --protocol coco_ap computes it"
    assert hint in capsys.readouterr().out.splitlines()
    assert cli.main([*words, "--protocol", "coco_ap"]) == 0
    assert hint not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-dets", "5"], "--max-dets requires --protocol coco_ap."),
        (["--iou", "segm"], "--iou requires --protocol coco_ap."),
        (["--protocol", "coco_ap", "--iou", "segm"], 'detection 1: no "segmentation"'),
        (["--protocol", "coco_ap", "--areas", "a=1:0"], "the area range 'a' is 1 to 0"),
    ],
)
def test_a_bad_option_is_one_sentence(tmp_path, capsys, options, message):
    words = written(tmp_path, *crowded(2))
    assert cli.main([*words, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_nan_of_a_file_is_one_sentence_with_its_row(tmp_path, capsys):
    dataset, results = crowded(2)
    results[4]["bbox"] = NAN_BOX
    words = written(tmp_path, dataset, results)
    assert cli.main([*words, "--protocol", "coco_ap"]) == 2
    assert "found.json, result 5: bbox: nan is not a finite number." in capsys.readouterr().err
