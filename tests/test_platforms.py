"""The library works where the modules and functions of Unix are missing, as on Windows."""

import json

import like_windows
import pytest
from chat_server import chat_server
from faulty_server import Server
from import_graph import graph
from processes import Job
from synthetic_rows import data_for
from tiny_models import small_config

from mm_numeric.families.qwen2_5_vl import Qwen2_5VL

# transformers, which other rooms load, imports these modules itself where it is not on Windows.
ROOMS = ("losses", "numbers", "tasks", "evaluation.metrics", "config", "importers", "geometry")


@pytest.mark.slow
def test_losses_scorers_and_predict_by_endpoint_work_without_unix(tmp_path):
    modules = [
        name for name in sorted(graph()) if name.startswith(tuple(f"mm_numeric.{r}" for r in ROOMS))
    ]
    modules += [
        "mm_numeric.cli.main",
        "mm_numeric.runs.folder",
        "mm_numeric.training.callbacks.throughput",
    ]
    assert len(modules) > 60
    folder = tmp_path / "größe 1"  # a space, and letters that UTF-8 and cp1252 write differently
    Qwen2_5VL.make_tiny(folder / "model", seed=0)
    model = f"model={{family: qwen2_5_vl, name: '{folder / 'model'}', dtype: float32}}"
    data = data_for("arithmetic", 2, 4)
    words = ["task=arithmetic", "objective=ce", "predict.max_new_tokens=16", *data, model]
    made = small_config(folder, *words)
    config = folder / "config.yaml"
    config.write_text(made.to_yaml(), encoding="utf-8")
    row = {"text": "7:05 🕖", "target": "7:05", "task": "clock"}
    rows = [{"id": name, "buckets": {"category": name}, **row} for name in ("→", "钟")]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "others.jsonl").write_text(lines, encoding="utf-8")
    with chat_server(Server(), of=lambda body: body) as (url, requests):
        words = [str(folder), url, *modules]
        job = Job(like_windows.use, words, tmp_path / "output.txt")
        assert job.wait() == [0], job.text()
    assert len(requests) >= 4
    assert "Traceback" not in job.text()
    text = job.output.read_text(encoding="cp1252")
    assert "größe 1" in text
    assert r"\u2192 within 5 min" in text
    assert "unfinished" not in str([*folder.rglob("*")])
    for name in ("predictions.jsonl/results.json", "others.jsonl/others.jsonl.results.json"):
        assert (folder / "scores" / name).is_file()
