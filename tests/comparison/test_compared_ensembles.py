"""compare.ensemble: the answers of the ensemble of each objective are those that predict gives."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from finished_runs import COMPARISON, SUMS
from result_files import section, values
from synthetic_rows import rows_for

from mm_numeric.cli import main as cli


@pytest.mark.slow
def test_the_runs_of_all_seeds_are_one_more_row(finished_runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished_runs / "micro", tmp_path / "micro")
    monkeypatch.chdir(tmp_path)
    compared = {
        "output_dir": "both",
        "seeds": [0, 1],
        "objectives": ["ce"],
        "control": None,
        "warm_start": {"max_steps": 2},
        "decode": ["greedy", "median", "mean"],
        "ensemble": True,
    }
    predicted = {"batch_size": 24, "max_new_tokens": 3, "branches": 4}
    config = {**COMPARISON, "compare": compared, "predict": predicted}
    config["data"] = {**config["data"], "test": rows_for("arithmetic", 12, 2, **SUMS)}
    Path("both.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for _ in range(2):  # the second time, nothing is trained or answered again
        assert cli.main(["compare", "both.yaml"]) == 0
    said = capsys.readouterr().out
    assert said.count(", of ensembles") == 2
    runs = ["both/seed0/ce", "both/seed1/ce"]
    for rule in ("median", "mean"):
        out = Path(f"{rule}.jsonl")
        assert cli.main(["predict", "--model", *runs, "--decode", rule, "--out", str(out)]) == 0
        stored = Path(f"both/ensembles/ce/0_1/predictions.{rule}.jsonl")
        assert stored.read_bytes() == out.read_bytes()
    found = json.loads(Path("both/summary.json").read_text(encoding="utf-8"))["ensembles"]["ce"]
    for rule, metrics in found.items():
        assert cli.main(["score", f"{rule}.jsonl", "--out", rule]) == 0
        own = values(section(Path(rule)))
        for name in ("mae", "accuracy"):
            assert metrics[name]["value"] == own[name]["value"]
    assert "of ensembles" in Path("both/report.md").read_text(encoding="utf-8")
