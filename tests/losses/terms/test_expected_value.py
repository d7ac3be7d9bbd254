"""Distances of the expected value: formulas that anyone can check."""

import pytest
import torch
from term_losses import VALUES, losses_of
from torch.nn import functional

from mm_numeric.losses.terms.expected_value import AbsoluteError, HuberError, SquaredError

TERMS = [SquaredError(), AbsoluteError(), HuberError()]


def test_a_uniform_model_expects_4_5():
    scores, wanted = torch.zeros(10, 10).double(), VALUES
    expected = {
        SquaredError: (4.5 - wanted) ** 2,
        AbsoluteError: (4.5 - wanted).abs(),
        HuberError: functional.huber_loss(
            torch.full((10,), 4.5).double(), wanted, reduction="none"
        ),
    }
    for kind, losses in expected.items():
        torch.testing.assert_close(losses_of(kind(), scores, "0123456789"), losses)


@pytest.mark.parametrize("term", TERMS)
def test_a_spread_around_the_label_costs_nothing(term):
    """Half the probability on 0, half on 8, label 4: no loss, and for the square no gradient."""
    scores = torch.full((1, 10), -80.0).double()
    scores[0, [0, 8]] = 0
    losses = losses_of(term, scores.requires_grad_(), "4")
    losses.sum().backward()
    assert losses.abs().item() < 1e-12
    if not isinstance(term, AbsoluteError):
        assert scores.grad.abs().max() < 1e-12


@pytest.mark.parametrize(("term", "worst"), list(zip(TERMS, [81.81, 9.09, 8.585], strict=True)))
def test_reweigh_penalises_text_more_than_the_worst_digit(term, worst):
    scores, text = torch.zeros(1, 10).double(), torch.tensor([80.0]).double()
    term = type(term)(reweigh=True)
    assert losses_of(term, scores, "0", log_normaliser=text).item() == pytest.approx(worst)
    assert losses_of(term, scores, "0").item() == pytest.approx(
        losses_of(type(term)(), scores, "0")
    )
