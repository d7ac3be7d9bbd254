"""Ctrl-C during training: the first saves a checkpoint, the second stops at once."""

import os
import signal

import pytest
from run_files import write_config
from transformers import TrainerCallback

from mm_numeric.cli import main as cli
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.trainer import NumericTrainer

AGAIN = "Ctrl-C: the run stops after this step and saves a checkpoint; press Ctrl-C again to stop"


def press_ctrl_c(monkeypatch, *, at_step, times):
    """Send SIGINT to this process at the beginning of a training step."""

    class Press(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == at_step:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)

    create = NumericTrainer.__init__

    def with_press(self, *args, callbacks, **kwargs):
        create(self, *args, callbacks=[*callbacks, Press()], **kwargs)

    monkeypatch.setattr(NumericTrainer, "__init__", with_press)


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_a_second_one_stops_at_once(tmp_path, monkeypatch, capsys):
    config = str(write_config(tmp_path, "trainer.save_strategy='no'"))
    run, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    press_ctrl_c(monkeypatch, at_step=1, times=1)
    with pytest.raises(SystemExit) as end:
        cli.main(["train", config, "trainer.run_name=a b"])
    assert end.value.code == 130
    said = capsys.readouterr()
    saved = run / "checkpoint-2"
    assert last_checkpoint(run) == saved
    assert said.err.count(AGAIN) == 1
    assert f"stopped by SIGINT; saved {saved}: resume with the same command (t" in said.err
    command = f"next: mm-numeric train {config} 'trainer.run_name=a b' --resume"
    assert said.out.splitlines()[-1] == command
    assert signal.getsignal(signal.SIGINT) is before

    monkeypatch.undo()
    press_ctrl_c(monkeypatch, at_step=3, times=2)
    assert cli.main(["train", config, "trainer.run_name=a b", "--resume"]) == 130
    said = capsys.readouterr()
    assert said.err.count(AGAIN) == 1
    assert said.err.endswith("mm-numeric: interrupted; finished work is kept.\n")
    assert last_checkpoint(run) == saved
    assert signal.getsignal(signal.SIGINT) is before

    monkeypatch.undo()
    assert cli.main(["train", config, "trainer.run_name=a b", "--resume"]) == 0
