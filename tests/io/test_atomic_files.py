"""Files are written in whole, through no link, and with locks: also where there are none."""

import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from finished_runs import copy_and_enter
from import_graph import ROOT
from tiny_models import small_config

from mm_numeric.cli import main as cli
from mm_numeric.comparison.engines import local
from mm_numeric.comparison.plan import open_runs
from mm_numeric.comparison.run import compare, execute_here
from mm_numeric.io import atomic_files, log
from mm_numeric.io.atomic_files import (
    LockedError,
    append_to,
    atomic_file,
    atomic_folder,
    has_locks,
    locked,
    reject_links,
)
from mm_numeric.runs.results_file import write_section

fcntl = pytest.importorskip("fcntl")
WITHOUT = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP]


@pytest.fixture
def flock_fails(monkeypatch):
    """Return a function that lets each lock fail with an error number."""

    def fail_with(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)
        monkeypatch.setattr(atomic_files, "_reported_devices", set())

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
    monkeypatch.setattr("mm_numeric.runs.results_file.time.sleep", sleep)
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


OUTPUTS = [
    ("run/predictions.jsonl", ["predict", "--model", "run"]),
    ("run/results.json", ["score", "run/predictions.jsonl"]),
    ("run/scores.jsonl", ["score", "run/predictions.jsonl"]),
    ("run/report.md", ["report", "run"]),
    ("checkpoint/log.jsonl", ["train", "checkpoint.yaml", "--resume"]),
    ("checkpoint/evaluation/predictions.jsonl", ["train", "checkpoint.yaml", "--resume"]),
    ("comparison/seed0", ["compare", "comparison.yaml"]),
    ("exported", ["export", "run", "--out", "exported"]),
    ("new.yaml", ["cp", "clock_tiny", "new.yaml"]),
]


@pytest.mark.parametrize(("name", "words"), OUTPUTS, ids=[name for name, _ in OUTPUTS])
def test_an_output_that_is_a_link_is_rejected(
    finished_runs, tmp_path, monkeypatch, capsys, name, words
):
    copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    link, target = Path(name), tmp_path / "outside"
    if link.exists() and name != "run/predictions.jsonl":
        link.rename(target)  # else it is dangling
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    before = content_of(target)
    assert cli.main(words) == 2
    assert (
        f"{link}: a link to {target}, and nothing is written through links; delete it, or "
        in (capsys.readouterr().err.splitlines()[-1])
    )
    assert content_of(target) == before
    assert link.is_symlink()


def content_of(path):
    """Return what a file, or each file of a folder, contains."""
    return {str(file): file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("write", [append_to, atomic_file, atomic_folder])
def test_each_way_to_write_rejects_links(tmp_path, write):
    for target in ("missing", "outside"):
        link = tmp_path / f"to_{target}"
        link.symlink_to(tmp_path / target)
        (tmp_path / "outside").write_text("mine", encoding="utf-8")
        with pytest.raises(ValueError, match=r"to_\w+: a link to "), write(link):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "outside",
        "to_missing",
        "to_outside",
    ]
    assert (tmp_path / "outside").read_text(encoding="utf-8") == "mine"


def test_a_link_that_stays_in_the_run_is_permitted(tmp_path):
    """``WANDB_DIR`` may be the folder of the run, where wandb writes a link to its last run."""
    (tmp_path / "run/wandb/run-1").mkdir(parents=True)
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "run/wandb/latest-run").symlink_to("run-1")
    reject_links(tmp_path / "run")
    reject_links(tmp_path / "link")
    (tmp_path / "run/wandb/outside").symlink_to("../../run-1")
    for folder in ("run", "link"):
        with pytest.raises(ValueError, match=r"outside: a link to \.\./\.\./run-1, and"):
            reject_links(tmp_path / folder)


IN_A_NEW_FOLDER = {
    "mm_numeric/families/model_files.py": 1,  # frame.json, next to weights that are saved
    "mm_numeric/importers/export.py": 1,  # the rows of another tool
    "mm_numeric/models/export.py": 1,  # the model card
    "mm_numeric/synthetic/generator.py": 1,  # rows
}


def test_files_are_written_by_those_functions_alone():
    """Other ways to write follow links, so they may be used in new folders alone."""
    call = re.compile(r"""\.write_(text|bytes)\(|open\([^)]*["'][wax]b?\+?["']|\.touch\(""")
    found = {}
    for folder in ("mm_numeric", "tasks", "evaluation"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            count = len(call.findall(file.read_text(encoding="utf-8")))
            if count and "mm_numeric/tasks" not in name and "mm_numeric/evaluation" not in name:
                found[name] = count
    assert found.pop("mm_numeric/io/atomic_files.py") == 3
    assert found == IN_A_NEW_FOLDER
