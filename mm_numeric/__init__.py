"""mm-numeric: fine-tune models whose answers are numbers, and score their answers.

Public names are imported on first use, so that ``import mm_numeric`` takes milliseconds and does
not load torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from mm_numeric.answers import Box as Box
    from mm_numeric.answers import ClockTime as ClockTime
    from mm_numeric.answers import Instance as Instance
    from mm_numeric.answers import Instances as Instances
    from mm_numeric.answers import Number as Number
    from mm_numeric.answers import Polygon as Polygon
    from mm_numeric.answers import TimeSpans as TimeSpans
    from mm_numeric.answers import Unreadable as Unreadable
    from mm_numeric.api import ComparedRuns as ComparedRuns
    from mm_numeric.api import Predictions as Predictions
    from mm_numeric.api import ReportedRun as ReportedRun
    from mm_numeric.api import TrainedRun as TrainedRun
    from mm_numeric.api import calibrate as calibrate
    from mm_numeric.api import compare as compare
    from mm_numeric.api import predict as predict
    from mm_numeric.api import prepare as prepare
    from mm_numeric.api import report as report
    from mm_numeric.api import run as run
    from mm_numeric.api import train as train
    from mm_numeric.config.reader import read_config as read_config
    from mm_numeric.config.schema import Config as Config
    from mm_numeric.data.collator import TrainingCollator as TrainingCollator
    from mm_numeric.evaluation.score import score as score
    from mm_numeric.evaluation.scores import Scores as Scores
    from mm_numeric.inference.distributions import number_distribution as number_distribution
    from mm_numeric.inference.number_distribution import NumberDistribution as NumberDistribution
    from mm_numeric.losses.normalization import Counts as Counts
    from mm_numeric.losses.numeric_loss import NumericLoss as NumericLoss
    from mm_numeric.losses.numeric_loss import ObjectiveResult as ObjectiveResult
    from mm_numeric.losses.spec import ObjectiveSpec as ObjectiveSpec
    from mm_numeric.losses.spec import TermSpec as TermSpec
    from mm_numeric.numbers.spans import NumberSpans as NumberSpans
    from mm_numeric.numbers.vocabulary import NumberVocabulary as NumberVocabulary
    from mm_numeric.training.integrations import collate_with_spans as collate_with_spans
    from mm_numeric.training.integrations import end_step as end_step
    from mm_numeric.training.integrations import loss_func as loss_func
    from mm_numeric.training.integrations import step_counts as step_counts
    from mm_numeric.training.mixin import NumericLossMixin as NumericLossMixin
    from mm_numeric.training.trainer import NumericTrainer as NumericTrainer

_NAMES = {
    "answers": "Box ClockTime Instance Instances Number Polygon TimeSpans Unreadable",
    "api": "ComparedRuns Predictions ReportedRun TrainedRun calibrate compare predict prepare "
    "report run train",
    "config.reader": "read_config",
    "config.schema": "Config",
    "data.collator": "TrainingCollator",
    "evaluation.score": "score",
    "evaluation.scores": "Scores",
    "inference.distributions": "number_distribution",
    "inference.number_distribution": "NumberDistribution",
    "losses.normalization": "Counts",
    "losses.numeric_loss": "NumericLoss ObjectiveResult",
    "losses.spec": "ObjectiveSpec TermSpec",
    "numbers.spans": "NumberSpans",
    "numbers.vocabulary": "NumberVocabulary",
    "training.integrations": "collate_with_spans end_step loss_func step_counts",
    "training.mixin": "NumericLossMixin",
    "training.trainer": "NumericTrainer",
}
"""The public names of each module, relative to ``mm_numeric``."""

_MODULES = {
    name: f"mm_numeric.{module}" for module, names in _NAMES.items() for name in names.split()
}
"""Each public name and the module that defines it."""

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    """Return the public names, including names that are not imported yet."""
    return sorted([*globals(), *_MODULES])


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'mm_numeric' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from mm_numeric.registry import missing_package

        raise ImportError(f"mm_numeric.{name}: {missing_package(error)}") from error


if "MM_NUMERIC_PLUGINS" in os.environ:  # the parent process sends objects of plugin modules
    importlib.import_module("mm_numeric.registry")
