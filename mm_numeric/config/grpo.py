"""Config section ``grpo``: train a model by rewards with TRL's GRPO. Does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GrpoConfig:
    """Config section ``grpo``: training by rewards with ``trl.GRPOTrainer``.

    For each prompt of the training rows, the model samples a group of answers. Answers with a
    reward above the mean of their group become more likely (GRPO, arXiv 2402.03300). The sections
    ``trainer``, ``modules`` and ``data`` apply as in other training; ``objective`` does not.
    """

    rewards: Mapping[str, float]
    """Maps the names of rewards, such as ``iou`` or ``format``, to their weights. See
    ``mm_numeric.rewards.rules``; a name may also be the import path of a rule."""

    answer_after: str | None = None
    """Text that precedes the answer, such as ``</think>``; null: the whole text is the answer."""

    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``trl.GRPOConfig``, such as ``num_generations``, ``beta`` or ``use_vllm``. They
    replace those of the section ``trainer``. Other defaults are those of TRL, such as a learning
    rate of 1e-6, except ``max_completion_length``: ``predict.max_new_tokens``."""

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ValueError("rewards must name at least one reward, such as {iou: 1}")
        for name in ("output_dir", "reward_weights"):
            if name in self.trainer:
                where = "trainer" if name == "output_dir" else "grpo.rewards"
                raise ValueError(f"trainer.{name} is set in {where}; remove it from grpo.trainer")
