"""scripts/experiments/planted_labels.py finds the errors that it plants."""

import sys

import numpy as np
import pytest
from import_graph import ROOT

sys.path.append(str(ROOT / "scripts/experiments"))
import planted_labels


@pytest.mark.parametrize("kind", planted_labels.PLANTED)
def test_the_estimates_are_near_the_planted_errors(kind):
    for name, found in planted_labels.estimates(kind, rows=200, draws=1).items():
        value, low, high = found[0]
        planted = planted_labels.PLANTED[kind][2][name]
        assert low <= value <= high
        assert value == pytest.approx(planted, abs=max(0.02, 0.4 * planted, 2 * (high - value)))


def test_the_table_has_the_share_of_intervals_with_the_planted_error(monkeypatch):
    found = np.array([[2.0, 1.0, 3.0], [4.0, 3.5, 5.0]])
    monkeypatch.setattr(planted_labels, "PLANTED", {"times": (None, {}, {"noise": 2.0})})
    monkeypatch.setattr(planted_labels, "estimates", lambda *_: {"noise": found})
    assert list(planted_labels.noise(200, 2))[-1] == "| times | noise | 2 | 3 | 1.4 | 0.500 |"
