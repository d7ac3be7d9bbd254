"""The simulated experiments of a plan have no effect, whatever the real ones have."""

import sys

import numpy as np
import pytest
from documents import ROOT

sys.path.append(str(ROOT / "scripts/experiments"))
import findable


@pytest.mark.parametrize("effect", [0.0, 5.0])
def test_a_simulated_family_has_no_effect(monkeypatch, effect):
    monkeypatch.setattr(findable, "EXPERIMENTS", 300)
    monkeypatch.setattr(findable, "RESAMPLES", 100)
    rng = np.random.default_rng(0)
    of_rows = rng.normal(size=(3, 8, 60)) + rng.normal(size=(3, 8, 1)) / 4 + effect
    of_rows += rng.normal(size=(3, 1, 60)) / 2
    own = findable.Differences(of_rows, np.arange(60), np.zeros(len(of_rows)))
    assert 0.01 <= findable.family_error(own, 8, rng) <= 0.08


def test_rows_of_one_image_are_not_independent(monkeypatch):
    """Each of twelve images has the same difference in all of its 20 rows."""
    monkeypatch.setattr(findable, "EXPERIMENTS", 300)
    monkeypatch.setattr(findable, "RESAMPLES", 100)
    groups = np.repeat(np.arange(12), 20)
    of_rows = np.random.default_rng(1).normal(size=(1, 8, 12))[..., groups]
    own = findable.Differences(of_rows, groups, np.zeros(len(of_rows)))
    assert findable.family_error(own, 8, np.random.default_rng(0)) <= 0.09
