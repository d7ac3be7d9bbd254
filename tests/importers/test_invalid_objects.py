"""Every importer of objects leaves an invalid object out, or ignores its region; its image stays.

Each format has a writer of an image with these objects, a valid object, its entry in the row, and
invalid objects: (object, kind of the error, part of the message, region that is ignored or None).
"""

import importlib
import inspect
import json
import math
import re

import pytest
from importing import json_file, make_image, outcome, text_folder

from mm_numeric.cli.prepare import report_text
from mm_numeric.importers.coco import Coco
from mm_numeric.importers.dota import Dota
from mm_numeric.importers.llava import LlavaImporter
from mm_numeric.importers.mmocr import MMOCR
from mm_numeric.importers.own_rows import Rows
from mm_numeric.importers.prepare import prepare
from mm_numeric.importers.scene_text import CTW1500, Icdar2015, TotalText
from mm_numeric.importers.text_json import HierText, TextOCR
from mm_numeric.importers.voc import Voc
from mm_numeric.importers.yolo import Yolo
from mm_numeric.registry import IMPORTERS

BOX, QUAD = {"box": [1, 2, 4, 6]}, {"polygon": [1, 1, 9, 1, 9, 5, 1, 5]}
POINTS = QUAD["polygon"]
HUGE = "9" * 400
BAD_NUMBERS = [math.nan, math.inf, -math.inf, 10**400]
IMAGE = {"id": 1, "file_name": "1.jpg", "width": 640, "height": 480}


def not_finite(make):
    return [(make(n), None, f"{n!r:.40} is not a finite number", None) for n in BAD_NUMBERS]


def coco(folder, objects):
    categories = [{"id": 1, "name": "dog"}]
    parts = {"images": [IMAGE], "categories": categories, "annotations": objects}
    return json_file(folder / "a.json", parts)


def thing(box=(1, 2, 3, 4), **more):
    return {"id": 2, "image_id": 1, "category_id": 1, "bbox": box, **more}


COCO = [
    (thing([1, 2, 0, 4]), "box", "has no area", None),
    (thing([1, 2, -5, 4]), "box", "width and height are at least 0", None),
    (thing([1, 2, 3]), "box", "not 3 numbers", None),
    (thing([1, 2, "3", 4]), "box", "'3' is not a number", None),
    (thing(None), "box", "expected a list of numbers", None),
    (thing([1e308, 0, 1e308, 5]), "box", "right and bottom edge: inf is not a finite", None),
    *not_finite(lambda number: thing([0, 0, 5, number])),
    (thing(category_id=99), "category_id", "category_id 99 is not among the categories", BOX),
    (thing(category_id=[1]), "category_id", "category_id [1] is not among the categories", BOX),
    (thing(iscrowd=2), "crowd", "iscrowd must be 0 or 1, not 2", BOX),
    ({"image_id": 1}, "box", "expected a list of numbers", None),
    (thing(image_id=99), "image_id", "image_id 99 is not among the images", None),
    (thing(image_id=[3]), "image_id", "image_id [3] is not among the images", None),
    (7, "json", "expected an object, found 7", None),
]
OUTLINES = [
    (thing(segmentation=[[1, 2, 3]]), "polygon", "not 3 numbers", BOX),
    (thing(segmentation={"size": [1, 2], "counts": [7]}), "mask", "segmentation", BOX),
]


def yolo(folder, lines):
    make_image(folder / "images" / "1.jpg", (200, 100))
    text_folder(folder / "labels", **{"1__txt": "\n".join(lines)})
    (folder / "data.yaml").write_text("train: images\nnames: [helmet, vest]\n")
    return folder


HELMET = {"box": [80, 30, 120, 70]}
YOLO = [
    ("2 0.5 0.5 0.2 0.4", "class", "the class '2' is not a number in names (0 to 1)", HELMET),
    ("vest 0.5 0.5 0.2 0.4", "class", "the class 'vest' is not a number in names", HELMET),
    ("0 0.5 0.5 0.1", "numbers", "expected 4 numbers after the class, or points, found 3", None),
    ("0 50 50 10 10", "numbers", "coordinates are fractions of the image, from 0 to 1", None),
    ("0 0.5 0.5 1.02 0.1", "numbers", "coordinates are fractions of the image", None),
    ("0 0.5 0.5 nan 0.1", "numbers", "'nan' is not a number", None),
    ("0 0.5 0.5 0 0.1", "box", "has no area", None),
]


def voc(folder, objects):
    size = "<size><width>640</width><height>480</height></size>"
    text = f"<annotation><filename>1.jpg</filename>{size}{''.join(objects)}</annotation>"
    return text_folder(folder / "voc", **{"1__xml": text})


def voc_object(*box, name="dog"):
    names = ("xmin", "ymin", "xmax", "ymax")
    edges = "".join(f"<{k}>{v}</{k}>" for k, v in zip(names, box, strict=False))
    return f"<object><name>{name}</name><bndbox>{edges}</bndbox></object>"


VOC = [
    (voc_object(9, 9, 5, 20), "box", "is reversed", None),
    (voc_object(9, 9, 8, 20), "box", "has no area", None),
    (voc_object(0, 9, 8, 20), "box", "counts pixels from 1; add --zero-based", None),
    (voc_object(), "box", "the object 'dog' has no bndbox with xmin", None),
    (voc_object(1, 2, "x", 4), "numbers", "'x' is not a number", None),
    (voc_object(2, 3, 4, 6, name=""), "text", "name must be a non-empty text", BOX),
]


def lines(name):
    return lambda folder, found: text_folder(folder / "gt", **{name: "\n".join(found)})


WORD = ",".join(map(str, POINTS))
ICDAR = [
    ("377,117,463,117,465,130,378,Genaxis", "numbers", "a transcription, found 7 numbers", None),
    ("377,117,463,117,465,130,378", "numbers", "found 7 numbers", None),
    ("377,117,nan,117,465,130,378,130,x", "numbers", "found 2 numbers", None),
    ("377,117,1e3,117,465,130,378,130,x", "numbers", "found 2 numbers", None),
    ("377,117,4\x1d,117,465,130,378,130,x", "numbers", "found 2 numbers", None),
    ("377,117,४,117,465,130,378,130,x", "numbers", "found 2 numbers", None),
    ('38, 43, 920, 215, "Tiredness"', "numbers", "found 4 numbers", None),
    ("words", "numbers", "found 0 numbers", None),
    (f"0,0,9,0,9,9,{HUGE},9,word", "polygon", "inf is not a finite number", None),
]
OLD = "131,49,530,246,0,9,77,0,148,7,215,27,281,52,342,92,399,143,379,197,327,161,274,126,219,102"
OLD += ",160,88,102,84,34,85"
CTW = [
    (WORD, "numbers", "expected 32 numbers, or points and ####transcription; found 8", None),
    (OLD + ",7", "numbers", "found 33 numbers", None),
    (OLD.replace("131", "x"), "numbers", "'x' is not a number", None),
    (OLD[:-2] + HUGE, "polygon", "inf is not a finite number", None),
    ("1,2,3,4,5,6,7,####the", "polygon", "not 7 numbers", None),
    ("1,2,3,4,####the", "polygon", "not 4 numbers", None),
    (f"0,0,9,0,9,{HUGE},####word", "polygon", "inf is not a finite number", None),
]
DOTA = [
    ("1 2 3 4 5 6 7 ship", "numbers", "8 fields, but an object of DOTA has eight numbers", None),
    ("1 1 9 1 9 5 1 5 ship maybe", "numbers", "'maybe' is not a number", None),
]


def record(xs="[[1 9 9 1]]", ys="[[1 1 5 5]]", text="[u'the']", ornt="[u'h']"):
    return f"x: {xs}, y: {ys}, ornt: {ornt}, transcriptions: {text}"


NO_TEXT = "is not a list with one text"
TOTAL = [
    (record(xs="[[1 9 9]]"), "numbers", "3 x and 4 y", None),
    (record(xs="[[1 9 a 1]]"), "numbers", "'a' is not a number", None),
    (record(xs=f"[[1 9 {HUGE} 1]]"), "polygon", "inf is not a finite number", None),
    (record(xs="[[1 9]]", ys="[[1 9]]"), "polygon", "at least three points, not 4", None),
    (record(xs="[[7]]", ys="[[7]]", ornt="[u'#']"), "polygon", "not 2 numbers", None),
    (record(text="[u'a', u'b']"), "text", "contains 2 texts", QUAD),
    (record(text="[7]"), "text", NO_TEXT, QUAD),
    (record(text="[u'a]"), "text", NO_TEXT, QUAD),
    (record(text="[__import__('os')]"), "text", NO_TEXT, QUAD),
    (record(text="[" * 5000 + "]"), "text", NO_TEXT, QUAD),
    ("x: [[1 9 9 1]], y: [[1 1 5 5", "record", "expected x: [[...]], y: [[...]]", None),
    (record().replace("y:", "x:"), "record", "expected x", None),
]


def mmocr(folder, words):
    image = {"img_path": "1.jpg", "height": 720, "width": 1280, "instances": words}
    return json_file(folder / "a.json", {"data_list": [image]})


def word(**more):
    return {"polygon": POINTS, "ignore": False, **more}


MMOCR_WORDS = [
    (word(polygon=[1, 2, 3]), "polygon", "not 3 numbers", None),
    (word(polygon=[1, 2, 3, 4, 5, 6, 7]), "polygon", "not 7 numbers", None),
    (word(polygon=None, bbox=[5, 5, 1, 1]), "box", "is reversed", None),
    *not_finite(lambda number: word(polygon=None, bbox=[0, 0, 5, number])),
    *not_finite(lambda number: word(polygon=[0, 0, 9, 0, 5, number])),
    (word(ignore="no"), "ignore", "ignore must be true or false", QUAD),
    (word(ignore=[]), "ignore", "ignore must be true or false", QUAD),
    (word(text=7), "text", "text must be a text, not 7", QUAD),
    (7, "instances", "expected an object, found 7", None),
]


def hier_text(folder, words):
    image = {"image_id": "1", "image_width": 1600, "image_height": 1200}
    paragraphs = [{"lines": [{"words": words}]}]
    return json_file(folder / "a.json", {"annotations": [{**image, "paragraphs": paragraphs}]})


def text_ocr(folder, words):
    keys = [f"a{i}" for i in range(len(words))]
    anns = {key: word for key, word in zip(keys, words, strict=True) if word is not None}
    image = {"width": 1024, "height": 768}
    parts = {"imgs": {"1": image}, "anns": anns, "imgToAnns": {"1": keys}}
    return json_file(folder / "a.json", parts)


CORNERS = [[1, 1], [9, 1], [9, 5], [1, 5]]


def region(vertices=CORNERS, text="A"):
    return {"vertices": vertices, "text": text}


HIER_TEXT = [
    (region([[1, 2]]), "polygon", "not 2 numbers", None),
    (region(text=None), "text", "the text of a word is not a text, but None", QUAD),
    (5, "json", "expected an object, found 5", None),
]
TEXT_OCR = [
    ({"points": [1, 2], "utf8_string": "A"}, "polygon", "not 2 numbers", None),
    ({"points": POINTS, "utf8_string": 7}, "text", "is not a text, but 7", QUAD),
    (None, "reference", "this word is not among the anns", None),
]


def rows(folder, instances):
    row = {"id": "1", "image": "1.jpg", "width": 64, "height": 48, "instances": instances}
    return json_file(folder / "a.json", [row])


ROWS = [
    ({"box": [1, 2, 1, 6]}, "instance", "box: the box [1, 2, 1, 6] has no area", None),
    ({**BOX, "label": 7}, "instance", "a label is a text, not 7", BOX),
    ({**QUAD, "ignore": "no"}, "instance", "ignore is true or false, not 'no'", QUAD),
    ({}, "instance", "no shape; each instance needs", None),
    (5, "instance", "expected an object", None),
    *not_finite(lambda number: {"polygon": [0, 0, 9, 0, 5, number]}),
]


def talk(folder, boxes):
    turns = [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": "; ".join(boxes)}]
    return json_file(folder / "a.json", [{"image": "1.jpg", "conversations": turns}])


PIXELS = LlavaImporter(coordinates="pixels_original", size="640x480", per="answer")
LLAVA = [("[1, 2, 1, 6]", "box", "has no area", None), ("[4, 6, 1, 2]", "box", "reversed", None)]

FORMATS = {
    "coco": (Coco(), coco, thing(id=1), {**BOX, "label": "dog"}, COCO),
    "coco polygon": (
        Coco(shape="polygon"), coco, thing(id=1), {**BOX, "label": "dog"}, OUTLINES,
    ),
    "yolo": (
        Yolo(split="train"), yolo, "0 0.5 0.5 0.2 0.4", {**HELMET, "label": "helmet"}, YOLO,
    ),
    "voc": (Voc(), voc, voc_object(2, 3, 4, 6), {**BOX, "label": "dog"}, VOC),
    "dota": (Dota(), lines("1__txt"), "1 1 9 1 9 5 1 5 ship", {**QUAD, "label": "ship"}, DOTA),
    "icdar2015": (
        Icdar2015(), lines("gt_1__txt"), f"{WORD},a, b", {**QUAD, "text": "a, b"}, ICDAR,
    ),
    "ctw1500": (CTW1500(), lines("1__txt"), f"{WORD},####a", {**QUAD, "text": "a"}, CTW),
    "totaltext": (TotalText(), lines("gt_1__txt"), record(), {**QUAD, "text": "the"}, TOTAL),
    "mmocr": (MMOCR(), mmocr, word(text="a"), {**QUAD, "text": "a"}, MMOCR_WORDS),
    "hiertext": (HierText(), hier_text, region(), {**QUAD, "text": "A"}, HIER_TEXT),
    "textocr": (
        TextOCR(), text_ocr, {"points": POINTS, "utf8_string": "A"}, {**QUAD, "text": "A"},
        TEXT_OCR,
    ),
    "rows": (Rows(), rows, {**BOX, "label": "a"}, {**BOX, "label": "a"}, ROWS),
    "llava": (PIXELS, talk, "[1, 2, 4, 6]", BOX, LLAVA),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bad", "kind", "why", "region"),
    [
        pytest.param(name, *bad, id=f"{name} {i}")
        for name, (*_, found) in FORMATS.items()
        for i, bad in enumerate(found)
    ],
)
def test_an_invalid_object_costs_itself(tmp_path, name, bad, kind, why, region):
    importer, write, good, instance, _ = FORMATS[name]
    file, out = write(tmp_path, [good, bad]), tmp_path / "out.jsonl"
    prepared = prepare(name.split()[0], importer, [file], out)
    (line,) = prepared.record["bad_lines"]
    told = "left out (the rows keep their other objects)"
    if region is not None:
        told = "ignored (kept as regions in which answers are neither right nor wrong)"
    assert f"invalid: 1 object {told}\n  1 {line['kind']} ({line['result']}), first at " in (
        report_text(prepared)
    )
    assert why in line["why"]
    assert kind in (None, line["kind"])
    assert line["result"] == ("object left out" if region is None else "object ignored")
    (row,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert row["instances"] == [instance, *([{**region, "ignore": True}] if region else [])]
    with pytest.raises(ValueError, match=re.escape(f"{line['where']}: {line['why']}")):
        prepare(name, importer, [file], tmp_path / "strict.jsonl", strict=True)
    done = prepare(name, importer, [write(tmp_path, [bad])], tmp_path / "none.jsonl")
    assert not done.record["counts"]["rows"]  # without a valid object, a setting may be wrong
    assert not list(tmp_path.glob("strict*")) + list(tmp_path.glob("none*"))


def test_no_importer_of_objects_is_missing():
    """An importer of objects calls ``image_row``, itself or in its base class."""
    of_objects = set()
    for name, target in IMPORTERS.items():
        module, _, kind = target.partition(":")
        bases = inspect.getmro(getattr(importlib.import_module(module), kind))
        own = [base for base in bases if base.__module__ != "mm_numeric.importers.importer"]
        if any("image_row(" in inspect.getsource(base) for base in own if base is not object):
            of_objects.add(name)
    assert of_objects == {name.split()[0] for name in FORMATS}


def test_an_object_that_clipping_removes_costs_itself(tmp_path):
    outside = thing([700, 1, 50, 50])
    file, out = coco(tmp_path, [thing(id=1), outside]), tmp_path / "out.jsonl"
    (line,) = prepare("coco", Coco(), [file], out, clip=True).record["bad_lines"]
    assert line["result"] == "object left out"
    assert line["where"] == f"{file}, image 1, instances.1"
    assert "at (700, 1) is outside the image of 640 x 480" in line["why"]
    assert len(json.loads(out.read_text(encoding="utf-8"))["instances"]) == 1


def test_a_category_with_an_invalid_object_is_no_phrase(tmp_path):
    """The other object of the category would be taken for the only one."""
    many = [thing(id=1), thing([1, 2, 0, 4]), thing(id=3, category_id=2)]
    file = coco(tmp_path, many)
    raw = json.loads(file.read_text())
    json_file(file, {**raw, "categories": [*raw["categories"], {"id": 2, "name": "cat"}]})
    done = outcome(Coco(per="category"), file)
    assert (done.row["phrase"], done.kinds) == ("cat", ["box"])


def test_a_file_without_any_region_is_no_image(tmp_path):
    folder = text_folder(tmp_path / "gt", gt_1__txt=f"{WORD},a", readme__txt="These are\nwords.")
    done = outcome(Icdar2015(), folder)
    assert done.row["id"] == "1"
    assert done.why.startswith("no line is a region of an image; the first: expected eight numbers")
