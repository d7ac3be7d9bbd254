"""Settings to train, freeze or adapt (LoRA) each module of a model. Does not import torch.

Every model family assigns each parameter to one of five modules: the ``vision`` tower, the
``projector`` between vision tower and language model, the ``language`` model, its ``embeddings``,
and its output ``head``. A config sets how each module is trained and, optionally, its learning
rate::

    modules:
      vision: frozen
      projector: {learning_rate: 1.0e-4}    # trained
      language: adapted                     # LoRA with the settings of `lora`
    lora: {rank: 16, alpha: 32}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mm_numeric.settings import check_at_least_1, read_dataclass

MODULE_NAMES = ("vision", "projector", "language", "embeddings", "head")
TRAINED, FROZEN, ADAPTED = "trained", "frozen", "adapted"
LOCATION_TOKENS = "location_tokens"
MODES = (TRAINED, FROZEN, ADAPTED, LOCATION_TOKENS)


@dataclass(frozen=True, kw_only=True)
class ModuleSettings:
    """Settings of one module: trained, frozen or adapted with LoRA, and its learning rate."""

    how: str = TRAINED
    """``trained``, ``frozen``, or ``adapted`` (frozen weights with LoRA on the linear layers).
    ``location_tokens`` (``embeddings``, ``head``): train only the rows of location tokens."""

    learning_rate: float | None = None
    """Learning rate of the module's parameters or adapters, at least 0. null (the default):
    ``trainer.learning_rate``."""

    def __post_init__(self) -> None:
        if self.how not in MODES:
            raise ValueError(f"a module is {', '.join(MODES)}, not {self.how!r}")
        if self.learning_rate is not None and self.how == FROZEN:
            raise ValueError("a frozen module has no learning_rate; remove one of the two")
        if self.learning_rate is not None and self.learning_rate < 0:
            raise ValueError(f"learning_rate must be at least 0, not {self.learning_rate}")


@dataclass(frozen=True, kw_only=True)
class ModulesConfig:
    """Config section ``modules``: whether each module is trained, frozen or adapted with LoRA."""

    vision: ModuleSettings | None = None
    projector: ModuleSettings | None = None
    language: ModuleSettings | None = None
    embeddings: ModuleSettings | None = None
    head: ModuleSettings | None = None

    def __post_init__(self) -> None:
        for module in ("vision", "projector", "language"):
            own = getattr(self, module)
            if own is not None and own.how == LOCATION_TOKENS:
                raise ValueError(
                    f"{module} is {LOCATION_TOKENS}, and only embeddings and head have rows of "
                    "tokens; set it to trained, frozen or adapted"
                )
        if self.head is not None and self.head.how == LOCATION_TOKENS != self.of("embeddings").how:
            raise ValueError(f"head is {LOCATION_TOKENS}, so embeddings must be, too; set both")

    def of(self, module: str) -> ModuleSettings:
        """Return the settings of a module.

        A module that the config does not mention is frozen if another module is adapted with LoRA
        or trains location tokens, and trained otherwise. If the embeddings train location tokens,
        the head does too.
        """
        own: ModuleSettings | None = getattr(self, module)
        if own is not None:
            return own
        if self.embeddings is not None and self.embeddings.how == LOCATION_TOKENS:
            return self.embeddings if module == "head" else ModuleSettings(how=FROZEN)
        return ModuleSettings(how=FROZEN if self.adapted else TRAINED)

    @property
    def adapted(self) -> bool:
        """Return True if at least one module is adapted with LoRA."""
        settings = (getattr(self, module) for module in MODULE_NAMES)
        return any(own is not None and own.how == ADAPTED for own in settings)


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """LoRA settings for PEFT, shared by all adapted modules."""

    rank: int = 16
    """Rank of the adapter matrices, at least 1."""

    alpha: int = 32
    """LoRA scale, at least 1: the output of an adapter is multiplied by ``alpha / rank``."""

    dropout: float = 0.0
    """Dropout probability of the adapters' inputs, at least 0 and below 1."""

    dora: bool = False
    """Use DoRA, which trains the norm of each weight vector separately from its direction."""

    experts: bool = True
    """Also adapt the experts of a mixture-of-experts model, each with rank ``rank``. PEFT supports
    this only without ``dropout`` and ``dora``."""

    def __post_init__(self) -> None:
        check_at_least_1(self, "rank", "alpha")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is from 0 to below 1, not {self.dropout}")


def read_modules(raw: Any, where: str) -> ModulesConfig:
    """Read the config section ``modules``, such as ``{vision: frozen, language: adapted}``."""
    if isinstance(raw, Mapping):
        raw = {name: {"how": own} if isinstance(own, str) else own for name, own in raw.items()}
    return read_dataclass(ModulesConfig, {} if raw is None else raw, where)


def read_lora(raw: Any, modules: ModulesConfig, where: str) -> LoraSettings | None:
    """Read the config section ``lora``; return None if no module is adapted with LoRA.

    Without an adapted module, the section is an error.
    """
    if not modules.adapted and raw is None:
        return None
    if not modules.adapted:
        raise ValueError(
            f"{where}: no module is adapted; add `modules: {{language: adapted}}`, or remove lora."
        )
    return read_dataclass(LoraSettings, {} if raw is None else raw, where)
