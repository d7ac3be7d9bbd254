"""Each numeric term, against formulas that anyone can check."""

import math

import pytest
import torch
from term_losses import VALUES, certain, digit_logits, losses_of, number_spans, random_scores
from torch.nn import functional

from mm_numeric.losses.term import make_term
from mm_numeric.losses.terms.expected_distance import (
    CumulativeDistance,
    ExpectedDistance,
    PlaceWeightedDistance,
)
from mm_numeric.losses.terms.whole_number import (
    MagnitudeError,
    RelativeError,
    SoftMagnitudeError,
    SoftRelativeError,
)

SOFT_TERMS = [SoftRelativeError(), SoftMagnitudeError()]
NUMBER_TERMS = {
    "relative": RelativeError(),
    "magnitude": MagnitudeError(),
    "relative_soft": SOFT_TERMS[0],
    "magnitude_soft": SOFT_TERMS[1],
}


# Expected distance: NTL-WAS and EMD


def test_was_of_a_uniform_model():
    losses = losses_of(ExpectedDistance(), torch.zeros(10, 10).double(), "0123456789")
    expected = [4.5, 3.7, 3.1, 2.7, 2.5, 2.5, 2.7, 3.1, 3.7, 4.5]
    torch.testing.assert_close(losses, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)


def test_was_with_half_the_mass_on_each_side():
    scores = torch.full((1, 10), -80.0).double()
    scores[0, [0, 8]] = 0
    assert losses_of(ExpectedDistance(), scores, "4").item() == pytest.approx(4.0)


@pytest.mark.parametrize("values", [VALUES, VALUES**2, VALUES / 3 - 1])
def test_was_is_the_area_between_the_cumulative_distributions(values):
    """Losses and gradients, with gaps, and with negative values."""
    found = []
    for term in (ExpectedDistance(), CumulativeDistance()):
        scores = random_scores(10).requires_grad_()
        numbers = digit_logits(scores, torch.zeros(10), values)
        losses = term(numbers, number_spans("0123456789"))
        found.append((losses, *torch.autograd.grad(losses.sum(), scores)))
    torch.testing.assert_close(*found)


def test_reweigh_penalises_text_more_than_the_worst_digit():
    scores = torch.zeros(1, 10).double()
    text = torch.tensor([80.0]).double()  # a text token that is certain
    losses = losses_of(ExpectedDistance(reweigh=True), scores, "0", log_normaliser=text)
    assert losses.item() == pytest.approx(9.09)
    assert losses_of(ExpectedDistance(reweigh=True), scores, "0").item() == pytest.approx(4.5)


def test_the_gradient_of_was():
    """d/dz_i sum_j p_j c_j = p_i (c_i - sum_j p_j c_j)."""
    scores = random_scores(1).requires_grad_()
    losses_of(ExpectedDistance(), scores, "3").sum().backward()
    p, cost = scores.detach().softmax(-1), (VALUES - 3).abs()
    torch.testing.assert_close(scores.grad, p * (cost - (p * cost).sum()))


def test_gaps_between_values_count():
    vocabulary_values = torch.tensor([0.0, 5.0, 100.0]).double()
    spans = number_spans("1")  # class 1, which is worth 5
    numbers = digit_logits(torch.zeros(1, 3).double(), torch.zeros(1), vocabulary_values)
    published = ExpectedDistance(scale="published")(numbers, spans)
    assert published.item() == pytest.approx((5 + 0 + 95) / 3)
    assert ExpectedDistance()(numbers, spans).item() == pytest.approx(9 * (5 + 0 + 95) / 100 / 3)


def test_squash_maps_the_costs_of_a_wrong_digit():
    """A model that is certain of 0, 1, ... 9 where 0 is wanted."""
    term, scores = ExpectedDistance(squash=3.0), certain("0123456789")
    costs = torch.cat([losses_of(term, row[None], "0") for row in scores])
    torch.testing.assert_close(costs[1:], torch.linspace(1, 3, 9).double())
    assert costs[0] < 1e-30
    one = losses_of(ExpectedDistance(squash=1.0), random_scores(1), "7")
    torch.testing.assert_close(one, 1 - random_scores(1).softmax(-1)[:, 7])
    nine = losses_of(ExpectedDistance(squash=9.0), random_scores(1), "7")
    torch.testing.assert_close(nine, losses_of(ExpectedDistance(), random_scores(1), "7"))


@pytest.mark.parametrize(
    ("values", "costs"),
    [
        ([0, 5, 100], [1.0, 0.0, 1 + (95 - 5) * 2 / (100 - 5)]),
        ([0, 1], [1.0, 0.0]),
        ([3, 3, 4], [0.0, 0.0, 1.0]),  # two tokens for one value
        ([3, 3], [0.0, 0.0]),
    ],
)
def test_squash_with_gaps_and_with_nothing_to_map(values, costs):
    values = torch.tensor(values).double()
    for j, cost in enumerate(costs):
        scores = 80 * torch.eye(len(values)).double()[j : j + 1]
        numbers = digit_logits(scores, torch.zeros(1), values)  # the label is class 1
        found = ExpectedDistance(squash=3.0)(numbers, number_spans("1")).item()
        assert found == pytest.approx(cost, abs=1e-30)


# Place weights


@pytest.mark.parametrize(
    ("text", "digit_runs", "powers"),
    [
        ("305", False, [2, 1, 0]),
        ("0.25", False, [2, 1, 0]),  # from the right end of the number, across the point
        ("3.015", True, [0, 2, 1, 0]),  # from the right end of the run
        ("7,42", False, [0, 1, 0]),
    ],
)
def test_emd_exp_grows_from_the_right(text, digit_runs, powers):
    scores = random_scores(len(powers))
    plain = losses_of(ExpectedDistance(), scores, text, digit_runs=digit_runs)
    weighted = losses_of(PlaceWeightedDistance(growth=1.2), scores, text, digit_runs=digit_runs)
    expected = plain * torch.tensor([1.2**power for power in powers], dtype=torch.float64)
    torch.testing.assert_close(weighted, expected, rtol=1e-12, atol=0)


# Whole numbers


@pytest.mark.parametrize("term", list(NUMBER_TERMS.values()))
def test_a_wrong_unit_costs_more_than_a_wrong_tenth(term):
    tenths = losses_of(term, certain("3.115"), "3.015")
    units = losses_of(term, certain("4.015"), "3.015")
    assert tenths.shape == units.shape == (1,)
    assert units > 4 * tenths


@pytest.mark.parametrize(
    ("predicted", "wanted", "relative", "magnitude"),
    [
        ("199", "200", 1 / 201, math.log(201 / 200)),
        ("0", "1", 1 / 2, math.log(2)),
        ("007", "070", 63 / 71, math.log(71 / 8)),
        ("0.05", "0.50", 0.45 / 1.5, math.log(1.5 / 1.05)),
        ("900", "900", 0, 0),
    ],
)
def test_relative_and_magnitude(predicted, wanted, relative, magnitude):
    """Predicted in place of wanted, and the reverse."""
    for one, other in ((predicted, wanted), (wanted, predicted)):
        scores = certain(one)
        found = losses_of(RelativeError(), scores, other).item()
        assert found == pytest.approx(relative, rel=1e-12, abs=0)
        assert losses_of(MagnitudeError(), scores, other).item() == pytest.approx(
            magnitude, rel=1e-12
        )
        soft = [losses_of(term, scores, other).item() for term in SOFT_TERMS]
        assert soft == pytest.approx([relative, magnitude], rel=1e-12, abs=1e-30)


@pytest.mark.parametrize("term", [RelativeError(), MagnitudeError()])
def test_noise_does_not_change_a_certain_digit(term):
    noisy = type(term)(noise_scale=0.01)
    for text in ("3.115", "4.015", "3.015"):
        plain, found = (
            losses_of(t, certain(text), "3.015", digit_runs=True) for t in (term, noisy)
        )
        torch.testing.assert_close(found, plain, rtol=1e-12, atol=0)


def test_noise_is_drawn_anew_and_can_change_an_uncertain_digit():
    torch.manual_seed(0)
    term = RelativeError(noise_scale=0.01)
    found = {losses_of(term, torch.zeros(3, 10).double(), "923").item() for _ in range(8)}
    assert len(found) > 4


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_straight_through_gradient(temperature, seed):
    """dR/dX at the hard number, times 10^place p_i (v_i - sum_j p_j v_j) / temperature."""
    text, places = "40.7", [1, 0, -1]
    scores = random_scores(3, seed).requires_grad_()
    hard = sum(row.argmax().item() * 10.0**place for row, place in zip(scores, places, strict=True))
    wanted, sign = 40.7, 1 if hard > 40.7 else -1
    slopes = {
        RelativeError: (wanted + 1) / (hard + 1) ** 2 if sign > 0 else -1 / (wanted + 1),
        MagnitudeError: sign / (hard + 1),
    }
    p = (scores.detach() / temperature).softmax(-1)
    digit = p * (VALUES - (p * VALUES).sum(-1, keepdim=True)) / temperature
    worth = torch.tensor([10.0**place for place in places], dtype=torch.float64)
    for kind, slope in slopes.items():
        (found,) = torch.autograd.grad(
            losses_of(kind(temperature=temperature), scores, text).sum(), scores
        )
        torch.testing.assert_close(found, slope * worth[:, None] * digit, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("term", SOFT_TERMS)
@pytest.mark.parametrize("lead", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("wrong", range(9))
def test_the_soft_terms_have_a_gradient_where_a_wrong_digit_leads(term, lead, wrong):
    """Label 923, first digit wrong. The published form has 8e-21 at a lead of 5."""
    scores = certain("923", height=lead)
    scores[0] = lead * functional.one_hot(torch.tensor(wrong), 10)
    scores.requires_grad_()
    losses_of(term, scores, "923").sum().backward()
    assert scores.grad.norm() > 1e-3
    assert scores.grad[0, 9] < 0  # more of the digit that is wanted costs less


# Edges


@pytest.mark.parametrize("digits", [60, 600])
@pytest.mark.parametrize("name", [*NUMBER_TERMS, "emd_exp"])
@pytest.mark.parametrize("fraction", [False, True])
def test_long_numbers_are_finite(name, digits, fraction):
    text = ("0." if fraction else "") + "9" * digits
    scores = random_scores(digits + fraction).float().requires_grad_()
    losses = losses_of(make_term(name, {}), scores, text)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert losses.abs().sum() > 0
    assert scores.grad.isfinite().all()
    assert scores.grad.any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("emdd", {}, r"there is no loss term 'emdd'\. Did you mean 'emd'\?"),
        ("emd", {"growth": 2}, r"loss term emd: there is no setting 'growth'"),
        ("emd_exp", {"growth": 0}, "emd_exp: growth must be > 0, not 0"),
        ("ntl_was", {"squash": 0.9}, "ntl_was: squash must be >= 1, not 0.9"),
        ("ntl_huber", {"delta": 0}, "ntl_huber: delta must be > 0, not 0"),
        ("ntl_was_cdf", {"sigma": -1.0}, "ntl_was_cdf: sigma must be >= 0, not -1.0"),
        ("gce", {"sigma": 0}, "gce: sigma must be > 0, not 0"),
        ("relative", {"temperature": 0.0}, "temperature must be > 0 and noise_scale >= 0, not 0.0"),
        ("magnitude", {"noise_scale": -1.0}, "noise_scale >= 0, not 0.1 and -1.0"),
    ],
)
def test_terms_without_a_meaning_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_term(name, options)
