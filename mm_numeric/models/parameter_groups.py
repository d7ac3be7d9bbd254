"""The parts of a loaded model: what is trained, at which rate, and whether it has a gradient."""

import re
from typing import Any

from torch import Tensor, nn

from mm_numeric.compat import is_adapter, unpacked_numel, unwrapped_name
from mm_numeric.config.modules import (
    ADAPTED,
    FROZEN,
    MODULE_NAMES,
    TRAINED,
    ModulesConfig,
    ModuleSettings,
)
from mm_numeric.families.family import Family

_SEEING = ("vision", "projector")  # no gradient without an image


class ModelParts:
    """Which part each parameter of a model is in, and what is done with it."""

    def __init__(
        self, family: Family, settings: ModulesConfig, learning_rate: float, where: str
    ) -> None:
        """Take the settings.

        Args:
            family: Its ``parts`` say which parameters belong together.
            settings: What is done with each part.
            learning_rate: Of the parts that have none of their own.
            where: The config, for errors.

        Raises:
            ValueError: If a part is set that the family does not have.
        """
        self.family, self.settings, self.where = family, settings, where
        self.learning_rate = learning_rate
        for part in MODULE_NAMES:
            if getattr(settings, part) is not None and part not in family.module_patterns:
                known = ", ".join(name for name in MODULE_NAMES if name in family.module_patterns)
                raise ValueError(
                    f"{where}, modules.{part}: {family.name} has no such part, only {known}; take "
                    "it out."
                )

    def part(self, name: str) -> str:
        """Return the part of a parameter, by its name; an adapter is in the part that it adapts.

        Raises:
            ValueError: If the family knows no such parameter.
        """
        own = unwrapped_name(name)
        for part, pattern in self.family.module_patterns.items():
            if re.match(pattern, own):
                return part
        raise ValueError(
            f"{self.where}, model.family: {self.family.name} does not say which part the "
            f"parameter {own} is in; correct `parts` of {type(self.family).__name__}."
        )

    def rate(self, part: str) -> float:
        """Return the learning rate of a part."""
        own = self.settings.of(part).learning_rate
        return self.learning_rate if own is None else own

    def refuse_rates(self, who: str) -> None:
        """Refuse rates by part under what chooses its own groups of parameters.

        Raises:
            ValueError: If a part has a rate of its own.
        """
        if any(
            self.settings.of(part).learning_rate is not None for part in self.family.module_patterns
        ):
            raise ValueError(
                f"{self.where}, modules: {who} makes its own groups of parameters, so that no part "
                "can have a learning_rate of its own; take those out, or choose another optimiser."
            )

    def check(self, model: nn.Module) -> None:
        """Refuse settings that this model cannot be trained with.

        Raises:
            ValueError: If parts that share a tensor are set differently, a part that is to be
                trained is quantised, or nothing is trained.
        """
        if all(self.settings.of(part).how == FROZEN for part in self.family.module_patterns):
            raise ValueError(f"{self.where}, modules: every part is frozen; train or adapt one.")
        shared = self._shared(model)
        for part in filter(shared.__contains__, MODULE_NAMES):
            for other in sorted(shared[part] - {part}, key=MODULE_NAMES.index):
                one, two = self.settings.of(part), self.settings.of(other)
                if (one.how, self.rate(part)) != (two.how, self.rate(other)) or one.how == ADAPTED:
                    raise ValueError(
                        f"{self.where}, modules: the {part} and the {other} of this model are one "
                        f"tensor, and here the {part} is {_words(one)} and the {other} "
                        f"{_words(two)}; make both trained or both frozen, at one rate."
                    )
        for name, parameter in model.named_parameters():
            part = self.part(name)
            if self.settings.of(part).how == TRAINED and not parameter.is_floating_point():
                raise ValueError(
                    f"{self.where}, modules.{part}: {name} is quantised ({parameter.dtype}), which "
                    "cannot be trained; set the part to adapted or frozen."
                )

    def freeze(self, model: nn.Module) -> None:
        """Let gradients reach adapters and the parts that are trained, and nothing else."""
        for name, parameter in model.named_parameters():
            if not is_adapter(name):
                parameter.requires_grad_(self.settings.of(self.part(name)).how == TRAINED)

    def groups(
        self, model: nn.Module, decayed: set[str], weight_decay: float
    ) -> list[dict[str, Any]]:
        """Return the parameters that are trained as groups of an optimiser, by part.

        Args:
            model: As it is trained; wrapped or not.
            decayed: The names of the parameters that weight decay is for.
            weight_decay: How much.
        """
        groups: dict[tuple[str, bool], list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups.setdefault((self.part(name), name in decayed), []).append(parameter)
        return [
            {
                "params": groups[part, decays],
                "weight_decay": weight_decay if decays else 0.0,
                "lr": self.rate(part),
            }
            for part in MODULE_NAMES
            for decays in (True, False)
            if (part, decays) in groups
        ]

    def table(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """Count parameters by part: all, trained ones, how, and at which rate."""
        found: dict[str, dict[str, Any]] = {
            part: {"parameters": 0, "trained": 0, "how": self.settings.of(part).how}
            for part in MODULE_NAMES
            if part in self.family.module_patterns
        }
        for name, parameter in model.named_parameters():
            row, count = found[self.part(name)], unpacked_numel(parameter)
            row["parameters"] += count
            row["trained"] += count * parameter.requires_grad
        for part, row in found.items():
            row["learning_rate"] = self.rate(part) if row["trained"] else None
        for part, others in self._shared(model).items():
            if not found[part]["parameters"]:
                found[part]["same_as"] = min(others - {part}, key=MODULE_NAMES.index)
        return found

    def _shared(self, model: nn.Module) -> dict[str, set[str]]:
        """Return, for each part that has a tensor in common with another, all that have it."""
        holders: dict[int, set[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            holders.setdefault(id(parameter), set()).add(self.part(name))
        return {part: parts for parts in holders.values() if len(parts) > 1 for part in parts}


def table_text(table: dict[str, dict[str, Any]]) -> str:
    """Return ``ModelParts.table`` as lines, with the sums."""
    lines = [f"{'part':<12}{'parameters':>15}{'trained':>15}  how"]
    for part, row in table.items():
        rate = f", learning rate {row['learning_rate']:g}" if row["trained"] else ""
        how = f"the same tensor as {row['same_as']}" if "same_as" in row else row["how"] + rate
        lines.append(f"{part:<12}{row['parameters']:>15,}{row['trained']:>15,}  {how}")
    total, trained = (sum(r[k] for r in table.values()) for k in ("parameters", "trained"))
    return "\n".join([*lines, f"{'all':<12}{total:>15,}{trained:>15,}"])


def _words(settings: ModuleSettings) -> str:
    rate = settings.learning_rate
    return settings.how if rate is None else f"{settings.how} at {rate:g}"
