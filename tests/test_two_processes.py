"""Two processes never write into one file or folder: the second ends with one sentence."""

import json
from pathlib import Path

import paused
import pytest
from finished_runs import copy_and_enter
from processes import Job
from result_files import section

from mm_numeric.cli import main as cli

PREDICT = ["predict", "--model", "run", "--out", "new/predictions.jsonl"]
EXPORT = ["export", "run", "--out", "new/model"]


@pytest.fixture
def folder(finished_runs, tmp_path, monkeypatch):
    return copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)


def start_and_pause(folder, command) -> Job:
    """Start a command in another process, and return when it has loaded the model."""
    job = Job(paused.run, [str(folder), *command], folder / "output.txt")
    paused.until_started(job)
    return job


@pytest.mark.slow
def test_two_predictions_into_one_file(folder, capsys):
    job = start_and_pause(folder, PREDICT)
    assert cli.main(PREDICT) == 2
    assert capsys.readouterr().err == (
        "mm-numeric: new/predictions.jsonl: another process is using this file; wait, or choose "
        "another file.\n"
    )
    paused.GO.touch()
    assert job.wait() == [0], job.text()
    lines = Path("new/predictions.jsonl").read_text(encoding="utf-8").splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert len(ids) == len(set(ids)) == 24
    assert cli.main(PREDICT) == 0
    assert "0 new answers" in capsys.readouterr().out
    assert cli.main(["score", "new/predictions.jsonl"]) == 0


@pytest.mark.slow
def test_two_exports_into_one_folder(folder, capsys):
    job = start_and_pause(folder, EXPORT)
    assert cli.main(EXPORT) == 2
    assert capsys.readouterr().err == (
        "mm-numeric: new/model: another process is using this folder; wait, or choose another "
        "folder.\n"
    )
    paused.GO.touch()
    assert job.wait() == [0], job.text()
    assert Path("new/model/README.md").is_file()
    assert cli.main(EXPORT) == 2
    assert "new/model exists; name a folder that does not" in capsys.readouterr().err
    assert not list(Path("new").glob("*.unfinished"))


@pytest.mark.slow
def test_an_export_that_fails_leaves_nothing(folder, monkeypatch, capsys):
    Path("run/results.json").write_text("{")
    assert cli.main(EXPORT) == 2
    assert "mm-numeric: run/results.json: not valid or not complete JSON" in capsys.readouterr().err
    assert [path.name for path in Path("new").iterdir()] == [".model.lock"]
    Path("run/results.json").unlink()
    assert cli.main(EXPORT) == 0


def test_a_file_of_two_processes_is_scored_with_the_last_row_of_each_id(folder, capsys):
    """The duplicates are those that two processes wrote into one file in earlier versions."""
    file = Path("run/predictions.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    recorded = section("run")["metrics"]
    wrong = [json.dumps({**json.loads(line), "text": "-99"}) + "\n" for line in lines[:3]]
    file.write_text("".join([*wrong, *lines]), encoding="utf-8")
    assert cli.main(["score", str(file)]) == 2
    assert (
        "run/predictions.jsonl, line 4: the id 'interpolation-0' appears twice; remove one of the "
        "rows, or score the last row of each id with --keep last."
    ).replace("interpolation-0", json.loads(lines[0])["id"]) in capsys.readouterr().err
    assert cli.main(["score", str(file), "--keep", "last"]) == 0
    assert (
        "run/predictions.jsonl: 3 earlier rows are not scored, because a later row has the same id."
    ) in capsys.readouterr().err
    results = section("run")
    assert results["rows"] == len(lines)
    for name, figures in recorded.items():
        # They were recorded on another machine, whose logarithms differ in the last bit.
        value = pytest.approx(figures["value"], rel=1e-12)
        assert results["metrics"][name]["value"] == value, name


def test_keep_is_for_rows_with_ids(folder, capsys):
    assert cli.main(["score", "a.zip", "--truth", "b.zip", "--keep", "last"]) == 2
    assert capsys.readouterr().err == (
        "mm-numeric: --keep is for a .jsonl file of answers, or for --rows, and --truth is for "
        "detections; remove one of them.\n"
    )
