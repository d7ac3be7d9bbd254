"""A checkpoint whose files are missing or changed is not resumed from in silence."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from finished_runs import copy_and_enter
from run_files import cut_off
from safetensors.torch import load_file

from mm_numeric.cli import main as cli
from mm_numeric.runs import manifest
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.runs.manifest import check_files, write_manifest
from mm_numeric.training import trainer

STATE = ["optimizer.pt", "scheduler.pt", "rng_state.pth"]
OTHERS = ["step.json", "trainer_state.json", "model.safetensors"]
TRAIN = ["train", "checkpoint.yaml", "trainer.save_steps=4", "trainer.output_dir=new",
         "evaluate=null"]  # fmt: skip


@pytest.fixture(scope="module")
def runs(finished_runs, tmp_path_factory):
    """Return a folder with a finished run, and in ``cut`` what a kill after step 4 leaves."""
    with pytest.MonkeyPatch.context() as patch:
        folder = copy_and_enter(finished_runs, tmp_path_factory.mktemp("runs") / "files", patch)
        assert cli.main([*TRAIN, "trainer.save_total_limit=null"]) == 0
        shutil.copytree("new", "whole")
        cut_off(Path("new"), 4)
        return folder


@pytest.fixture
def checkpoint(runs, tmp_path, monkeypatch):
    """Enter a copy of the folder, and return the checkpoint of step 4."""
    shutil.copytree(runs, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return Path("new", "checkpoint-4")


def resume() -> int:
    return cli.main([*TRAIN, "trainer.save_total_limit=null", "--resume"])


def sentence(capsys) -> str:
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("mm-numeric: new")]
    return line


def change_one_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.slow
def test_a_checkpoint_lists_all_its_files_and_resumes_to_the_same_weights(checkpoint):
    listed = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert set(listed) == {path.name for path in checkpoint.iterdir()} - {"manifest.json"}
    assert {*STATE, *OTHERS} <= set(listed)
    assert all(len(own["sha256"]) == 64 for own in listed.values())
    assert resume() == 0
    found, wanted = (load_file(f"{run}/model/model.safetensors") for run in ("new", "whole"))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STATE, *OTHERS])
def test_a_missing_file_is_named(checkpoint, capsys, name):
    """transformers resumes without optimizer.pt, to weights that differ by up to 1.0e-2."""
    (checkpoint / name).unlink()
    assert resume() == 2
    assert sentence(capsys) == (
        f"mm-numeric: new/checkpoint-4: {name} is missing, so that the run would resume with "
        "another state; restore the files, or delete this checkpoint and resume from the previous "
        "one with --resume."
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STATE, "model.safetensors", "trainer_state.json"])
def test_a_file_with_one_changed_byte_is_named(checkpoint, capsys, name):
    change_one_byte(checkpoint / name)
    assert resume() == 2
    assert f"new/checkpoint-4: {name} is not as saved, so that" in sentence(capsys)


def test_all_faults_are_named_at_once(checkpoint, capsys):
    for name in STATE[:2]:
        (checkpoint / name).unlink()
    with (checkpoint / "rng_state.pth").open("ab") as file:
        file.write(b"x")
    assert resume() == 2
    assert (
        "checkpoint-4: optimizer.pt, scheduler.pt are missing, and rng_state.pth is not as saved, "
    ) in sentence(capsys)


def test_a_checkpoint_is_complete_when_its_manifest_is_written(checkpoint, capsys):
    (checkpoint / "manifest.json").unlink()
    assert last_checkpoint(Path("new")) is None
    assert resume() == 2
    assert sentence(capsys) == (
        "mm-numeric: new: no checkpoint to resume from (checkpoint-4: saved incompletely); train "
        "without --resume."
    )


@pytest.mark.slow
def test_older_checkpoints_are_deleted_after_the_manifest_is_written(checkpoint, monkeypatch):
    """A kill at any moment leaves a complete checkpoint."""
    found = []

    def write(folder):
        before = last_checkpoint(Path("new"))
        write_manifest(folder)
        found.append((before and before.name, last_checkpoint(Path("new")).name))

    monkeypatch.setattr(trainer, "write_manifest", write)
    shutil.rmtree("new")
    assert (
        cli.main([*TRAIN[:2], *TRAIN[3:], "trainer.save_steps=3", "trainer.save_total_limit=1"])
        == 0
    )
    assert found == [
        (None, "checkpoint-3"), ("checkpoint-3", "checkpoint-6"), ("checkpoint-6", "checkpoint-8"),
    ]  # fmt: skip
    assert [path.name for path in Path("new").glob("checkpoint-*")] == ["checkpoint-8"]


def test_large_files_are_checked_by_size(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "_HASHED_BYTES", 10)
    (tmp_path / "optimizer.pt").write_bytes(11 * b"a")
    write_manifest(tmp_path)
    (tmp_path / "later.txt").touch()  # further files do no harm
    check_files(tmp_path)
    change_one_byte(tmp_path / "optimizer.pt")
    check_files(tmp_path)
    (tmp_path / "optimizer.pt").write_bytes(10 * b"a")
    with pytest.raises(ValueError, match=r": optimizer\.pt is not as saved, "):
        check_files(tmp_path)


def test_the_optimiser_must_be_saved_by_the_same_way_of_training(tmp_path):
    """transformers would silently start with a new optimiser."""
    (tmp_path / "optimizer_0").mkdir()  # as FSDP writes
    write_manifest(tmp_path)
    check_files(tmp_path)
    with pytest.raises(ValueError, match=r": global_step\* is missing, "):
        check_files(tmp_path, deepspeed=True)
    (tmp_path / "optimizer_0").rename(tmp_path / "global_step2")
    check_files(tmp_path, deepspeed=True)
    with pytest.raises(ValueError, match=r": optimizer\* is missing, "):
        check_files(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", '{"files": {"a": 1}}'])
def test_an_invalid_manifest_is_one_sentence(tmp_path, content):
    for name in STATE:
        (tmp_path / name).touch()
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json: no entry `files` with a mapping for "):
        check_files(tmp_path)
