"""Train on an objective with LLaMA-Factory (tested with 0.9.5).

Add ``numeric_loss: ntil`` to the config of ``llamafactory-cli train``, and start the training with

    python -m mm_numeric.integrations.llamafactory train config.yaml
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from mm_numeric.integrations.trainers import (
    KEY,
    check_other_losses,
    read_objective,
    trainer_with_objective,
)
from mm_numeric.losses.spec import ObjectiveSpec

MODULE = "mm_numeric.integrations.llamafactory"

OTHER_LOSSES = ("enable_liger_kernel", "use_asft_loss", "use_dft_loss", "use_eaft_loss")
"""Settings of LLaMA-Factory that replace the loss."""

OTHER_TRAINERS = ("use_hyper_parallel", "use_mca", "use_ray")
"""Settings of LLaMA-Factory that use another trainer, or train in processes of Ray."""


def split_settings(settings: Any) -> tuple[dict[str, Any], ObjectiveSpec]:
    """Return the settings of LLaMA-Factory without ``numeric_loss``, and its objective.

    ``settings`` is the result of LLaMA-Factory's ``read_args``; for a config file, it is a dict.
    """
    if not isinstance(settings, dict):
        raise ValueError(f"name a config file with {KEY}: python -m {MODULE} train config.yaml")
    others = {name: value for name, value in settings.items() if name != KEY}
    objective = read_objective(settings.get(KEY), "the config of LLaMA-Factory")
    check_other_losses(others, OTHER_LOSSES)
    for name in OTHER_TRAINERS:
        if others.get(name) or _is_enabled(name.upper()):
            raise ValueError(f"{name} has a trainer of its own, without {KEY}; remove it.")
    if (stage := others.get("stage", "sft")) != "sft":
        raise ValueError(f"{KEY} is a loss of `stage: sft`, but the config has stage: {stage}.")
    return others, objective


def main() -> None:
    """Run ``llamafactory-cli train`` with the objective of the config.

    LLaMA-Factory starts one process per GPU with torchrun; each of them runs this function too.
    """
    is_rank = "LOCAL_RANK" in os.environ
    if sys.argv[1:2] == ["train"]:
        del sys.argv[1]
    elif not is_rank:
        raise ValueError(f"the command is: python -m {MODULE} train config.yaml")
    if _is_enabled("USE_V1"):
        raise ValueError(f"USE_V1 has a trainer of its own, without {KEY}; unset it.")
    from llamafactory import launcher
    from llamafactory.train import tuner
    from llamafactory.train.sft import workflow

    _, objective = split_settings(tuner.read_args())
    workflow.CustomSeq2SeqTrainer = trainer_with_objective(workflow.CustomSeq2SeqTrainer, objective)
    tuner.read_args = partial(_read_without_key, tuner.read_args)
    if is_rank:
        tuner.run_exp()
        return
    # The launcher starts torchrun with the path of its own file.
    launcher.__file__ = f"-m {MODULE}"
    sys.argv.insert(1, "train")
    launcher.launch()


def _read_without_key(read: Callable[..., Any], args: Any = None) -> dict[str, Any]:
    return split_settings(read(args))[0] if args is None else args


def _is_enabled(variable: str) -> bool:
    return os.environ.get(variable, "0").lower() in ("true", "y", "1")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"mm-numeric: {error}")
