"""Private attributes of transformers, accelerate, DeepSpeed and PEFT that we depend on."""

from typing import Any


def keep_names(model: Any) -> None:
    """Have a model saved under the names that its checkpoint has.

    transformers (5.23) remembers which of its rules for old names were used when a checkpoint was
    loaded, and saves by those; under ZeRO-3 it remembers all, and would save under names of no one.
    """
    rules = getattr(model, "_weight_conversions", None)
    if rules is not None:
        model._weight_conversions = [rule for rule in rules if rule.was_used()]
