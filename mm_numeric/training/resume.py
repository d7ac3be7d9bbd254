"""How many rows an optimiser step has: the same on any number of ranks that a run goes on with.

A checkpoint says it in ``step.json``. Were it not kept, a resumed run would skip the wrong rows,
and its learning rate would be one for other batches.
"""

import json
import os
from pathlib import Path

from mm_numeric.config.reader import with_trainer
from mm_numeric.config.schema import Config
from mm_numeric.files import write_text
from mm_numeric.log import logger

STEP = "step.json"

_SIZE, _PARTS = "per_device_train_batch_size", "gradient_accumulation_steps"


def write_step(checkpoint: Path, *, ranks: int, rows: int) -> None:
    """Write how many ranks a step has, and how many rows all of them together."""
    write_text(checkpoint / STEP, json.dumps({"ranks": ranks, "rows": rows}) + "\n")


def saved_ranks(checkpoint: Path) -> int:
    """Return how many ranks saved a checkpoint; one without ``step.json`` is of as many as here."""
    step = _read(checkpoint)
    return step["ranks"] if step else ranks_here()


def ranks_here() -> int:
    """Return how many ranks the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def with_same_rows(config: Config, checkpoint: Path) -> Config:
    """Return a config under which steps have as many rows as they had, on the ranks that are here.

    Fewer ranks accumulate more micro-batches, more ranks fewer, and at one micro-batch smaller
    ones. What is changed is said on stderr. A checkpoint without ``step.json`` is not looked at.

    Raises:
        ValueError: If the rows cannot be shared equally.
    """
    step = _read(checkpoint)
    if step is None:
        return config
    rows, ranks = step["rows"], ranks_here()
    size, parts = config.trainer.get(_SIZE, 8), config.trainer.get(_PARTS, 1)
    if ranks * size * parts == rows:
        return config
    if rows % (ranks * size) == 0:
        changes = {_PARTS: rows // (ranks * size)}
    elif rows % (ranks * parts) == 0:
        changes = {_SIZE: rows // (ranks * parts)}
    elif rows % ranks == 0:
        changes = {_SIZE: rows // ranks, _PARTS: 1}
    else:
        raise ValueError(
            f"{checkpoint}: a step has {rows} rows, on {step['ranks']} ranks, which {ranks} cannot "
            f"share equally; resume with a number of ranks that divides {rows}."
        )
    logger.info(
        "%d ranks, previously %d; set %s, so that a step keeps its %d rows.",
        ranks,
        step["ranks"],
        " and ".join(f"trainer.{name}={value}" for name, value in changes.items()),
        rows,
    )
    return with_trainer(config, **changes)


def _read(checkpoint: Path) -> dict[str, int] | None:
    file = checkpoint / STEP
    if not file.is_file():
        return None
    step: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return step
