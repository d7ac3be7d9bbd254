"""A run that is killed at random moments ends with the weights of an uninterrupted run."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from processes import context
from run_files import same
from tiny_models import small_config

from mm_numeric.config.schema import Config
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training import trainer
from mm_numeric.training.run import train

KILLS = 4
STEPS = ("trainer.max_steps=14", "trainer.save_steps=1", "objective.preset=ntil",
         "trainer.lr_scheduler_type=constant_with_warmup")  # fmt: skip


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint, complete or not; 0 without one."""
    steps = [int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*")]
    return max(steps, default=0)


def wait(seconds: float, saves: int, run: Path) -> None:
    """Wait for a time, or until a number of further checkpoints are started."""
    last, deadline = newest(run) + saves, time.monotonic() + seconds
    while newest(run) < last and time.monotonic() < deadline:
        time.sleep(0.002)


def train_and_die(config: Config, resume: bool, saves: int | None) -> None:
    """Train; with ``saves``, be killed when this checkpoint lacks nothing but its manifest."""
    write, done = trainer.write_manifest, []

    def write_or_die(checkpoint: Path) -> None:
        done.append(checkpoint)
        if len(done) == saves:
            os.kill(os.getpid(), signal.SIGKILL)
        write(checkpoint)

    trainer.write_manifest = write_or_die
    train(config, resume=resume)


@pytest.mark.slow
def test_kills_at_random_moments_leave_the_weights_as_they_are(tmp_path):
    """Half of the kills hit a checkpoint that lacks its manifest, the others come at any moment.

    A process is forked from one that has imported all, so that the test does not wait for that.
    """
    processes = context()
    killed = small_config(tmp_path / "killed", *STEPS)
    whole = small_config(tmp_path / "whole", *STEPS, "trainer.save_strategy='no'")
    run, rng = tmp_path / "killed" / "run", random.Random(6)

    def life(config: Config, saves: int | None = None) -> multiprocessing.Process:
        resume = last_checkpoint(config.output_dir) is not None
        process = processes.Process(target=train_and_die, args=(config, resume, saves))
        process.start()
        return process

    half = 0  # how many checkpoints were cut off
    for i in range(KILLS):
        process = life(killed, rng.randint(1, 2) if i % 2 else None)
        if i % 2 == 0:
            wait(rng.uniform(0, 4), 2, run)
            process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it had not ended by itself
        kept = last_checkpoint(run)
        at = int(kept.name.rpartition("-")[2]) if kept else 0
        assert at <= newest(run)
        half += at < newest(run)
    assert half >= KILLS // 2
    for config in (killed, whole):
        process = life(config)
        process.join()
        assert process.exitcode == 0
    assert same(tmp_path / "whole" / "run", run)
    logs = [(tmp_path / name / "run" / "log.jsonl").open() for name in ("whole", "killed")]
    assert len({tuple(json.loads(line)["step"] for line in log) for log in logs}) == 1
