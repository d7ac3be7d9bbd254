"""Runs on several ranks."""

import os
from pathlib import Path

from processes import Job

from mm_numeric.config.reader import read_config
from mm_numeric.distributed.ranks import leave_process_group
from mm_numeric.losses.linear_cross_entropy import CHUNKED_FROM
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training import mixin
from mm_numeric.training.run import train


def run(ranks: int, files: list[str]) -> None:
    """Train configs in turn, in processes that are started once."""
    job = Job(_train_all, files, Path(files[0]).with_suffix(".txt"), ranks=ranks)
    assert job.wait(600) == ranks * [0], job.text()


def _train_all(files: list[str]) -> None:
    """Train every config on one of the ranks, from its last checkpoint if there is one.

    Several ranks do without logits where the objective is not ce; one rank always has them.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    for file in files:
        config = read_config(Path(file))
        chunked = several and config.objective.name != "ce"
        mixin.NumericLossMixin.chunked_from = 0 if chunked else CHUNKED_FROM
        train(config, resume=last_checkpoint(config.output_dir) is not None)
    leave_process_group()
