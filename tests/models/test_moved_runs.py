"""A run that was renamed or moved resumes, and finds the base model of its adapters."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from finished_runs import copy_and_enter
from safetensors.torch import load_file, save_file

from mm_numeric.cli import main as cli
from mm_numeric.models.adapters import BASE, find_base, write_base

ADAPTED = [
    "modules={language: adapted, embeddings: frozen, head: frozen}",
    "lora={rank: 2}",
    "trainer.max_steps=1",
]


@pytest.fixture
def files(finished_runs, tmp_path, monkeypatch):
    return copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)


@pytest.mark.slow
def test_a_renamed_run_resumes(files):
    Path("checkpoint").rename("renamed")
    train = ["train", "checkpoint.yaml"]
    assert cli.main([*train, "trainer.output_dir=renamed", "--resume"]) == 0
    last = Path("renamed/log.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["step"] == 8
    assert cli.main([*train, "trainer.output_dir=whole"]) == 0
    resumed, whole = (load_file(f"{name}/model/model.safetensors") for name in ("renamed", "whole"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_a_renamed_comparison_is_known(files, capsys):
    Path("comparison").rename("renamed")
    words = ["compare", "comparison.yaml", "compare.output_dir=renamed"]
    assert cli.main([*words, "--seeds", "0"]) == 0
    assert cli.main([*words, "trainer.max_steps=9"]) == 2
    assert "another run: trainer.max_steps is 8 there and 9 here" in capsys.readouterr().err


@pytest.fixture
def adapted(files, monkeypatch):
    """Train adapters on a base model in a folder with a relative path; return the run."""
    Path("org").mkdir()
    shutil.copytree("micro", "org/name")  # might be a name on the hub
    assert cli.main(["train", "run.yaml", *ADAPTED, "model.name=org/name",
                     "trainer.output_dir=runs/adapted"]) == 0  # fmt: skip
    elsewhere = files.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    shutil.copy(files / "test.jsonl", "test.jsonl")
    return files / "runs/adapted"


def answers(run) -> str:
    out = Path("predictions.jsonl")
    out.unlink(missing_ok=True)
    Path(f"{out}.made_by.json").unlink(missing_ok=True)
    assert cli.main(["predict", "--model", str(run), "--out", str(out), "--limit", "4"]) == 0
    return out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_adapters_find_their_base_in_order(adapted, capsys):
    files = adapted.parents[1]
    recorded = answers(adapted)  # from another working directory
    run = Path(shutil.copytree(adapted, "moved/run"))
    assert find_base(run / "model", "org/name") == (str(files / "org/name"), "main")  # where it was
    assert answers(run) == recorded
    base = Path(shutil.copytree(files / "org/name", "moved/name"))
    assert Path(find_base(run / "model", "org/name")[0]) == base.resolve()  # next to the run
    weights = load_file(base / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name] + 1}, base / "model.safetensors")
    assert find_base(run / "model", "org/name") == (str(files / "org/name"), "main")
    shutil.rmtree(files / "org")
    assert cli.main(["predict", "--model", str(run), "--out", "new.jsonl"]) == 2
    message = capsys.readouterr().err
    assert re.search(
        r"the adapters in \S+ belong to the folder 'org/name', but \S+/moved/name has other "
        r"weights; it was looked for at \S+, \S+, \S+/files/org/name\.\n",
        message,
    )
    shutil.rmtree(base)
    assert cli.main(["predict", "--model", str(run), "--out", "new.jsonl"]) == 2
    assert "'org/name', but that folder is missing" in capsys.readouterr().err


def test_a_base_of_the_hub_keeps_its_commit(tmp_path, monkeypatch):
    """The commit is that of the cached files, as huggingface_hub stores them."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    write_base(tmp_path, "org/name", "v1")
    assert find_base(tmp_path, "org/name") == ("org/name", "v1")
    cached = tmp_path / "models--org--name"
    for file, text in {
        "refs/v1": "0a1b",
        "refs/main": "2c3d",
        "snapshots/0a1b/config.json": "{}",
    }.items():
        (cached / file).parent.mkdir(parents=True, exist_ok=True)
        (cached / file).write_text(text)
    write_base(tmp_path, "org/name", "v1")
    assert find_base(tmp_path, "org/name") == ("org/name", "0a1b")
    assert find_base(tmp_path, "edited") is None
    (tmp_path / BASE).write_text("[]")
    with pytest.raises(ValueError, match=r"base\.json: expected a mapping with the `name`"):
        find_base(tmp_path, "org/name")
