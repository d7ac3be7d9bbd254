"""Targets that are spread around the label."""

import pytest
import torch
from term_losses import VALUES, digit_logits, losses_of, number_spans, random_scores

from mm_numeric.losses.terms.expected_distance import CumulativeDistance
from mm_numeric.losses.terms.soft_targets import SpreadTarget, spread_target


def test_the_target_of_dist2():
    target = spread_target(digit_logits(VALUES[None], None), torch.tensor([4]), 1.0)[0]
    assert target[4].item() == pytest.approx(0.564, abs=5e-4)
    assert target[[3, 5]].tolist() == pytest.approx([0.208] * 2, abs=5e-4)
    assert target[[2, 6]].tolist() == pytest.approx([0.0103] * 2, abs=5e-5)
    assert target.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("term", [SpreadTarget(tau=2.0), CumulativeDistance(sigma=1.0)])
def test_the_target_itself_costs_nothing(term):
    """tau is twice the variance, so that both terms have the same target here."""
    labels = torch.arange(10)
    scores = (-((VALUES[labels][:, None] - VALUES) ** 2) / 2).requires_grad_()
    losses = losses_of(term, scores, "0123456789")
    assert losses.abs().max() < 1e-12
    sharper = losses_of(term, 2 * scores.detach(), "0123456789")
    assert sharper.min() > 0.01
    if isinstance(term, SpreadTarget):
        (gradient,) = torch.autograd.grad(losses.sum(), scores)
        assert gradient.abs().max() < 1e-12


def test_dist2_penalises_probability_on_text():
    """KL(q || P) is KL(q || p) less the log of the probability of digits."""
    scores = random_scores(3)
    text = torch.tensor([0.5, 2.0, 7.0]).double()
    digits = scores.logsumexp(-1)
    found = losses_of(SpreadTarget(), scores, "407", log_normaliser=digits + text)
    torch.testing.assert_close(found, losses_of(SpreadTarget(), scores, "407") + text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", [SpreadTarget(), CumulativeDistance(sigma=1.0)])
def test_values_that_are_far_apart_are_finite(term, dtype):
    """The target underflows, and the squared distance overflows float32."""
    values = torch.tensor([0.0, 1.0, 1e4, 1e30]).to(dtype)
    scores = torch.tensor([[3.0, 1.0, -9.0, 0.0]] * 2).to(dtype).requires_grad_()
    numbers = digit_logits(scores, scores.logsumexp(-1), values)
    losses = term(numbers, number_spans("1,2"))
    losses.sum().backward()
    assert losses.isfinite().all()
    assert (losses > 0).all()
    assert scores.grad.isfinite().all()
