"""What DeepSpeed's ZeRO needs beside the support that transformers has for it.

ZeRO-3 holds one piece of every parameter on each rank: a parameter's own size is 0, and models that
are made or loaded while its settings are in force are cut up at once.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from mm_numeric.compat import (
    deepspeed_settings,
    numel,
    without_deepspeed_settings,
    write_universal_checkpoint,
)
from mm_numeric.config.reader import with_trainer
from mm_numeric.config.schema import Config
from mm_numeric.config.training_arguments import find_deepspeed
from mm_numeric.training.resume import ranks_here, saved_ranks

GATHERS = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
"""The setting under which ZeRO-3 can save weights that others can load."""

_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def require_deepspeed(where: str) -> None:
    """Refuse a machine without DeepSpeed.

    Raises:
        ValueError: If it is not installed.
    """
    if find_spec("deepspeed") is None:
        raise ValueError(
            f"{where}: DeepSpeed is not installed; run `pip install 'mm-numeric[deepspeed]'`, or "
            "take the setting out."
        )
    if "RANK" not in os.environ:  # no launcher: DeepSpeed would look for MPI
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(_ALONE, MASTER_PORT=str(free.getsockname()[1]))


def join_ranks(args: TrainingArguments) -> None:
    """Tell DeepSpeed of the process group: ZeRO-3 asks for it when a model is loaded."""
    if args.deepspeed_plugin is not None:
        from deepspeed import comm

        # DeepSpeed (0.19) calls torch by old names, hundreds of times a step.
        warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
        comm.init_distributed(auto_mpi_discovery=False, timeout=timedelta(seconds=args.ddp_timeout))


@contextlib.contextmanager
def whole_models(args: TrainingArguments) -> Iterator[None]:
    """Make and load whole models inside, on one rank alone if need be, also under ZeRO-3."""
    if args.deepspeed_plugin is None:
        yield
        return
    with without_deepspeed_settings(args):
        yield


def refuse_settings(args: TrainingArguments, where: str) -> None:
    """Refuse settings of DeepSpeed, ours or of accelerate's launcher, that save no weights.

    Raises:
        ValueError: If ZeRO-3 is not to gather them.
    """
    plugin = args.deepspeed_plugin
    if plugin is None or plugin.zero_stage < 3:
        return
    if plugin.hf_ds_config.get_value(GATHERS) is not True:
        raise ValueError(
            f"{where}: set {GATHERS} to true (with accelerate's own settings "
            "--zero3_save_16bit_model true), or no weights are saved."
        )


def refuse_unsharded(trainer: Trainer, where: str) -> None:
    """Refuse a start under which accelerate leaves sharding out, which it does in silence.

    Raises:
        ValueError: If DeepSpeed or FSDP is asked for and not there.
    """
    if trainer.args.deepspeed_plugin is not None and not trainer.is_deepspeed_enabled:
        raise ValueError(
            f"{where}.deepspeed: `accelerate launch --cpu` leaves DeepSpeed out; start with "
            "`torchrun --nproc-per-node N -m mm_numeric train ...`."
        )
    if trainer.args.fsdp and not trainer.is_fsdp_enabled:
        raise ValueError(
            f"{where}.fsdp: accelerate shards over several GPUs alone, each with a process of its "
            "own; start it so, leave it out, or take trainer.deepspeed."
        )


def reading_other_ranks(config: Config, checkpoint: Path) -> Config:
    """Return a config under which DeepSpeed reads a checkpoint that other ranks have saved.

    Raises:
        ValueError: If it cannot.
    """
    saved = saved_ranks(checkpoint)
    if saved == ranks_here() or not any(checkpoint.glob("global_step*")):
        return config
    settings = config.trainer.get("deepspeed")
    # A universal checkpoint of ZeRO-3 is read with one step count and one weight decay for all
    # (DeepSpeed 0.19): such a run would go on, elsewhere.
    if settings is None or any(checkpoint.glob("global_step*/zero_pp_rank_*_model_states.pt")):
        raise ValueError(
            f"{checkpoint}: {saved} ranks have saved it under "
            f"{'ZeRO-3' if settings else 'settings of accelerate'}, which as many alone go on "
            f"from; resume with {saved} ranks. ZeRO-1, ZeRO-2 and plain data parallelism go on "
            "with any number."
        )
    if isinstance(settings, str):
        file = find_deepspeed(settings, f"{config.title}, trainer.deepspeed")
        settings = json.loads(file.read_text(encoding="utf-8"))
    reading = {**settings.get("checkpoint", {}), "load_universal": True}
    return with_trainer(config, deepspeed={**settings, "checkpoint": reading})


def make_universal(args: TrainingArguments, checkpoint: Path) -> None:
    """Write a checkpoint of ZeRO beside itself so that any number of ranks can read it, once.

    ``python -m deepspeed.checkpoint.ds_to_universal`` does the same, with more processes.
    """
    settings = deepspeed_settings(args)
    if settings is None or not settings.get_value("checkpoint.load_universal"):
        return
    if (checkpoint / "latest_universal").is_file():  # which is written last
        return
    source = checkpoint / (checkpoint / "latest").read_text(encoding="utf-8").strip()
    target = source.with_name(f"{source.name}_universal")
    shutil.rmtree(target, ignore_errors=True)  # cut off
    with contextlib.redirect_stdout(sys.stderr):
        write_universal_checkpoint(source, target)


def parameters(model: torch.nn.Module) -> int:
    """Count the parameters of a model, whole ones and those of which each rank has a piece."""
    return sum(numel(p) for p in model.parameters())
