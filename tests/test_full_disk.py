"""On a full disk each command ends with one sentence, and leaves no half file under its name.

A limit of the size of files stands for the disk: writing fails at the same calls.
"""

import contextlib
import re
from pathlib import Path

import pytest
from cheap_lookups import KEPT as MADE_BEFORE
from finished_runs import copy_and_enter
from importing import text_folder

from mm_numeric.cli import main as cli

resource = pytest.importorskip("resource")
TRAIN = ["train", "run.yaml", "trainer.max_steps=1", "trainer.output_dir=new"]
COMPARE = ["compare", "comparison.yaml", "compare.output_dir=new"]
KEPT = {".new.lock", ".new.jsonl.lock", "cache", "gt", "runs", "new.jsonl.made_by.json"}


@contextlib.contextmanager
def full_disk(size):
    """Let no file become larger than ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "size", "file"),
    [
        (["cp", "clock_tiny", "new"], 10, "new"),
        (["prepare", "icdar2015", "gt", "--out", "new.jsonl"], 10, "new.jsonl"),
        (["check-data", "run.yaml", "--page", "new"], 10, "new"),
        (["check-data", "comparison.yaml", "--page", "new"], 10, r"cache/arithmetic-\w+"),
        (["train", "clock_tiny", "trainer.output_dir=new"], 100, r"runs/cache/clocks-\w+"),
        (["predict", "--model", "run", "--out", "new.jsonl"], 10, "new.jsonl.made_by.json"),
        (["predict", "--model", "run", "--out", "new.jsonl"], 1000, "a file"),
        (["score", "run/predictions.jsonl", "--out", "new"], 10, "new/scores.jsonl"),
        (["export", "run", "--out", "new"], 10, "new"),
        (["export", "run", "--out", "new"], 2000, "a file"),
        (["report", "comparison"], 10, "comparison/report.html"),
        (TRAIN, 10, "new/config.yaml"),
        ([*TRAIN, "model.name=tiny"], 3000, "new:"),
        ([*TRAIN, "trainer.logging_steps=1"], 3000, "new:"),
        (TRAIN, 15_000, "new:"),  # the weights
        (COMPARE, 10, r"cache/arithmetic-\w+"),
        (COMPARE, 4000, r"cache/arithmetic-\w+"),
    ],
)
def test_each_command_ends_with_one_sentence(
    finished_runs, tmp_path, monkeypatch, capsys, words, size, file
):
    folder = copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    monkeypatch.delenv(MADE_BEFORE, raising=False)  # a tiny model is written, not copied
    text_folder(folder / "gt", gt_img_1__txt="377,117,463,117,465,130,378,130,Genaxis")
    before = {path.name for path in folder.iterdir()}
    reports = [path.read_bytes() for path in folder.glob("comparison/report.*")]
    with full_disk(size):
        assert cli.main(words) == 2
    (message,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("mm-numeric: ")]
    assert re.match(f"mm-numeric: {file} .*could not be written completely.*free some sp", message)
    left = {path.name for path in folder.iterdir()} - before - KEPT
    if words[0] == "predict":
        assert left <= {"new.jsonl"}  # the answers up to the last complete line
    else:
        assert left <= ({"new"} if words[0] in ("train", "compare", "score") else set())
    assert list(Path("cache").glob("*")) == []
    assert reports == [path.read_bytes() for path in folder.glob("comparison/report.*")]
