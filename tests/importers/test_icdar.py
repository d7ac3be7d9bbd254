"""ICDAR 2013 and 2015 in text files, and MMOCR's JSON of them."""

import zipfile

import pytest
from importing import examples, json_file, make_image, outcome, text_folder

from mm_numeric.importers.mmocr import MMOCR
from mm_numeric.importers.scene_text import Icdar2013, Icdar2015

LINE = "377,117,463,117,465,130,378,130,Genaxis Theatre"


def test_2015(tmp_path):
    text = f"\ufeff{LINE}\r\n374,155,409,155,409,170,374,170,###\r\n\r\n1,2,30,2,30,9,1,9.5,a, b,1"
    done = outcome(Icdar2015(), text_folder(tmp_path / "gt", gt_img_1__txt=text))
    assert done.row == {
        "id": "img_1",
        "image": "img_1.jpg",
        "instances": [
            {"polygon": [377, 117, 463, 117, 465, 130, 378, 130], "text": "Genaxis Theatre"},
            {"polygon": [374, 155, 409, 155, 409, 170, 374, 170], "text": "###", "ignore": True},
            {"polygon": [1, 2, 30, 2, 30, 9, 1, 9.5], "text": "a, b,1"},
        ],
    }
    assert not done.bad


@pytest.mark.parametrize(
    ("line", "kind", "why"),
    [
        ("377,117,463,117,465,130,378,Genaxis", "numbers", "a transcription, found 7 numbers"),
        ("377,117,463,117,465,130,378", "numbers", "found 7 numbers"),
        ("377,117,nan,117,465,130,378,130,x", "numbers", "found 2 numbers"),
        ("377,117,1e3,117,465,130,378,130,x", "numbers", "found 2 numbers"),
        ("377,117,4\x1d,117,465,130,378,130,x", "numbers", "found 2 numbers"),
        ("377,117,४,117,465,130,378,130,x", "numbers", "found 2 numbers"),
        ('38, 43, 920, 215, "Tiredness"', "numbers", "found 4 numbers"),
        ("words", "numbers", "found 0 numbers"),
    ],
)
def test_a_bad_line_of_2015_costs_its_image(tmp_path, line, kind, why):
    gt = text_folder(tmp_path / "gt", gt_img_1__txt=f"{LINE}\n{line}\n{LINE}", gt_img_2__txt=LINE)
    done = outcome(Icdar2015(), gt)
    assert done.kinds == [kind]
    assert done.bad[0].where == f"{gt}/gt_img_1.txt, line 2"
    assert why in done.why
    assert done.row["id"] == "img_2"


def test_2013_of_both_releases(tmp_path):
    gt = text_folder(
        tmp_path / "gt",
        gt_img_1__txt='38, 43, 920, 215, "Tiredness"\r\n275, 264, 665, 450, "kills, "A""\r\n',
        gt_100__txt='158 128 411 181 "Footpath"\n1 2 3 4 "###"\n5, 6, 7, 8\n',
    )
    done = outcome(Icdar2013(), gt)
    assert [r["image"] for r in done.rows] == ["100.jpg", "img_1.jpg"]
    assert done.rows[0]["instances"] == [
        {"box": [158, 128, 411, 181], "text": "Footpath"},
        {"box": [1, 2, 3, 4], "text": "###", "ignore": True},
        {"box": [5, 6, 7, 8]},
    ]
    assert [i["text"] for i in done.rows[1]["instances"]] == ["Tiredness", 'kills, "A"']


@pytest.mark.parametrize(
    ("line", "kind", "why"),
    [
        ('38, 43, 920, "x"', "numbers", "found 3 numbers."),
        ('38, 43, 920, 215, 7, "x"', "numbers", "found 5 numbers."),
        ("38, 43, 920, 215, Tiredness", "numbers", "found 4 numbers and 'Tiredness'"),
        (LINE, "numbers", "found 8 numbers and 'Genaxis'"),
        ('a b c d "x"', "numbers", "found 0 numbers and 'a'"),
        ('38, 43, 920, 215, "x', "text", "no closing quote"),
        ('38, 43, 920, 215, "', "text", "no closing quote"),
        ('920, 43, 38, 215, "x"', "box", "is reversed; write the smaller x and y first"),
    ],
)
def test_a_bad_line_of_2013(tmp_path, line, kind, why):
    done = outcome(Icdar2013(), text_folder(tmp_path / "gt", gt_img_1__txt=line))
    assert done.kinds == [kind]
    assert why in done.why
    assert not done.rows


@pytest.mark.parametrize("importer", [Icdar2015(), Icdar2013()])
def test_the_task_reads_it(tmp_path, importer):
    line = LINE if isinstance(importer, Icdar2015) else '38, 43, 620, 215, "Tiredness"'
    gt = text_folder(tmp_path / "gt", gt_img_10__txt=line, gt_img_2__txt=line, gt_img_3__txt="")
    found = examples(importer, [gt], tmp_path)
    assert [e.id for e in found] == ["img_2", "img_3", "img_10"]
    assert [len(e.answer.items) for e in found] == [1, 0, 1]


def test_an_archive(tmp_path):
    path = tmp_path / "gt.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gt/gt_img_10.txt", LINE)
        archive.writestr("gt/gt_img_9.txt", f"\ufeff{LINE}\n7")
        archive.writestr("__MACOSX/gt/._gt_img_9.txt", b"\x00\x05")
        archive.writestr("gt/.gt_img_9.txt", b"\x00\x05")
        archive.writestr("gt/readme.md", "x")
    done = outcome(Icdar2015(), path)
    assert done.row["id"] == "img_10"
    assert done.bad[0].where == f"{path}/gt/gt_img_9.txt, line 2"


def test_archives_that_are_none(tmp_path):
    path = tmp_path / "gt.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gt/readme.md", "x")
    with pytest.raises(ValueError, match=r"no \.txt files in this archive"):
        outcome(Icdar2015(), path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gt_img_1.txt", LINE)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"Genaxis", b"Generic"))
    with pytest.raises(ValueError, match=r"not a whole \.zip archive \(Bad CRC-32"):
        outcome(Icdar2015(), path)
    path.write_bytes(raw[:40])
    with pytest.raises(ValueError, match=r"not a whole \.zip archive"):
        outcome(Icdar2015(), path)
    for head in (b"PK\x03\x04\x14\x00", b"PK\x01\x02\x14\x03\x14\x00"):
        raw = raw.replace(head + b"\x00", head + b"\x01")  # says that it is encrypted
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"cannot be unpacked .*password"):
        outcome(Icdar2015(), path)


def test_inputs_that_are_none(tmp_path):
    empty = text_folder(tmp_path / "gt", img_1__jpg="x")
    with pytest.raises(ValueError, match=r"no \.txt or \.zip files in this folder"):
        outcome(Icdar2015(), empty)
    with pytest.raises(ValueError, match=r"none\.txt: there is no such file"):
        outcome(Icdar2015(), tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"has files ending in \.txt or \.zip, not '\.jpg'"):
        outcome(Icdar2015(), empty / "img_1.jpg")


def test_an_encoding_is_said(tmp_path):
    gt = text_folder(tmp_path / "gt", gt_img_1__txt=f"{LINE} é".encode("latin-1"))
    done = outcome(Icdar2015(), gt)
    assert done.kinds == ["encoding"]
    assert "not utf-8 (unexpected end of data at byte 48); set another one with" in done.why
    done = outcome(Icdar2015(encoding="latin-1"), gt)
    assert done.row["instances"][0]["text"] == "Genaxis Theatre é"
    for name in ("utf-ate", "rot13"):
        with pytest.raises(ValueError, match=f"there is no encoding '{name}'"):
            Icdar2015(encoding=name)


def test_images_give_names_and_sizes(tmp_path):
    gt = text_folder(tmp_path / "gt", gt_img_1__txt=LINE, gt_img_2__txt=LINE, gt_img_3__txt=LINE)
    images = make_image(tmp_path / "images" / "img_1.PNG", (1280, 720)).parent
    (images / "img_2.jpg").write_bytes(b"no image")
    done = outcome(Icdar2015(images=images), gt)
    assert (done.row["image"], done.row["width"], done.row["height"]) == ("img_1.PNG", 1280, 720)
    assert [line.kind for line in done.bad] == ["image", "image"]
    assert "img_2.jpg cannot be read" in done.bad[0].why
    assert "img_3: no image with this name in" in done.bad[1].why
    make_image(images / "img_1.jpg")
    done = outcome(Icdar2015(images=images), gt)
    assert "img_1: img_1.PNG and img_1.jpg in" in done.bad[0].why
    with pytest.raises(ValueError, match=r"--images .*: there is no such folder"):
        outcome(Icdar2015(images=gt / "none"), gt)


# -- MMOCR --------------------------------------------------------------------------------------

WORD = {"polygon": [1, 2, 30, 2, 30, 9], "bbox": [1, 2, 30, 9], "bbox_label": 0, "ignore": False}


def mmocr(path, *images):
    return json_file(path / "textdet.json", {"metainfo": {}, "data_list": list(images)})


def scene(name="img_1.jpg", *words):
    return {"img_path": name, "height": 720, "width": 1280, "instances": list(words)}


def test_mmocr(tmp_path):
    box = {"bbox": [1.0, 2.0, 30.0, 9.0], "text": "the", "ignore": True}
    path = mmocr(tmp_path, scene("img_1.jpg", WORD, box, {**WORD, "text": ""}))
    assert outcome(MMOCR(), path).row == {
        "id": "img_1.jpg",
        "image": "img_1.jpg",
        "width": 1280,
        "height": 720,
        "instances": [
            {"polygon": [1, 2, 30, 2, 30, 9]},
            {"box": [1, 2, 30, 9], "text": "the", "ignore": True},
            {"polygon": [1, 2, 30, 2, 30, 9], "text": ""},
        ],
    }
    assert len(examples(MMOCR(), [path], tmp_path)[0].answer.items) == 3


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (scene("a.jpg", {**WORD, "polygon": [1, 2, 3]}), "polygon", "not 3 numbers"),
        (scene("a.jpg", {**WORD, "polygon": [1, 2, 3, 4, 5, 6, 7]}), "polygon", "not 7 numbers"),
        (scene("a.jpg", {**WORD, "polygon": None, "bbox": [5, 5, 1, 1]}), "box", "is reversed"),
        (scene("a.jpg", {**WORD, "ignore": "no"}), "ignore", "ignore must be true or false"),
        (scene("a.jpg", {**WORD, "ignore": []}), "ignore", "ignore must be true or false"),
        (scene("a.jpg", {**WORD, "text": 7}), "text", "text must be a text, not 7"),
        (scene("a.jpg", 7), "instances", "expected an object, found 7"),
        ({**scene("a.jpg"), "instances": None}, "instances", 'there is no list "instances"'),
        ({**scene("a.jpg"), "img_path": None}, "text", "img_path must be a non-empty text"),
        ({**scene("a.jpg"), "height": "720"}, "image", "height '720' are not a size in pixels"),
        (7, "json", "expected an object"),
    ],
)
def test_a_bad_image_of_mmocr(tmp_path, bad, kind, why):
    done = outcome(MMOCR(), mmocr(tmp_path, scene(), bad))
    assert done.kinds == [kind]
    assert why in done.why
    assert "row 2" in done.bad[0].where
    assert done.row["id"] == "img_1.jpg"


@pytest.mark.parametrize("text", ['{"data_list": [', '{"images": []}', "7"])
def test_a_file_that_is_none_of_mmocr(tmp_path, text):
    path = tmp_path / "textdet.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"not JSON|expected a list of rows"):
        outcome(MMOCR(), path)
