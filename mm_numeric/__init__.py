"""mm-numeric: fine-tune models whose answers are numbers, and score what they say.

Names are loaded on first use, so that ``import mm_numeric`` takes milliseconds and loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mm_numeric.answers import ClockTime
    from mm_numeric.config import Config, read_config
    from mm_numeric.doors import NumericLossMixin, end_step, loss_func, step_counts
    from mm_numeric.losses.counts import Counts
    from mm_numeric.losses.objective import Objective, ObjectiveResult, objective
    from mm_numeric.losses.presets import ObjectiveSpec, TermSpec
    from mm_numeric.spans import NumberSpans
    from mm_numeric.trainer import NumericTrainer
    from mm_numeric.vocabulary import NumberVocabulary

_HOMES = {
    "ClockTime": "mm_numeric.answers",
    "Config": "mm_numeric.config",
    "Counts": "mm_numeric.losses.counts",
    "NumberSpans": "mm_numeric.spans",
    "NumberVocabulary": "mm_numeric.vocabulary",
    "NumericLossMixin": "mm_numeric.doors",
    "NumericTrainer": "mm_numeric.trainer",
    "Objective": "mm_numeric.losses.objective",
    "ObjectiveResult": "mm_numeric.losses.objective",
    "ObjectiveSpec": "mm_numeric.losses.presets",
    "TermSpec": "mm_numeric.losses.presets",
    "end_step": "mm_numeric.doors",
    "loss_func": "mm_numeric.doors",
    "objective": "mm_numeric.losses.objective",
    "read_config": "mm_numeric.config",
    "step_counts": "mm_numeric.doors",
}

__all__ = [
    "ClockTime",
    "Config",
    "Counts",
    "NumberSpans",
    "NumberVocabulary",
    "NumericLossMixin",
    "NumericTrainer",
    "Objective",
    "ObjectiveResult",
    "ObjectiveSpec",
    "TermSpec",
    "end_step",
    "loss_func",
    "objective",
    "read_config",
    "step_counts",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mm_numeric' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
