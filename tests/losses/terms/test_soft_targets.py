"""Targets that are spread around the label."""

import pytest
import torch
from term_losses import VALUES, digit_logits, losses_of, number_spans, random_scores

from mm_numeric.losses.terms.expected_distance import CumulativeDistance
from mm_numeric.losses.terms.soft_targets import GaussianCrossEntropy, spread_target


def test_the_target_of_a_digit():
    target = spread_target(digit_logits(VALUES[None], None), torch.tensor([4]), 1.0)[0]
    assert target[4].item() == pytest.approx(0.564, abs=5e-4)
    assert target[[3, 5]].tolist() == pytest.approx([0.208] * 2, abs=5e-4)
    assert target[[2, 6]].tolist() == pytest.approx([0.0103] * 2, abs=5e-5)
    assert target.sum().item() == pytest.approx(1)


def test_the_target_itself_has_the_smallest_loss():
    """Both terms have the same target here: ntl_was_cdf is 0 at it, gce has no gradient."""
    labels = torch.arange(10)
    scores = (-((VALUES[labels][:, None] - VALUES) ** 2) / 2).requires_grad_()
    (gradient,) = torch.autograd.grad(
        losses_of(GaussianCrossEntropy(), scores, "0123456789").sum(), scores
    )
    assert gradient.abs().max() < 1e-12
    distance = CumulativeDistance(sigma=1.0)
    assert losses_of(distance, scores, "0123456789").abs().max() < 1e-12
    assert losses_of(distance, 2 * scores.detach(), "0123456789").min() > 0.01


def test_gce_penalises_probability_on_text():
    """By the log of the probability of digits."""
    scores = random_scores(3)
    text = torch.tensor([0.5, 2.0, 7.0]).double()
    digits = scores.logsumexp(-1)
    found = losses_of(GaussianCrossEntropy(), scores, "407", log_normaliser=digits + text)
    torch.testing.assert_close(found, losses_of(GaussianCrossEntropy(), scores, "407") + text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", [GaussianCrossEntropy(), CumulativeDistance(sigma=1.0)])
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
