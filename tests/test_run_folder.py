"""What a run folder contains, whatever trained the run."""

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version

import mm_numeric
from mm_numeric import run_folder
from mm_numeric.machine import machine_name, source_commit


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
