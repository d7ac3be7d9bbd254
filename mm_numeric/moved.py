"""Deprecated import paths, argument names and argument values.

A deprecated name still works, and causes a ``FutureWarning`` that contains the new name. Version
0.3 removes the deprecated names.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Target = TypeVar("_Target", bound=Callable[..., Any])

MOVED_MODULES: Mapping[str, str] = {
    "mm_numeric.evaluation.bootstrap": "mm_numeric.evaluation.metrics.bootstrap",
    "mm_numeric.evaluation.boxes": "mm_numeric.evaluation.metrics.boxes",
    "mm_numeric.evaluation.coco_ap": "mm_numeric.evaluation.metrics.coco_ap",
    "mm_numeric.evaluation.detection": "mm_numeric.evaluation.metrics.detection",
    "mm_numeric.evaluation.deteval": "mm_numeric.evaluation.metrics.deteval",
    "mm_numeric.evaluation.extraction": "mm_numeric.evaluation.metrics.answer_extraction",
    "mm_numeric.evaluation.gsm8k": "mm_numeric.evaluation.metrics.gsm8k",
    "mm_numeric.evaluation.mathvista": "mm_numeric.evaluation.metrics.mathvista",
    "mm_numeric.evaluation.ngrams": "mm_numeric.evaluation.metrics.bleu_rouge",
    "mm_numeric.evaluation.numbers": "mm_numeric.evaluation.metrics.numbers",
    "mm_numeric.evaluation.overlaps": "mm_numeric.evaluation.metrics.polygon_iou",
    "mm_numeric.evaluation.pairing": "mm_numeric.evaluation.metrics.matching",
    "mm_numeric.evaluation.scorer": "mm_numeric.evaluation.metrics.base",
    "mm_numeric.evaluation.texts": "mm_numeric.evaluation.metrics.text",
    "mm_numeric.evaluation.times": "mm_numeric.evaluation.metrics.clock",
    "mm_numeric.losses.distance": "mm_numeric.losses.terms.expected_distance",
    "mm_numeric.losses.entropies": "mm_numeric.losses.terms.digit_entropy",
    "mm_numeric.losses.moments": "mm_numeric.losses.terms.expected_value",
    "mm_numeric.losses.proper": "mm_numeric.losses.terms.proper_scores",
    "mm_numeric.losses.sequence": "mm_numeric.losses.terms.whole_number",
    "mm_numeric.losses.shapes": "mm_numeric.losses.terms.boxes_and_times",
    "mm_numeric.losses.targets": "mm_numeric.losses.terms.soft_targets",
}
"""Maps old module paths to new ones; used by ``registry.load``."""

PREPARE_VALUES: Mapping[str, str] = {"picture": "image"}
"""Maps old values of the option ``--per`` of ``mm-numeric prepare`` to new ones."""


def renamed_task(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the current name and options of a task.

    ``grounding`` with ``answer: list`` is now ``detection``, and ``answer: box`` its only setting.
    """
    options = dict(options)
    if name != "grounding" or options.get("answer") not in ("box", "list"):
        return name, options
    if options.pop("answer") == "box":
        return name, options
    if "prompt" in options:
        options["prompt"] = str(options["prompt"]).replace("{phrase}", "{classes}")
    return "detection", {"shape": "polygon", "order": "rows", **options}


def warn_renamed(where: str, old: str, new: str) -> None:
    """Issue a FutureWarning that ``old``, a setting or an argument, is now called ``new``."""
    message = f"{where}: {old} is now {new}; the old name stops working in 0.3."
    warnings.warn(message, FutureWarning, stacklevel=3)


@dataclass(frozen=True)
class RenamedSettings:
    """Maps deprecated names and values of settings, or of function arguments, to current ones."""

    names: Mapping[str, str]
    """Maps each old name to the new name."""

    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``values[new_name]`` maps old values of a setting to new values."""

    def translate(self, name: str, value: Any) -> tuple[str, Any]:
        """Return the current name and value of a setting; the given ones may be deprecated."""
        name = self.names.get(name, name)
        return name, self.values.get(name, {}).get(value, value) if type(value) is str else value

    def update(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with deprecated names and values replaced, without a warning."""
        return dict(self.translate(name, value) for name, value in settings.items())

    def accept_old_arguments(self, target: _Target) -> _Target:
        """Decorate a function or a class so that it also accepts deprecated keyword arguments."""
        function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        called = target.__name__

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **self.translate_arguments(called, kwargs))

        if isinstance(target, type):
            target.__init__ = wrapper  # type: ignore[misc]
            return target
        return wrapper  # type: ignore[return-value]

    def translate_arguments(self, called: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Replace deprecated names and values in keyword arguments, and warn about each one."""
        if kwargs.keys().isdisjoint(self.names) and kwargs.keys().isdisjoint(self.values):
            return kwargs
        translated: dict[str, Any] = {}
        for name, value in kwargs.items():
            new_name, new_value = self.translate(name, value)
            if new_name in translated or (new_name != name and new_name in kwargs):
                raise ValueError(f"{called}: {name} is the old name of {new_name}; pass one.")
            if (new_name, new_value) != (name, value):
                warn_renamed(called, f"{name}={value!r}", f"{new_name}={new_value!r}")
            translated[new_name] = new_value
        return translated
