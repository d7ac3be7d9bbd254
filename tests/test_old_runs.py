"""Check that runs, checkpoints and comparisons of commit b5a6f42 can still be used.

``fixtures/b5a6f42/make.py`` documents how the files were made. The tests only use the command line,
so that they do not depend on the names of modules.
"""

import contextlib
import functools
import io
import json
import math
import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from old_files import FILES, copy_and_enter
from safetensors.torch import load_file

from mm_numeric.cli import main

COMPARED = [
    f"comparison/seed{seed}/{name}"
    for seed in (0, 1)
    for name in ("warm_start", "ce", "ce_times_1.3", "ntil")
]


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Copy the files and change to the copy, because their paths are relative to their folder."""
    folder = copy_and_enter(tmp_path / "old", monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in make.py
    yield folder
    torch.set_num_threads(threads)


def command(*words):
    """Run a command of mm-numeric, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([str(word) for word in words]) == 0
    return printed.getvalue()


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_jsonl(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@functools.cache
def recorded_environment_is_here():
    """Return whether the CPU and the versions are those that the values were computed with."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0] if names else None}, {torch.backends.cpu.get_cpu_capability()}"
    recorded = read_json(FILES / "environment.json")
    return recorded.pop("cpu") == cpu and all(version(k) == v for k, v in recorded.items())


def check(found, recorded, where):
    """Assert that a value equals the recorded one; mappings may have additional keys."""
    if isinstance(recorded, dict):
        if recorded.keys() >= {"value", "low"} and recorded["value"] in (0, 1):
            recorded = {"value": recorded["value"]}  # the interval was a point; now it is exact
        for key, value in recorded.items():
            assert key in found, f"{where}.{key} is missing"
            check(found[key], value, f"{where}.{key}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), where
        for index, value in enumerate(recorded):
            check(found[index], value, f"{where}.{index}")
    elif isinstance(recorded, float) and not recorded_environment_is_here():
        # numpy's logarithms and sums differ in the last digits between CPUs.
        assert math.isclose(found, recorded, rel_tol=1e-9, abs_tol=1e-12), where
    else:
        assert found == recorded, where


def check_scores(found, recorded):
    """Assert that two folders have the same metrics, parse failures, buckets and scored rows."""
    results, wanted = (read_json(folder / "results.json") for folder in (found, recorded))
    for key in ("task", "rows", "metrics", "failures", "buckets"):
        check(results[key], wanted[key], key)
    check(*(read_jsonl(folder / "scores.jsonl") for folder in (found, recorded)), "scores.jsonl")


def table_values(text):
    """Return the numbers with decimals in tables of a Markdown or HTML text, with their counts.

    Words, rows and columns are left out, so that labels and the layout may change.
    """
    rows = re.findall(r"^\|.*", text, re.MULTILINE) or re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    plain = (re.sub(r"<[^>]*>", " ", row) for row in rows)
    return Counter(n for row in plain for n in re.findall(r"[+\N{MINUS SIGN}-]?\d+\.\d+", row))


def test_a_checkpoint_resumes_to_the_same_weights(old):
    command("train", "checkpoint.yaml", "--resume")
    found = load_file("checkpoint/model/model.safetensors")
    recorded = load_file("resumed/model.safetensors")
    assert found.keys() == recorded.keys()
    # Other CPUs and versions of torch sum in another order, so float32 results round differently.
    exact = recorded_environment_is_here()
    rtol, atol = (0, 0) if exact else (1e-5, 1e-6)
    for name in recorded:
        torch.testing.assert_close(found[name], recorded[name], rtol=rtol, atol=atol)
    facts = read_json("checkpoint/run.json")
    for key in ("steps", "rows", "rows_sha256", "resumed", "best", "stopped_early"):
        check(facts[key], read_json("resumed/run.json")[key], key)


def test_a_run_predicts_the_same_texts_and_scores_the_same(old):
    command("predict", "--model", "run", "--out", "again/predictions.jsonl")
    found, recorded = (read_jsonl(f"{name}/predictions.jsonl") for name in ("again", "run"))
    for key in ("id", "text", "parsed", "reason", "target"):
        assert [row[key] for row in found] == [row[key] for row in recorded], key
    command("score", "again/predictions.jsonl")
    check_scores(old / "again", old / "run")


def test_an_unfinished_predictions_file_is_continued(old):
    path = old / "run" / "predictions.jsonl"
    recorded = path.read_text(encoding="utf-8")
    path.write_text("".join(recorded.splitlines(keepends=True)[:10]), encoding="utf-8")
    command("predict", "--model", "run")
    for found, line in zip(read_jsonl(path), recorded.splitlines(), strict=True):
        check(found, json.loads(line), found["id"])


@pytest.mark.parametrize("name", COMPARED)
def test_predictions_of_a_comparison_score_the_same(old, name):
    command("score", f"{name}/predictions.jsonl", "--out", "again")
    check_scores(old / "again", old / name)


def values_of_seeds(summary):
    """Return the mean and the value of each seed; intervals are no longer from a bootstrap."""

    def values(cell):
        return cell and {
            "mean": cell["mean"],
            "seeds": cell["seeds"],
            "difference": values(cell.get("difference")),
        }

    tables = {**summary["table"], "warm_start": summary["warm_start"]}
    return {
        name: {metric: values(own) for metric, own in found.items()}
        for name, found in tables.items()
    }


def test_a_comparison_has_the_same_summary(old):
    """The command must not train again: the fixture has no weights of the runs."""
    recorded = read_json("comparison/summary.json")
    Path("comparison/summary.json").unlink()
    command("compare", "comparison.yaml")
    found = read_json("comparison/summary.json")
    for key in ("task", "baseline", "control", "objectives", "seeds", "runs"):
        assert found[key] == recorded[key], key
    check(values_of_seeds(found), values_of_seeds(recorded), "table")
    for key in ("name", "unit", "higher_is_better"):
        assert [m[key] for m in found["metrics"]] == [m[key] for m in recorded["metrics"]], key
    assert found["facts"]["varied"].startswith("each seed draws its own randomness of training")
    assert not list(Path("comparison").glob("seed*/*/model"))


def test_a_comparison_has_the_same_report(old):
    names = ("report.md", "report.html")
    recorded = {}
    for name in names:
        path = old / "comparison" / name
        recorded[name] = table_values(path.read_text(encoding="utf-8"))
        assert recorded[name].total() > 500
        path.unlink()
    printed = command("report", "comparison").splitlines()
    for name in names:
        found = table_values((old / "comparison" / name).read_text(encoding="utf-8"))
        assert not recorded[name] - found, name
    for name, cells in read_json("comparison/summary.json")["table"].items():
        (row,) = (line for line in printed if line.startswith(f"{name} "))
        assert f" {cells['mae_interpolation']['mean']:.3f} " in row
