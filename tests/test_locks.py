"""Locks: of other processes, on file systems that have none, and at paths that are traps."""

import errno
import json
import os
from types import SimpleNamespace

import pytest
from tiny_models import small_config

from mm_numeric.comparison.engines import local
from mm_numeric.comparison.plan import open_runs
from mm_numeric.comparison.run import compare, execute_here
from mm_numeric.io import log
from mm_numeric.io.atomic_files import atomic_file, atomic_folder
from mm_numeric.runs import folder as run_folder
from mm_numeric.runs.folder import LockedError, has_locks, locked
from mm_numeric.runs.results import write_section

fcntl = pytest.importorskip("fcntl")
WITHOUT = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]


@pytest.fixture
def flock_fails(monkeypatch):
    """Return a function that lets each lock fail with an error number."""

    def fail_with(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)
        monkeypatch.setattr(run_folder, "_reported_devices", set())

    return fail_with


@pytest.mark.parametrize("number", WITHOUT)
def test_a_file_system_without_locks_is_used_with_one_warning(
    tmp_path, flock_fails, capsys, number
):
    assert has_locks(tmp_path / "run")
    flock_fails(number)
    left = tmp_path / f"a.{'0' * 32}.unfinished"
    left.write_text("perhaps of a process that runs")
    with locked(tmp_path / "run"), locked(tmp_path / "p.jsonl", "file"):
        assert not has_locks(tmp_path / "run")
        with atomic_file(tmp_path / "a") as file:
            file.write(b"whole")
        with atomic_folder(tmp_path / "b") as folder:
            (folder / "c").touch()
    assert (tmp_path / "a").read_text() == "whole"
    assert (tmp_path / "b" / "c").is_file()
    assert left.is_file()
    assert capsys.readouterr().err == (
        f"mm-numeric: {tmp_path / 'run'}: the file system has no locks, so a second process that "
        "uses this folder is not noticed; make sure that there is none.\n"
    )


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_only_a_lock_of_another_process_is_reported(tmp_path, flock_fails, number):
    flock_fails(number)
    with pytest.raises(LockedError, match="another process is using this folder"):
        locked(tmp_path / "run").__enter__()
    assert has_locks(tmp_path / "run")


def test_another_error_of_a_lock_is_an_error(tmp_path, flock_fails):
    flock_fails(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as error:
        locked(tmp_path / "run").__enter__()
    assert error.value.filename == str(tmp_path / ".run.lock")


SMALL = ("compare.objectives=[ce]", "compare.control=null", "compare.seeds=[0]")


def test_runs_of_seeds_are_executed_without_locks(tmp_path, flock_fails, monkeypatch):
    def execute(run):
        run.answers.mkdir(parents=True)
        (run.answers / "results.json").touch()

    def sleep(_):
        pytest.fail("it waits for another process")

    monkeypatch.setattr("mm_numeric.comparison.run._train_and_score", execute)
    monkeypatch.setattr("mm_numeric.comparison.run.time", SimpleNamespace(sleep=sleep))
    flock_fails(errno.ENOLCK)
    runs = open_runs(small_config(tmp_path, *SMALL), [0])
    execute_here(runs)
    assert all(run.is_finished() for run in runs)


def test_several_jobs_need_locks(tmp_path, flock_fails, monkeypatch):
    monkeypatch.setattr(local.subprocess, "Popen", lambda *_, **__: pytest.fail("a job starts"))
    flock_fails(errno.ENOSYS)
    with pytest.raises(ValueError, match=r"compare\.jobs: the file system of .* has no locks"):
        compare(small_config(tmp_path, *SMALL, "compare.jobs=2"))


def test_who_waits_for_another_process_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(log, "WAITING_S", 0)
    runs = open_runs(small_config(tmp_path, *SMALL), [0])

    def execute(run):
        run.answers.mkdir(parents=True)
        (run.answers / "results.json").touch()

    def sleep(_):
        other.__exit__(None, None, None)

    monkeypatch.setattr("mm_numeric.comparison.run._train_and_score", execute)
    monkeypatch.setattr("mm_numeric.comparison.run.time", SimpleNamespace(sleep=sleep))
    warm_start = runs[0].config.output_dir
    other = locked(warm_start.with_name(f"{warm_start.name}.run"))
    other.__enter__()
    execute_here(runs)
    assert "waiting for runs that other processes execute (seed0/warm_start) (0 s so far)\n" in (
        capsys.readouterr().err
    )
    answers = tmp_path / "p.jsonl"
    answers.write_text("{}\n")
    other = locked(tmp_path / "p.jsonl.results.json")
    other.__enter__()
    monkeypatch.setattr("mm_numeric.runs.results.time.sleep", sleep)
    write_section(answers, "task", {})
    said = capsys.readouterr().err
    assert f"another process that uses {tmp_path / 'p.jsonl.results.json'} (0 s so far)\n" in said
    assert json.loads((tmp_path / "p.jsonl.results.json").read_text())["protocols"] == {"task": {}}


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path, is_dangling):
    mine = tmp_path / "mine.txt"
    if not is_dangling:
        mine.write_text("of the user")
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / ".p.jsonl.lock").symlink_to(mine)
    with pytest.raises(ValueError, match=r"/\.p\.jsonl\.lock: the lock is a link; delete it\.$"):
        locked(folder / "p.jsonl", "file").__enter__()
    assert not mine.exists() if is_dangling else mine.read_text() == "of the user"


def test_a_lock_that_is_a_pipe_or_a_folder_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / ".a.lock")
    (tmp_path / ".b.lock").mkdir()
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=f"{name}.lock: the lock is not a regular file"):
            locked(tmp_path / name).__enter__()


def test_a_lock_keeps_the_content_of_its_file(tmp_path):
    (tmp_path / ".a.lock").write_text("of the user")
    with locked(tmp_path / "a"):
        pass
    assert (tmp_path / ".a.lock").read_text() == "of the user"


def test_the_lock_of_a_file_that_is_a_link_is_next_to_the_link(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "foreign"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "a").touch()
    (folder / "p.jsonl").symlink_to(elsewhere / "a")
    with locked(folder / "p.jsonl", "file"):
        assert [path.name for path in elsewhere.iterdir()] == ["a"]


def test_a_leftover_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / f"a.{'0' * 32}.unfinished")
    with atomic_file(tmp_path / "a") as file:
        file.write(b"whole")
    assert (tmp_path / "a").read_text() == "whole"
