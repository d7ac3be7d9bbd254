"""Zip and gzip files whose unpacked size is above the limit are one sentence, not a full memory."""

import gzip
import json
import resource
import sys
import zipfile
from random import Random

import numpy as np
import pytest

from mm_numeric.cli import main as cli
from mm_numeric.evaluation.answers.detections import read_text_files
from mm_numeric.io.files import UNPACKED_LIMIT, read_gzip, read_rows, zipped_files

SQUARE = "0,0,10,0,10,10,0,10"
TOO_LARGE = r"bomb.*: (?:unpacks to|has a line of) .*more than the limit of 1 MiB; .*--max-unp"


@pytest.fixture(autouse=True)
def _own_limit(monkeypatch):
    """Undo a limit that a test sets through ``--max-unpacked``."""
    monkeypatch.setenv(UNPACKED_LIMIT, "")


def bomb(path, mib, name="gt_img_1.txt"):
    """Write a zip of zeros, which is a thousandth of what it holds."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(name, "w", force_zip64=True) as file:
            for _ in range(mib):
                file.write(bytes(1 << 20))
        archive.writestr("gt_img_2.txt", SQUARE)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_a_zip_bomb_is_rejected_by_its_sizes_without_unpacking(tmp_path):
    path = bomb(tmp_path / "bomb.zip", 300)
    assert path.stat().st_size < 4 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = (
        r"bomb\.zip: unpacks to 301 MiB, more than the limit of 256 MiB; if you trust the file"
    )
    with pytest.raises(ValueError, match=message):
        read_text_files(path, truth=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.parametrize(("mib", "is_read"), [(15, True), (17, False)])
def test_a_zip_of_more_than_200_times_its_size_is_rejected_above_16_mib(tmp_path, mib, is_read):
    path = bomb(tmp_path / "bomb.zip", mib)
    if is_read:
        assert len(list(zipped_files(path, (".txt",)))) == 2
        return
    message = rf"bomb\.zip: unpacks to {mib + 1} MiB, more than 200 times its size; if you trust"
    with pytest.raises(ValueError, match=message):
        next(zipped_files(path, (".txt",)))
    with zipfile.ZipFile(path, "a") as archive:  # 120 kB that are not compressible
        archive.writestr("noise.jpg", np.random.default_rng(0).bytes(120_000))
    assert next(zipped_files(path, (".txt",)))[0] == "gt_img_1.txt"


@pytest.mark.slow
def test_files_that_are_not_read_do_not_count(tmp_path):
    path = bomb(tmp_path / "images.zip", 300, name="photo.jpg")
    assert list(read_text_files(path, truth=True).instances) == ["img_2"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("bomb.json.gz", lambda path: path.write_bytes(gzip.compress(b" " * (2 << 20)))),
        ("bomb.csv.gz", lambda path: path.write_bytes(gzip.compress(b"a,b\n" * (1 << 19)))),
        ("bomb.jsonl.gz", lambda path: path.write_bytes(gzip.compress(b'"' + b" " * (2 << 20)))),
    ],
)
def test_rows_of_a_gzip_bomb_are_rejected(tmp_path, monkeypatch, name, write):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    write(tmp_path / name)
    with pytest.raises(ValueError, match=TOO_LARGE):
        list(read_rows(tmp_path / name))


def test_a_jsonl_file_may_be_larger_than_the_limit_if_its_lines_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "rows.jsonl.gz"
    random = Random(0)  # unlike a bomb, they are packed to half their size
    lines = [json.dumps({"id": random.randbytes(500).hex()}) for _ in range(1200)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert sum(map(len, lines)) > 1 << 20
    assert sum(1 for _ in read_rows(path)) == 1200


def test_a_content_of_exactly_the_limit_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    assert len(read_gzip(path)) == 1 << 20
    path.write_bytes(gzip.compress(bytes((1 << 20) + 1)))
    with pytest.raises(ValueError, match=r"a\.gz: unpacks to at least 1048577 bytes, more than"):
        read_gzip(path)


def prepared(tmp_path, *words):
    return cli.main(["prepare", *words, "--out", str(tmp_path / "rows.jsonl"), "--force"])


def test_an_importer_rejects_a_bomb_and_the_flag_raises_the_limit(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    line = "0,0,10,0,10,10,0,10,word\r\n"
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gt_img_1.txt", line + " " * (2 << 20))
    assert prepared(tmp_path, "icdar2015", str(path)) == 2
    error = capsys.readouterr().err
    assert "bomb.zip: unpacks to 3 MiB, more than the limit of 1 MiB" in error
    assert "Traceback" not in error
    assert prepared(tmp_path, "icdar2015", str(path), "--max-unpacked", "3") == 0
    assert prepared(tmp_path, "icdar2015", str(path), "--max-unpacked", "0") == 2
    assert "--max-unpacked is a number of MiB of at least 1, not 0" in capsys.readouterr().err


def test_jokes_that_are_a_bomb_are_rejected(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "1")
    path = tmp_path / "train.tsv.gz"
    path.write_bytes(gzip.compress(b"3\tjoke\n" + b" " * (2 << 20)))
    assert prepared(tmp_path, "rjokes", str(path)) == 2
    assert "train.tsv.gz: unpacks to at least 1048577 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("before", [True, False])
def test_score_rejects_a_bomb_and_the_flag_raises_the_limit(tmp_path, capsys, before):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gt_img_1.txt", f"{SQUARE},word\n" + " " * (2 << 20))
    words = ["score", str(path), "--truth", str(path)]

    def scored(mib):
        flag = ["--max-unpacked", mib]
        return cli.main([*flag, *words] if before else [*words, *flag])

    assert scored("1") == 2
    assert "bomb.zip: unpacks to 3 MiB, more than the limit of 1 MiB" in capsys.readouterr().err
    assert scored("3") == 0


def test_a_size_that_lies_is_a_damaged_archive(tmp_path):
    """A bomb that states a small size: zipfile stops at that size, and finds another checksum."""
    path = bomb(tmp_path / "bomb.zip", 5)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        stated = archive.infolist()[0].file_size.to_bytes(4, "little")
    assert content.count(stated) >= 1
    path.write_bytes(content.replace(stated, (99).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"bomb\.zip: not a whole \.zip archive \(Bad CRC-32"):
        list(zipped_files(path, (".txt",)))


def test_a_limit_that_is_no_number_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv(UNPACKED_LIMIT, "2GB")
    with pytest.raises(ValueError, match=f"{UNPACKED_LIMIT} is a number of MiB .*, not '2GB'"):
        list(zipped_files(bomb(tmp_path / "a.zip", 1), (".txt",)))
