"""Loading a checkpoint executes no code: each attack is a pickle that would write a file."""

import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as sharded
from finished_runs import copy_and_enter
from run_files import cut_off, same, write_config
from train_runs import run_to_error, start

from mm_numeric.cli import main as cli
from mm_numeric.distributed.deepspeed import make_universal
from mm_numeric.runs.manifest import write_manifest
from mm_numeric.runs.tensor_files import require_tensor_files, tensors_only


class Touch:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def save_with_torch(content, file: Path) -> None:
    torch.save({"state": content, "step": torch.ones(2)}, file)


def save_old_format(content, file: Path) -> None:
    torch.save({"state": content}, file, _use_new_zipfile_serialization=False)


def save_pickle(content, file: Path) -> None:
    file.write_bytes(pickle.dumps(content, protocol=2))


FILES = [
    "optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin", "optimizer_0/.metadata",
    "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt",
]  # fmt: skip


@pytest.mark.parametrize("save", [save_with_torch, save_old_format, save_pickle])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_would_execute_a_command_is_named(tmp_path, name, save):
    executed, file = tmp_path / "executed", tmp_path / "checkpoint-4" / name
    file.parent.mkdir(parents=True)
    if name.endswith(".metadata"):
        save = save_pickle
    save(Touch(executed), file)
    message = rf"{file}: it names (posix|nt)\.system, which is neither a tensor nor a plain value, "
    with pytest.raises(ValueError, match=message):
        require_tensor_files(tmp_path / "checkpoint-4")
    assert not executed.exists()
    if save is save_pickle:  # the attack works on who loads it
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert executed.exists()


def test_the_flag_permits_files_of_deepspeed_and_fsdp_alone(tmp_path):
    (tmp_path / "optimizer_0").mkdir()
    save_pickle(Touch(tmp_path / "executed"), tmp_path / "optimizer_0" / ".metadata")
    require_tensor_files(tmp_path, trust_remote_code=True)
    file = tmp_path / "a.pt"
    torch.save({"state": Touch(tmp_path / "executed")}, file)
    with pytest.raises(ValueError, match=r"a\.pt: it names "):
        require_tensor_files(tmp_path, trust_remote_code=True)
    assert not (tmp_path / "executed").exists()
    with tensors_only(tmp_path, trust_remote_code=True):
        torch.load(file, weights_only=False)
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02", b"PK\x03\x04"])
def test_a_file_that_is_no_tensor_is_one_sentence(tmp_path, content):
    (tmp_path / "optimizer.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"optimizer\.pt: it cannot be read as tensors \(") as info:
        require_tensor_files(tmp_path)
    assert "\n" not in str(info.value)


def test_sharded_checkpoints_of_torch_are_accepted(tmp_path):
    """FSDP writes such folders. Names that only resemble theirs are rejected."""
    state = {"a": torch.ones(2, 3), "b": torch.zeros(2, dtype=torch.bfloat16), "step": 3}
    sharded.save({"optimizer": state}, checkpoint_id=tmp_path / "optimizer_0")
    require_tensor_files(tmp_path)

    class Nested:
        def __reduce__(self):
            return eval, ("1",)

    (tmp_path / "optimizer_0" / ".metadata").write_bytes(pickle.dumps({"a": [Nested()]}))
    with pytest.raises(ValueError, match=r"it names builtins\.eval, "):
        require_tensor_files(tmp_path)


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_sharded_checkpoints_of_each_python_are_accepted(tmp_path, module):
    """Python 3.13 pickles the path in the metadata under another module than 3.12 and 3.14."""
    (tmp_path / ".metadata").write_bytes(f"c{module}\nPosixPath\n(S'/a'\ntR.".encode())
    require_tensor_files(tmp_path)


@pytest.mark.parametrize("before", [{}, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}])
def test_every_load_inside_the_context_accepts_only_tensors(tmp_path, monkeypatch, before):
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    variables = dict(os.environ)
    file, executed = tmp_path / "a.pt", tmp_path / "executed"
    torch.save({"state": Touch(executed)}, file)
    with pytest.raises(ValueError, match=r": it names \w+\.system, "), tensors_only(tmp_path):
        torch.load(file, weights_only=False)
    assert not executed.exists()
    assert dict(os.environ) == variables


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_resuming_a_foreign_checkpoint_is_one_sentence(
    finished_runs, tmp_path, monkeypatch, capsys, name
):
    folder = copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)
    checkpoint = folder / "checkpoint" / "checkpoint-4"
    torch.save({"state": Touch(folder / "executed")}, checkpoint / name)
    write_manifest(checkpoint)
    assert cli.main(["train", "checkpoint.yaml", "--resume"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mm-numeric: checkpoint/checkpoint-4/{name}: it names ")
    assert not (folder / "executed").exists()


@pytest.mark.slow
def test_a_deepspeed_checkpoint_is_loaded_without_its_code(tmp_path):
    """The command is also not executed if no scan of the files comes before the loading."""
    zero2 = "trainer.deepspeed=zero2", "trainer.max_steps=4", "trainer.save_total_limit=null"
    file, run = write_config(tmp_path, *zero2), tmp_path / "run"
    job = start(file)
    assert job.wait() == [0], job.text()
    shutil.copytree(run, tmp_path / "whole")
    checkpoint = cut_off(run, 2)
    shutil.copytree(checkpoint, tmp_path / "kept")
    executed = tmp_path / "executed"
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (state,) = checkpoint.glob(f"global_step*/{name}")
        original = state.read_bytes()
        content = torch.load(state, weights_only=False)
        torch.save({**content, "more": Touch(executed)}, state)
        write_manifest(checkpoint)  # as whoever made the checkpoint could
        with pytest.raises(ValueError, match=rf"{name}: it names posix\.system, which is neither"):
            require_tensor_files(checkpoint)
        sentence = run_to_error(start(file, "--resume", scan=False))
        assert f"{checkpoint}: it names posix.system, which is neither a tensor nor" in sentence
        assert not executed.exists()
        infected = state.read_bytes()
        state.write_bytes(original)
    state.write_bytes(infected)
    write_manifest(checkpoint)
    assert start(file, "--resume", "--trust-remote-code").wait() == [0]
    assert executed.exists()
    cut_off(run, 2)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "kept", checkpoint)
    job = start(file, "--resume")
    assert job.wait() == [0], job.text()
    assert same(tmp_path / "whole", run)


def test_the_folder_that_latest_names_lies_in_the_checkpoint(tmp_path):
    """The conversion for another number of ranks deletes and writes next to this folder."""
    settings = SimpleNamespace(get_value=lambda name: True)
    args = SimpleNamespace(hf_deepspeed_config=settings)
    checkpoint, other = tmp_path / "checkpoint-4", tmp_path / "mine_universal"
    for folder in (checkpoint, other):
        folder.mkdir()
    (checkpoint / "latest").write_text("../mine")
    with pytest.raises(
        ValueError, match=r"latest: expected the name of a folder next to it, such "
    ):
        make_universal(args, checkpoint)
    assert other.is_dir()
