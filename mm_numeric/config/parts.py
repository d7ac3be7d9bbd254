"""Which parts of a model are trained, frozen or adapted: the settings. Loads no torch.

Every family says which of its parameters are the ``vision`` tower, the ``projector`` between it and
the ``language`` model, the ``embeddings`` and the ``head``. A config has a word for each, or a word
and a learning rate::

    parts:
      vision: frozen
      projector: {learning_rate: 1.0e-4}    # trained
      language: adapted                     # LoRA, as `lora` says
    lora: {rank: 16, alpha: 32}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.parsing import read_dataclass

PARTS = ("vision", "projector", "language", "embeddings", "head")
TRAINED, FROZEN, ADAPTED = WAYS = ("trained", "frozen", "adapted")


@dataclass(frozen=True, kw_only=True)
class PartSettings:
    """What is done with one part of a model."""

    how: str = TRAINED
    """trained, frozen, or adapted (LoRA on its linear layers, itself frozen)."""

    learning_rate: float | None = None
    """Of its parameters or adapters; ``trainer.learning_rate`` by default."""

    def __post_init__(self) -> None:
        """Refuse what is nothing of the three, and a rate that is never used."""
        if self.how not in WAYS:
            raise ValueError(f"a part is {', '.join(WAYS)}, not {self.how!r}")
        if self.learning_rate is not None and self.how == FROZEN:
            raise ValueError("a frozen part has no learning_rate; take one of the two out")
        if self.learning_rate is not None and self.learning_rate < 0:
            raise ValueError(f"learning_rate must be at least 0, not {self.learning_rate}")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is done with each part; None where the config leaves it to the rule of ``of``."""

    vision: PartSettings | None = None
    projector: PartSettings | None = None
    language: PartSettings | None = None
    embeddings: PartSettings | None = None
    head: PartSettings | None = None

    def of(self, part: str) -> PartSettings:
        """Return the settings of a part.

        A part that the config does not name is trained; beside adapters it is frozen.
        """
        own: PartSettings | None = getattr(self, part)
        return own or PartSettings(how=FROZEN if self.adapted else TRAINED)

    @property
    def adapted(self) -> bool:
        """Whether any part gets adapters."""
        named = (getattr(self, part) for part in PARTS)
        return any(own is not None and own.how == ADAPTED for own in named)


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """The adapters of the parts that are adapted, as PEFT makes them."""

    rank: int = 16
    alpha: int = 32
    """What an adapter adds is multiplied by ``alpha / rank``."""

    dropout: float = 0.0
    dora: bool = False
    """DoRA: the length of each row of a weight is trained apart from its direction."""

    def __post_init__(self) -> None:
        """Refuse adapters that adapt nothing."""
        for name, value in (("rank", self.rank), ("alpha", self.alpha)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is from 0 to below 1, not {self.dropout}")


def read_parts(raw: Any, where: str) -> Parts:
    """Read the ``parts`` of a config; a word stands for ``{how: word}``.

    Raises:
        ValueError: If a part or a setting does not exist, or a value is refused.
    """
    if isinstance(raw, Mapping):
        raw = {part: {"how": own} if isinstance(own, str) else own for part, own in raw.items()}
    parts: Parts = read_dataclass(Parts, {} if raw is None else raw, where)
    return parts


def read_lora(raw: Any, parts: Parts, where: str) -> LoraSettings | None:
    """Read the ``lora`` of a config; None where no part is adapted.

    Raises:
        ValueError: If there are settings and no part is adapted, or a value is refused.
    """
    if not parts.adapted:
        if raw is None:
            return None
        raise ValueError(
            f"{where}: no part is adapted, so there are no adapters to set; add "
            "`parts: {language: adapted}`, or take lora out."
        )
    lora: LoraSettings = read_dataclass(LoraSettings, {} if raw is None else raw, where)
    return lora
