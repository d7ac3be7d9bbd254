"""scripts/experiments/planted_faults.py changes the labels that it counts."""

import random
import sys

import numpy as np
import pytest
from import_graph import ROOT

sys.path.append(str(ROOT / "scripts/experiments"))
import planted_faults

SCENE = [{"box": [10, 20, 30, 50], "label": "circle"}, {"box": [50, 50, 60, 70], "label": "square"}]
ROWS = {
    "clock": [{"id": str(i), "time": "12:05"} for i in range(40)],
    "detection": [{"id": str(i), "instances": SCENE} for i in range(40)],
}


@pytest.mark.parametrize("task", planted_faults.KINDS)
def test_each_kind_changes_its_share_of_the_rows(task):
    rows = {row["id"]: row for row in ROWS[task]}
    for kind, plant in planted_faults.KINDS[task].items():
        found = planted_faults.planted([*rows.values()], plant, 0.25, random.Random(0))
        assert len(found) == 10, kind
        assert all(row != rows[own] and row["id"] == own for own, row in found.items())


def test_the_precision_is_the_share_of_faults_in_the_first_rows():
    bad = np.array([True, False, True, False, False])
    assert planted_faults.precision(np.array([5.0, 4.0, 3.0, 2.0, 1.0]), bad) == 0.5
