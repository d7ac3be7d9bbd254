"""A preset, and one step of it, for tests that hold it to something."""

from dataclasses import replace

import pytest
from tokens import VOCABULARY

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS, read_spec

READ_AS_PUBLISHED = {"reduction": "samples", "digit_runs": True}
VARIANTS = {
    "ntl_was_cdf": {"terms": [{"name": "ntl_was_cdf"}]},
    "ntl_was_published": {"preset": "ntl_was", "scale": "published"},
    "emd_exp_published": {"preset": "emd_exp", **READ_AS_PUBLISHED},
    "ntil_published": {
        "preset": "ntil",
        "terms": [
            {"name": "emd_exp"},
            {"name": "relative", "weight": 0.2, "options": {"noise_scale": 0.01}},
            {"name": "magnitude", "weight": 0.2, "options": {"noise_scale": 0.01}},
        ],
        **READ_AS_PUBLISHED,
    },
}
"""What the papers publish for other tokens and readings, as settings."""

SPECS = {**PRESETS, **{name: read_spec(value, name) for name, value in VARIANTS.items()}}

REPEATED = ("ce_times_1.3", "ce_numbers_times_2", "gce", "ntl_mae", "ntl_mse", "emd_exp",
            "emd_exp_published")  # fmt: skip
"""Objectives whose way of computing others have, too: ``ntl_huber``, ``gce+ntl_was``, ``ntil``. The
tests of terms and presets have all of them."""

NUMERIC = [name for name, spec in SPECS.items() if spec.terms and name not in REPEATED]
"""The others that have a numeric term."""

QUICK = ("ce", "emd", "gce+ntl_was", "ntil", "ntl_was", "rps")
EACH = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.full)
    for name in ["ce", *NUMERIC]
]
"""Parameters of the tests of every preset, but for ``REPEATED``: with --quick, a few of them."""


def made(objective, vocabulary=VOCABULARY, **changes):
    """Make the loss of a name in ``SPECS``, or of settings; without noise, for exact values."""
    spec = SPECS.get(objective) if isinstance(objective, str) else objective
    if isinstance(objective, str) and "terms" not in changes:
        changes["terms"] = tuple(replace(t, options=without_noise(t)) for t in spec.terms)
    return NumericLoss(spec or objective, vocabulary=vocabulary, **changes)


def stepped(objective, logits, labels, **arguments):
    """Return the result of an objective and the gradient of its loss; not shifted by default."""
    leaf = logits.clone().requires_grad_()
    result = objective(leaf, labels, **{"shift": False, **arguments})
    result.loss.backward()
    return result, leaf.grad


def without_noise(term):
    """Return the options of a term but for its noise."""
    return {name: value for name, value in term.options.items() if name != "noise_scale"}
