"""Settings of an objective and of a loss term. Loads no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.answers import ROLES
from mm_numeric.moved import RenamedSettings
from mm_numeric.parsing import check_choices
from mm_numeric.registry import unknown


@dataclass(frozen=True, kw_only=True)
class TermSpec:
    """One numeric term of an objective."""

    name: str
    """A key of ``mm_numeric.registry.TERMS``, or ``my_package.module:MyTerm``."""

    weight: float = 1.0
    """Factor of the term's mean, at least 0; 0 logs the term without training on it."""

    roles: Mapping[str, float] = field(default_factory=dict)
    """Factor of the losses of each role (``x``, ``y``, ``hour``, ``minute``, ``free``), at least 0,
    for example ``hour: 2``; 1 for all other roles."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the term's class, for example ``growth: 1.5``."""

    def __post_init__(self) -> None:
        """Validate the fields; a negative weight would reward errors."""
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
    """Numeric terms; empty (the default) for cross-entropy alone."""

    weight: float = 0.3
    """Lambda, the factor of the weighted sum of the terms; at least 0."""

    balance: str = "fixed"
    """``fixed``: CE + weight * terms. ``ratio``: CE + weight * stopgrad(CE / terms) * terms, as
    published for NTIL; the factor differs between micro-batches and ranks. ``running``: like
    ``ratio``, with running means of CE and terms over previous steps with numbers, which are equal
    on all micro-batches and ranks; the first such step uses ``fixed``."""

    reduction: str = "items"
    """``items``: mean over the number tokens (or numbers) of the batch. ``samples``: mean over each
    sample, then over samples; a sample without numbers counts as 0, as published for NTIL."""

    digit_runs: bool = False
    """Read every run of digits as an unsigned number (3.015 as 3 and 15), as published for NTIL."""

    thousands_separators: bool = False
    """Read 1,234 as one number instead of two, where numbers are read from label ids."""

    numbers_from: str = "task"
    """``task``: only the numbers that the task marks, such as coordinates. ``text``: every number
    in the answer. Without a task (in your own trainer) both read every number in the labels."""

    ce_on: str = "all"
    """``all``: cross-entropy on every supervised token. ``text``: only on tokens that are not
    number tokens, still divided by the number of all supervised tokens. With ``text``, a term over
    the number tokens alone (emd, or ntl_was without reweigh) does not train whether a number comes
    next: use gce, digit_ce, dist2 or reweigh."""

    ce_weight: float = 1.0
    """Factor of cross-entropy, at least 0. With 0 and ``balance: fixed`` cross-entropy is not
    computed, and the loss is the sum of the terms, to be added to another loss."""

    on_nan: str = "keep"
    """``keep``: a NaN or infinite component makes the loss NaN or infinite. ``error``: raise an
    error that names the component; every step then synchronises the device."""

    def __post_init__(self) -> None:
        check_choices(
            self,
            balance=("fixed", "ratio", "running"),
            reduction=("items", "samples"),
            ce_on=("all", "text"),
            numbers_from=("task", "text"),
            on_nan=("keep", "error"),
        )
        if not (0 <= self.weight < math.inf and 0 <= self.ce_weight < math.inf):
            raise ValueError("weight and ce_weight must be >= 0 and finite")
        if not all(isinstance(term, TermSpec) for term in self.terms):
            raise ValueError(
                f"terms must be TermSpecs, such as (TermSpec(name='emd'),), not {self.terms!r:.60}"
            )
        if self.ce_on == "text" and not self.terms:
            raise ValueError("ce_on: text without terms does not train the numbers")
        if self.digit_runs and self.thousands_separators:
            raise ValueError(
                "a comma ends a digit run; turn off digit_runs or thousands_separators"
            )
        if self.digit_runs and any(term.roles for term in self.terms):
            raise ValueError("digit_runs reads label ids, which have no roles; remove roles")
        names = [term.name for term in self.terms]
        if "ce" in names or len(set(names)) < len(names):
            raise ValueError(f"terms must be different, and ce is always included; got {names}")
