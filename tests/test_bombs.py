"""Small files that would become large: each is one sentence, in little time and memory."""

import resource
import zipfile

import pytest

from mm_numeric import archives
from mm_numeric.archives import UNPACKED_LIMIT, zipped_files
from mm_numeric.files import read_rows
from mm_numeric.parsing import parse_yaml
from mm_numeric.training.tensor_files import require_tensor_files


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


def test_a_json_number_of_many_digits_is_no_quadratic_time(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": ' + "1" * 5000 + "}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: not JSON \(Exceeds the limit"):
        next(read_rows(path))
