"""Distances of the expected value: formulas that anyone can check."""

import pytest
import torch
from term_losses import VALUES, charge, random_scores
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
    for kind, charges in expected.items():
        torch.testing.assert_close(charge(kind(), scores, "0123456789"), charges)


@pytest.mark.parametrize("term", TERMS)
def test_a_spread_around_the_label_costs_nothing(term):
    """Half the chance on 0, half on 8, label 4: no charge, and for the square no gradient."""
    scores = torch.full((1, 10), -80.0).double()
    scores[0, [0, 8]] = 0
    charges = charge(term, scores.requires_grad_(), "4")
    charges.sum().backward()
    assert charges.abs().item() < 1e-12
    if not isinstance(term, AbsoluteError):
        assert scores.grad.abs().max() < 1e-12


@pytest.mark.parametrize(("term", "worst"), list(zip(TERMS, [81.81, 9.09, 8.585], strict=True)))
def test_reweigh_charges_text_more_than_the_worst_digit(term, worst):
    scores, text = torch.zeros(1, 10).double(), torch.tensor([80.0]).double()
    term = type(term)(reweigh=True)
    assert charge(term, scores, "0", log_normaliser=text).item() == pytest.approx(worst)
    assert charge(term, scores, "0").item() == pytest.approx(charge(type(term)(), scores, "0"))


@pytest.mark.parametrize("term", [*TERMS, SquaredError(reweigh=True), HuberError(delta=0.5)])
def test_gradcheck(term):
    """The random scores lie off the two kinks: 0 of the absolute value and delta of Huber."""
    scores = random_scores(3).requires_grad_()
    text = torch.tensor([9.0, 3.0, 4.0]).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, log_normaliser: charge(term, z, "407", log_normaliser=log_normaliser),
        (scores, text),
    )
