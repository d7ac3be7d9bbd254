"""The run, the checkpoint and the comparison of ``tests/fixtures/b5a6f42``, in a copy."""

import shutil
from pathlib import Path

FILES = Path(__file__).parents[1] / "fixtures" / "b5a6f42"


def copy_and_enter(folder, monkeypatch):
    """Copy the files to ``folder`` and change to it: their paths are relative to their folder."""
    shutil.copytree(FILES, folder)
    monkeypatch.chdir(folder)
    return folder
