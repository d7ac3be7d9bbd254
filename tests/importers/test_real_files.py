"""Real files: how many rows and instances they give, and that tasks read them all."""

import json
from collections import Counter

import pytest
from importing import SHARED, outcome

from mm_numeric.answers import Box
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import load_examples
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.mmocr import MMOCR
from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.prepare import prepare
from mm_numeric.io.files import read_rows
from mm_numeric.tasks.grounding import Grounding
from mm_numeric.tasks.text_detection import TextDetection


def real(name):
    """Return one of the real files, or skip where it is missing."""
    if not (SHARED / name).exists():
        pytest.skip("the real files are not here")
    return SHARED / name


def written(name, importer, path, tmp_path):
    """Prepare a file, and return the record and the rows."""
    done = prepare(name, importer, [path], tmp_path / "rows.jsonl")
    assert done.bad == 0
    return done.record, list(read_rows(tmp_path / "rows.jsonl"))


def test_coco(tmp_path):
    path = real("coco/instances_val2014_100.json")
    record, rows = written("coco", Coco(), path, tmp_path)
    counts = {"rows": 100, "instances": 839, "ignored": 9, "outside": 0}
    assert {key: record["counts"][key] for key in counts} == counts
    found = list(TextDetection().examples(rows, training=True))
    raw = json.loads(path.read_text(encoding="utf-8"))
    area = sum(a["bbox"][2] * a["bbox"][3] for a in raw["annotations"])
    shapes = [item.shape for example in found for item in example.answer.items]
    assert sum((s.x2 - s.x1) * (s.y2 - s.y1) for s in shapes) == pytest.approx(area, abs=0.1)
    names = {category["id"]: category["name"] for category in raw["categories"]}
    wanted = Counter(names[a["category_id"]] for a in raw["annotations"])
    assert Counter(i["label"] for _, row in rows for i in row["instances"]) == wanted


def test_coco_as_phrases(tmp_path):
    path = real("coco/instances_val2014_100.json")
    record, rows = written("coco", Coco(per="category"), path, tmp_path)
    assert record["counts"]["rows"] == 175
    assert record["left_out"] == {"categories that occur more than once in an image": 135}
    found = list(Grounding().examples(rows, training=True))
    assert len({example.id for example in found}) == 175


def test_icdar_of_mmocr(tmp_path):
    path = real("icdar2015/textdet_test.json")
    record, _ = written("mmocr", MMOCR(images=path.parent), path, tmp_path)
    counts = {"rows": 10, "instances": 82, "ignored": 61, "outside": 0}
    assert {key: record["counts"][key] for key in counts} == counts
    source = DataSource(path=str(tmp_path / "rows.jsonl"), images=str(path.parent))
    found = load_examples(TextDetection(), source, tmp_path, training=True)
    assert {example.size_px for example in found} == {(1280, 720)}
    # The task reads MMOCR's own file, too, and finds the same shapes in it.
    source = DataSource(path=str(path))
    own = load_examples(TextDetection(), source, tmp_path, training=True)
    assert [example.answer for example in own] == [example.answer for example in found]


def test_refcocog_rows_are_prepared(tmp_path):
    path = real("refcocog/refcocog_umd_val.jsonl")
    record, _ = written("rows", Rows(), path, tmp_path)
    counts = {"rows": 2573, "sentences": 4896, "rows without a size": 2573}
    assert {key: record["counts"][key] for key in counts} == counts
    found, own = (
        list(Grounding().examples(read_rows(file), training=True))
        for file in (tmp_path / "rows.jsonl", path)
    )
    assert [(e.id, e.answer, e.prompt) for e in found] == [(e.id, e.answer, e.prompt) for e in own]


def test_refcocog_rows_are_read_as_they_are():
    rows = list(read_rows(real("refcocog/refcocog_umd_val.jsonl")))
    found = list(Grounding().examples(rows, training=True))
    assert (len(rows), len(found)) == (2573, 4896)
    assert found[0].answer == Box(285, 23, 424, 146)
    assert found[0].id == "5044.0"


def test_a_cut_file_is_one_sentence(tmp_path):
    path = tmp_path / "cut.json"
    path.write_bytes(real("coco/instances_val2014_100.json").read_bytes()[:100_000])
    with pytest.raises(ValueError, match=r"cut\.json: not valid or not complete JSON") as error:
        outcome(Coco(), path)
    assert "\n" not in str(error.value)
