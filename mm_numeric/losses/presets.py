"""Objectives that have a name: which terms, with which weights, added how.

Sources: NTL, arXiv 2411.02083 (weight 0.3); NTIL, arXiv 2505.13077 and its code (sigma 0.2, weights
1.0, 0.2 and 0.2, ratio 0.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BALANCES = ("fixed", "ratio")
REDUCTIONS = ("items", "samples")


@dataclass(frozen=True, kw_only=True)
class TermSpec:
    """One term of an objective."""

    name: str
    """A key of ``mm_numeric.losses.TERMS``, or ``my_package.module:MyTerm``."""

    weight: float = 1.0
    """What its mean is multiplied by; 0 logs the term without training on it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the term itself, such as ``growth: 1.5``."""

    def __post_init__(self) -> None:
        """Refuse a weight that would reward mistakes."""
        if self.weight < 0:
            raise ValueError(f"weight must be >= 0, not {self.weight}")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """Cross-entropy on all supervised tokens, plus numeric terms."""

    terms: tuple[TermSpec, ...] = ()
    """The numeric terms; none leaves cross-entropy alone."""

    weight: float = 0.3
    """Lambda: what the weighted sum of the terms is multiplied by."""

    balance: str = "fixed"
    """fixed: CE + weight * terms. ratio: CE + weight * stopgrad(CE / terms) * terms, as published
    for NTIL; it differs between micro-batches and ranks."""

    reduction: str = "items"
    """items: a term is the mean over its number tokens (or numbers). samples: the mean over each
    sample first, then over samples, one without numbers counting as 0, as published for NTIL."""

    digit_runs: bool = False
    """Read 3.015 as 3 and 15 and drop signs, as published for NTIL."""

    ce_weight: float = 1.0
    """What cross-entropy is multiplied by."""

    def __post_init__(self) -> None:
        """Refuse names and weights that mean nothing."""
        if self.balance not in BALANCES:
            raise ValueError(f"balance is one of {', '.join(BALANCES)}, not {self.balance!r}")
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is one of {', '.join(REDUCTIONS)}, not {self.reduction!r}")
        if self.weight < 0 or self.ce_weight < 0:
            raise ValueError("weight and ce_weight must be >= 0")
        names = [term.name for term in self.terms]
        if "ce" in names or len(set(names)) < len(names):
            raise ValueError(f"each term may stand once, and ce is always there; got {names}")


_NTIL = (
    TermSpec(name="emd_exp", weight=1.0),
    TermSpec(name="relative", weight=0.2),
    TermSpec(name="magnitude", weight=0.2),
)
_NOISE = {"noise_scale": 0.01}
_NTIL_PUBLISHED = (
    TermSpec(name="emd_exp", weight=1.0),
    TermSpec(name="relative", weight=0.2, options=_NOISE),
    TermSpec(name="magnitude", weight=0.2, options=_NOISE),
)
_NTIL_SOFT = (
    TermSpec(name="emd_exp", weight=1.0),
    TermSpec(name="relative_soft", weight=0.2),
    TermSpec(name="magnitude_soft", weight=0.2),
)
_EMD = (TermSpec(name="emd"),)

PRESETS: Mapping[str, ObjectiveSpec] = {
    "ce": ObjectiveSpec(),
    "ce_times_1.3": ObjectiveSpec(ce_weight=1.3),  # the control: what the ratio does to the scale
    "ntl_was": ObjectiveSpec(terms=(TermSpec(name="ntl_was"),)),
    "ntl_was_cdf": ObjectiveSpec(terms=(TermSpec(name="ntl_was_cdf"),)),
    "ntl_mse": ObjectiveSpec(terms=(TermSpec(name="ntl_mse"),)),
    "ntl_mae": ObjectiveSpec(terms=(TermSpec(name="ntl_mae"),)),
    "ntl_huber": ObjectiveSpec(terms=(TermSpec(name="ntl_huber"),)),
    # The weight of NTL, for want of one that was checked: rps has none of its own, and that of the
    # paper of smmd was not looked up.
    "rps": ObjectiveSpec(terms=(TermSpec(name="rps"),)),
    "smmd": ObjectiveSpec(terms=(TermSpec(name="smmd"),)),
    "dist2": ObjectiveSpec(terms=(TermSpec(name="dist2"),), weight=0.1),
    "emd": ObjectiveSpec(terms=_EMD, balance="ratio"),
    "emd_published": ObjectiveSpec(
        terms=_EMD, balance="ratio", reduction="samples", digit_runs=True
    ),
    "ntil": ObjectiveSpec(terms=_NTIL, balance="ratio"),
    "ntil_soft": ObjectiveSpec(terms=_NTIL_SOFT),
    "ntil_published": ObjectiveSpec(
        terms=_NTIL_PUBLISHED, balance="ratio", reduction="samples", digit_runs=True
    ),
}
