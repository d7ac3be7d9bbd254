"""A preset, and one step of it, for tests that hold it to something."""

from dataclasses import replace

import pytest
from tokens import VOCABULARY

from mm_numeric.losses.objective import objective
from mm_numeric.losses.presets import PRESETS

OF_LABELS = {name: spec for name, spec in PRESETS.items() if not name.startswith("box_")}
"""The presets whose numbers are found in label ids alone; those of boxes need to know the boxes."""

QUICK = ("ce", "emd", "gce+ntl_was", "ntil", "ntl_was", "pathrisk", "rps")
EACH_OF_LABELS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in OF_LABELS
]
"""Parameters of the tests of every preset: with --quick, a few of them."""


def made(name, vocabulary=VOCABULARY, **changes):
    """Make a preset without its noise, so that it can be held to a number."""
    terms = tuple(replace(term, options=without_noise(term)) for term in PRESETS[name].terms)
    return objective(name, vocabulary, **{"terms": terms, **changes})


def stepped(objective, logits, labels, **arguments):
    """Return the result of an objective and the gradient of its loss; not shifted by default."""
    leaf = logits.clone().requires_grad_()
    result = objective(leaf, labels, **{"shift": False, **arguments})
    result.loss.backward()
    return result, leaf.grad


def without_noise(term):
    """Return the options of a term but for its noise."""
    return {name: value for name, value in term.options.items() if name != "noise_scale"}
