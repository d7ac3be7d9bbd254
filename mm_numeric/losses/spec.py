"""The settings of an objective and of a loss term. Loads no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.answers import ROLES
from mm_numeric.moved import RenamedSettings
from mm_numeric.registry import unknown

BALANCES = ("fixed", "ratio", "running")


REDUCTIONS = ("items", "samples")


CE_ON = ("all", "text")


NUMBERS_FROM = ("task", "text")


ON_NAN = ("keep", "error")


@dataclass(frozen=True, kw_only=True)
class TermSpec:
    """One term of an objective."""

    name: str
    """A key of ``mm_numeric.registry.TERMS``, or ``my_package.module:MyTerm``."""

    weight: float = 1.0
    """What its mean is multiplied by; 0 logs the term without training on it."""

    roles: Mapping[str, float] = field(default_factory=dict)
    """What the charges of a role (``x``, ``y``, ``hour``, ``minute``, ``free``) are multiplied by,
    such as ``hour: 2``; 1 for those that are not named, 0 leaves a role out of the sum."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the term itself, such as ``growth: 1.5``."""

    def __post_init__(self) -> None:
        """Refuse weights that would reward mistakes."""
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"weight must be >= 0 and finite, not {self.weight}")
        for role, weight in self.roles.items():
            if role not in ROLES:
                raise unknown(role, ROLES, "role", f"roles of the term {self.name}")
            if type(weight) not in (int, float) or not 0 <= weight < math.inf:
                raise ValueError(f"roles.{role} must be >= 0 and finite, not {weight!r}")


RENAMED = RenamedSettings(
    {"numbers": "numbers_from", "thousands": "thousands_separators"},
    {"numbers_from": {"marked": "task", "all": "text"}},
)


@RENAMED.accept_old_arguments
@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """Cross-entropy on the supervised tokens, plus numeric terms."""

    terms: tuple[TermSpec, ...] = ()
    """The numeric terms; none leaves cross-entropy alone."""

    weight: float = 0.3
    """Lambda: what the weighted sum of the terms is multiplied by."""

    balance: str = "fixed"
    """fixed: CE + weight * terms. ratio: CE + weight * stopgrad(CE / terms) * terms, as published
    for NTIL; it differs between micro-batches and ranks. running: the same with the means of CE and
    terms over the steps before that had numbers, which are the same for every micro-batch and rank
    of a step; the first such step is fixed."""

    reduction: str = "items"
    """items: a term is the mean over its number tokens (or numbers). samples: the mean over each
    sample first, then over samples, one without numbers counting as 0, as published for NTIL."""

    digit_runs: bool = False
    """Read 3.015 as 3 and 15 and drop signs, as published for NTIL."""

    thousands_separators: bool = False
    """Read 1,234 as one number instead of two, where numbers are read from label ids."""

    numbers_from: str = "task"
    """``task``: only the numbers that the task marks, such as coordinates. ``text``: every number
    in the answer. Without a task (in your own trainer) both read every number in the labels."""

    ce_on: str = "all"
    """all: cross-entropy on every supervised token. text: on those that are no number token, still
    divided by the number of all supervised tokens, so that text weighs the same. A term that looks
    at number tokens alone (emd, ntl_was without reweigh) then leaves open whether a number is due
    at all: use gce, digit_ce or dist2 with it, or reweigh."""

    ce_weight: float = 1.0
    """What cross-entropy is multiplied by. With 0 and a fixed balance it is not calculated: the
    terms stand alone, to be added to a loss of your own."""

    on_nan: str = "keep"
    """keep: a part that is NaN or infinite makes the loss so; nothing is hidden. error: it is named
    in an error at once, for which every step waits for the device."""

    def __post_init__(self) -> None:
        """Refuse names and weights that mean nothing."""
        for setting, allowed in (
            ("balance", BALANCES),
            ("reduction", REDUCTIONS),
            ("ce_on", CE_ON),
            ("numbers_from", NUMBERS_FROM),
            ("on_nan", ON_NAN),
        ):
            if (found := getattr(self, setting)) not in allowed:
                raise ValueError(f"{setting} is one of {', '.join(allowed)}, not {found!r}")
        if not (0 <= self.weight < math.inf and 0 <= self.ce_weight < math.inf):
            raise ValueError("weight and ce_weight must be >= 0 and finite")
        if not all(isinstance(term, TermSpec) for term in self.terms):
            raise ValueError(
                f"terms must be TermSpecs, such as (TermSpec(name='emd'),), not {self.terms!r:.60}"
            )
        if self.ce_on == "text" and not self.terms:
            raise ValueError("ce_on: text without terms leaves the numbers untrained")
        if self.digit_runs and self.thousands_separators:
            raise ValueError(
                "digit_runs reads a comma as a separator; turn off digit_runs or "
                "thousands_separators"
            )
        if self.digit_runs and any(term.roles for term in self.terms):
            raise ValueError("digit_runs reads numbers from label ids, which know no roles")
        names = [term.name for term in self.terms]
        if "ce" in names or len(set(names)) < len(names):
            raise ValueError(f"each term may stand once, and ce is always there; got {names}")
