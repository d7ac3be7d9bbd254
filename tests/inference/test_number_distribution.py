"""Means, medians and intervals of numbers, on a line and on a circle, against slow loops."""

import cmath
import math

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from mm_numeric import NumberDistribution
from mm_numeric.inference.number_distribution import distance

RANDOM = examples(150)
WEIGHT = st.floats(0.001, 1.0)
ON_DIAL = st.lists(st.tuples(st.integers(0, 719), WEIGHT), min_size=1, max_size=12)
ON_LINE = st.lists(st.tuples(st.integers(-50, 50), WEIGHT), min_size=1, max_size=12)
DIAL = 720


def of(pairs, covered=1.0):
    values, weights = zip(*pairs, strict=True)
    return NumberDistribution.of(values, weights, covered)


def shared(pairs):
    """The same distribution as a dictionary of plain floats."""
    total = math.fsum(weight for _, weight in pairs)
    found = {}
    for value, weight in pairs:
        found[value] = found.get(value, 0.0) + weight / total
    return found


def apart(a, b, circle):
    return abs(a - b) if circle is None else min(abs(a - b), circle - abs(a - b))


def expected(distribution, answer, circle):
    return math.fsum(p * apart(v, answer, circle) for v, p in distribution.items())


@pytest.mark.slow
@given(pairs=ON_DIAL)
@RANDOM
def test_no_minute_of_the_dial_beats_the_circular_median(pairs):
    costs = [expected(shared(pairs), minute, DIAL) for minute in range(DIAL)]
    assert costs[int(of(pairs).median(DIAL))] == pytest.approx(min(costs), abs=1e-6)


@given(pairs=ON_LINE)
@RANDOM
def test_no_number_beats_the_median_and_lower_ones_do_worse(pairs):
    median = of(pairs).median()
    costs = {y: expected(shared(pairs), y, None) for y in range(-60, 61)}
    assert costs[median] == pytest.approx(min(costs.values()), abs=1e-6)
    assert all(costs[v] > costs[median] - 1e-9 for v in shared(pairs) if v < median)


@given(pairs=ON_LINE)
@RANDOM
def test_the_mean_has_the_least_squared_error_and_the_mode_is_most_often_right(pairs):
    distribution, own = of(pairs), shared(pairs)
    mean = math.fsum(v * p for v, p in own.items())
    assert distribution.mean() == pytest.approx(mean, abs=1e-9)
    assert own[distribution.mode()] == pytest.approx(max(own.values()))


@given(pairs=ON_DIAL)
@RANDOM
def test_the_circular_mean_has_the_least_squared_chord(pairs):
    own = shared(pairs)

    def squared_chord(minute):
        angle = 2j * math.pi / DIAL
        return math.fsum(
            p * abs(cmath.exp(angle * v) - cmath.exp(angle * minute)) ** 2 for v, p in own.items()
        )

    mean = of(pairs).mean(DIAL)
    assert 0 <= mean < DIAL
    assert squared_chord(mean) <= min(map(squared_chord, range(DIAL))) + 1e-9


@given(pairs=ON_DIAL, turn=st.integers(0, 719))
@RANDOM
def test_turning_the_dial_turns_every_answer(pairs, turn):
    own = shared(pairs)
    costs = sorted(expected(own, v, DIAL) for v in own)
    assume(len(costs) == 1 or costs[1] - costs[0] > 1e-3)  # a single median
    turned = [((value + turn) % DIAL, weight) for value, weight in pairs]
    assert of(turned).median(DIAL) == (of(pairs).median(DIAL) + turn) % DIAL
    resultant = sum(p * cmath.exp(2j * math.pi * v / DIAL) for v, p in own.items())
    assume(abs(resultant) > 1e-3)
    mean = (of(pairs).mean(DIAL) + turn) % DIAL
    assert apart(of(turned).mean(DIAL), mean, DIAL) == pytest.approx(0, abs=1e-6)


@given(value=st.floats(0, 719), weight=WEIGHT, circle=st.sampled_from([None, DIAL]))
@RANDOM
def test_a_single_value_is_every_answer(value, weight, circle):
    point = NumberDistribution.of([value, value], [weight / 2, weight / 2])
    assert point.covered == pytest.approx(weight)
    assert point.median(circle) == point.mode() == value
    assert apart(point.mean(circle), value, circle) == pytest.approx(0, abs=1e-9)
    assert point.interval(0.9, circle) == (value, value)
    assert point.within(0, value, circle) == 1
    assert point.within(0, value + 1, circle) == 0


@given(pairs=ON_DIAL, mass=st.floats(0.05, 1.0), circle=st.sampled_from([None, DIAL]))
@RANDOM
def test_an_interval_has_the_mass_and_no_shorter_one_has(pairs, mass, circle):
    own = shared(pairs)

    def length(low, high):
        return high - low if circle is None or low <= high else high - low + circle

    def inside(low, high, value):
        return low <= value <= high if low <= high else value >= low or value <= high

    low, high = of(pairs).interval(mass, circle)
    held = {
        (a, b): math.fsum(p for v, p in own.items() if inside(a, b, v))
        for a in own for b in own if circle is not None or a <= b
    }  # fmt: skip
    assert held[low, high] >= mass - 1e-8
    shorter = [ends for ends in held if length(*ends) < length(low, high)]
    assert all(held[ends] < mass + 1e-8 for ends in shorter)


@given(pairs=ON_DIAL, t=st.integers(0, 360), of_value=st.integers(0, 719))
@RANDOM
def test_the_mass_within_a_tolerance(pairs, t, of_value):
    for circle in (None, DIAL):
        p = math.fsum(p for v, p in shared(pairs).items() if apart(v, of_value, circle) <= t)
        assert of(pairs).within(t, of_value, circle) == pytest.approx(p, abs=1e-9)


def test_two_peaks_around_twelve():
    dial = NumberDistribution.of([715, 716, 4, 5], [0.2, 0.3, 0.25, 0.25])
    assert dial.median(DIAL) == 716
    assert dial.median() == 5  # on a line, 12:05 is far from 11:55
    assert apart(dial.mean(DIAL), 0.05, DIAL) < 0.01
    assert dial.interval(0.9, DIAL) == (715, 5)
    assert dial.interval(0.9) == (4, 716)
    assert dial.within(5, of=0, circle=DIAL) == pytest.approx(1)
    assert dial.within(5, of=720, circle=DIAL) == pytest.approx(1)


def test_opposite_times_have_no_mean_and_the_mode_is_returned():
    assert NumberDistribution.of([180, 540], [0.5, 0.5]).mean(DIAL) == 180
    assert NumberDistribution.of([0, 240, 480], [1, 1, 1], covered=1).mean(DIAL) == 0


def test_equal_values_are_merged_and_what_is_impossible_is_dropped():
    found = NumberDistribution.of([3, 1, 3, 2], [0.25, 0.125, 0.25, 0])
    assert found.values.tolist() == [1, 3]
    assert found.probabilities == pytest.approx([0.2, 0.8])
    assert found.covered == 0.625
    assert NumberDistribution.of([3, 1], [7, 9], covered=1).probabilities.sum() == 1
    assert NumberDistribution.of([1, 2], [0.5, 0.5]).median() == 1  # the lower median
    assert NumberDistribution.of(np.arange(10), np.full(10, 0.1)).median() == 4
    assert NumberDistribution.of([1.0, 1.1], [0.5, 0.5]).within(0.1, of=1.0) == 1


def test_many_values_on_a_fine_dial():
    draw = np.random.default_rng(0)
    values = draw.choice(43200, 5000, replace=False)
    seconds = NumberDistribution.of(values, draw.random(5000), covered=1)
    costs = [distance(seconds.values, v, 43200) @ seconds.probabilities for v in seconds.values]
    assert seconds.median(43200) == seconds.values[np.argmin(costs)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumberDistribution.of([], []), "weights must be finite, at least 0 and not all 0"),
        (lambda: NumberDistribution.of([1, 2], [0, 0]), r"not all 0; found \[0\.0, 0\.0\]"),
        (lambda: NumberDistribution.of([1, 2], [1, -1]), "at least 0"),
        (lambda: NumberDistribution.of([1, 2], [1, math.nan]), "must be finite"),
        (lambda: NumberDistribution.of([1, math.inf], [1, 0]), "infinite or nan; leave it out"),
        (lambda: NumberDistribution.of([1, 2], [1]), r"\[2\] and weights \[1\] must be lists"),
        (lambda: NumberDistribution.of([1], [32]), "sum to 32 and are no probabilities; give cov"),
        (lambda: NumberDistribution.of([1], [1], covered=1.5), "covered is 0 to 1, not 1.5"),
        (lambda: NumberDistribution(np.array([2.0, 1.0]), np.array([0.5, 0.5])), "not ascending"),
        (lambda: of([(1, 1)]).interval(0), "mass is above 0 and at most 1, not 0"),
        (lambda: of([(1, 1)]).within(-1, 0), "t is at least 0, not -1"),
        (lambda: of([(720, 1)]).median(720), "at least 0 and below 720; found 720 to 720"),
        (lambda: of([(-1, 1)]).mean(720), "found -1 to -1"),
    ],
)
def test_bad_input_is_one_sentence(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert str(error.value).startswith("NumberDistribution")
    assert "\n" not in str(error.value)
