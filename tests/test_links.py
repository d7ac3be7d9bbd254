"""No command writes through a link in a folder of somebody else, also through no dangling one."""

import re
from pathlib import Path

import pytest
from finished_runs import copy_and_enter
from import_graph import ROOT

from mm_numeric.cli import main as cli
from mm_numeric.io.atomic_files import append_to, atomic_file, atomic_folder, reject_links

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
    "mm_numeric/models/export.py": 1,  # the model card
    "tasks/rendering/drawing.py": 1,
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
