"""What DeepSpeed's ZeRO needs beside the support that transformers has for it.

ZeRO-3 holds one piece of every parameter on each rank: a parameter's own size is 0, and models that
are made or loaded while its settings are in force are cut up at once.
"""

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

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


@contextmanager
def whole_models(args: TrainingArguments) -> Iterator[None]:
    """Make and load whole models inside, on one rank alone if need be, also under ZeRO-3."""
    plugin = args.deepspeed_plugin
    if plugin is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        # The Trainer's own where the config asks for ZeRO, accelerate's where its launcher does.
        set_hf_deepspeed_config(getattr(args, "hf_deepspeed_config", None) or plugin.dschf)


def keep_names(model: Any) -> None:
    """Have a model saved under the names that its checkpoint has.

    transformers (5.23) remembers which of its rules for old names were used when a checkpoint was
    loaded, and saves by those; under ZeRO-3 it remembers all, and would save under names of no one.
    """
    rules = getattr(model, "_weight_conversions", None)
    if rules is not None:
        model._weight_conversions = [rule for rule in rules if rule.was_used()]


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


def parameters(model: torch.nn.Module) -> int:
    """Count the parameters of a model, whole ones and those of which each rank has a piece."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
