"""Set up DeepSpeed ZeRO, and resume its checkpoints with another number of ranks.

ZeRO-3 shards each parameter over the ranks; ``parameter.numel()`` is then 0. A model that is
created or loaded while ZeRO-3 settings are active is sharded immediately.
"""

import contextlib
import os
import shutil
import socket
import sys
import warnings
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
from mm_numeric.config.trainer_settings import find_deepspeed
from mm_numeric.distributed.ranks import num_ranks
from mm_numeric.io.files import read_json
from mm_numeric.runs.resume import read_step
from mm_numeric.runs.tensor_files import tensors_only

GATHER_KEY = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
"""DeepSpeed setting with which ZeRO-3 saves weights that ``from_pretrained`` can load."""

_SINGLE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def require_deepspeed(where: str) -> None:
    """Check that DeepSpeed is installed; set variables such as ``RANK`` if no launcher set them."""
    if find_spec("deepspeed") is None:
        raise ValueError(
            f"{where}: DeepSpeed is not installed; run `pip install 'mm-numeric[deepspeed]'`, or "
            "remove the setting."
        )
    if "RANK" not in os.environ:  # without this variable, DeepSpeed would try MPI
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ.update(_SINGLE_PROCESS, MASTER_PORT=str(free.getsockname()[1]))


def join_ranks(args: TrainingArguments) -> None:
    """Initialise DeepSpeed's process group, which ZeRO-3 needs before it loads a model."""
    if args.deepspeed_plugin is not None:
        from deepspeed import comm

        # DeepSpeed 0.19 uses deprecated names of torch, hundreds of times per step.
        warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
        comm.init_distributed(auto_mpi_discovery=False, timeout=timedelta(seconds=args.ddp_timeout))


def without_zero3_init(args: TrainingArguments) -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which models are loaded unsharded, even if ZeRO-3 is active."""
    has_deepspeed = args.deepspeed_plugin is not None
    return without_deepspeed_settings(args) if has_deepspeed else contextlib.nullcontext()


def validate_deepspeed(args: TrainingArguments, where: str) -> None:
    """Raise ValueError if ZeRO-3 would save no weights, because ``GATHER_KEY`` is not set."""
    plugin = args.deepspeed_plugin
    if plugin is None or plugin.zero_stage < 3:
        return
    if plugin.hf_ds_config.get_value(GATHER_KEY) is not True:
        raise ValueError(
            f"{where}: no weights would be saved; set {GATHER_KEY} to true (accelerate launch: "
            "--zero3_save_16bit_model true)."
        )


def validate_sharding(trainer: Trainer, where: str) -> None:
    """Raise ValueError if DeepSpeed or FSDP is configured, but accelerate does not use it."""
    if trainer.args.deepspeed_plugin is not None and not trainer.is_deepspeed_enabled:
        raise ValueError(
            f"{where}.deepspeed: `accelerate launch --cpu` disables DeepSpeed; start with "
            "`torchrun --nproc-per-node N -m mm_numeric train ...`."
        )
    if trainer.args.fsdp and not trainer.is_fsdp_enabled:
        raise ValueError(
            f"{where}.fsdp: FSDP requires several GPUs with one process each; start with torchrun, "
            "remove the setting, or use trainer.deepspeed."
        )


def with_universal_checkpoint(config: Config, checkpoint: Path) -> Config:
    """Return a config that can resume a DeepSpeed checkpoint saved by another number of ranks.

    DeepSpeed's setting ``checkpoint.load_universal`` is set to true. If the checkpoint is not from
    DeepSpeed, or was saved by the same number of ranks, the config is returned unchanged.
    """
    saved = read_step(checkpoint)["ranks"]
    if saved == num_ranks() or not any(checkpoint.glob("global_step*")):
        return config
    settings = config.trainer.get("deepspeed")
    # With ZeRO-3, DeepSpeed 0.19 loads a universal checkpoint with one step count and one weight
    # decay for all parameters: the run would resume with another optimiser state.
    if settings is None or any(checkpoint.glob("global_step*/zero_pp_rank_*_model_states.pt")):
        raise ValueError(
            f"{checkpoint}: saved by {saved} ranks with "
            f"{'ZeRO-3' if settings else 'settings of accelerate launch'}, which requires the same "
            f"number of ranks; resume with {saved} ranks. Only ZeRO-1, ZeRO-2 and plain data "
            "parallelism can resume with any number."
        )
    if isinstance(settings, str):
        settings = read_json(find_deepspeed(settings, f"{config.title}, trainer.deepspeed"))
    reading = {**settings.get("checkpoint", {}), "load_universal": True}
    return with_trainer(config, deepspeed={**settings, "checkpoint": reading})


def make_universal(
    args: TrainingArguments, checkpoint: Path, *, trust_remote_code: bool = False
) -> None:
    """Convert a ZeRO checkpoint to DeepSpeed's universal format, for any number of ranks.

    Does nothing if the checkpoint was converted before, or if DeepSpeed's setting
    ``checkpoint.load_universal`` is not true. Unless ``trust_remote_code`` is True, only tensors
    and plain values are loaded.
    """
    settings = deepspeed_settings(args)
    if settings is None or not settings.get_value("checkpoint.load_universal"):
        return
    if (checkpoint / "latest_universal").is_file():  # written last
        return
    latest = (checkpoint / "latest").read_text(encoding="utf-8").strip()
    source = checkpoint / latest
    if source.parent != checkpoint or not latest.startswith("global_step"):
        raise ValueError(
            f"{checkpoint / 'latest'}: expected the name of a folder next to it, such as "
            f"global_step{checkpoint.name.rpartition('-')[2]}, found {latest!r:.60}."
        )
    target = source.with_name(f"{source.name}_universal")
    shutil.rmtree(target, ignore_errors=True)  # an incomplete conversion
    loading = tensors_only(checkpoint, trust_remote_code=trust_remote_code)
    with contextlib.redirect_stdout(sys.stderr), loading:
        write_universal_checkpoint(source, target)


def num_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters of a model, including ZeRO-3 shards on other ranks."""
    return sum(numel(p) for p in model.parameters())
