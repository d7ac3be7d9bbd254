"""Keep the batch size constant when a run resumes on another number of ranks.

Each checkpoint stores the batch size (samples per optimiser step, over all ranks) in ``step.json``.
With another batch size, the resumed run would skip the wrong samples, and the learning rate would
be unsuitable.
"""

from pathlib import Path
from typing import Any

from mm_numeric.config.reader import with_trainer
from mm_numeric.config.schema import Config
from mm_numeric.io.files import read_json, stored_content, write_json
from mm_numeric.io.log import logger
from mm_numeric.runs.folder import STEP
from mm_numeric.runs.manifest import damaged_checkpoint

_BATCH_SIZE, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


def write_step(checkpoint: Path, *, ranks: int, rows: int, **others: Any) -> None:
    """Write the number of ranks, the batch size and values of the trainer to step.json."""
    write_json(checkpoint / STEP, {"ranks": ranks, "rows": rows, **others})


def read_step(checkpoint: Path) -> dict[str, Any]:
    """Return the content of step.json; raise ValueError if it is missing or damaged."""
    file = checkpoint / STEP
    if not file.is_file():
        raise damaged_checkpoint(checkpoint, f"{STEP} is missing")
    with stored_content(file):
        step = read_json(file)
        return {**step, "ranks": int(step["ranks"]), "rows": int(step["rows"])}


def with_same_rows(config: Config, checkpoint: Path, ranks: int) -> Config:
    """Return a config with the batch size of a checkpoint, for another number of ranks.

    With fewer ranks, ``gradient_accumulation_steps`` is increased. With more ranks, it is reduced
    or, if that is not possible, ``per_device_train_batch_size`` is changed. Raises ValueError if
    the samples of a step cannot be divided equally among the ranks.
    """
    step = read_step(checkpoint)
    rows = step["rows"]
    size, accumulation = config.trainer.get(_BATCH_SIZE, 8), config.trainer.get(_ACCUMULATION, 1)
    if ranks * size * accumulation == rows:
        return config
    if rows % (ranks * size) == 0:
        changes = {_ACCUMULATION: rows // (ranks * size)}
    elif rows % (ranks * accumulation) == 0:
        changes = {_BATCH_SIZE: rows // (ranks * accumulation)}
    elif rows % ranks == 0:
        changes = {_BATCH_SIZE: rows // ranks, _ACCUMULATION: 1}
    else:
        raise ValueError(
            f"{checkpoint}: a step has {rows} rows on {step['ranks']} ranks, and {ranks} ranks "
            f"cannot share them equally; resume with a number of ranks that divides {rows}."
        )
    logger.info(
        "the run was started with %d processes and resumes with %d: it continues with %s, so that "
        "a step keeps its %d rows.",
        step["ranks"],
        ranks,
        " and ".join(f"trainer.{name}={value}" for name, value in changes.items()),
        rows,
    )
    return with_trainer(config, **changes)
