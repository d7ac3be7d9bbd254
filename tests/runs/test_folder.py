"""What a run folder contains, whatever trained the run."""

import multiprocessing
import os
import re
import subprocess
import threading
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import pytest

import mm_numeric
from mm_numeric.comparison.plan import planned_runs
from mm_numeric.config.reader import read_config
from mm_numeric.io.atomic_files import locked
from mm_numeric.runs import folder as run_folder
from mm_numeric.runs.folder import machine_name, source_commit
from mm_numeric.training.distil import teacher_of


def test_a_checkout_that_is_not_installed_can_finish_a_run(tmp_path, monkeypatch):
    """A checkout on PYTHONPATH has no package metadata, as on a machine without a network."""

    def installed(name):
        if name == "mm-numeric":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(run_folder, "version", installed)
    run_folder.finish(tmp_path, {"steps": 3})
    found = run_folder.read_json(tmp_path / run_folder.FINISHED)
    assert found["versions"]["mm-numeric"] == mm_numeric.__version__
    assert found["versions"]["torch"] == version("torch")
    assert found["machine"] == machine_name()
    assert f"{os.cpu_count()} cores" in found["machine"]
    assert found["commit"] == source_commit()


@pytest.mark.parametrize("name", ["seed0/ce", "seed0/distilled", "seed0/distilled/teacher"])
def test_a_moved_comparison_has_the_runs_that_it_had(tmp_path, name):
    def config_in(folder):
        row = "{name: distilled, preset: emd, with: {distil: {decode: median}}}"
        changes = ["compare.seeds=[0]", "compare.control=null", f"compare.objectives=[ce, {row}]"]
        config = read_config("clock_tiny", [*changes, f"compare.output_dir={folder}"])
        runs = {run.name: run.config for run in planned_runs(config, [0])}
        return runs.get(name) or teacher_of(runs["seed0/distilled"])

    own = config_in(tmp_path / "before")
    checkpoint = own.output_dir / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    run_folder.write_config(own.output_dir, own)
    (tmp_path / "before").rename(tmp_path / "after")
    moved = config_in(tmp_path / "after")
    assert run_folder.contains_run(moved.output_dir, moved)
    other = replace(moved, model=replace(moved.model, name=str(tmp_path / "x" / "model")))
    with pytest.raises(ValueError, match=r"contains another run: model\.name is"):
        run_folder.contains_run(moved.output_dir, other)


def test_the_entry_of_a_list_that_differs_is_named(tmp_path):
    """A long list would be cut before it."""

    def config_with(last):
        classes = f"task.classes=[{', '.join(f'class {i}' for i in range(20))}, {last}]"
        changes = [classes, f"trainer.output_dir={tmp_path}"]
        return read_config("detection_qwen2_5_vl_lora", changes)

    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "manifest.json").write_text("{}")
    run_folder.write_config(tmp_path, config_with("cat"))
    with pytest.raises(ValueError, match=r"task\.classes\.20 is 'cat' there and 'dog' here"):
        run_folder.contains_run(tmp_path, config_with("dog"))


def test_all_settings_that_differ_are_named_up_to_five():
    there = {"trainer": {"lora": None, "steps": 2, "seeds": [1, 2]}, "a": 1, "b": {"c": 1}}
    here = {"trainer": {"steps": 3, "seeds": [1, 3, 4]}, "a": 1, "d": "x", "e": 1, "f": 2}
    assert run_folder.differences_text(there, here) == (
        "b is {'c': 1} there and not set here; d is not set there and 'x' here; e is not set there "
        "and 1 here; f is not set there and 2 here; trainer.seeds.1 is 2 there and 3 here; and 1 "
        "more"
    )
    assert not run_folder.differences_text(there, there)


def git(folder, *words):
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_checkout_and_marked_if_files_changed(tmp_path):
    assert source_commit(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "v1")  # is not used
    commit = source_commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", commit)
    (tmp_path / "a.py").write_text("2")
    assert source_commit(tmp_path) == f"{commit}-dirty"
    inside = tmp_path / "site-packages"  # an installed package in somebody's repository
    inside.mkdir()
    assert source_commit(inside) is None


@pytest.mark.slow
def test_a_process_that_was_forked_inside_does_not_keep_the_lock(tmp_path):
    """Workers of a data loader may outlive the training that has started them."""
    with locked(tmp_path / "run"):
        child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        child.start()
    try:
        with locked(tmp_path / "run"):
            pass
    finally:
        child.kill()
        child.join()
