"""Round trips of value ids and scales."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_numeric.baselines.values import (
    Scale,
    from_log,
    is_value,
    read_values,
    to_log,
    value_id,
    value_ids,
    value_of,
)

pytestmark = pytest.mark.slow

floats = st.floats(-1e9, 1e9, width=32)


@given(st.lists(floats, min_size=1))
def test_an_id_carries_its_value(values):
    ids = [value_id(value) for value in values]
    assert [value_of(token) for token in ids] == values
    assert value_ids(torch.tensor(values)).tolist() == ids
    carries, found = read_values(torch.tensor([*ids, 7]))
    assert carries.tolist() == [True] * len(ids) + [False]
    assert found.tolist() == [*values, 1.0]


def test_an_id_that_carries_a_value_is_in_no_vocabulary():
    lowest = value_id(struct.unpack("<f", bytes(4))[0])
    assert lowest == value_id(0.0) == 2**40
    assert is_value(lowest)
    assert not is_value(2**32)


def test_what_float32_cannot_square_is_cut_off():
    assert value_of(value_id(1e300)) == value_of(value_ids(torch.tensor(torch.inf)).item()) == 1e9
    assert value_of(value_id(-math.inf)) == -1e9
    assert math.isnan(value_of(value_id(math.nan)))


@given(st.floats(-1e12, 1e12))
def test_the_logarithm_comes_back(number):
    assert from_log(to_log(number)) == pytest.approx(number, rel=1e-9, abs=1e-9)
    assert to_log(number) == pytest.approx(
        math.copysign(math.log10(1 + abs(number)), number), abs=1e-9
    )


def test_the_logarithm_of_what_no_float_holds():
    assert to_log(9) == pytest.approx(1)
    assert to_log(-99) == pytest.approx(-2)
    assert from_log(1e9) == pytest.approx(1e300)
    assert math.isnan(from_log(math.nan))


@pytest.mark.parametrize("log", [False, True])
@given(numbers=st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=20, unique=True))
def test_scaled_numbers_have_mean_0_and_deviation_1_and_come_back(log, numbers):
    scale = Scale.of(numbers, normalise=True, log=log, decimals=3)
    scaled = [scale.scaled(number) for number in numbers]
    assert sum(scaled) / len(scaled) == pytest.approx(0, abs=1e-4)
    assert sum(y * y for y in scaled) / len(scaled) == pytest.approx(1, rel=1e-6)
    back = [scale.number(y) for y in scaled]
    assert back == pytest.approx(numbers, rel=1e-6, abs=1e-4)


def test_numbers_that_are_all_the_same_are_scaled_by_1():
    assert Scale.of([7, 7], normalise=True, log=False, decimals=0).scaled(8) == 1
    assert Scale.of([7, 7], normalise=False, log=False, decimals=0).scaled(8) == 8


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(6.994, 0, "7"), (-0.3, 0, "0"), (3.5, 3, "3.5"), (-7.0, 2, "-7"), (100.0, 0, "100"),
     (0.125, 3, "0.125"), (-6.99999970, 24, "-7"), (12.5000004, 9, "12.5"), (0.0012, 24, "0.0012"),
     (0.0, 9, "0"), (1e20, 0, "100000000000000000000"), (math.nan, 2, "nan")],
)  # fmt: skip
def test_a_number_is_written_with_as_many_decimals_as_were_trained_on(value, decimals, text):
    assert Scale(decimals=decimals).text(value) == text
