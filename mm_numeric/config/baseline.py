"""Read and validate ``model.baseline``."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mm_numeric.parsing import read_dataclass
from mm_numeric.registry import BASELINES, choose


class Chosen(NamedTuple):
    """What a config says of a baseline."""

    name: str
    kind: Any
    """A subclass of ``mm_numeric.baselines.baseline:Baseline``."""

    settings: Any
    """Of the dataclass that it names."""


def read_baseline(value: Any, where: str) -> Chosen:
    """Read ``model.baseline``: a name, or a mapping with ``name`` and settings.

    Raises:
        ValueError: If there is no such baseline or setting, or a value is refused.
    """
    options = {"name": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
        raise ValueError(
            f"{where}: name one of {', '.join(BASELINES)}, or give a mapping with that as `name`, "
            f"not {value!r:.60}."
        )
    name = options["name"]
    kind = choose(name, BASELINES, "baseline", where)
    rest = {key: own for key, own in options.items() if key != "name"}
    return Chosen(name, kind, read_dataclass(kind.settings_class, rest, where))


def check_baseline(
    model: Any, objective: Any, modules: Any, where: str, remedy: str = "set objective to ce"
) -> None:
    """Refuse what a baseline cannot be trained with.

    Args:
        model: The ``ModelConfig`` with the baseline.
        objective: The ``ObjectiveSpec`` that it is trained on.
        modules: The ``ModulesConfig`` of the run.
        where: The config, for errors.
        remedy: What to do about an objective that it cannot have.

    Raises:
        ValueError: If there is no such baseline, its loss leaves no room for the objective, or a
            part that gets new weights is not trained.
    """
    name, kind, _ = read_baseline(model.baseline, f"{where}, model.baseline")
    if kind.own_loss and (objective.terms or objective.ce_weight != 1):
        raise ValueError(
            f"{where}, objective: {name} is trained with a loss of its own, beside which no other "
            f"can stand; {remedy}."
        )
    if kind.single_digits and model.digits == "merged":
        raise ValueError(
            f"{where}, model.digits: {name} reads every digit by itself; leave merged out."
        )
    for module in kind.new_modules:
        if modules.of(module).how != "trained":
            raise ValueError(
                f"{where}, modules.{module}: {name} adds new weights to the {module}, which would "
                f"stay at random values and not be saved; set `modules: {{{module}: trained}}`."
            )
