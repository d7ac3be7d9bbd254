"""A damaged or changed file of a run, checkpoint or comparison is one sentence with its name.

What is damaged here is what a power failure, an incomplete copy or an editor leaves.
"""

import json
from pathlib import Path

import pytest
from finished_runs import copy_and_enter

from mm_numeric.cli import main as cli

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 123456\n"
PREDICT = ["predict", "--model", "run", "--out", "new.jsonl"]
EXPORT = ["export", "run", "--out", "new"]
RESUME = ["train", "checkpoint.yaml", "--resume"]
REPORT = ["report", "comparison"]
OBJECT = "expected a JSON object"
DAMAGED = "damaged or of another version"
DEEP = "deep"
"""Stands for 100,000 brackets."""
SAVED, COMPARED = "checkpoint/checkpoint-4", "comparison/seed0/ce"


@pytest.fixture
def folder(finished_runs, tmp_path, monkeypatch):
    return copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)


def sentence(capsys, words):
    """Run a command that must end with one sentence and exit code 2."""
    capsys.readouterr()
    assert cli.main(words) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert all("has no manifest.json" in x for x in warnings if x.startswith("mm-numeric"))
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "content", "message"),
    [
        (PREDICT, "run/config.yaml", DEEP, "nested too deep"),
        (PREDICT, "run/model/config.json", "null", OBJECT),
        (PREDICT, "run/model/generation_config.json", '{"a', "not valid or not complete JSON"),
        (PREDICT, "run/model/model.safetensors", None, "no file named model.safetensors"),
        (PREDICT, "run/model/model.safetensors", b"\x10", "not a whole file of weights"),
        (PREDICT, "run/model/tokenizer.json", LFS_POINTER, "a git-lfs pointer, not the file; `git"),
        (PREDICT, "run/model/model.safetensors", LFS_POINTER, "a git-lfs pointer, not the file"),
        (PREDICT, "run/model/tokenizer.json", None, "such as run/model/tokenizer.json"),
        (PREDICT, "run/model/tokenizer.json", '{"a', "not valid or not complete JSON"),
        (
            PREDICT,
            "run/model/tokenizer.json",
            '{"added_tokens": []}',
            "tokenizer.json is damaged (M",
        ),
        (PREDICT, "run/model/tokenizer_config.json", "[]", OBJECT),
        (PREDICT, "run/model/tokenizer_config.json", b"\x80", "not UTF-8"),
        (PREDICT, "run/model/frame.json", DEEP, ""),
        (EXPORT, "run/run.json", "{}", f"{DAMAGED} (KeyError: 'precision')"),
        (EXPORT, "run/run.json", "[]", DAMAGED),
        (EXPORT, "run/results.json", "{}", "it has no version of the format"),
        (EXPORT, "run/results.json", '{"version": 1, "protocols": {"task": {}}}', DAMAGED),
        (RESUME, f"{SAVED}/optimizer.pt", None, "optimizer.pt is missing"),
        (RESUME, f"{SAVED}/optimizer.pt", b"\x80", "optimizer.pt is not as saved"),
        (RESUME, f"{SAVED}/scheduler.pt", None, "scheduler.pt is missing"),
        (RESUME, f"{SAVED}/manifest.json", '{"files": 1}', "no entry `files`"),
        (RESUME, f"{SAVED}/step.json", None, "step.json is missing"),
        (RESUME, f"{SAVED}/step.json", "[]", DAMAGED),
        (RESUME, "checkpoint/best/run.json", "{}", DAMAGED),
        (RESUME, "checkpoint/log.jsonl", b"\x80", "not UTF-8"),
        (REPORT, "comparison/summary.json", DEEP, "nested too deep"),
        (REPORT, "comparison/summary.json", b"\x80", "not UTF-8"),
        (
            [*REPORT, "--summary"],
            "comparison/summary.json",
            '{"version":1, "table":{}, "warm_start":{}, "other_warm_starts":{}, "hypotheses":[]}',
            f"{DAMAGED} (KeyError: 'rows'); run `mm-numeric compare` again",
        ),
        (REPORT, f"{COMPARED}/log.jsonl", "null", "expected an object"),
        (REPORT, f"{COMPARED}/log.jsonl", DEEP, "not JSON"),
        (REPORT, f"{COMPARED}/scores.jsonl", b"\x80", "not UTF-8"),
    ],
)
def test_a_damaged_file_is_named(folder, capsys, words, name, content, message):
    file = Path(name)
    if content is None:
        file.unlink()
    else:
        text = "[" * 100_000 if content == DEEP else content
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = sentence(capsys, words)
    named = "config.yaml" if name.endswith(".yaml") else name
    assert named in error or (str(file.parent) in error and file.name in error)
    assert message in error


def changed(value, path, new):
    """Return a copy of a JSON value with another value at a path of keys."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("table", "ce", "accuracy", "value"), "1"),
        (("table", "ce", "accuracy"), []),
        (("table", "ce"), []),
        (("metrics", 0, "label"), 1),
        (("metrics", 0), 1),
        (("runs",), 1),
        (("runs", 0), {}),
        (("seeds",), [{}]),
        (("baseline",), "gone"),
        (("control",), 1),
        (("objectives",), [1]),
        (("warm_start",), [1]),
        (("facts",), 1),
    ],
)
def test_a_changed_summary_is_one_sentence_or_a_report(folder, capsys, path, new):
    file = Path("comparison/summary.json")
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, new)))
    if cli.main(REPORT) == 2:
        assert "comparison/summary.json" in capsys.readouterr().err


@pytest.mark.parametrize("report", ["run", "comparison"])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("1" * 5000, "is not a number"),
        ("1e99999", "is not a number"),
        ({"a": 1}, "KeyError('answer')"),
        ([[]], "is not a number"),
    ],
    ids=["digits", "exponent", "object", "list"],
)
def test_a_row_that_a_report_cannot_show_is_named(folder, capsys, report, target, message):
    file = Path("run/scores.jsonl" if report == "run" else f"{COMPARED}/scores.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows[6]["target"] = target
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    error = sentence(capsys, ["report", report])
    assert error.startswith(f"mm-numeric: {file}, line 7: the row cannot be shown (")
    assert message in error
    assert len(error) < 400


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task=subprocess:run", "is not a dataclass"),
        ("model.baseline=os:system", "is not a subclass of mm_numeric.baselines.baseline:Baseline"),
        ("model.family=os:system", "is not a subclass of mm_numeric.families.family:Family"),
        ("objective=os:system", "is not an ObjectiveSpec"),
    ],
)
def test_a_name_of_another_kind_is_one_sentence(folder, capsys, setting, message):
    assert message in sentence(capsys, ["train", "run.yaml", setting, "trainer.output_dir=new"])
