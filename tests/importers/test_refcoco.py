"""RefCOCO: refs and instances, and a pickle that runs nothing."""

import os
import pickle

import pytest
from importing import examples, json_file, outcome

from mm_numeric.importers.refcoco import RefCoco, read_pickle

VAL = RefCoco(split="val", split_by="unc")


def ref(key, ann_id=10, split="val", said=("the red car", "car on the left"), image_id=98304):
    sentences = [{"sent_id": i, "sent": s, "tokens": s.split()} for i, s in enumerate(said)]
    return {
        "ref_id": key,
        "ann_id": ann_id,
        "image_id": image_id,
        "category_id": 3,
        "split": split,
        "file_name": f"COCO_train2014_{image_id:012d}_{ann_id}.jpg",
        "sentences": sentences,
    }


def folder(path, refs, split_by="unc", protocol=2, annotations=None):
    path.mkdir(exist_ok=True)
    (path / f"refs({split_by}).p").write_bytes(pickle.dumps(refs, protocol=protocol))
    name = "COCO_train2014_000000098304.jpg"
    json_file(
        path / "instances.json",
        {
            "images": [{"id": 98304, "file_name": name, "width": 640, "height": 480}],
            "annotations": annotations
            or [{"id": 10, "image_id": 98304, "bbox": [374.31, 65.06, 136.04, 201.94]}],
            "categories": [{"id": 3, "name": "car"}],
        },
    )
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_row_a_ref(tmp_path, protocol):
    path = folder(tmp_path / "refcoco", [ref(1), ref(2, split="testA")], protocol=protocol)
    done = outcome(VAL, path)
    assert done.row == {
        "id": "1",
        "image": "COCO_train2014_000000098304.jpg",
        "width": 640,
        "height": 480,
        "sentences": ["the red car", "car on the left"],
        "box_xywh": [374.31, 65.06, 136.04, 201.94],
    }
    assert done.left_out == {"refs of other splits": 1}
    assert not done.bad


def test_the_task_asks_each_sentence(tmp_path):
    found = examples(VAL, [folder(tmp_path / "refcoco", [ref(1)])], tmp_path)
    assert [e.id for e in found] == ["1.0", "1.1"]
    assert found[1].prompt == "Locate: car on the left"
    assert found[0].answer.x2 == pytest.approx(510.35)


def test_what_python_2_wrote(tmp_path):
    path = folder(tmp_path / "refcoco", [])
    raw = rb"""(lp0
(dp1
S'ref_id'
p2
L7L
sS'ann_id'
I10
sS'image_id'
I98304
sS'split'
S'val'
sS'sentences'
(lp3
(dp4
S'sent'
S'caf\xc3\xa9 sign'
sa(dp5
S'sent'
Vcaf\u00e9 sign
sasa."""
    (path / "refs(unc).p").write_bytes(raw)
    assert outcome(VAL, path).row["sentences"] == ["café sign", "café sign"]
    (path / "refs(unc).p").write_bytes(raw.replace(rb"\xc3", b""))
    assert "is not UTF-8" in outcome(VAL, path).why


class Runs:
    """Runs a program where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_runs_nothing(tmp_path, protocol):
    touched, path = tmp_path / "touched", tmp_path / "evil.p"
    path.write_bytes(pickle.dumps([Runs(touched)], protocol=protocol))
    with pytest.raises(ValueError, match=r"it imports (posix|nt)\.system, which could exec") as e:
        read_pickle(path)
    assert "\n" not in str(e.value)
    assert not touched.exists()
    pickle.loads(path.read_bytes())  # it would have
    assert touched.exists()


@pytest.mark.parametrize("value", [range(3), print, pytest, {1: VAL}, os.stat_result(range(10))])
def test_a_pickle_of_anything_else(tmp_path, value):
    path = tmp_path / "other.p"
    try:
        path.write_bytes(pickle.dumps(value))
    except TypeError:  # a module: pickle itself has no way
        path.write_bytes(b"cbuiltins\neval\n(S'1'\ntR.")
    with pytest.raises(ValueError, match="it imports "):
        read_pickle(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no pickle",
        pickle.dumps([ref(1)])[:-40],
        b"\x80\xff.",
        b"Pid\n.",
        b"(lp0\n0a.",
        b"\x82\x01.",
    ],
)
def test_an_invalid_pickle(tmp_path, raw):
    path = tmp_path / "none.p"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="not a pickle of plain values"):
        read_pickle(path)


def test_plain_values_are_read(tmp_path):
    value = {"a": [1, 2.5, None, True, b"x", ("y", {3})]}
    path = tmp_path / "plain.p"
    path.write_bytes(pickle.dumps(value))
    assert read_pickle(path) == value


@pytest.mark.parametrize(
    ("split", "split_by", "there", "why"),
    [
        (
            "test",
            "unc",
            ["train", "val", "testA", "testB"],
            "no split 'test'; it contains testA, te",
        ),
        ("val", "umd", ["train", "val", "testA"], "contains testA, train, val; a split by umd has"),
        ("val", "google", ["train"], "there is no split 'val'; it contains train"),
    ],
)
def test_a_split_that_there_is_not(tmp_path, split, split_by, there, why):
    refs = [ref(i, split=name) for i, name in enumerate(there)]
    path = folder(tmp_path / "refcoco", refs, split_by)
    with pytest.raises(ValueError, match=why):
        outcome(RefCoco(split=split, split_by=split_by), path)


def test_the_name_says_who_made_the_split(tmp_path):
    path = folder(tmp_path / "refcoco", [ref(1)], "unc")
    files = path / "instances.json", path / "refs(unc).p"
    for two in (files, files[::-1]):
        assert outcome(VAL, *two).rows
        with pytest.raises(ValueError, match="split by unc according to their name, not by umd"):
            outcome(RefCoco(split="val", split_by="umd"), *two)
    with pytest.raises(ValueError, match=r"refs\(umd\)\.p: there is no such file"):
        outcome(RefCoco(split="val", split_by="umd"), path)


@pytest.mark.parametrize("names", [["instances.json"], ["refs(unc).p"], ["refs(unc).p"] * 2])
def test_two_files_are_needed(tmp_path, names):
    path = folder(tmp_path / "refcoco", [ref(1)])
    with pytest.raises(ValueError, match="read from one folder with"):
        outcome(VAL, *(path / name for name in names))


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (ref("7"), "id", "ref_id is not an integer: '7'"),
        (ref(7, ann_id=99), "reference", "ann_id 99 is not in instances.json"),
        (ref(7, image_id=5), "reference", "refer to different images"),
        (ref(7, said=()), "text", "there are no sentences"),
        (ref(7, said=("a", " ")), "text", "sent must be a non-empty text, not ' '"),
        (ref(7, ann_id=11), "box", "not 3 numbers"),
        (ref(7, ann_id=12), "box", "has no area"),
        (ref(7, ann_id=13), "reference", "image_id 4 is not in instances.json"),
        ({"ref_id": 7}, "text", "split must be a non-empty text, not None"),
        ([7], "ref", "expected a dict, found [7]"),
    ],
)
def test_a_bad_ref(tmp_path, bad, kind, why):
    annotations = [
        {"id": 10, "image_id": 98304, "bbox": [1.5, 2, 3, 4]},
        {"id": 11, "image_id": 98304, "bbox": [1, 2, 3]},
        {"id": 12, "image_id": 98304, "bbox": [1, 2, 3, 0]},
        {"id": 13, "image_id": 4, "bbox": [1, 2, 3, 4]},
    ]
    path = folder(tmp_path / "refcoco", [ref(1), bad], annotations=annotations)
    done = outcome(VAL, path)
    assert done.kinds == [kind]
    assert why in done.why
    assert done.row["id"] == "1"


def test_a_deep_pickle_is_no_crash(tmp_path):
    path = folder(tmp_path / "refcoco", [])
    deep = b"]" * 50_000 + b"a" * 49_999
    (path / "refs(unc).p").write_bytes(b"\x80\x02" + deep + b".")
    with pytest.raises(ValueError, match="there is no split 'val'"):
        outcome(VAL, path)
    (path / "refs(unc).p").write_bytes(b"\x80\x02Pone\ntwo\n.")
    with pytest.raises(ValueError, match="it refers to an external object"):
        outcome(VAL, path)


def test_refs_that_are_no_list(tmp_path):
    with pytest.raises(ValueError, match=r"expected a list of refs, found \{\}"):
        outcome(VAL, folder(tmp_path / "refcoco", {}))
