"""scripts/experiments/label_smoothing.py is the label smoothing of torch, of the digits alone."""

from pathlib import Path

import pytest
import torch
from tokens import VOCABULARY, batch

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.numbers.spans import IGNORE_INDEX

EXPERIMENTS = Path(__file__).parents[2] / "scripts/experiments"


@pytest.mark.parametrize("weight", [0.1, 0.4])
def test_it_is_cross_entropy_with_a_smoothed_target(monkeypatch, weight):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    logits, labels = batch(3)
    name = "label_smoothing:LabelSmoothing"
    loss_of = NumericLoss(
        {"terms": [{"name": name}], "numeric_weight": weight}, vocabulary=VOCABULARY
    )
    digits = [token.id for token in VOCABULARY.tokens]
    kept = labels != IGNORE_INDEX
    target = torch.nn.functional.one_hot(labels[kept], logits.shape[-1]).double()
    for row in target:
        if row[digits].sum():
            row *= 1 - weight
            row[digits] += weight / len(digits)
    expected = torch.nn.functional.cross_entropy(logits[kept], target)
    found = loss_of(logits, labels, shift=False).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
