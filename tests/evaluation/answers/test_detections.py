"""Files of other tools: what is read, what is refused in one sentence, and the same figures."""

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import shapely
from reference_detection import hmean, icdar2015
from result_files import section, values
from shape_images import made_up

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.cli import main as cli
from mm_numeric.evaluation.answers.detections import (
    coco_detections,
    read_coco_results,
    read_coco_truth,
    read_text_files,
)
from mm_numeric.evaluation.metrics.coco_ap import Rules, rank_rows
from mm_numeric.evaluation.score import score
from mm_numeric.evaluation.score_text import results_table

ICDAR = Path(__file__).parents[4] / "shared" / "data" / "icdar2015" / "textdet_test.json"
COCO_SAMPLE = ICDAR.parents[1] / "coco" / "instances_val2014_100.json"
SQUARE = "0,0,10,0,10,10,0,10"
CORNERS = ((0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0))


def folder(path, files):
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_bytes(text.encode())
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def one_line(tmp_path, line, *, truth, lines=None):
    found = read_text_files(folder(tmp_path / "x", {"a.txt": line}), truth=truth, lines=lines)
    (item,) = found.instances["a"].items
    return item, found.scores["a"][0]


@pytest.mark.parametrize(
    ("line", "text", "ignore"),
    [
        (SQUARE, "", False),
        (f"{SQUARE},Joint", "Joint", False),
        (f"\ufeff{SQUARE},Joint\r\n", "Joint", False),
        (f"{SQUARE},ab, cd,", "ab, cd,", False),
        (f"{SQUARE},1500", "1500", False),
        (f"{SQUARE},###", "", True),
        (f"{SQUARE},Arabic,###", "", True),
        (f'{SQUARE}, "a \\"b\\", c"', 'a "b", c', False),
        (f"{SQUARE},####", "####", False),
        (f"{SQUARE},東京", "東京", False),
    ],
)
def test_a_line_of_ground_truth(tmp_path, line, text, ignore):
    item, score = one_line(tmp_path, line, truth=True)
    assert item == Instance(Polygon(CORNERS), text, ignore)
    assert score is None


@pytest.mark.parametrize(
    ("line", "lines", "shape", "score", "text"),
    [
        (SQUARE, None, Polygon(CORNERS), None, ""),
        (f"{SQUARE},0.75", None, Polygon(CORNERS), 0.75, ""),
        (f"{SQUARE},0.75,Joint, 5", None, Polygon(CORNERS), 0.75, "Joint, 5"),
        (f"{SQUARE},Joint", None, Polygon(CORNERS), None, "Joint"),
        (f"{SQUARE},1500", None, Polygon(CORNERS), None, "1500"),
        (f"{SQUARE},###", None, Polygon(CORNERS), None, "###"),  # nobody may ignore a detection
        ("1.5,-2, 3e1 ,4.", None, Box(1.5, -2, 30, 4), None, ""),
        ("1,2,3,4,0.5", None, Box(1, 2, 3, 4), 0.5, ""),
        ("9,9,3,4", None, Box(9, 9, 3, 4), None, ""),
        ("0,0,10,0,10,10", "polygon", Polygon(CORNERS[:3]), None, ""),
        ("0,0,10,0,10,10,1", "polygon", Polygon(CORNERS[:3]), 1.0, ""),
        ("0,0,0,10,10,10,x", "polygon_yx", Polygon(CORNERS[:3]), None, "x"),
        ("0,0,10,0,10,10,####5", "polygon", Polygon(CORNERS[:3]), None, "5"),
        (f"{SQUARE},10,000", "quad", Polygon(CORNERS), None, "10,000"),
    ],
)
def test_a_line_of_detections(tmp_path, line, lines, shape, score, text):
    assert one_line(tmp_path, line, truth=False, lines=lines) == (Instance(shape, text), score)


def test_a_marked_text_of_a_polygon_may_be_a_number_or_ignored(tmp_path):
    item, _ = one_line(tmp_path, "0,0,10,0,10,10,####12,5", truth=True, lines="polygon")
    assert item == Instance(Polygon(CORNERS[:3]), "12,5")
    item, _ = one_line(tmp_path, "0,0,10,0,10,10,#######", truth=True, lines="polygon")
    assert item == Instance(Polygon(CORNERS[:3]), "", ignore=True)


@pytest.mark.parametrize(
    ("files", "truth", "lines", "message"),
    [
        (
            {"a.txt": "1,2,x,4"},
            1,
            None,
            r"a\.txt, line 1: it begins with 2 numbers, but a box has 4",
        ),
        ({"a.txt": "1,2,3,4,5,6"}, 1, None, "it begins with 6 numbers, .* box, quad, polygon,"),
        ({"a.txt": f"{SQUARE}\n\n1,2,3"}, 0, None, r"line 3: expected 8 numbers first, for a quad"),
        ({"a.txt": "1,2,3,1e999"}, 0, "box", "line 1: inf is not a finite number"),
        ({"a.txt": f"{'9' * 400},2,3,4"}, 1, "box", "line 1: inf is not a finite number"),
        ({"a.txt": "1,2,nan,4"}, 0, "box", "expected 4 numbers first, for a box, found '1,2,nan"),
        ({"a.txt": "1,2,3,4"}, 0, "polygon", "expected at least 6 numbers first, for a polygon"),
        ({"a.txt": "1,2,3,4,5,6,7"}, 0, "polygon", "7 numbers are not pairs, and the last is no"),
        ({"a.txt": f"{SQUARE}\n{SQUARE},5,6"}, 0, None, "line 2: 10 numbers, but the first line"),
        ({"a.txt": f"{SQUARE},x\n{SQUARE},5,6,x"}, 1, None, "line 2: 10 numbers, but the first l"),
        ({"a.txt": "5,2,3,4,x"}, 1, None, "line 1: the box '5,2,3,4,x' is reversed; write the s"),
        ({"a.txt": SQUARE}, 1, "quads", "lines is one of box, quad, polygon, polygon_yx, not"),
        ({"res_a.txt": SQUARE, "a.txt": SQUARE}, 0, None, "a second file of the image 'a'; keep"),
        ({"a.json": SQUARE}, 0, None, r"there is no \.txt file in it; add one for each image"),
    ],
)
@pytest.mark.parametrize("make", [folder, zipped])
def test_a_bad_file_is_one_sentence(tmp_path, make, files, truth, lines, message):
    path = make(tmp_path / "x.zip", files)
    with pytest.raises(ValueError, match=message) as error:
        read_text_files(path, truth=bool(truth), lines=lines)
    assert "\n" not in str(error.value)


def test_what_is_no_zip_or_no_text_is_one_sentence(tmp_path):
    (tmp_path / "x.zip").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.zip: not a whole \.zip archive \(File is not"):
        read_text_files(tmp_path / "x.zip", truth=True)
    with pytest.raises(ValueError, match=r"none\.zip: there is no such file"):
        read_text_files(tmp_path / "none.zip", truth=True)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8"):
        read_text_files(tmp_path, truth=True)


def test_an_empty_file_is_an_image_without_shapes_and_names_go_together(tmp_path):
    path = zipped(
        tmp_path / "x.zip",
        {"gt/gt_img_1.txt": SQUARE, "gt/gt_img_2.txt": "\r\n", "__MACOSX/._gt_img_1.txt": "?"},
    )
    found = read_text_files(path, truth=True)
    assert {name: len(i.items) for name, i in found.instances.items()} == {"img_1": 1, "img_2": 0}


def test_a_folder_has_the_files_that_a_zip_of_it_has(tmp_path):
    files = {"gt_1.txt": SQUARE, "gt_2.TXT": SQUARE, "._gt_1.txt": "\0\1", "notes.md": "a"}
    for path in (folder(tmp_path / "gt", files), zipped(tmp_path / "gt.zip", files)):
        assert list(read_text_files(path, truth=True).instances) == ["1", "2"]


def written(instances, *, texts):
    """Lines as ICDAR has them."""
    lines = []
    for item in instances.items:
        numbers = ",".join(f"{at:g}" for point in item.shape.points for at in point)
        lines.append(f"{numbers},{'###' if item.ignore else 'a, b'}" if texts else numbers)
    return "\r\n".join(lines)


def whole(instances):
    """Quads in whole pixels, as the official script takes them."""
    return instances and Instances(
        tuple(
            Instance(Polygon(tuple((float(round(x)), float(round(y))) for x, y in i.shape.points)),
                     "", i.ignore)
            for i in instances.items
        )
    )  # fmt: skip


def test_a_submission_has_the_figures_of_the_protocol(tmp_path):
    predictions, targets = (list(map(whole, side)) for side in made_up(60, 21, "quads"))
    truth = zipped(tmp_path / "gt.zip", {
        f"gt_img_{n}.txt": "\ufeff" + written(t, texts=True) for n, t in enumerate(targets)
    })  # fmt: skip
    found = zipped(tmp_path / "submit.zip", {
        f"res_img_{n}.txt": written(p, texts=False) for n, p in enumerate(predictions) if p
    })  # fmt: skip
    scores = score(found, truth=truth, out=tmp_path / "out")
    rows = np.array(icdar2015(predictions, targets)).sum(axis=0)
    metrics = scores.metrics()
    assert metrics["precision"]["value"] == rows[0] / rows[1]
    assert metrics["recall"]["value"] == rows[0] / rows[2]
    assert metrics["hmean"]["value"] == hmean(rows[0] / rows[1], rows[0] / rows[2])
    missing = sum(p is None for p in predictions)
    assert scores.failures == {"no file for the image": missing}
    assert missing > 0
    results = section(tmp_path / "out", "icdar2015")
    assert results["truth"] == str(truth)
    assert values(results) == metrics
    lines = (
        (tmp_path / "out" / "submit.zip.scores.icdar2015.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert len(lines) == 60
    assert "label" not in json.loads(lines[0]).get("parsed", {})
    files = sorted(path.name for path in tmp_path.iterdir())
    score(found, truth=truth, protocol="deteval_total_text")
    assert sorted(path.name for path in tmp_path.iterdir()) == files  # nothing is written unasked


def test_files_that_do_not_belong_together_are_one_sentence(tmp_path):
    truth = folder(tmp_path / "gt", {"gt_img_1.txt": f"{SQUARE},x"})
    other = folder(tmp_path / "res", {"res_img_2.txt": SQUARE})
    results = tmp_path / "results.json"
    results.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="the image 'img_2' is not in the ground truth"):
        score(other, truth=truth)
    with pytest.raises(ValueError, match="have different formats; use text files"):
        score(results, truth=truth)
    with pytest.raises(ValueError, match=r"no protocol 'icdar'\. Did you mean 'icdar2015'"):
        score(truth, truth=truth, protocol="icdar")


DATASET = {
    "images": [{"id": 7}, {"id": 8}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 100,
         "iscrowd": 0},
        {"id": 2, "image_id": 8, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 100,
         "iscrowd": 1},
    ],
    "categories": [{"id": 3, "name": "cat"}],
}  # fmt: skip
RESULT = {"image_id": 7, "category_id": 3, "bbox": [0, 0, 10, 9], "score": 0.5}


def as_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_coco_files_are_read_by_image(tmp_path):
    dataset = read_coco_truth(as_json(tmp_path / "truth.json", DATASET))
    wanted = coco_detections(dataset, dataset["annotations"])
    assert wanted.instances == {
        "7": Instances((Instance(Box(0, 0, 10, 10), "cat"),)),
        "8": Instances((Instance(Box(0, 0, 10, 10), "cat", ignore=True),)),
    }
    found = coco_detections(
        dataset, read_coco_results(as_json(tmp_path / "r.json", [RESULT]), dataset)
    )
    assert found.instances["7"] == Instances((Instance(Box(0, 0, 10, 9), "cat"),))
    assert (found.instances["8"], found.scores["7"]) == (Instances(()), [0.5])
    scores = score(tmp_path / "r.json", truth=tmp_path / "truth.json")
    assert scores.metrics()["f1_at_0.9"]["value"] == 1
    assert scores.failures == {}


TABLE = "image,x1,y1,x2,y2,label,score\n"
NAMES = {  # ours, those of Ultralytics' to_csv and the image, and those of supervision's CSVSink
    "ours": TABLE,
    "ultralytics": "image,xmin,ymin,xmax,ymax,name,confidence\n",
    "supervision": "image_path,x_min,y_min,x_max,y_max,class_name,confidence\n",
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("truth", ["json", "csv"])
def test_a_table_of_boxes_scores_what_a_coco_file_scores(tmp_path, names, truth):
    images = [{"id": i, "file_name": f"{name}.jpg"} for i, name in ((7, "a"), (8, "b"), (9, "c"))]
    cat, dog = {"id": 3, "name": "cat"}, {"id": 9, "name": "dog"}
    boxes = [(7, 3, [1, 1, 10, 10]), (7, 9, [20, 20, 9, 9.5]), (8, 3, [5, 5, 10, 10])]
    rows = [{"image_id": i, "category_id": c, "bbox": b} for i, c, b in boxes]
    annotations = [
        {**row, "id": i, "area": math.prod(row["bbox"][2:]), "iscrowd": 0}
        for i, row in enumerate(rows, start=1)
    ]
    dataset = {"images": images, "annotations": annotations, "categories": [cat, dog]}
    as_json(tmp_path / "t.json", dataset)
    found = [(7, 3, [1, 1, 10, 9], 0.9), (7, 3, [20, 20, 9, 9], 0.8), (9, 9, [0, 0, 5, 5], 0.3)]
    results = [dict(zip(RESULT, own, strict=True)) for own in found]
    as_json(tmp_path / "r.json", results)
    label, file = {3: "cat", 9: "dog"}, {7: "a.jpg", 8: "b.jpg", 9: "c.jpg"}

    def line(image, category, box, score=""):
        x, y, w, h = box
        return f"{file[image]},{x},{y},{x + w},{y + h},{label[category]},{score}\n"

    (tmp_path / "r.csv").write_text(NAMES[names] + "".join(line(*own) for own in found))
    empty = "c.jpg,,,,,,\n"
    (tmp_path / "t.csv").write_text(TABLE + "".join(line(*own) for own in boxes) + empty)
    for protocol in (None, Rules()):
        wanted = score(tmp_path / "r.json", truth=tmp_path / "t.json", protocol=protocol)
        own = score(tmp_path / "r.csv", truth=tmp_path / f"t.{truth}", protocol=protocol)
        assert own.count == wanted.count == 3
        assert own.metrics() == wanted.metrics()
        if protocol is not None:
            same = pytest.approx(dict(wanted.ranking.metrics), nan_ok=True)
            assert dict(own.ranking.metrics) == same
            assert 0 < wanted.ranking.metrics["ap"] < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE + "a.jpg,1,2,x,4,cat,1", r"line 2: x1, y1, x2, y2: 'x' is not a number"),
        (TABLE + "a.jpg,1,2,,4,cat,1", r"line 2: x1, y1, x2, y2: '' is not a number"),
        (TABLE + "a.jpg,5,2,3,4,cat,1", r"line 2: the box has no area, or is reversed"),
        ("image,x1,y1,x2,label\na.jpg,1,2,3,cat", r"line 2: no column 'y2'; a table .* Found: im"),
        ("x1,y1,x2,y2,label\n1,2,3,4,cat", r"line 2: no column 'image'; a table of boxes has"),
    ],
)
def test_a_bad_table_of_boxes_is_one_sentence(tmp_path, capsys, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_coco_truth(tmp_path / "t.csv")
    assert cli.main(["score", str(tmp_path / "t.csv")]) == 2
    assert "t.csv: files of other tools require --truth" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": None}, r'result 1: no "image_id"'),
        ({"image_id": [7]}, r"result 1: image_id \[7\] is neither a number nor a text"),
        ({"bbox": [1, 2, 3]}, r"result 1: bbox is \[x, y, width, height\], not \[1, 2, 3\]"),
        ({"bbox": [1, 2, 3, "4"]}, r"result 1: bbox: '4' is not a number"),
        ({"bbox": [math.nan] * 4}, r"result 1: bbox: nan is not a finite number"),
        ({"bbox": [0, 0, 1, math.inf]}, r"result 1: bbox: inf is not a finite number"),
        ({"bbox": [0, 0, 10**400, 1]}, r"result 1: bbox: 10{39} is not a finite number"),
        ({"bbox": [1e308, 0, 1e308, 1]}, r"result 1: bbox, right and bottom edge: inf is not"),
        ({"bbox": None, "segmentation": {}}, r'result 1: no "bbox"\.'),
        ({"bbox": None, "segmentation": [[0]]}, r"masks are scored with --protocol coco_ap --iou"),
        ({"iscrowd": math.nan}, "result 1: iscrowd is 0 or 1, not nan"),
        ({"score": "high"}, "result 1, score: 'high' is not a number"),
        ({"score": math.nan}, "result 1, score: nan is not a finite number"),
    ],
)
def test_a_bad_result_is_one_sentence(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_coco_results(as_json(tmp_path / "r.json", [{**RESULT, **change}]), DATASET)
    if "score" not in change:
        rows = [{**DATASET["annotations"][0], **change}]
        truth = as_json(tmp_path / "t.json", {**DATASET, "annotations": rows})
        with pytest.raises(ValueError, match=message.replace("result 1", "annotation 1")):
            read_coco_truth(truth)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected an object with images and annotations, found a list"),
        ({**DATASET, "images": None}, 'no "images" \\(a list\\); an instances file needs it'),
        ({**DATASET, "images": [{}]}, 'images, 1: no "id" in'),
        ({**DATASET, "images": [{"id": 7}]}, "annotation 2: the image 8 is not among the images"),
        ({**DATASET, "annotations": [5]}, "annotation 1: expected an object"),
    ],
)
def test_a_bad_instances_file_is_one_sentence(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_coco_truth(as_json(tmp_path / "truth.json", content))
    (tmp_path / "truth.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"truth\.json: not valid or not complete JSON"):
        read_coco_truth(tmp_path / "truth.json")
    (tmp_path / "truth.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"truth\.json: not readable JSON .*nested too deep"):
        read_coco_truth(tmp_path / "truth.json")
    with pytest.raises(ValueError, match="expected a list of results"):
        read_coco_results(as_json(tmp_path / "r.json", {}), DATASET)


def test_ap_of_coco_files_and_of_text_files(tmp_path):
    truth = as_json(tmp_path / "truth.json", DATASET)
    results = as_json(tmp_path / "results.json", [RESULT])
    scores = score(results, truth=truth, protocol="coco_ap", out=tmp_path / "out")
    expected = rank_rows(DATASET, [RESULT]).metrics
    assert scores.ranking.metrics == pytest.approx(expected, nan_ok=True)
    saved = section(tmp_path / "out", "coco_ap")
    assert values(saved)["ap_50"]["value"] == scores.ranking.metrics["ap_50"] == pytest.approx(1)
    assert values(saved)["ap_large"]["value"] is None
    assert "the same score for all is an error" in saved["rules"]["all"]["ties"]
    assert results_table(scores).splitlines()[2].split()[:4] == ["AP", "50", "100.00", "%"]
    ends = values(saved)["ap_50"]["low"], values(saved)["ap_50"]["high"]
    assert ends == pytest.approx((0.025, 1))  # of a single image
    gt = folder(tmp_path / "gt", {"gt_1.txt": f"{SQUARE},x\n50,0,60,0,60,10,50,10,###"})
    res = folder(tmp_path / "res", {"res_1.txt": f"{SQUARE},0.9\n50,0,60,0,60,10,50,10,0.95"})
    assert score(res, truth=gt, protocol="coco_ap").ranking.metrics["ap"] == pytest.approx(1)
    bare = folder(tmp_path / "bare", {"res_1.txt": SQUARE})
    averaged = score(bare, truth=gt, protocol=Rules(ties="averaged"))
    assert averaged.ranking.metrics["ap"] == pytest.approx(1)


@pytest.mark.skipif(not ICDAR.is_file(), reason="the sample is not here")
def test_real_ground_truth_and_what_is_near_it(tmp_path):
    rows = json.loads(ICDAR.read_text(encoding="utf-8"))["data_list"]
    draw = np.random.default_rng(0)
    gt, res, targets, predictions = {}, {}, [], []
    for n, row in enumerate(rows, start=1):
        truths, found = [], []
        for instance in row["instances"]:
            points = np.array(instance["polygon"], dtype=float).reshape(-1, 2)
            text = "###" if instance["ignore"] else "word"
            truths.append(Instance(Polygon(tuple(map(tuple, points.tolist()))), "",
                                   instance["ignore"]))  # fmt: skip
            gt[n] = [*gt.get(n, []), ",".join(map(str, instance["polygon"])) + f",{text}"]
            moved = np.round(points + draw.normal(0, 2.5, points.shape))
            if draw.random() < 0.9 and shapely.Polygon(moved).is_valid:
                found.append(Instance(Polygon(tuple(map(tuple, moved.tolist())))))
                res[n] = [*res.get(n, []), ",".join(str(int(at)) for at in moved.flatten())]
        targets.append(Instances(tuple(truths)))
        predictions.append(Instances(tuple(found)) if found else None)
    truth = zipped(tmp_path / "gt.zip", {f"gt_img_{n}.txt": "\r\n".join(v) for n, v in gt.items()})
    submit = zipped(tmp_path / "s.zip", {f"res_img_{n}.txt": "\n".join(v) for n, v in res.items()})
    rows = np.array(icdar2015(predictions, targets)).sum(axis=0)
    metrics = score(submit, truth=truth).metrics()
    precision, recall = rows[0] / rows[1], rows[0] / rows[2]
    assert 0.3 < recall < 1
    assert metrics["hmean"]["value"] == hmean(precision, recall)
    itself = score(truth, truth=truth).metrics()
    assert itself["hmean"]["value"] == 1


@pytest.mark.skipif(not COCO_SAMPLE.is_file(), reason="the sample is not here")
def test_real_annotations_find_themselves(tmp_path):
    dataset = json.loads(COCO_SAMPLE.read_text(encoding="utf-8"))
    rows = [{**{k: row[k] for k in ("image_id", "category_id", "bbox")}, "score": 1 / (n + 2)}
            for n, row in enumerate(dataset["annotations"]) if not row["iscrowd"]]  # fmt: skip
    results = as_json(tmp_path / "r.json", rows)
    assert score(results, truth=COCO_SAMPLE).metrics()["f1_at_0.9"]["value"] == 1
    assert score(results, truth=COCO_SAMPLE, protocol="coco_ap").ranking.metrics[
        "ap"
    ] == pytest.approx(1, abs=1e-3)
