"""Sections works and resume: commands on the device.

A tiny Qwen2-VL (the config ``clock_tiny``) is trained with bf16, resumed from a checkpoint, and
used by ``predict``, ``score`` and ``export``: with all weights, with LoRA, and with DeepSpeed
ZeRO-2 on one rank.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from _gpu_jobs import Job, NotAvailableError, Record
from safetensors.torch import load_file
from torch import Tensor

from mm_numeric.cli import main as cli
from mm_numeric.io.log import logger
from mm_numeric.runs.folder import FINISHED, LOG, MODEL, PREDICTIONS, RESULTS, last_checkpoint

RUNS: Mapping[str, tuple[str, ...]] = {
    "all weights": (),
    "LoRA": ("modules.language=adapted",),
    "DeepSpeed ZeRO-2": ("trainer.deepspeed=zero2",),
}
"""Overrides of ``clock_tiny`` for each run."""

REAL_SIZE = {"data.train.synthetic.rows": 512, "data.test.synthetic.rows": 64,
             "trainer.max_steps": 20,
             "trainer.save_steps": 10, "trainer.per_device_train_batch_size": 32}  # fmt: skip
TOY_SIZE = {"data.train.synthetic.rows": 16, "data.test.synthetic.rows": 4, "trainer.max_steps": 4,
            "trainer.save_steps": 2, "trainer.per_device_train_batch_size": 4}  # fmt: skip
COMMON = {"trainer.bf16": "true", "trainer.logging_steps": 1, "trainer.save_total_limit": 2,
          "trainer.warmup_steps": 2}  # fmt: skip

MOST_OF_CHANGE = 0.1
"""Largest distance of resumed weights from those of the uninterrupted run, divided by how far the
uninterrupted run has moved after the checkpoint. On a CPU it is 0. On a GPU sums of bf16 values in
another order make it larger; a lost optimiser state gives about 1."""


def jobs(device: str, toy: bool) -> list[Job]:
    """Return the job of each run, with all steps."""
    return [_run_job(title, tuple(STEPS), device, toy) for title in RUNS]


def resume_jobs(device: str, toy: bool) -> list[Job]:
    """Return the job that trains with LoRA and resumes."""
    return [_run_job("LoRA", tuple(STEPS)[:2], device, toy)]


def _run_job(title: str, steps: tuple[str, ...], device: str, toy: bool) -> Job:
    return Job(
        title=title,
        names=steps,
        function=run_step,
        options={"overrides": RUNS[title], "size": TOY_SIZE if toy else REAL_SIZE,
                 "device": device, "needs_deepspeed": "DeepSpeed" in title},
        seconds=180,
        in_order=True,
    )  # fmt: skip


def run_step(
    name: str,
    *,
    overrides: tuple[str, ...],
    size: Mapping[str, object],
    device: str,
    needs_deepspeed: bool,
    folder: str,
) -> Record:
    """Run one step in ``folder``, which has the results of the steps before it."""
    if needs_deepspeed:
        if find_spec("deepspeed") is None:
            raise NotAvailableError("deepspeed is not installed")
        if device == "cpu":
            _use_gloo()
    settings = {
        **COMMON,
        **size,
        "trainer.output_dir": f"{folder}/run",
        "data.cache": f"{folder}/cache",
    }
    config = ["clock_tiny", *overrides, *(f"{key}={value}" for key, value in settings.items())]
    return STEPS[name](Path(folder), config, device)


def _use_gloo() -> None:
    """Let DeepSpeed use gloo, instead of compiling its own reduction for half a minute."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}


def command(*words: str) -> None:
    """Run a command of mm-numeric in this process; raise RuntimeError with its error message."""
    print(f"mm-numeric {' '.join(words)}", flush=True)
    errors = Errors()
    logger.addHandler(errors)
    try:
        code = cli.main([*words, "--quiet"])
    finally:
        logger.removeHandler(errors)
    if code:
        said = " ".join(errors.messages) or f"exit code {code}"
        raise RuntimeError(f"mm-numeric {words[0]}: {said}")


class Errors(logging.Handler):
    """Collects the error messages of a command."""

    def __init__(self) -> None:
        """Start without messages."""
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Add a message."""
        self.messages.append(record.getMessage())


# -- steps ----------------------------------------------------------------------------------------


def _train(folder: Path, config: list[str], device: str) -> Record:
    """Train, and return the last logged loss, speed and peak memory."""
    command("train", *config)
    return _last_logged(folder)


def _resume(folder: Path, config: list[str], device: str) -> Record:
    """Delete all that the run saved after its first checkpoint, resume, and compare the weights."""
    run = folder / "run"
    if not (run / FINISHED).is_file():
        raise RuntimeError("the run to resume has not finished")
    whole = weights(run / MODEL)
    last = last_checkpoint(run)
    assert last is not None
    shutil.rmtree(last)
    shutil.rmtree(run / MODEL)
    (run / FINISHED).unlink()
    first = last_checkpoint(run)
    assert first is not None
    saved = weights(first)
    command("train", *config, "--resume")
    resumed = weights(run / MODEL)
    moved = distance(saved, whole)
    apart = distance(resumed, whole)
    if not moved or apart / moved > (0 if device == "cpu" else MOST_OF_CHANGE):
        raise RuntimeError(
            f"the resumed weights are {apart:.2e} from those of the uninterrupted run, which has "
            f"moved by {moved:.2e} after the checkpoint"
        )
    return {**_last_logged(folder), "distance_of_change": apart / moved}


def _predict(folder: Path, config: list[str], device: str) -> Record:
    """Generate the answers of the test rows, and return how many."""
    command("predict", "--model", str(folder / "run"))
    lines = (folder / "run" / PREDICTIONS).read_text(encoding="utf-8").splitlines()
    return {"answers": len(lines)}


def _score(folder: Path, config: list[str], device: str) -> Record:
    """Score the predictions, and check that there are results."""
    command("score", str(folder / "run" / PREDICTIONS))
    json.loads((folder / "run" / RESULTS).read_text(encoding="utf-8"))
    return {}


def _export(folder: Path, config: list[str], device: str) -> Record:
    """Export the run, and return the number of tensors of the exported model."""
    command("export", str(folder / "run"), "--out", str(folder / "exported"))
    return {"tensors": len(weights(folder / "exported"))}


STEPS: Mapping[str, Callable[[Path, list[str], str], Record]] = {
    "train with bf16": _train,
    "train --resume": _resume,
    "predict": _predict,
    "score": _score,
    "export": _export,
}


def _last_logged(folder: Path) -> Record:
    """Return loss, speed and memory of the last training step in the log of the run."""
    lines = (folder / "run" / LOG).read_text(encoding="utf-8").splitlines()
    last = [each for each in map(json.loads, lines) if "loss" in each][-1]
    return {
        "loss": last["loss"],
        "speed/seconds": last["speed"]["seconds"],  # what is logged as speed/seconds
        "memory/peak_gib": last["memory"]["peak_gib"],
    }


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights that are saved in a folder."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the Euclidean distance of two models' weights."""
    if one.keys() != other.keys():
        raise RuntimeError("two checkpoints of one run have different tensors")
    squares = ((one[k].double() - other[k].double()).square().sum().item() for k in one)
    return float(sum(squares) ** 0.5)
