"""``mm-numeric labels --again``: two labellings of the same rows, and the advice."""

import csv
import json
import random
import re

import pytest
from import_graph import ROOT

from mm_numeric.answers import ClockTime
from mm_numeric.cli import main as cli
from mm_numeric.evaluation.metrics.clock import with_hands_swapped
from mm_numeric.labels.advice import ADVICE


def clocks(folder, *, noise=5.0, swapped=0.0, exact=False, late=False, again=100, out="again.csv"):
    """Write 150 clocks with errors to clocks.csv, and correct times of some to another file."""
    rng = random.Random(0)
    rows, correct = [], []
    for i in range(150):
        time = ClockTime.from_minutes(rng.randrange(720))
        error = rng.expovariate(1 / noise) if late else rng.gauss(0, noise)
        label = ClockTime.from_minutes(time.minutes + round(error * (not exact)))
        rows.append((f"{i}.png", with_hands_swapped(time) if rng.random() < swapped else label))
        correct.append((f"{i}.png", time))
    for name, own in (("clocks.csv", rows), (out, correct[:again])):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("file", "time"), *own])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(folder, capsys, monkeypatch, *options, data="clocks.csv", again="again.csv", code=0):
    """Run the command; return its rows (name -> value with its unit) and all that it printed."""
    monkeypatch.chdir(folder)
    assert cli.main(["labels", "--data", data, "--again", again, *options]) == code
    streams = capsys.readouterr()
    text = streams.err if code else streams.out
    return dict(re.findall(r"^  (\S.*?) {2,}(\S+(?: [%a-z]+)?)  ", text, re.M)), text


@pytest.mark.parametrize(
    ("settings", "labels", "rule"),
    [
        ({}, "times that people read, off by 2 to 5 minutes in either direction", "median"),
        ({"noise": 10}, "times that are off by about 10 minutes", "median"),
        ({"exact": True}, "exact times", "median or greedy"),
        ({"late": True}, "labels whose errors have one direction", "greedy, or quantile_0.3"),
    ],
)
def test_the_advice_fits_the_labels(tmp_path, capsys, monkeypatch, settings, labels, rule):
    clocks(tmp_path, **settings)
    text = run(tmp_path, capsys, monkeypatch, "--task", "clock")[1]
    assert text.splitlines()[-1].startswith(f"advice: loss ce, rule {rule}, as for '{labels}")


def test_labels_without_anything_in_common_get_no_loss(tmp_path, capsys, monkeypatch):
    clocks(tmp_path)
    text = (tmp_path / "again.csv").read_text(encoding="utf-8")
    times = re.findall(r",(.*)\n", text)[1:]
    files = "".join(f"{i}.png,{time}\n" for i, time in enumerate(reversed(times)))
    (tmp_path / "again.csv").write_text(f"file,time\n{files}", encoding="utf-8")
    text = run(tmp_path, capsys, monkeypatch, "--task", "clock")[1]
    assert "advice: check that both files label the same images" in text


def test_mixups_of_clocks_are_found(tmp_path, capsys, monkeypatch):
    clocks(tmp_path, exact=True, swapped=0.1)
    shown, _ = run(tmp_path, capsys, monkeypatch, "--task", "clock")
    names = "hands swapped", "different labels"
    swapped, different = (float(shown[name].split()[0]) for name in names)
    assert swapped == pytest.approx(different, abs=0.5)
    assert swapped > 3
    assert shown["noise (standard deviation)"] == "0.00 min"


def test_numbers_that_are_too_large(tmp_path, capsys, monkeypatch):
    rng = random.Random(0)
    correct = {str(i): round(rng.lognormvariate(3, 1), 2) + 1 for i in range(100)}
    first = {i: round(value * 1.1 * rng.lognormvariate(0, 0.05), 2) for i, value in correct.items()}
    for name, values in (("first", first), ("second", correct)):
        rows = [{"id": i, "question": "?", "answer": value} for i, value in values.items()]
        write(tmp_path / f"{name}.jsonl", rows)
    files = {"data": "first.jsonl", "again": "second.jsonl"}
    shown, text = run(tmp_path, capsys, monkeypatch, "--task", "numbers", "--log", **files)
    assert float(shown["noise (standard deviation)"].split()[0]) == pytest.approx(5, rel=0.2)
    assert float(shown["bias"].split()[0]) == pytest.approx(9.5, rel=0.2)
    assert re.search(r"advice: subtract the bias of 9\.\d+ % from the labels; then loss ce, ", text)


def scene(i, rng, noise=0.0, missing=0.0, wrong=0.0):
    """Return a row with three objects, whose boxes and labels have errors."""
    items = []
    for k in range(3):
        corner = [100 * k + 10, 20 + i % 5]
        box = [*corner, corner[0] + 60, corner[1] + 50]
        label = "dog" if rng.random() < wrong else "cat"
        if rng.random() >= missing:
            items.append({"box": [edge + rng.gauss(0, noise) for edge in box], "label": label})
    return {"id": str(i), "image": f"{i}.png", "instances": items}


def test_lists_of_objects(tmp_path, capsys, monkeypatch):
    rng = random.Random(0)
    write(tmp_path / "rows.jsonl", [scene(i, rng, 3, 0.1, 0.05) for i in range(120)])
    write(tmp_path / "again.jsonl", [scene(i, rng) for i in range(80)])
    files = {"data": "rows.jsonl", "again": "again.jsonl"}
    shown, text = run(tmp_path, capsys, monkeypatch, "--task", "detection", **files)
    assert float(shown["noise (standard deviation)"].split()[0]) == pytest.approx(3, rel=0.1)
    assert float(shown["missing objects"].split()[0]) == pytest.approx(10, abs=4)
    assert float(shown["another class"].split()[0]) == pytest.approx(5, abs=3)
    assert shown["extra objects"] == "0.00 %"
    assert "as for 'boxes with edges that are off by some pixels'" in text


def test_boxes_with_x_and_y_swapped(tmp_path, capsys, monkeypatch):
    rng = random.Random(0)
    correct = []
    for _ in range(60):
        x, y = rng.uniform(0, 300), rng.uniform(0, 100)
        correct.append([x, y, x + rng.uniform(20, 80), y + rng.uniform(20, 80)])
    first = [[b[1], b[0], b[3], b[2]] if i < 6 else b for i, b in enumerate(correct)]
    for name, boxes in (("first", first), ("second", correct)):
        rows = [{"id": str(i), "image": "1.png", "phrase": "it", "box": b}
                for i, b in enumerate(boxes)]  # fmt: skip
        write(tmp_path / f"{name}.jsonl", rows)
    files = {"data": "first.jsonl", "again": "second.jsonl"}
    shown, text = run(tmp_path, capsys, monkeypatch, "--task", "grounding", **files)
    assert shown["x and y swapped"] == "10.00 %"
    assert "as for 'exact boxes'" in text


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"again": 49}, [], "again.csv: 49 rows are too few; label 50 or more, at random"),
        ({}, ["--log"], "clocks.csv, line 2: --log is for numbers above 0, not "),
        ({}, ["--task", "numbers"], 'clocks.csv, line 2: no question; each row needs "question"'),
    ],
)
def test_mistakes(tmp_path, capsys, monkeypatch, settings, options, message):
    clocks(tmp_path, **settings)
    options = options if "--task" in options else [*options, "--task", "clock"]
    assert message in run(tmp_path, capsys, monkeypatch, *options, code=2)[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "7.png",
            "700.png",
            "again.csv, line 9: the row '700.png' is not in clocks.csv, and so for 1 of ",
        ),
        ("file,time", "file,hour", "no time; each row needs"),
    ],
)
def test_a_second_file_that_does_not_fit(tmp_path, capsys, monkeypatch, old, new, message):
    clocks(tmp_path)
    text = (tmp_path / "again.csv").read_text(encoding="utf-8").replace(f"\n{old}", f"\n{new}")
    path = tmp_path / "again.csv"
    path.write_text(text.replace(old, new) if old == "file,time" else text, encoding="utf-8")
    assert message in run(tmp_path, capsys, monkeypatch, "--task", "clock", code=2)[1]


def test_each_advice_is_a_row_of_the_page():
    page = (ROOT / "docs/choose.md").read_text(encoding="utf-8").replace("`", "")
    page = re.sub(r"\[([^]]*)\]\(([^)]*)\)", r"\1", page)
    for labels, (*_, rule, evidence) in ADVICE.items():
        assert f"\n| {labels} | ce | {rule} | {evidence}" in page
