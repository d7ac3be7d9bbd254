"""The command: files written in one piece, counted, with checksums, and every fault listed."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from importing import Mine, examples, json_file, make_image, outcome, text_folder

from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.scene_text import Icdar2015
from mm_numeric.registry import IMPORTERS
from mm_numeric.tasks.text_detection import TextDetection

VIDEOS = ("activitynet", "charades_sta", "qvhighlights")
TEXT_ALONE = ("gsm8k", "mathematics", "multirc", "rjokes")
LINE = "377,117,463,117,465,130,378,130,Genaxis Theatre"


def prepared(out):
    return json.loads(out.with_name(f"{out.name}.prepared.json").read_text(encoding="utf-8"))


def run(capsys, *words, code=0):
    """Run the command in this process, and return what it says."""
    try:
        assert cli.main(["prepare", *map(str, words)]) == code
    except SystemExit as end:
        assert end.code == code  # noqa: PT017
    said = capsys.readouterr()
    assert (code == 2) == bool(said.err)
    return said.err or said.out


@pytest.fixture
def gt(tmp_path):
    return text_folder(tmp_path / "gt", gt_img_1__txt=f"{LINE}\n{LINE[:-15]}###", gt_img_2__txt="")


def test_rows_counts_and_checksums(capsys, tmp_path, gt):
    out = tmp_path / "rows.jsonl"
    said = run(capsys, "icdar2015", gt, "--out", out)
    record = prepared(out)
    assert record["counts"] == {
        "rows": 2,
        "instances": 2,
        "ignored": 1,
        "texts": 1,
        "rows without instances": 1,
        "sentences": 0,
        "outside": 0,
        "rows without a size": 2,
    }
    sums = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (gt / "gt_img_1.txt", out)]
    assert record["inputs"][0] == {"path": str(gt / "gt_img_1.txt"), "sha256": sums[0]}
    assert record["output"] == {"path": str(out), "sha256": sums[1]}
    assert record["options"] == {"images": None, "encoding": "utf-8", "clip": False}
    assert (record["format"], record["version"], record["bad_lines"]) == ("icdar2015", 1, [])
    assert said.startswith("icdar2015: 2 rows, 2 instances, 1 ignored, 1 texts, 1 rows without")
    assert f"sha256 {sums[1]}  {out}\ntask.name=text_spotting trains the texts" in said


def test_the_same_files_give_the_same_bytes(capsys, tmp_path, gt):
    out = tmp_path / "rows.jsonl"
    run(capsys, "icdar2015", gt, "--out", out)
    first = [p.read_bytes() for p in sorted(tmp_path.glob("rows*"))]
    run(capsys, "icdar2015", gt, "--out", out, "--force")
    assert [p.read_bytes() for p in sorted(tmp_path.glob("rows*"))] == first
    assert len(first) == 2


def test_nothing_is_replaced_unasked(capsys, tmp_path, gt):
    out = tmp_path / "rows.jsonl"
    for there in (out, tmp_path / "rows.jsonl.prepared.json"):
        there.write_text("mine", encoding="utf-8")
        said = run(capsys, "icdar2015", gt, "--out", out, code=2)
        assert (
            said == f"mm-numeric: {there} exists; name another file, or replace it with --force.\n"
        )
        assert there.read_text(encoding="utf-8") == "mine"
        there.unlink()


def test_an_input_is_never_the_output(capsys, tmp_path):
    path = json_file(tmp_path / "rows.jsonl", [{"objects": None}])
    said = run(capsys, "rows", path, "--out", path, "--force", code=2)
    assert "is also an input; name another file" in said
    assert path.read_text(encoding="utf-8") == '{"objects": null}'


def test_a_file_that_cannot_be_read_leaves_everything_as_it_was(capsys, tmp_path, gt):
    out = tmp_path / "rows.jsonl"
    run(capsys, "icdar2015", gt, "--out", out)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    (tmp_path / "cut.json").write_text('{"images": [', encoding="utf-8")
    said = run(capsys, "coco", tmp_path / "cut.json", "--out", out, "--force", code=2)
    assert "cut.json: not valid or not complete JSON" in said
    (tmp_path / "cut.json").unlink()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_objects_are_counted_by_reason_with_the_first_place(capsys, tmp_path, gt, monkeypatch):
    text = f"{LINE}\n" + "1,2\n" * 25 + LINE.replace("377", "4x")
    (gt / "gt_img_3.txt").write_text(text, encoding="utf-8")
    (gt / "readme.txt").write_text("words", encoding="utf-8")
    out = tmp_path / "rows.jsonl"
    said = run(capsys, "icdar2015", gt, "--out", out)
    why = "expected eight numbers and a transcription, found 2 numbers."
    start = f"""
invalid: 26 objects left out (the rows keep their other objects), 1 row left out
  26 numbers (object left out), first at {gt}/gt_img_3.txt, line 2: {why}
"""
    end = f"  all places: bad_lines in {out}.prepared.json\n"
    file = f"  1 file (row left out), first at {gt}/readme.txt: no line is a region of an image; "
    file += "the first: "
    assert f"{start}{file}{why.replace('2', '0')}\n{end}" in said
    monkeypatch.setattr("mm_numeric.cli.prepare.MAX_LISTED", 1)
    said = run(capsys, "icdar2015", gt, "--out", out, "--force")
    assert f"{start}  and 1 more reasons\n{end}" in said
    record = prepared(out)
    first = {"where": f"{gt}/gt_img_3.txt, line 2", "why": why, "kind": "numbers"}
    assert record["reasons"][0] == {"count": 26, **first, "result": "object left out"}
    assert record["bad_lines"][24]["where"] == f"{gt}/gt_img_3.txt, line 26"
    assert len(out.read_text(encoding="utf-8").splitlines()) == 3
    said = run(capsys, "icdar2015", gt, "--out", tmp_path / "a.jsonl", "--strict", code=2)
    assert said == f"mm-numeric: {gt}/gt_img_3.txt, line 2: {why}\n"
    assert not (tmp_path / "a.jsonl").exists()


def test_many_files_are_in_the_record_alone(capsys, tmp_path):
    gt = text_folder(tmp_path / "gt", **{f"gt_img_{i}__txt": LINE for i in range(30)})
    said = run(capsys, "icdar2015", gt, "--out", tmp_path / "rows.jsonl")
    assert said.count("sha256") == 21
    assert "and 10 more files in" in said
    names = [Path(file["path"]).name for file in prepared(tmp_path / "rows.jsonl")["inputs"]]
    assert names == [f"gt_img_{i}.txt" for i in range(30)]


def test_a_repeated_id(tmp_path, gt):
    other = text_folder(tmp_path / "other", gt_img_1__txt=LINE)
    done = prepare("icdar2015", Icdar2015(), [gt, other], tmp_path / "rows.jsonl")
    (bad,) = done.record["bad_lines"]
    assert bad["where"] == str(other / "gt_img_1.txt")
    assert bad["why"] == f"the id 'img_1' is already used in {gt}/gt_img_1.txt."
    assert done.record["counts"]["rows"] == 2


def test_classes_are_those_of_the_written_rows(tmp_path):
    files = []
    for label in ("dog", "cat"):
        instance = {"box": [1, 2, 3, 4], "label": label}
        row = {"id": "1", "image": "1.jpg", "instances": [instance]}
        files.append(json_file(tmp_path / f"{label}.json", [row]))
    record = prepare("rows", Rows(), files, tmp_path / "rows.jsonl").record
    assert [(found["count"], found["kind"]) for found in record["reasons"]] == [(1, "id")]
    assert (record["labels"], record["counts"]["instances"]) == ({"dog": 1}, 1)
    assert record["task"] == {"name": "detection", "classes": ["dog"]}


@pytest.mark.parametrize(("sentences", "count"), [("a dog", 1), (["a dog", "it"], 2)])
def test_one_text_is_one_sentence(tmp_path, sentences, count):
    row = {"id": "1", "image": "1.jpg", "box": [1, 2, 3, 4], "sentences": sentences}
    file = json_file(tmp_path / "rows.json", [row])
    done = prepare("rows", Rows(), [file], tmp_path / "rows.jsonl")
    assert done.record["counts"]["sentences"] == count


@pytest.mark.parametrize("width", [10**400, 640.5, 1e400, float("nan"), True, 0.0])
def test_a_size_that_no_image_has_is_one_line(tmp_path, width):
    path = coco(tmp_path, [1, 1, 50, 50], width=width, height=9)
    (bad,) = prepare("coco", Coco(), [path], tmp_path / "rows.jsonl").record["bad_lines"]
    assert "are not a size in pixels" in bad["why"]


def test_a_whole_size_may_be_a_float(tmp_path):
    path = coco(tmp_path, [1, 1, 50, 50], width=640.0, height=480)
    prepare("coco", Coco(), [path], tmp_path / "rows.jsonl")
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert (row["width"], row["height"]) == (640, 480)
    assert type(row["width"]) is int


@pytest.mark.parametrize("size", [None, 90])
def test_columns_of_a_table_may_be_null(tmp_path, size):
    row = {"id": "1", "image": "1.jpg", "box": [1, 2, 3, 4], "phrase": "a dog", "width": size}
    row |= {"height": size, **dict.fromkeys(("instances", "sentences", "polygon"))}
    file = json_file(tmp_path / "rows.json", [row])
    counts = prepare("rows", Rows(), [file], tmp_path / "rows.jsonl").record["counts"]
    assert (counts["rows"], counts["instances"], counts["sentences"]) == (1, 1, 0)
    assert counts["rows without a size"] == (size is None)


def test_rows_without_an_image_lack_no_size(tmp_path):
    rows = [{"id": "1", "question": "1 + 1?", "answer": 2, "image": None}]
    rows += [{"id": "2", "query": "It falls.", "frames": ["a/1.jpg"], "fps": 1, "spans": [[0, 1]]}]
    for task, row in zip(("numbers", "temporal_spans"), rows, strict=True):
        file = json_file(tmp_path / f"{task}.json", [row])
        done = prepare("rows", Rows(task=task), [file], tmp_path / f"{task}.jsonl")
        assert done.record["counts"] == {"rows": 1}


def coco(tmp_path, *boxes, **size):
    size = size or {"width": 640, "height": 480}
    raw = {
        "images": [{"id": 1, "file_name": "1.jpg", **size}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 1, "bbox": box} for i, box in enumerate(boxes)
        ],
        "categories": [{"id": 1, "name": "dog"}],
    }
    return json_file(tmp_path / "instances.json", raw)


def test_boxes_outside_are_counted_and_cut_only_if_asked(tmp_path):
    path = coco(tmp_path, [-0.5, 1, 50, 50], [600, 1, 100, 50], [0, 0, 641, 10])
    out = tmp_path / "rows.jsonl"
    done = prepare("coco", Coco(), [path], out)
    assert done.record["counts"]["outside"] == 1
    assert done.record["counts"]["rows without instances"] == 0
    boxes = [i["box"] for i in json.loads(out.read_text(encoding="utf-8"))["instances"]]
    assert boxes == [[-0.5, 1, 49.5, 51], [600, 1, 700, 51], [0, 0, 641, 10]]
    done = prepare("coco", Coco(), [path], out, clip=True, force=True)
    assert done.record["counts"]["clipped"] == 3
    boxes = [i["box"] for i in json.loads(out.read_text(encoding="utf-8"))["instances"]]
    assert boxes == [[0, 1, 49.5, 51], [600, 1, 640, 51], [0, 0, 640, 10]]


@pytest.mark.parametrize(
    ("boxes", "note"),
    [
        ([[300, 200, 400, 300], [9, 9, 30, 40]], "[x1, y1, x2, y2] was read as [x, y, width, heig"),
        ([[0.1, 0.2, 0.5, 0.4]], "All coordinates are from 0 to 1, whatever the size of the image"),
        ([[i, i, 30, 30] for i in range(0, 970, 30)], "All coordinates are from 0 to 1000, whate"),
        ([[1, 2, 300, 400], [5, 6, 30, 40]], ""),
    ],
)
def test_boxes_of_another_convention_are_named(capsys, tmp_path, boxes, note):
    run(capsys, "coco", coco(tmp_path, *boxes), "--out", tmp_path / "rows.jsonl")
    said = prepared(tmp_path / "rows.jsonl")["note"]
    assert note in said
    assert bool(note) == bool(said)


def test_what_cannot_be_cut(tmp_path):
    out = tmp_path / "rows.jsonl"
    done = prepare("coco", Coco(), [coco(tmp_path, [700, 1, 50, 50])], out, clip=True)
    assert not done.record["counts"]["rows"]
    path = coco(tmp_path, [1, 1, 50, 50], license=1)
    done = prepare("coco", Coco(), [path], out, clip=True, force=True)
    assert "--clip needs the size" in done.record["bad_lines"][0]["why"]


def test_every_shape_is_cut(tmp_path):
    out = tmp_path / "rows.jsonl"
    path = text_folder(tmp_path / "in", a__txt="") / "a.txt"
    done = prepare("mine", Mine(), [path], out, clip=True)
    assert (done.record["counts"]["rows"], done.record["counts"]["instances"]) == (2, 2)
    box, polygon = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert box["box_xywh"] == [630.5, 470, 9.5, 10]
    assert polygon["polygon"] == [1, 1, 9, 1, 9, 480]
    for bad in (Mine(text="\ud800"), Mine(score=float("nan"))):
        done = prepare("mine", bad, [path], out, force=True)
        assert [line["where"] for line in done.record["bad_lines"]] == ["one", "two"]
        assert "cannot be written (" in done.record["bad_lines"][0]["why"]


def test_a_format_of_ones_own(capsys, tmp_path, gt):
    out = tmp_path / "rows.jsonl"
    run(capsys, "importing:Mine", gt / "gt_img_1.txt", "--out", out, "--text", "b", "--loud")
    assert json.loads(out.read_text(encoding="utf-8").split("\n")[0])["text"] == "B"
    assert prepared(out)["format"] == "importing:Mine"


def test_a_name_is_no_command_to_the_terminal(capsys, tmp_path):
    path = tmp_path / "gt.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("\x1b[2Jgt_img_1.txt", "7")
    said = run(capsys, "icdar2015", path, "--out", tmp_path / "rows.jsonl", code=1)
    assert "\x1b" not in said
    assert r"\x1b[2Jgt_img_1.txt: no line is" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cocoa", "gt", "--out", "a.jsonl"], "no format 'cocoa'. Did you mean 'coco'?"),
        (["icdar2015", "gt", "--out", "a.json"], "--out a.json: the file name must end in .jsonl"),
        (["icdar2015", "gt", "--out", "none/a.jsonl"], "none: there is no such folder"),
        (["icdar2015", "none", "--out", "a.jsonl"], "none: there is no such file"),
        (["icdar2015", "gt", "--out", "a.jsonl", "--images", "no"], "--images no: there is no"),
        (["llava", "gt", "--out", "a.jsonl", "--coordinates", "llava"], "set --resize to"),
        (["gsm8k", "empty.jsonl", "--out", "a.jsonl"], "empty.jsonl: no rows; found nothing."),
        (
            ["llava", "none.jsonl", "--out", "a.jsonl", "--coordinates", "pixels_original"],
            "no rows; found 2 answers without a box.",
        ),
        (["icdar2015", "gt"], "arguments are required: --out"),
        (["icdar2015", "gt", "--out", "a.jsonl", "--split", "val"], "unrecognized arguments: --s"),
        (
            ["coco", "gt", "--out", "a.jsonl", "--per", "x"],
            "--per: there is no choice 'x'. Known: cat",
        ),
        (["refcoco", "gt", "--out", "a.jsonl"], "are required: --split, --split-by"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, tmp_path, monkeypatch, gt, words, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Nowhere."}]
    json_file(tmp_path / "none.jsonl", [{"messages": turns}] * 2)
    said = run(capsys, *words, code=2)
    assert why in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not list(tmp_path.glob("a.json*"))


@pytest.mark.parametrize("name", IMPORTERS)
def test_help_says_what_a_format_takes(capsys, name):
    said = run(capsys, name, "--help")
    assert said.startswith(f"usage: mm-numeric prepare {name} ")
    for option in ("--out", "--clip", "--strict", "--force"):
        assert option in said
    assert ("--images" in said) == (name not in (*TEXT_ALONE, *VIDEOS, "yolo"))


def test_no_torch_is_loaded(tmp_path, gt):
    code = f"""
import sys
from mm_numeric.cli.main import main
assert main(["prepare", "icdar2015", {str(gt)!r}, "--out", {str(tmp_path / "rows.jsonl")!r}]) == 0
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_row_that_says_its_size_is_held_to_it(tmp_path, gt):
    images = make_image(tmp_path / "p" / "img_1.jpg", (1280, 720)).parent
    make_image(images / "img_2.jpg", (100, 50))
    out = tmp_path / "rows.jsonl"
    prepare("icdar2015", Icdar2015(images=images), [gt], out)
    source = DataSource(path=str(out), images=str(images))
    found = load_examples(TextDetection(), source, tmp_path, training=True)
    assert [example.size_px for example in found] == [(1280, 720), (100, 50)]
    assert outcome(Icdar2015(), gt).rows
    assert examples(Icdar2015(), [gt], tmp_path / "p")
