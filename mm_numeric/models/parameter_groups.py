"""Freeze modules of a loaded model, and build optimiser groups with their learning rates."""

import re
from typing import Any

from torch import Tensor, nn

from mm_numeric.compat import is_adapter, is_partitioned, unpacked_numel, unwrapped_name
from mm_numeric.config.modules import (
    ADAPTED,
    FROZEN,
    MODULE_NAMES,
    TRAINED,
    ModulesConfig,
    ModuleSettings,
)
from mm_numeric.families.family import Family
from mm_numeric.io.log import logger

VISION_MODULES = ("vision", "projector")
"""Modules that get no gradient from a batch without images."""


class ModelModules:
    """Freezes modules such as ``vision``, or sets their learning rates, as in the config.

    A module is a group of parameters. ``learning_rate`` is used for modules without a learning rate
    in the config. ``where`` is the name of the config, for error messages.
    """

    def __init__(
        self, family: Family, settings: ModulesConfig, learning_rate: float, where: str
    ) -> None:
        self.family, self.settings, self.where = family, settings, where
        self.learning_rate = learning_rate
        for module in MODULE_NAMES:
            if getattr(settings, module) is not None and module not in family.module_patterns:
                known = ", ".join(name for name in MODULE_NAMES if name in family.module_patterns)
                raise ValueError(
                    f"{where}, modules.{module}: {family.name} has no such module, only {known}; "
                    "remove it."
                )

    def module_of(self, name: str) -> str:
        """Return the module, such as ``vision``, to which the parameter ``name`` belongs."""
        own = unwrapped_name(name)
        for module, pattern in self.family.module_patterns.items():
            if re.match(pattern, own):
                return module
        raise ValueError(
            f"{self.where}, model.family: no module of {self.family.name} has the parameter "
            f"{own}; correct `module_patterns` of {type(self.family).__name__}."
        )

    def learning_rate_of(self, module: str) -> float:
        """Return the learning rate of a module in the config, or the default learning rate."""
        own = self.settings.of(module).learning_rate
        return self.learning_rate if own is None else own

    def reject_learning_rates(self, who: str) -> None:
        """Raise ValueError if a module has its own learning rate, which the optimiser ignores."""
        modules = self.family.module_patterns
        if any(self.settings.of(module).learning_rate is not None for module in modules):
            raise ValueError(
                f"{self.where}, modules: {who} makes its own groups of parameters, so that no "
                "module can have its own learning_rate; remove it, or choose another optimiser."
            )

    def check(self, model: nn.Module) -> None:
        """Check that the settings of the modules, such as ``frozen``, can be applied to a model.

        Raises ValueError if every module is frozen, a module with quantised weights is set to
        ``trained``, or two modules that share a tensor have different settings.
        """
        if all(self.settings.of(name).how == FROZEN for name in self.family.module_patterns):
            raise ValueError(f"{self.where}, modules: every module is frozen; train or adapt one.")
        shared = self._shared(model)
        for module in filter(shared.__contains__, MODULE_NAMES):
            for other in sorted(shared[module] - {module}, key=MODULE_NAMES.index):
                self._check_shared(module, other)
        for name, parameter in model.named_parameters():
            module = self.module_of(name)
            if self.settings.of(module).how == TRAINED and not parameter.is_floating_point():
                raise ValueError(
                    f"{self.where}, modules.{module}: {name} is quantised ({parameter.dtype}), "
                    "which cannot be trained; set the module to adapted or frozen."
                )
        if self.settings.of("projector").how == FROZEN and self._is_fresh(model, "projector"):
            logger.warning(
                "%s, modules.projector: it is frozen, and its weights look untrained: every bias "
                "is 0. The language model would get random image features; set modules.projector "
                "to trained.",
                self.where,
            )

    def _is_fresh(self, model: nn.Module, module: str) -> bool:
        """Return True if a module has biases and all are 0, as after initialisation."""
        biases = [
            parameter
            for name, parameter in model.named_parameters()
            if name.endswith("bias") and self.module_of(name) == module
        ]
        return bool(biases) and not any(is_partitioned(bias) or bias.any() for bias in biases)

    def _check_shared(self, module: str, other: str) -> None:
        one, two = self.settings.of(module), self.settings.of(other)
        rates = self.learning_rate_of(module), self.learning_rate_of(other)
        if one.how != two.how or rates[0] != rates[1] or one.how == ADAPTED:
            raise ValueError(
                f"{self.where}, modules: the {module} and the {other} of this model are one "
                f"tensor, and here the {module} is {_describe(one)} and the {other} "
                f"{_describe(two)}; make both trained or both frozen, at one rate."
            )

    def freeze(self, model: nn.Module) -> None:
        """Freeze all modules except modules set to ``trained``; do not change adapters."""
        for name, parameter in model.named_parameters():
            if not is_adapter(name):
                parameter.requires_grad_(self.settings.of(self.module_of(name)).how == TRAINED)

    def groups(
        self, model: nn.Module, decayed: set[str], weight_decay: float
    ) -> list[dict[str, Any]]:
        """Return optimiser groups: per learning rate, one with and one without weight decay.

        ``decayed`` are the names of the parameters that get weight decay. Parameters are added in
        the order of their modules in ``MODULE_NAMES``.
        """
        trained = [
            (self.module_of(n), n, p) for n, p in model.named_parameters() if p.requires_grad
        ]
        groups: dict[tuple[float, bool], list[Tensor]] = {}
        for module, name, parameter in sorted(trained, key=lambda t: MODULE_NAMES.index(t[0])):
            key = self.learning_rate_of(module), name in decayed
            groups.setdefault(key, []).append(parameter)
        return [
            {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "lr": rate}
            for (rate, decays), parameters in groups.items()
        ]

    def table(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """Return for each module its parameter counts, its learning rate, and how it is trained."""
        found: dict[str, dict[str, Any]] = {
            module: {"parameters": 0, "trained": 0, "how": self.settings.of(module).how}
            for module in MODULE_NAMES
            if module in self.family.module_patterns
        }
        for name, parameter in model.named_parameters():
            row, count = found[self.module_of(name)], unpacked_numel(parameter)
            row["parameters"] += count
            row["trained"] += count * parameter.requires_grad
        for module, row in found.items():
            row["learning_rate"] = self.learning_rate_of(module) if row["trained"] else None
        for module, others in self._shared(model).items():
            if not found[module]["parameters"]:
                found[module]["same_as"] = min(others - {module}, key=MODULE_NAMES.index)
        return found

    def _shared(self, model: nn.Module) -> dict[str, set[str]]:
        """Map each module with tied weights to the set of the modules that share the weights."""
        holders: dict[int, set[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            holders.setdefault(id(parameter), set()).add(self.module_of(name))
        return {
            module: modules
            for modules in holders.values()
            if len(modules) > 1
            for module in modules
        }


def table_text(table: dict[str, dict[str, Any]]) -> str:
    """Format the result of ``ModelModules.table`` as a text table with a row of totals."""
    lines = [f"{'module':<12}{'parameters':>15}{'trained':>15}  how"]
    for module, row in table.items():
        rate = f", learning rate {row['learning_rate']:g}" if row["trained"] else ""
        how = f"the same tensor as {row['same_as']}" if "same_as" in row else row["how"] + rate
        lines.append(f"{module:<12}{row['parameters']:>15,}{row['trained']:>15,}  {how}")
    total, trained = (sum(r[k] for r in table.values()) for k in ("parameters", "trained"))
    return "\n".join([*lines, f"{'all':<12}{total:>15,}{trained:>15,}"])


def _describe(settings: ModuleSettings) -> str:
    rate = settings.learning_rate
    return settings.how if rate is None else f"{settings.how} at {rate:g}"
