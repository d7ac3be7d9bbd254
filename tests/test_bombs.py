"""Small files that would become large: each is one sentence, in little time and memory."""

import gzip
import json
import os
import re
import resource
import zipfile

import pytest
from importing import make_image, outcome, text_folder

from mm_numeric.cli import main as cli
from mm_numeric.data.images import open_upright
from mm_numeric.evaluation.answers.files import read_answer_file
from mm_numeric.evaluation.scores import _natural
from mm_numeric.importers.rjokes import RJokesImporter
from mm_numeric.importers.scene_text import CTW1500, Icdar2015
from mm_numeric.importers.voc import Voc
from mm_numeric.importers.yolo import Yolo
from mm_numeric.io import files as archives
from mm_numeric.io.files import UNPACKED_LIMIT, read_json, read_rows, sha256_of, zipped_files
from mm_numeric.runs.tensor_files import require_tensor_files
from mm_numeric.settings import parse_yaml, read_yaml


@pytest.fixture(autouse=True)
def _little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def laughs(levels: int, width: int) -> str:
    """Return lines of aliases, each of as many aliases of the line before."""
    lines = ["a0: &a0 x"]
    for i in range(1, levels):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (laughs(10, 10), r"1,234,567,911 values with its aliases expanded, above 100,000"),
        ("[" * 1_000_000, "nested too deep"),
        ("- " * 10_000, "nested too deep"),
        ("a: &a [*a]", "nested too deep, or an alias contains itself"),
    ],
    ids=["aliases", "brackets", "dashes", "circle"],
)
def test_yaml(text, message):
    with pytest.raises(ValueError, match=f"^a.yaml: .*{message}"):
        parse_yaml(text, "a.yaml")


def test_aliases_of_a_normal_config_are_read():
    assert parse_yaml(laughs(3, 2), "a.yaml")["a2"] == [["x", "x"], ["x", "x"]]
    assert parse_yaml("", "a.yaml") is None


def test_a_line_of_a_json_lines_file_is_limited(tmp_path, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"id": "1"}\n{"id": "')
        file.truncate(64 << 20)
    found = read_rows(path)
    assert next(found)[1] == {"id": "1"}
    with pytest.raises(ValueError, match=r"a\.jsonl: has a line of .*more than the limit of 1 MiB"):
        next(found)


def test_a_packed_json_lines_file_of_blank_lines(tmp_path, monkeypatch):
    """300 KB can hold 300 MiB of blank lines, each of which is short."""
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"id": "1"}\n' + (b" " * 1023 + b"\n") * 3000)
    assert path.stat().st_size < 10_000
    found = read_rows(path)
    assert next(found)[1] == {"id": "1"}
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: unpacks to at least .*limit of 1 MiB"):
        next(found)
    (tmp_path / "b.jsonl").write_bytes(gzip.decompress(path.read_bytes()))
    assert len(list(read_rows(tmp_path / "b.jsonl"))) == 1


def test_a_zip_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_FILES", 3)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(4):
            archive.writestr(f"{i}.txt", "")
    with pytest.raises(ValueError, match=r"a\.zip: 4 files, above 3\."):
        next(zipped_files(path, [".txt"]))


def test_a_pickle_with_a_large_memo_index(tmp_path):
    path = tmp_path / ".metadata"
    path.write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")  # LONG_BINPUT 2147483647
    with pytest.raises(ValueError, match="memo index 2147483647 is not plausible"):
        require_tensor_files(tmp_path)


DIGITS = "1" * 5000
"""More than the 4,300 that int() accepts; its error names no file."""


def test_a_name_in_a_zip_of_many_digits(tmp_path):
    with zipfile.ZipFile(tmp_path / "gt.zip", "w") as archive:
        for name in ("10", "2", DIGITS):
            archive.writestr(f"gt_img_{name}.txt", "1,2,9,2,9,8,1,8,a\n")
    found = outcome(Icdar2015(), tmp_path / "gt.zip").rows
    assert [row["id"] for row in found] == ["img_2", "img_10", f"img_{DIGITS}"]


def test_a_number_of_many_digits_is_named_with_its_line(tmp_path):
    (tmp_path / "a.tsv").write_text(f"{DIGITS}\tA joke.\n")
    (error,) = outcome(RJokesImporter(), tmp_path / "a.tsv").bad
    assert (error.where, error.kind) == (f"{tmp_path / 'a.tsv'}, line 1", "score")
    size = f"<size><width>{DIGITS}</width><height>9</height></size>"
    (tmp_path / "a.xml").write_text(f"<annotation><filename>a.jpg</filename>{size}</annotation>")
    (error,) = outcome(Voc(), tmp_path / "a.xml").bad
    assert str(tmp_path / "a.xml") in error.where
    assert error.why.startswith("the size inf x 9 is not one")
    (error,) = outcome(CTW1500(), text_folder(tmp_path / "ctw", **{f"{'1' * 200}__txt": ""})).bad
    assert error.why.endswith("is not the number of an image.")
    make_image(tmp_path / "images" / "train" / "1.jpg")
    (tmp_path / "labels").mkdir()
    text_folder(tmp_path / "labels" / "train", **{"1__txt": f"{DIGITS} 0.5 0.5 0.2 0.4\n"})
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [helmet, vest]\n")
    (error,) = outcome(Yolo(split="train"), tmp_path / "data.yaml").bad
    assert error.where.endswith("1.txt, line 1")
    row = {"doc_id": DIGITS, "resps": [["7"]]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    _, answers = read_answer_file(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r'a\.jsonl, line 1: "doc_id" is .* and not a position'):
        list(answers)


def test_a_label_of_many_digits_is_sorted_as_a_number():
    labels = ["10", "b", DIGITS, "2", "a"]
    assert sorted(labels, key=_natural) == ["2", "10", DIGITS, "a", "b"]


@pytest.mark.parametrize("name", ["mine.yaml", "run/config.yaml"])
def test_a_second_document_of_a_yaml_file_is_named_with_its_line(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("task: clock\n---\ntask: counting\n")
    message = f"{path}, line 2: found another document. A config is one YAML document; delete the "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_yaml(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: next(read_rows(path.with_suffix(".jsonl"))),
        lambda path: next(read_rows(path.with_suffix(".jsonl.gz"))),
        lambda path: next(zipped_files(path, [".txt"])),
        read_json,
        read_yaml,
        sha256_of,
        open_upright,
    ],
    ids=["rows", "packed rows", "zip", "json", "yaml", "checksum", "image"],
)
def test_a_named_pipe_is_not_waited_for(tmp_path, read):
    for name in ("pipe", "pipe.jsonl", "pipe.jsonl.gz"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"pipe[.a-z]*: it is a pipe or a device; write its"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize("words", [["pipe.jsonl"], ["pipe.zip", "--truth", "pipe.zip"]])
def test_a_named_pipe_of_answers_is_one_sentence(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(words[0])
    assert cli.main(["score", *words]) == 2
    assert f"{words[0]}: it is a pipe or a device;" in capsys.readouterr().err
