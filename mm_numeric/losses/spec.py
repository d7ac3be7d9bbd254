"""Settings of an objective (training loss) and of its numeric losses. Does not import torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.answers import ROLES
from mm_numeric.registry import unknown
from mm_numeric.settings import check_choices


@dataclass(frozen=True, kw_only=True)
class TermSpec:
    """Settings of one numeric loss (term) of an objective."""

    name: str
    """A name in ``mm_numeric.registry.TERMS``, or an import path ``my_package.module:MyTerm``."""

    weight: float = 1.0
    """Weight of the term in the loss, at least 0. With 0 the term is logged but not trained."""

    roles: Mapping[str, float] = field(default_factory=dict)
    """Loss weights by role. The role is the meaning of a number: ``x``, ``y``, ``hour``, ``minute``
    or ``free`` (none of these). At least 0; 1 for roles not listed. Example: ``hour: 2``."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the term's class, for example ``growth: 1.5``."""

    def __post_init__(self) -> None:
        check_weight("weight", self.weight)
        for role, weight in self.roles.items():
            if role not in ROLES:
                raise unknown(role, ROLES, "role", f"roles of the term {self.name}")
            check_weight(f"roles.{role}", weight)


def check_weight(name: str, weight: Any) -> None:
    """Raise ValueError unless a weight is a finite number of at least 0."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight < math.inf:
        raise ValueError(f"{name} must be >= 0 and finite, not {weight!r}")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """Settings of a training loss: cross-entropy of the answer tokens plus numeric losses."""

    terms: tuple[TermSpec, ...] = ()
    """Numeric terms; empty (the default) for cross-entropy alone."""

    numeric_weight: float = 0.3
    """Lambda, the factor of the sum of all terms; at least 0."""

    balance: str = "fixed"
    """How the terms are scaled relative to cross-entropy (CE).
    ``fixed``: CE + numeric_weight * terms.
    ``ratio``: CE + numeric_weight * stopgrad(CE / terms) * terms, as published for NTIL. The ratio
    is computed for each micro-batch on each rank.
    ``running``: like ``ratio``, with running means of CE and terms over previous optimiser steps,
    which are equal on all ranks. The first step with numbers uses ``fixed``."""

    reduction: str = "items"
    """How the losses of a term are averaged. ``items``: over all number tokens (or numbers) of the
    batch. ``samples``: over each sample, then over the samples, where a sample without numbers
    counts as 0, as published for NTIL."""

    digit_runs: bool = False
    """Treat every sequence of digits as an unsigned integer (3.015 is 3 and 15), as in NTIL."""

    thousands_separators: bool = False
    """Read 1,234 as one number instead of two when numbers are found in the text of the labels."""

    number_tokens: str = "all"
    """Which number tokens have a numeric loss. ``all``: every token that has only digits.
    ``digits``: only tokens that are one digit without a space, as by default in the ntloss package.
    Tokens such as ``42`` or ``Ġ7`` then have only cross-entropy, even if other tokens of the same
    number are single digits."""

    numbers: str = "task"
    """Which numbers have a numeric loss. ``task``: only the numbers that the task selects, such as
    coordinates. ``all``: every number in the answer. In your own trainer, without a task, both
    select every number in the labels."""

    ce_tokens: str = "all"
    """Which tokens have a cross-entropy loss. ``all``: every supervised token. ``text``: not number
    tokens; the sum is still divided by the number of all supervised tokens. With ``text`` use a
    term that also lowers the probability of text (gce, digit_ce, or ``reweigh: true``): emd and
    ntl_was alone train the choice between number tokens, but not between numbers and text."""

    ce_weight: float = 1.0
    """Factor of cross-entropy, at least 0. With 0 and ``balance: fixed`` cross-entropy is not
    computed, and the loss is the sum of the terms, which you can add to a loss of your own."""

    on_nan: str = "keep"
    """What to do if the loss is NaN or infinite. ``keep``: return it. ``error``: raise an error
    that names the faulty component; this synchronises the device at every step."""

    own_loss: str = "stop"
    """What ``NumericLossMixin`` and ``loss_func`` do with losses that a model's own code adds to
    cross-entropy. ``stop``: train the router and z-losses that the model reports, and raise an
    error if it adds any other loss; this is checked once, at the first batch. ``keep``: train all
    of these losses; the model then computes its logits at all positions. ``ignore``: train none."""

    def __str__(self) -> str:
        terms = " + ".join(
            term.name if term.weight == 1 else f"{term.weight:g} {term.name}" for term in self.terms
        )
        numeric = f" + {self.numeric_weight:g} ({terms})" if terms else ""
        where = " of text" if self.ce_tokens == "text" else ""
        return f"{self.ce_weight:g} ce{where}{numeric}, balance {self.balance}"

    def __post_init__(self) -> None:
        check_choices(
            self,
            balance=("fixed", "ratio", "running"),
            reduction=("items", "samples"),
            ce_tokens=("all", "text"),
            numbers=("task", "all"),
            number_tokens=("all", "digits"),
            on_nan=("keep", "error"),
            own_loss=("stop", "keep", "ignore"),
        )
        check_weight("numeric_weight", self.numeric_weight)
        check_weight("ce_weight", self.ce_weight)
        if not all(isinstance(term, TermSpec) for term in self.terms):
            raise ValueError(
                "terms must be mm_numeric.TermSpecs, such as (TermSpec(name='emd'),), not "
                f"{self.terms!r:.60}"
            )
        if self.ce_tokens == "text" and not self.terms:
            raise ValueError("ce_tokens: text without terms does not train the numbers")
        if self.digit_runs and self.thousands_separators:
            raise ValueError(
                "a comma ends a digit run; turn off digit_runs or thousands_separators"
            )
        if self.digit_runs and any(term.roles for term in self.terms):
            raise ValueError("digit_runs reads label ids, which have no roles; remove roles")
        names = [term.name for term in self.terms]
        if "ce" in names or len(set(names)) < len(names):
            raise ValueError(f"terms must be different, and ce is always included; got {names}")
