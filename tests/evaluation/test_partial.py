"""Answers to a part of the rows are never scored, reported or compared as if they were all."""

import json
import shlex
from pathlib import Path

import pytest
from finished_runs import copy_and_enter
from result_files import section, write_lines

from mm_numeric.cli import main as cli
from mm_numeric.evaluation import score

PREDICT = ["predict", "--model", "run", "--out", "run/predictions.jsonl"]
SCORE = ["score", "run/predictions.jsonl"]

PARTIAL = "mm-numeric: 7 of 24 rows: the results are for these rows only.\n"


@pytest.fixture
def folder(finished_runs, tmp_path, monkeypatch):
    return copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)


def run(capsys, *words):
    """Run a command; return its exit code, what it printed, and its messages."""
    capsys.readouterr()
    code = cli.main(list(words))
    return code, *capsys.readouterr()


def cut(path, rows):
    """Keep the first rows of a predictions file, as a process that was killed leaves them."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(path).write_text("".join(lines[:rows]), encoding="utf-8")


@pytest.mark.slow
def test_a_part_of_the_rows_is_scored_and_reported_only_if_asked(folder, capsys, monkeypatch):
    for path in folder.glob("run/*s.json*"):
        path.unlink()
    code, out, _ = run(capsys, *PREDICT, "--limit", "7")
    assert (code, out.splitlines()[-1]) == (0, f"next: mm-numeric {shlex.join(SCORE)} --partial")
    _, twin = report(capsys)
    assert "- 7 of 24 rows are answered: " in twin
    message = (
        "mm-numeric: 7 of 24 rows: run/predictions.jsonl has no answer to the others; let "
        "`mm-numeric predict` answer them, or add --partial.\n"
    )
    assert run(capsys, *SCORE) == (2, "", message)
    monkeypatch.setattr(score, "PART_ROWS", 5)
    assert run(capsys, *SCORE) == (2, "", message)
    assert not Path("run/results.json").exists()
    code, out, error = run(capsys, *SCORE, "--partial")
    assert (code, error) == (0, PARTIAL)
    assert out.startswith("7 of 24 rows, task arithmetic; ")
    own = section("run")
    assert (own["rows"], own["rows_due"]) == (7, 24)
    assert run(capsys, "report", "run") == (
        2,
        "",
        "mm-numeric: 7 of 24 rows: run/results.json: let `mm-numeric predict` answer the others, "
        "and score again, or add --partial.\n",
    )
    error, twin = report(capsys, "--partial")
    assert error == PARTIAL
    assert "**7 of 24 rows. " in twin
    assert cli.main(PREDICT) == 0  # resumes
    assert run(capsys, *SCORE)[1].startswith("24 rows, task")
    assert report(capsys)[0] == ""


def report(capsys, *options):
    """Return the messages of a report, and its Markdown."""
    code, _, error = run(capsys, "report", "run", *options)
    assert code == 0
    return error, Path("run/report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_part_of_the_rows_is_compared_only_if_asked(folder, capsys):
    predictions = sorted(Path("comparison").glob("seed*/*/predictions.jsonl"))
    for path in predictions:
        cut(path, 9)
    code, _, error = run(capsys, "compare", "comparison.yaml")
    first = "comparison/seed0/ce"
    assert (code, error.splitlines()[-1]) == (
        2,
        f"mm-numeric: 9 of 24 rows: {first}/predictions.jsonl has no answer to the others; delete "
        f"{first}/results.json and run `mm-numeric compare` again to get them, or add --partial.",
    )
    code, _, error = run(capsys, "compare", "comparison.yaml", "--partial")
    assert code == 0
    assert set(error.splitlines()[1:]) == {PARTIAL.replace("7 of", "9 of").rstrip()}
    summary = json.loads(Path("comparison/summary.json").read_text(encoding="utf-8"))
    assert summary["facts"]["test rows"].startswith("9 of 24 (")
    code, _, error = run(capsys, "report", "comparison")
    assert code == 2
    assert error.startswith("mm-numeric: 9 of 24 rows: comparison/summary.json: ")
    assert cli.main(["report", "comparison", "--partial"]) == 0


@pytest.mark.parametrize("due", [0, "7", 1.5, True])
def test_an_invalid_number_of_rows_is_one_sentence(folder, capsys, due):
    row = json.loads(Path("run/predictions.jsonl").read_text(encoding="utf-8").splitlines()[0])
    Path("p.jsonl").write_text(json.dumps(row | {"rows_due": due}))
    assert run(capsys, "score", "p.jsonl")[2].startswith(
        f'mm-numeric: p.jsonl, line 1: "rows_due" is {due!r}; write the number of rows of the data'
    )


def test_rows_of_other_tools_know_their_number(tmp_path, capsys):
    rows, answers = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    data = [{"id": f"q{i}", "question": f"{i} =", "answer": str(i)} for i in range(4)]
    write_lines(rows, data)
    answers.write_text('{"id": "q2", "text": "2"}\n')
    words = ["score", str(answers), "--rows", str(rows), "--task", "arithmetic"]
    code, out, error = run(capsys, *words)
    assert (code, out) == (2, "")
    assert error == (
        f"mm-numeric: 1 of 4 rows: {rows}, line 1: no answer to 'q0' in {answers}, and so for 3 of "
        "4 questions; answer them, or remove their rows, or add --partial.\n"
    )
    code, out, error = run(capsys, *words, "--partial")
    assert (code, out.splitlines()[0][:30]) == (0, "1 of 4 rows, task arithmetic; ")
    assert section(tmp_path)["rows_due"] == 4
