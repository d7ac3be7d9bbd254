"""Files and folders that are written in one piece, and what killed processes leave of them."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from importing import text_folder

from mm_numeric.cli import main as cli
from mm_numeric.config.data import DataSource
from mm_numeric.data.examples import generated_rows
from mm_numeric.io import atomic_files
from mm_numeric.io.atomic_files import atomic_file, atomic_folder
from mm_numeric.io.files import listed_rows, write_text
from mm_numeric.synthetic.sums import Arithmetic

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")


@contextlib.contextmanager
def in_a_process(function):
    """Fork a process that calls a function, which does not return; kill it at the end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function(write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        assert os.read(read, 1) == b"x"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)


def half_a_file(path, done):
    with atomic_file(path) as file:
        file.write(b"half")
        os.write(done, b"x")
        signal.pause()


def half_a_folder(path, done):
    with atomic_folder(path) as folder:
        (folder / "a.txt").write_text("half")
        os.write(done, b"x")
        signal.pause()


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyError), atomic_file(path):
        raise KeyError
    with pytest.raises(KeyError), atomic_folder(tmp_path / "b"):
        raise KeyError
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("half", [half_a_file, half_a_folder])
def test_what_a_killed_process_left_is_deleted_and_that_of_a_running_one_is_not(tmp_path, half):
    path = tmp_path / "a.txt"
    with in_a_process(lambda done: half(path, done)):
        (of_another,) = tmp_path.iterdir()
        write_text(path, "ours")
        assert set(tmp_path.iterdir()) == {path, of_another}
    write_text(tmp_path / "b.txt", "of another name")
    assert of_another.exists()
    write_text(path, "ours again")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "a.txt": "ours again",
        "b.txt": "of another name",
    }


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_another_process_deletes_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch, kind
):
    """Two workers fill a cache: one sees the new file of the other, which is not locked yet."""
    path, lock, others = tmp_path / "a", atomic_files.lock, []

    def lock_late(handle):
        if not others:
            others.append("another process")
            write_text(path, "of another process")
            path.unlink()
        lock(handle)

    monkeypatch.setattr(atomic_files, "lock", lock_late)
    if kind == "file":
        write_text(path, "ours")
        assert path.read_text() == "ours"
    else:
        with atomic_folder(path) as folder:
            (folder / "b.txt").write_text("ours")
        assert (path / "b.txt").read_text() == "ours"
    assert [*tmp_path.iterdir()] == [path]


def test_another_process_may_delete_what_a_killed_one_left(tmp_path, monkeypatch):
    left = tmp_path / f"a.{'0' * 32}.unfinished"
    left.write_text("half")
    lock = atomic_files.lock

    def lock_late(handle):
        lock(handle)
        left.unlink(missing_ok=True)  # another process is as fast

    monkeypatch.setattr(atomic_files, "lock", lock_late)
    write_text(tmp_path / "a", "ours")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]


def test_a_generator_deletes_what_a_killed_process_has_written(tmp_path):
    source = DataSource(synthetic=Arithmetic(rows=2))
    rows = generated_rows(source, tmp_path)
    text = rows.read_text()
    rows.parent.rename(tmp_path / "away")
    with in_a_process(lambda done: half_a_folder(rows.parent, done)):
        pass
    assert generated_rows(source, tmp_path).read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {rows.parent.name, "away"}


def test_a_second_prepare_finishes_what_a_kill_before_the_record_left(tmp_path, capsys):
    gt = text_folder(tmp_path / "gt", gt_img_1__txt="377,117,463,117,465,130,378,130,Genaxis")
    out = tmp_path / "rows.jsonl"
    words = ["prepare", "icdar2015", str(gt), "--out", str(out)]
    with in_a_process(lambda done: half_a_file(out, done)):
        pass
    assert cli.main(words) == 0
    record = tmp_path / "rows.jsonl.prepared.json"
    complete = record.read_bytes()
    assert cli.main(words) == 2
    assert "rows.jsonl.prepared.json exists; name another file" in capsys.readouterr().err
    record.unlink()
    assert cli.main(words) == 0
    assert "has these rows already; its record, which was missing, is" in capsys.readouterr().err
    assert record.read_bytes() == complete
    record.unlink()
    out.write_text("other rows")
    assert cli.main(words) == 2
    assert "rows.jsonl exists; name another file" in capsys.readouterr().err
    assert out.read_text() == "other rows"
    assert {path.name for path in tmp_path.iterdir()} == {"gt", "rows.jsonl"}


@pytest.mark.parametrize(
    "content", [{"data_list": [{"id": 1}], "metainfo": [{}]}, {"data_list": []}]
)
def test_the_rows_of_a_known_field_are_read_next_to_other_lists(content):
    assert listed_rows(content, Path("x.json")) == content["data_list"]
