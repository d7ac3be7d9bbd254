"""Combine the trainer of a framework with an objective."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import Seq2SeqTrainer, Trainer

from mm_numeric.losses.presets import read_spec
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.training.mixin import NumericLossMixin

KEY = "numeric_loss"
"""The key in a framework's config that names the objective."""


def read_objective(value: Any, where: str) -> ObjectiveSpec:
    """Read the objective of a framework's config: a preset's name, or a mapping."""
    if value is None:
        raise ValueError(
            f"{where} has no {KEY}: add a line such as `{KEY}: ntil`, or train without mm-numeric."
        )
    return read_spec(value, KEY)


def check_other_losses(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError if one of the settings in ``names`` is set: each requests another loss."""
    for name in names:
        if settings.get(name):
            raise ValueError(
                f"{name}: {settings[name]!r:.60} requests another loss than {KEY}; remove one of "
                "them."
            )


def trainer_with_objective(trainer: type, objective: ObjectiveSpec) -> type:
    """Return a subclass of a framework's trainer that trains on an objective.

    ``NumericLossMixin`` comes between the framework's class and the Trainer of transformers. The
    framework's own ``compute_loss``, which may count tokens, still runs; it calls the
    ``compute_loss`` of its parent class, which computes the objective.
    """
    parent: Any = Seq2SeqTrainer if issubclass(trainer, Seq2SeqTrainer) else Trainer
    framework: Any = trainer

    class Parent(NumericLossMixin, parent):  # type: ignore[misc]
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            # axolotl logs exp(loss), which is a perplexity only if the loss is pure CE.
            for name in ("ppl", "eval_ppl"):
                logs.pop(name, None)
            super().log(logs, start_time)

    class NumericTrainer(framework, Parent):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, objective=objective, **kwargs)
            # Frameworks may set False, but the objective already divides by counts of the step.
            self.model_accepts_loss_kwargs = True

    NumericTrainer.__name__ = f"Numeric{trainer.__name__}"
    return NumericTrainer
