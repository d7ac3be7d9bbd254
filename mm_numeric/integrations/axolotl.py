"""Train on an objective with axolotl (tested with 0.19.0).

Add the plugin and one key to the config:

    plugins:
      - mm_numeric.integrations.axolotl.NumericLossPlugin
    numeric_loss: ntil
"""

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, model_validator

from mm_numeric.integrations.trainers import (
    KEY,
    check_other_losses,
    read_objective,
    trainer_with_objective,
)
from mm_numeric.training.mixin import NumericLossMixin

OTHER_LOSSES = (
    "chunked_cross_entropy",
    "cut_cross_entropy",
    "diffusion",
    "flash_attn_cross_entropy",
    "kd_trainer",
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
    "orpo_alpha",
    "process_reward_model",
    "reward_model",
    "rl",
    "trainer_cls",
    "use_eaft",
)
"""Settings of axolotl that choose a loss, or a trainer with its own loss."""


class NumericLossArgs(BaseModel):
    """The key that the plugin adds to the config of axolotl."""

    numeric_loss: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_numeric_loss(self) -> "NumericLossArgs":
        """Raise ValueError if the objective is unknown, or the config requests another loss."""
        read_objective(self.numeric_loss, "the config with NumericLossPlugin")
        check_other_losses({name: getattr(self, name, None) for name in OTHER_LOSSES}, OTHER_LOSSES)
        for name in ("context_parallel_size", "sequence_parallel_degree"):
            if (size := getattr(self, name, None)) and size > 1:
                raise ValueError(
                    f"{name}: {size} splits sequences and the numbers in them over ranks, which "
                    f"{KEY} does not support; set it to 1."
                )
        return self


class NumericLossPlugin(BasePlugin):
    """Plugin of axolotl that trains on the objective of the key ``numeric_loss``."""

    def get_input_args(self) -> str:
        """Return the import path of ``NumericLossArgs``, which adds the key to axolotl's config."""
        return "mm_numeric.integrations.axolotl.NumericLossArgs"

    def get_trainer_cls(self, cfg: Any) -> type:
        """Return axolotl's trainer, with the objective as its loss."""
        from axolotl.core.trainers import AxolotlTrainer  # axolotl patches transformers before it

        if cfg.model_config_type == "mamba":
            raise ValueError(f"axolotl trains mamba models with a loss of their own: remove {KEY}.")
        return trainer_with_objective(AxolotlTrainer, read_objective(cfg.numeric_loss, "config"))

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Return the setting of transformers' Trainer that an objective requires."""
        return {"average_tokens_across_devices": True}  # axolotl sets False

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Raise ValueError if another plugin has replaced the trainer."""
        if not isinstance(trainer, NumericLossMixin):
            raise ValueError(
                f"a plugin before NumericLossPlugin has chosen {type(trainer).__name__}, which "
                f"does not train on {KEY}; remove one of the two plugins."
            )
