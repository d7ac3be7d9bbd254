"""Rotated boxes: IoU next to a slow clipping loop and shapely, AP next to DOTA's devkit."""

import math
import random
import re
from functools import cache

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import outcome
from PIL import Image
from result_files import section, write_lines

from mm_numeric.answers import Box, Instance, Instances, Polygon
from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.evaluation.metrics.boxes import iou
from mm_numeric.evaluation.metrics.coco_ap import THRESHOLDS
from mm_numeric.evaluation.metrics.dota import rank_rotated
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.geometry.frames import Frame, Resize
from mm_numeric.geometry.row_shapes import corners_of, read_rotated_box
from mm_numeric.importers.dota import Dota
from mm_numeric.tasks.detection import Detection
from mm_numeric.tasks.rendering.scenes import SceneStyle


def area(points):
    """Signed area by the shoelace formula."""
    total = 0.0
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
        total += (x1 * y2 - x2 * y1) / 2
    return total


def clipped(points, window):
    """Cut a polygon by each edge of a convex window (Sutherland and Hodgman), in float64."""
    for (ax, ay), (bx, by) in zip(window, window[1:] + window[:1], strict=True):
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in points]
        kept = []
        for i, (p, s) in enumerate(zip(points, sides, strict=True)):
            q, t = points[i - 1], sides[i - 1]
            if (s >= 0) != (t >= 0):
                share = t / (t - s)
                kept.append((q[0] + share * (p[0] - q[0]), q[1] + share * (p[1] - q[1])))
            if s >= 0:
                kept.append(p)
        points = kept
    return points


def slow_iou(a, b):
    a, b = list(a.points), list(b.points)
    both = abs(area(clipped(a, b)))
    return both / (abs(area(a)) + abs(area(b)) - both)


sides = st.floats(2, 90)
rotated = st.tuples(st.floats(0, 60), st.floats(0, 60), sides, sides, st.floats(-360, 360)).map(
    lambda numbers: corners_of(read_rotated_box(list(numbers), "test"), "test")
)


@given(a=rotated, b=rotated)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_iou_of_rotated_boxes_is_that_of_a_loop_and_of_shapely(a, b):
    p, q = shapely.Polygon(a.points), shapely.Polygon(b.points)
    assert iou(a, b) == pytest.approx(slow_iou(a, b), abs=1e-9)
    assert iou(a, b) == pytest.approx(p.intersection(q).area / p.union(q).area, abs=1e-9)
    assert iou(a, a) == pytest.approx(1)


def detectron2_corners(x, y, width, height, degrees):
    """get_rotated_vertices of detectron2 (box_iou_rotated_utils.h): counterclockwise degrees."""
    sin, cos = math.sin(math.radians(degrees)) / 2, math.cos(math.radians(degrees)) / 2
    first = x + sin * height + cos * width, y + cos * height - sin * width
    second = x - sin * height + cos * width, y - cos * height - sin * width
    return [first, second, *((2 * x - px, 2 * y - py) for px, py in (first, second))]


@given(box=st.tuples(*[st.floats(1, 50)] * 4), turn=st.floats(-89, 89).filter(lambda a: abs(a) > 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_all_conventions_of_the_angle_are_one_box(box, turn):
    """Oc: 0 to 90; le90: the longer side, -90 to 90; le135: the longer side, -45 to 135."""
    x, y, width, height = box
    same = [(x, y, width, height, turn), (x, y, width, height, turn + 180),
            (x, y, height, width, turn + 90), (x, y, height, width, turn - 90)]  # fmt: skip
    oc = next(b for b in same if 0 < b[4] <= 90)
    longer = [b for b in same if b[2] >= b[3] or width == height]
    le90 = next(b for b in longer if -90 <= b[4] < 90)
    others = [b for b in longer if -45 <= b[4] < 135]
    first = corners_of(read_rotated_box(list(same[0]), "test"), "test")
    for other in (oc, le90, *others[:1]):
        found = corners_of(read_rotated_box(list(other), "test"), "test")
        assert np.array(found.points) == pytest.approx(np.array(first.points), abs=1e-9)
    opposite = detectron2_corners(x, y, width, height, -turn)
    assert sorted(opposite) == [pytest.approx(p, abs=1e-9) for p in sorted(first.points)]
    centre = np.mean(first.points, axis=0)
    assert centre == pytest.approx([x, y])
    assert area(list(first.points)) == pytest.approx(width * height)  # clockwise with y downwards


def test_corners_begin_at_the_top():
    diamond = Polygon(((5, 10), (0, 5), (5, 0), (10, 5)))  # counterclockwise
    assert corners_of(diamond, "test").points == ((5, 0), (10, 5), (5, 10), (0, 5))
    assert corners_of(Box(1, 2, 3, 4), "test").points == ((1, 2), (3, 2), (3, 4), (1, 4))
    with pytest.raises(ValueError, match=r"^row 1: a rotated box has 4 corners, and this polygon"):
        corners_of(Polygon(((0, 0), (1, 0), (0, 1))), "row 1")
    for value in ([1, 2, 0, 4, 5], [1, 2, 3, 4], [1, 2, 3, float("nan"), 5]):
        with pytest.raises(ValueError, match=r"^row 1: .*"):
            read_rotated_box(value, "row 1")


def winding_area(points):
    """Return the area of polyiou.cpp: signed, and the corners in its positive direction."""
    return (area(points), points) if area(points) >= 0 else (-area(points), points[::-1])


@cache
def devkit_iou(a, b):
    """iou_poly of polyiou.cpp: signed intersections of triangles, of each edge and the origin."""
    (area_a, a), (area_b, b) = winding_area(a), winding_area(b)
    both = 0.0
    for edge in zip(a, a[1:] + a[:1], strict=True):
        for other in zip(b, b[1:] + b[:1], strict=True):
            triangles = [[(0.0, 0.0), *edge], [(0.0, 0.0), *other]]
            signs = [1 if area(triangle) > 0 else -1 for triangle in triangles]
            if all(abs(area(triangle)) > 1e-8 for triangle in triangles):
                forward = [t[::sign] for t, sign in zip(triangles, signs, strict=True)]
                both += signs[0] * signs[1] * abs(area(clipped(*forward)))
    union = area_a + area_b - both
    return both / union if union else math.nan


def devkit(lines, truths, threshold, *, use_07_metric):
    """voc_eval and voc_ap of DOTA_devkit for one class, as loops.

    Args:
        lines: (confidence, image, points) of each detection, in the order of the file.
        truths: For each image, (points, is difficult) of each object.
        threshold: The IoU that a correct detection exceeds.
        use_07_metric: 11 points of recall, as in the devkit's main program.
    """
    detected = {image: [False] * len(own) for image, own in truths.items()}
    positives = sum(not difficult for own in truths.values() for _, difficult in own)
    right, wrong, recall, precision = 0, 0, [], []
    for _, image, points in sorted(lines, key=lambda line: -line[0]):
        overlaps = [devkit_iou(true, points) for true, _ in truths[image]]
        best = int(np.argmax(overlaps)) if overlaps else None
        if best is not None and overlaps[best] > threshold:
            if not truths[image][best][1]:
                right += not detected[image][best]
                wrong += detected[image][best]
                detected[image][best] = True
        else:
            wrong += 1
        recall.append(right / positives if positives else math.nan)  # numpy: 0 / 0
        precision.append(right / max(right + wrong, np.finfo(np.float64).eps))
    if use_07_metric:
        total = 0.0
        for t in np.arange(0.0, 1.1, 0.1):
            above = [p for r, p in zip(recall, precision, strict=True) if r >= t]
            total += max(above, default=0) / 11
        return total
    recall, precision = [0.0, *recall, 1.0], [0.0, *precision, 0.0]
    for i in range(len(precision) - 1, 0, -1):
        precision[i - 1] = max(precision[i - 1], precision[i])
    return sum((recall[i + 1] - recall[i]) * precision[i + 1] for i in range(len(recall) - 1))


def of_label(predictions, targets, scores, label):
    """Return the detections and the true objects of one class, for ``devkit``."""
    lines = [
        (score, i, item.shape.points)
        for i, (answer, own) in enumerate(zip(predictions, scores, strict=True))
        for item, score in zip(answer.items if answer else (), own or (), strict=True)
        if item.label == label
    ]
    truths = {
        i: [(item.shape.points, item.ignore) for item in target.items if item.label == label]
        for i, target in enumerate(targets)
    }
    return lines, truths


def scene(rng):
    """A few images with true boxes, and detections near them and elsewhere."""
    predictions, targets, scores = [], [], []
    for image in range(6):
        true, found = [], []
        for _ in range(rng.randint(0, 4)):
            numbers = [rng.uniform(60, 260), rng.uniform(60, 260), rng.uniform(20, 60),
                       rng.uniform(10, 40), rng.uniform(-90, 90)]  # fmt: skip
            label = rng.choice(["ship", "plane", "harbor"])
            shape = read_rotated_box(numbers, "test")
            true.append(Instance(shape, label, rng.random() < 0.2))
            for _ in range(rng.choice([0, 1, 1, 2])):
                moved = [n + rng.gauss(0, 3) for n in numbers]
                near = read_rotated_box(moved, "test")
                found.append(Instance(near, label if rng.random() < 0.9 else "ship"))
        predictions.append(None if image == 3 else Instances(tuple(found)))
        targets.append(Instances(tuple(true)))
        scores.append(None if image == 3 else [rng.random() for _ in found])
    return predictions, targets, scores


def test_ap_is_that_of_the_devkit():
    rng = random.Random(7)
    compared = 0
    for _ in range(25):
        case = scene(rng)
        ranking = rank_rotated(*case)
        for row in ranking.labels:
            own = of_label(*case, row["name"])
            wanted = [devkit(*own, t, use_07_metric=True) for t in THRESHOLDS]
            assert row["ap_50"] == pytest.approx(wanted[0], abs=1e-9)
            assert row["ap_75"] == pytest.approx(wanted[5], abs=1e-9)
            assert row["ap"] == pytest.approx(np.mean(wanted), abs=1e-9)
            all_points = devkit(*own, 0.5, use_07_metric=False) if row["truths"] else 0
            assert row["ap_50_all_points"] == pytest.approx(all_points, abs=1e-9)
            compared += 0.05 < wanted[0] < 0.95
        mean = np.mean([row["ap_50"] for row in ranking.labels])
        assert ranking.metrics["ap_50"] == pytest.approx(mean)
    assert compared > 20


def test_ap_of_drawn_images_is_that_of_the_devkit_on_copies_of_them():
    rng, draw = random.Random(3), np.random.default_rng(3)
    for _ in range(5):
        case = scene(rng)
        rows = draw.integers(6, size=6)
        copied = tuple([own[i] for i in rows] for own in case)
        ranking = rank_rotated(*case)
        found = ranking.take(rows).metrics
        without = [0 for row in ranking.labels if not row["truths"]]
        labels = {i.label for own in copied[1] for i in own.items if not i.ignore}
        for name, threshold, use_07_metric in (
            ("ap_50", 0.5, True), ("ap_75", 0.75, True), ("ap_50_all_points", 0.5, False)
        ):  # fmt: skip
            own = (of_label(*copied, label) for label in labels)
            each = [devkit(*case, threshold, use_07_metric=use_07_metric) for case in own]
            assert found[name] == pytest.approx(np.mean(each + without), abs=1e-9)


def test_a_second_detection_of_one_object_is_wrong_although_another_is_free():
    """Trap: each detection is compared with its nearest truth, also if that is matched already."""
    box, near = (read_rotated_box([x, 50, 40, 20, 30], "test") for x in (50, 55))
    target = Instances((Instance(box, "ship"), Instance(near, "ship")))
    twice = Instances((Instance(box, "ship"), Instance(box, "ship")))
    ranking = rank_rotated([twice], [target], [[0.9, 0.8]])
    assert iou(box, near) > 0.5
    assert ranking.metrics["ap_50_all_points"] == 0.5
    difficult = Instances((Instance(box, "ship"), Instance(near, "ship", ignore=True)))
    both = Instances((Instance(near, "ship"), Instance(box, "ship")))
    assert rank_rotated([both], [difficult], [[0.9, 0.8]]).metrics["ap_50"] == pytest.approx(1)
    only = Instances((Instance(box, "ship", ignore=True),))
    ranking = rank_rotated([both], [only], [[0.9, 0.8]])
    assert ranking.metrics["ap"] == 0  # as in the devkit, whose recall is 0 / 0
    assert math.isnan(rank_rotated([both], [Instances(())], [[0.9, 0.8]]).metrics["ap"])


BOW_TIE = "100 100 160 160 160 100 100 150"


def dota_files(folder):
    """Write files as the devkit has them: 12 images of 4 classes, and detections of 5 classes."""
    rng = random.Random(12)
    labels, detections = (
        {},
        {name: [] for name in ("ship", "plane", "harbor", "bridge", "roundabout")},
    )
    for n in range(12):
        lines = ["imagesource:GoogleEarth", f"gsd:0.{n}"] if n % 3 else []
        for _ in range(rng.randint(0, 5)):
            numbers = [rng.uniform(60, 260), rng.uniform(60, 260), rng.uniform(20, 60),
                       rng.uniform(10, 40), rng.uniform(-90, 90)]  # fmt: skip
            name = rng.choice(["ship", "plane", "harbor"])
            for detected in range(rng.choice([1, 1, 2, 3])):
                moved = [x + rng.gauss(0, 2) for x in numbers] if detected else numbers
                corners = read_rotated_box(moved, "test").points
                text = " ".join(f"{x:.1f}" for point in corners for x in point)
                if not detected:
                    difficult = rng.choice(["", " 0", " 0", " 1"])
                    lines.append(f"{text} {name}{difficult}")
                else:
                    found = rng.choice([name, name, name, "ship"])
                    detections[found].append(f"P{n:04} {rng.randint(1, 9) / 10} {text}")
        if (
            n == 4
        ):  # a class whose objects are all difficult, and a quadrilateral that crosses itself
            lines += ["10 10 50 10 50 40 10 40 bridge 1", f"{BOW_TIE} ship 0"]
            detections["bridge"].append("P0004 0.9 10 10 50 10 50 40 10 40")
            detections["ship"] += [
                f"P0004 0.7 {BOW_TIE}",
                "P0004 0.6 100 100 160 100 160 160 100 160",
            ]
        labels[f"P{n:04}.txt"] = "\n".join(lines) + "\n"
    for own in detections.values():
        rng.shuffle(own)  # confidences are equal in many lines, whose order matters
    files = {
        f"Task1_{name}.txt": "".join(f"{line}\n" for line in own)
        for name, own in detections.items()
    }
    for name, texts in (("labelTxt", labels), ("merged_dets", files)):
        (folder / name).mkdir()
        for file, text in texts.items():
            (folder / name / file).write_text(text, encoding="utf-8")
    return folder / "merged_dets", folder / "labelTxt"


def read_as_the_devkit(merged, truth, label):
    """parse_gt and the beginning of voc_eval: objects of lines of at least 9 fields."""

    def points(fields):
        return tuple(zip(map(float, fields[::2]), map(float, fields[1::2]), strict=True))

    truths = {}
    for file in truth.iterdir():
        fields = [line.split(" ") for line in file.read_text(encoding="utf-8").splitlines()]
        truths[file.stem] = [
            (points(own[:8]), len(own) == 10 and own[9] != "0")
            for own in fields
            if len(own) >= 9 and own[8] == label
        ]
    lines = (merged / f"Task1_{label}.txt").read_text(encoding="utf-8").splitlines()
    own = [line.split(" ") for line in lines]
    return [(float(line[1]), line[0], points(line[2:])) for line in own], truths


def test_the_files_of_the_devkit_are_scored_as_by_the_devkit(tmp_path, capsys):
    """Headers, lines of 9 and 10 fields, equal confidences, a crossing, classes without objects."""
    merged, truth = dota_files(tmp_path)
    arguments = ["score", str(merged), "--truth", str(truth), "--protocol", "dota"]
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    names = ("bridge", "harbor", "plane", "roundabout", "ship")
    aps = [
        devkit(*read_as_the_devkit(merged, truth, name), 0.5, use_07_metric=True) for name in names
    ]
    assert aps[0] == aps[3] == 0
    assert all(0.1 < ap < 0.95 for ap in (aps[1], aps[2], aps[4])), aps
    found = section(tmp_path / "out", "dota")["metrics"]["ap_50"]["value"]
    assert found == pytest.approx(np.mean(aps), abs=1e-9)
    # Printed by the devkit's programs (commit 62891d3) with a stable sort, for these files.
    assert found == pytest.approx(0.3409090909090909, abs=1e-9)
    printed = capsys.readouterr().out
    assert re.search(rf"AP 50 +{100 * np.mean(aps):.2f} %", printed)
    assert all(f"  {name} " in printed for name in names)
    assert cli.main(arguments[:-2]) != 0
    assert "Files of the devkit of DOTA need --protocol dota" in capsys.readouterr().err
    (merged / "Task1_plane.txt").unlink()
    assert cli.main(arguments) == 0
    both = capsys.readouterr()
    aps[2] = 0
    assert re.search(rf"AP 50 +{100 * np.mean(aps):.2f} %", both.out)
    assert "no Task1_plane.txt" in both.err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"merged_dets/a.txt": "P1 0.5 1 1 9 1 9 5 1 5\n"}, "no file Task1_CLASS.txt in it"),
        (
            {"merged_dets/Task1_ship.txt": "P1 0.5 1 1 9 1 9 5\n"},
            "Task1_ship.txt, line 1: 8 fields",
        ),
        (
            {"merged_dets/Task1_ship.txt": "P1 high 1 1 9 1 9 5 1 5\n"},
            "line 1: 'high' is not a number",
        ),
        (
            {"merged_dets/Task1_ship.txt": "P2 0.5 1 1 9 1 9 5 1 5\n"},
            "the image 'P2' is not in the",
        ),
        ({"labelTxt/P1.txt": "1 1 9 1 9 5 1 ship\n"}, "P1.txt, line 1: 8 fields"),
        ({"labelTxt/P1.txt": "1 1 9 1 9 5 1 nan ship 0\n"}, "P1.txt, line 1: nan is not a finite"),
    ],
)
def test_files_that_are_not_the_devkits_are_one_sentence(tmp_path, capsys, files, message):
    whole = {
        "merged_dets/Task1_ship.txt": "P1 0.5 1 1 9 1 9 5 1 5\n",
        "labelTxt/P1.txt": "1 1 9 1 9 5 1 5 ship 0\n",
    }
    if "merged_dets/a.txt" in files:
        whole.pop("merged_dets/Task1_ship.txt")
    for name, text in {**whole, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    folders = [str(tmp_path / "merged_dets"), "--truth", str(tmp_path / "labelTxt")]
    assert cli.main(["score", *folders, "--protocol", "dota"]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_protocol_is_an_option_of_score(tmp_path, capsys):
    predictions, targets, scores = scene(random.Random(3))
    task, frame = Detection(shape="rotated_box", order="rows"), rotated_frame()
    lines = [
        {
            "id": str(i),
            "task": "detection",
            "text": task.format(Instances(answer.items if answer else ()), frame).text,
            "target": task.record(target),
            "frame": frame.to_dict(),
            "scores": own or [],
        }
        for i, (answer, target, own) in enumerate(zip(predictions, targets, scores, strict=True))
    ]
    file = write_lines(tmp_path / "predictions.jsonl", lines)
    assert cli.main(["score", str(file), "--protocol", "dota"]) == 0
    wanted = rank_rotated(predictions, targets, scores).metrics["ap_50"]
    printed = capsys.readouterr().out
    results = section(tmp_path)
    ap_50 = results["metrics"]["ap_50"]["value"]
    assert ap_50 == pytest.approx(wanted, abs=0.02)
    assert "AP by the rules of DOTA, of objects ranked by confidence" in printed
    assert re.search(rf"AP 50 +{100 * ap_50:.2f} % +\d+.\d\d % to ", printed)
    assert "coco_ap" not in results["rules"]
    assert "DOTA_devkit" in results["rules"]["dota_ap"]["variant"]


def rotated_frame():
    return Frame(400, 400, Resize(kind="none").view(400, 400), Coordinates(decimals=4))


def test_rendered_boxes_are_where_the_shapes_are(tmp_path):
    task = Detection(shape="rotated_box", scene=SceneStyle(noise=0.0))
    source = DataSource(render=12, seed=1)
    for example in load_examples(task, source, tmp_path, training=True):
        pixels = np.asarray(Image.open(example.image), dtype=float)
        apart = np.abs(pixels - pixels[0, 0]).max(axis=-1)  # the corner is background
        y, x = np.nonzero(apart > 1)
        hulls = [shapely.Polygon(item.shape.points) for item in example.answer.items]
        inside = shapely.contains_xy(shapely.union_all(hulls).buffer(1), x + 0.5, y + 0.5)
        assert inside.all()
        for item, hull in zip(example.answer.items, hulls, strict=True):
            own = apart[y, x][shapely.contains_xy(hull.buffer(1), x + 0.5, y + 0.5)]
            wanted = 1 if item.label == "rectangle" else math.pi / 4
            # Pixels at the edge are partly painted.
            assert own.sum() / own.max() / hull.area == pytest.approx(wanted, abs=0.05)


def test_dota_is_imported(tmp_path):
    text = """imagesource:GoogleEarth\ngsd:0.25
1054 1028 1063 1011 1111 1040 1112 1062 ship 1\r
478.5 214 488 202 908 628 895 640 small-vehicle 0\n1 1 9 1 9 5 1 5 harbor\n"""
    folder = tmp_path / "labelTxt"
    folder.mkdir()
    (folder / "P0706.txt").write_text(text, encoding="utf-8")
    (folder / "P1.txt").write_text("1 2 3 4 5 6 7 ship\n", encoding="utf-8")
    (folder / "P2.txt").write_text("1 1 9 1 9 5 1 5 ship maybe\n", encoding="utf-8")
    done = outcome(Dota(), folder)
    assert (done.row["id"], done.row["image"]) == ("P0706", "P0706.png")
    assert done.row["instances"] == [
        {
            "polygon": [1054, 1028, 1063, 1011, 1111, 1040, 1112, 1062],
            "label": "ship",
            "ignore": True,
        },
        {"polygon": [478.5, 214, 488, 202, 908, 628, 895, 640], "label": "small-vehicle"},
        {"polygon": [1, 1, 9, 1, 9, 5, 1, 5], "label": "harbor"},
    ]
    assert done.kinds == ["numbers", "numbers"]
    task = Detection(shape="rotated_box")
    example = next(task.examples([("P0706", done.row)], training=True))
    text = task.format(example.answer, Frame(1200, 1200, Resize(kind="none").view(1200, 1200),
                                             COORDINATES["qwen2_5_vl"])).text  # fmt: skip
    assert "harbor" in text
    assert "ship" not in text
    assert "[1, 1, 9, 1, 9, 5, 1, 5]" in text
