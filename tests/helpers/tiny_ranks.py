"""What each rank of a job runs: it trains one config after the other, in one process."""

import os
from pathlib import Path

from mm_numeric.config.reader import read_config
from mm_numeric.distributed.ranks import leave_process_group
from mm_numeric.losses.linear_cross_entropy import CHUNKED_FROM
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training import mixin
from mm_numeric.training.run import train


def main(files: list[str]) -> None:
    """Train every config, from its last checkpoint if there is one.

    Several ranks do without logits where the objective is not ce; one rank always has them.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    for file in files:
        config = read_config(Path(file))
        chunked = several and config.objective.name != "ce"
        mixin.NumericLossMixin.chunked_from = 0 if chunked else CHUNKED_FROM
        train(config, resume=last_checkpoint(config.output_dir) is not None)
    leave_process_group()
