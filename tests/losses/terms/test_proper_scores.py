"""Proper scores: oracles, and what each term makes of a label that is noisy."""

import pytest
import torch
from term_losses import certain, digit_logits, losses_of, number_spans, random_scores

from mm_numeric.losses.term import make_term
from mm_numeric.losses.terms.expected_distance import RankedProbability

NOISE = torch.tensor([0, 0.1, 0.2, 0.4, 0.2, 0.1, 0, 0, 0, 0], dtype=torch.float64)
SKEWED = torch.tensor([0, 0, 0, 0, 0.4, 0.2, 0.05, 0.05, 0.3, 0], dtype=torch.float64)  # median 5


def minimiser(term, probs):
    """Return the distribution [10] that has the smallest loss, on average over the labels."""
    scores = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([scores], max_iter=300, line_search_fn="strong_wolfe")

    def expected_cost():
        optimiser.zero_grad()
        loss = probs @ losses_of(term, scores.expand(10, 10), "0123456789")
        loss.backward()
        return loss

    optimiser.step(expected_cost)
    return scores.detach().softmax(-1)


@pytest.mark.parametrize("probs", [NOISE, SKEWED])
def test_a_noisy_label_gives_its_distribution(probs):
    found = minimiser(RankedProbability(), probs)
    torch.testing.assert_close(found, probs, rtol=0, atol=0.005)


@pytest.mark.parametrize(("probs", "median"), [(NOISE, 3), (SKEWED, 5)])
def test_was_collapses_to_the_median(probs, median):
    found = minimiser(make_term("ntl_was", {}), probs)
    assert found[median] > 0.99


def test_rps_of_a_uniform_model():
    losses = losses_of(RankedProbability(), torch.zeros(10, 10).double(), "0123456789")
    assert losses[0].item() == pytest.approx(2.85)
    torch.testing.assert_close(losses, losses.flip(0))
    assert losses.argmin() in (4, 5)


def test_rps_of_a_certain_model_is_the_distance():
    """Which makes it comparable with WAS, in size and in unit."""
    for digit in "0379":
        found = losses_of(RankedProbability(), certain(digit), "3").item()
        assert found == pytest.approx(abs(int(digit) - 3), abs=1e-30)


def test_rps_counts_gaps():
    values = torch.tensor([0.0, 5.0, 100.0]).double()
    numbers = digit_logits(torch.zeros(3, 3).double(), torch.zeros(3), values)
    losses = RankedProbability(scale="published")(numbers, number_spans("0,1,2"))
    # The cumulative probabilities are 1/3 over the gap of 5, and 2/3 over that of 95.
    expected = [5 * 4 / 9 + 95 / 9, 5 / 9 + 95 / 9, 5 / 9 + 95 * 4 / 9]
    torch.testing.assert_close(losses, torch.tensor(expected).double())


def test_losses_in_float32_are_not_negative():
    scores = 12 * random_scores(10).float() + certain("0123456789", height=9.0).float()
    assert (losses_of(RankedProbability(), scores, "0123456789") >= 0).all()
