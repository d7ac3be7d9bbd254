"""ICDAR 2015, Total-Text and SCUT-CTW1500: text files of words."""

import zipfile

import pytest
from importing import examples, make_image, outcome, text_folder

from mm_numeric.importers.scene_text import CTW1500, Icdar2015, TotalText

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


def test_the_task_reads_it(tmp_path):
    gt = text_folder(tmp_path / "gt", gt_img_10__txt=LINE, gt_img_2__txt=LINE, gt_img_3__txt="")
    found = examples(Icdar2015(), [gt], tmp_path)
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
    assert [row["id"] for row in done.rows] == ["img_9", "img_10"]
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


PETROSAINS = (  # as numpy breaks long arrays
    "x: [[206 251 386 542 620 646 550 358\n  189 140]], y: [[ 633  811  931  946  926  976 1009"
    "  989\n   845  629]], ornt: [u'c'], transcriptions: [u'PETROSAINS']"
)
POINTS = [
    206, 633, 251, 811, 386, 931, 542, 946, 620, 926, 646, 976, 550, 1009, 358, 989, 189,
    845, 140, 629,
]  # fmt: skip


def record(xs="[[1 9 9 1]]", ys="[[1 1 5 5]]", ornt="[u'h']", text="[u'the']"):
    return f"x: {xs}, y: {ys}, ornt: {ornt}, transcriptions: {text}"


def total(tmp_path, *records, name="poly_gt_img1__txt"):
    return outcome(TotalText(), text_folder(tmp_path / "gt", **{name: "\n".join(records)}))


def test_total_text(tmp_path):
    done = total(tmp_path, PETROSAINS, record(text='[u"Joe\'s, \\u2019x]"]'), "")
    assert done.row == {
        "id": "img1",
        "image": "img1.jpg",
        "instances": [
            {"polygon": POINTS, "text": "PETROSAINS"},
            {"polygon": [1, 1, 9, 1, 9, 5, 1, 5], "text": "Joe's, ’x]"},
        ],
    }
    assert not done.bad


@pytest.mark.parametrize(
    "same",
    [
        "y: [[1 1 5 5]], x: [[1 9 9 1]], ornt: [u'h'], transcriptions: [u'the']",
        "x: [[1, 9, 9, 1]], y: [[1, 1, 5, 5]], ornt: ['h'], transcriptions: ['the']\r",
        "x: [[1. 9.\n 9. 1.]], y: [[1 1\n\n 5 5]], ornt: [u'h'],\ntranscriptions: [u'the']",
    ],
)
def test_the_same_region_as_tools_write_it(tmp_path, same):
    done = total(tmp_path, record(), same, record(), name="gt_img1__txt")
    first, second, third = done.row["instances"]
    assert first == second == third


@pytest.mark.parametrize(
    "ignored",
    [
        record(text="[u'#']"),
        record(ornt="[u'#']"),
        record(text="[]"),
        record(text="[u'#']", ornt="[u'#']"),
    ],
)
def test_what_total_text_ignores(tmp_path, ignored):
    assert [i.get("ignore") for i in total(tmp_path, record(), ignored).row["instances"]] == [
        None,
        True,
    ]


OFFSETS = [
    0, 9, 77, 0, 148, 7, 215, 27, 281, 52, 342, 92, 399, 143, 379, 197, 327, 161, 274,
    126, 219, 102, 160, 88, 102, 84, 34, 85,
]  # fmt: skip
ABSOLUTE = [
    131, 58, 208, 49, 279, 56, 346, 76, 412, 101, 473, 141, 530, 192, 510, 246, 458, 210,
    405, 175, 350, 151, 291, 137, 233, 133, 165, 134,
]  # fmt: skip
OLD = ",".join(map(str, [131, 49, 530, 246, *OFFSETS]))
TEST = ",".join(map(str, ABSOLUTE))
XML = f"""<Annotations><image file="0200.jpg">
<box height="197" left="131" top="49" width="399"><label>OLATHE &amp; co</label>
<segs>{TEST}</segs><pts x="183" y="95" /></box>
<box height="197" left="131" top="49" width="399"><label>###</label><segs>{TEST}</segs></box>
</image></Annotations>"""


def test_the_three_ways_ctw1500_was_published(tmp_path):
    gt = text_folder(
        tmp_path / "gt",
        **{
            "1002__txt": OLD,
            "0001001__txt": f"{TEST},####a, b\n{TEST},#######\n{TEST},####\n",
            "0200__xml": XML,
        },
    )
    done = outcome(CTW1500(), gt)
    assert [row["image"] for row in done.rows] == ["0200.jpg", "1001.jpg", "1002.jpg"]
    xml, test, old = (row["instances"] for row in done.rows)
    assert old == [{"polygon": ABSOLUTE}]
    assert test[0] == {"polygon": ABSOLUTE, "text": "a, b"}
    assert test[1] == {"polygon": ABSOLUTE, "text": "###", "ignore": True}
    assert test[2]["text"] == ""
    assert xml == [{"polygon": ABSOLUTE, "text": "OLATHE & co"}, test[1]]
    assert not done.bad


def test_tasks_read_both(tmp_path):
    gt = text_folder(tmp_path / "gt", poly_gt_img1__txt=record())
    assert len(examples(TotalText(), [gt], tmp_path)[0].answer.items[0].shape.points) == 4
    gt = text_folder(tmp_path / "ctw", **{"1002__txt": OLD})
    found = examples(CTW1500(), [gt], tmp_path, force=True)
    assert found[0].answer.items[0].shape.points[6] == (530, 192)


def test_files_of_ctw1500_that_are_none(tmp_path):
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 200}">' for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    gt = text_folder(
        tmp_path / "gt",
        **{
            "0001__xml": XML[:200],
            "0002__xml": f"{bomb}]><Annotations><box><label>&g;</label></box></Annotations>",
            "0003__xml": "<Annotations><box><label>a</label></box></Annotations>",
            "readme__txt": "words",
        },
    )
    done = outcome(CTW1500(), gt)
    assert done.kinds == ["xml", "xml", "file", "name"]
    assert "invalid or truncated XML" in done.bad[0].why
    assert "'readme' is not the number of an image" in done.bad[3].why
    assert not done.rows
