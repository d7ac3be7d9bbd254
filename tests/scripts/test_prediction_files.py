"""scripts/prediction_files.py: files of all tasks, and what a change of their scores looks like."""

import json
import sys
from itertools import islice

import pytest
from import_graph import ROOT

from mm_numeric.evaluation.answers.files import TOOLS
from mm_numeric.registry import PROTOCOLS, TASKS

sys.path.append(str(ROOT / "scripts"))
import prediction_files as script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    script.write_cases(folder)
    return folder


def test_every_task_tool_and_protocol_has_a_file(written):
    cases = json.loads((written / "cases.json").read_text(encoding="utf-8"))
    assert len({case["score"][0] for case in cases.values()}) >= 150
    words = [case["score"] + case.get("decode", []) for case in cases.values()]
    for name in [*TASKS, *PROTOCOLS]:
        assert any(name in own for own in words), name
    paths = [written / own[0] for own in words if own[0].endswith(".jsonl")]
    texts = [path.read_text("utf-8") for path in paths if path.is_file()]
    first = [json.loads(text.partition("\n")[0]) for text in texts]
    for tool in TOOLS:
        field = tool.text[0].partition(".")[0]
        assert any(field in row for row in first) or tool.tool in ("VLMEvalKit", "VLM-R1"), tool
    assert {own[0].rpartition(".")[2] for own in words} >= {"tsv", "csv", "xlsx", "parquet", "zip"}
    assert any(row.get("decode", {}).get("confidence") for row in first)


def test_the_files_are_the_same_each_time(written, tmp_path):
    made = list(script.task_cases(tmp_path))
    assert made
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name


@pytest.mark.full
def test_right_answers_are_right_and_others_are_not(written, monkeypatch):
    monkeypatch.chdir(written)
    cases = json.loads((written / "cases.json").read_text(encoding="utf-8"))
    for task in list(TASKS)[::4]:  # tests/tasks/test_base.py scores right answers of all
        values = {}
        for kind in ("right", "mixed"):
            case = next(own for own in cases.values() if own["score"][0] == f"{task}.{kind}.jsonl")
            found = script.scored(case)
            values[kind] = next(v for k, v in found.items() if ".metrics." in k and v is not None)
        assert values["right"] == 1, task
        assert values["mixed"] < 0.9, task


def test_a_value_that_differs_is_named(capsys):
    before = {"a.jsonl": {"task.metrics.f1.value": 0.5, "task.counts.rows": 4}, "b": {"x": 1}}
    now = {"a.jsonl": {"task.metrics.f1.value": 0.25, "task.counts.rows": 4}, "b": {"x": 1}}
    assert script.compare(before, before) == 0
    assert script.compare(before, now) == 1
    out = capsys.readouterr().out
    assert "a.jsonl: task.metrics.f1.value: 0.5 before, 0.25 now\n1 values differ\n" in out
    assert script.compare(before, {}) == 1


def test_files_that_are_there_are_scored_and_compared(tmp_path, monkeypatch, capsys):
    """As at a second commit: nothing is written again."""
    monkeypatch.setattr(
        script, "write_cases", lambda _: pytest.fail("the files are there, and were written again")
    )
    cases = {}
    for case in islice(script.task_cases(tmp_path), 3):
        cases[" ".join(case["score"])] = case
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["prediction_files.py", str(tmp_path), *words])
        script.main()

    run()
    capsys.readouterr()
    before = tmp_path / "scores.json"
    with pytest.raises(SystemExit, match=r"^0$"):
        run("--scores", str(tmp_path / "new.json"), "--against", str(before))
    assert "0 values differ" in capsys.readouterr().out
    assert before.read_bytes() == (tmp_path / "new.json").read_bytes()
