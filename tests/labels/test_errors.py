"""Estimates of the errors of labels recover errors that were planted."""

import math

import numpy as np
import pytest

from mm_numeric.labels.errors import Differences, estimate_errors, share_of

N = 200
NONE: dict[str, np.ndarray] = {}


def differences(errors, seed=0, random=0.05, groups=None, mixups=NONE):
    """Return differences of which a share is random, on a circle of 720."""
    rng = np.random.default_rng(seed)
    is_random = rng.random(len(errors)) < random
    values = np.where(is_random[:, None], rng.uniform(-360, 360, errors.shape), errors)
    groups = np.arange(len(errors)) if groups is None else groups
    log_random = -errors.shape[1] * math.log(720) if random else -math.inf
    return Differences(np.round(values), 1.0, groups, log_random, mixups)


@pytest.mark.parametrize("bias", [0.0, 4.0, -10.0])
@pytest.mark.parametrize("noise", [2.0, 5.0, 10.0])
def test_normal_errors(noise, bias):
    errors = np.random.default_rng(1).normal(bias, noise, (N, 1))
    found = estimate_errors(differences(errors))
    assert found.noise.value == pytest.approx(noise, rel=0.2)
    assert found.noise.low < noise < found.noise.high
    assert found.biases[0].low < bias < found.biases[0].high
    assert found.shares["random labels"].low < 0.05 < found.shares["random labels"].high
    assert not (bias and found.has_peak)


@pytest.mark.parametrize("side", [1, -1])
def test_errors_to_one_side_have_a_peak_at_0(side):
    found = estimate_errors(differences(side * np.random.default_rng(1).exponential(5, (N, 1))))
    assert found.has_peak
    assert found.biases[0].low < 5 * side < found.biases[0].high
    assert found.noise.value == pytest.approx(5, rel=0.2)


def test_exact_labels_have_no_noise():
    found = estimate_errors(differences(np.zeros((N, 1)), random=0))
    assert found.noise == (0, 0, 0)
    assert found.biases[0] == (0, 0, 0)


@pytest.mark.parametrize("edges", [1, 4])
def test_noisy_labels_among_exact_ones_are_not_random(edges):
    rng = np.random.default_rng(0)
    errors = rng.normal(0, 5, (N, edges)) * (rng.random((N, 1)) < 0.4)
    found = estimate_errors(differences(errors))
    assert found.noise.low < 5 * math.sqrt(0.4) < found.noise.high
    assert found.shares["random labels"].low < 0.05 < found.shares["random labels"].high


def test_mixups_are_distinguished_from_random_labels():
    errors = np.random.default_rng(0).normal(0, 5, (N, 1))
    errors[:10] += 60
    forms = np.stack([differences(errors).values - 60, differences(errors).values + 60], axis=1)
    found = estimate_errors(differences(errors, mixups={"an hour": forms}))
    assert found.shares["an hour"].low < 0.05 < found.shares["an hour"].high
    assert found.shares["an hour"].low > 0
    none = errors[10:]
    forms = np.stack([differences(none).values - 60, differences(none).values + 60], axis=1)
    assert estimate_errors(differences(none, mixups={"": forms})).shares[""].low == 0


def test_errors_of_boxes_in_proportion_to_their_size_are_not_random():
    rng = np.random.default_rng(0)
    errors = rng.normal(0, 1, (N, 4)) * np.exp(rng.uniform(-1, 3, (N, 1)))
    found = estimate_errors(differences(errors, random=0.001))
    assert found.shares["random labels"].value < 0.005
    assert found.noise.value == pytest.approx(np.sqrt((errors**2).mean()), rel=0.05)


def test_biases_of_boxes():
    """Boxes that are larger by 3 pixels on each side, and 2 pixels too far down."""
    bias = np.array([-3, -3, 3, 3]) + np.array([0, 2, 0, 2])
    errors = np.random.default_rng(0).normal(bias, 2, (N, 4))
    found = estimate_errors(differences(errors))
    assert [b.value for b in found.biases] == pytest.approx([3, 0, 2], abs=0.4)
    assert found.noise.value == pytest.approx(2, rel=0.1)


def test_boxes_of_one_image_are_resampled_together():
    """A copy of each box in the same image does not make intervals narrower."""
    errors = np.random.default_rng(0).normal(0, 5, (N, 4))
    once = estimate_errors(differences(errors, random=0))
    twice = np.concatenate([errors, errors])
    groups = np.tile(np.arange(N), 2)
    again = estimate_errors(differences(twice, random=0, groups=groups))
    assert again.noise == pytest.approx(once.noise)
    assert again.biases[0] == pytest.approx(once.biases[0])


def slow_likelihood(values, noise, mean, share):
    """Log likelihood of rounded normal errors and random labels, one row at a time."""
    total = 0.0
    for value in values:
        careful = math.exp(-(((value - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
        total += math.log((1 - share) * careful + share / 720)
    return total


def test_the_fit_has_the_greatest_likelihood():
    errors = np.random.default_rng(0).normal(2, 5, (N, 1))
    data = differences(errors)
    found = estimate_errors(data)
    best = found.noise.value, found.biases[0].value, found.shares["random labels"].value
    greatest = slow_likelihood(data.values[:, 0], *best)
    for i, step in ((0, 0.2), (1, 0.2), (2, 0.01)):
        for sign in (-1, 1):
            other = [value + sign * step * (i == j) for j, value in enumerate(best)]
            assert slow_likelihood(data.values[:, 0], *other) < greatest


@pytest.mark.parametrize(
    ("found", "count", "low", "high"), [(0, 200, 0, 0.0188), (10, 200, 0.0274, 0.0896)]
)
def test_shares_have_the_interval_of_wilson(found, count, low, high):
    assert share_of(found, count) == pytest.approx((found / count, low, high), abs=1e-4)
