"""Numbers in text."""

import pytest

from mm_numeric.numbers.numerals import find_numerals


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-3.25", [-3.25]),
        ("1,234", [1, 234]),  # no thousands separator is known
        ("007", [7]),
        ("12:34", [12, 34]),
        ("0.05", [0.05]),
        ("3-5", [3, 5]),  # a minus right after a digit separates
        ("3 -5", [3, -5]),
        ("1.2.3", [1.2, 3]),
        ("-5", [-5]),
        ("--5", [-5]),
        ("(5)", [5]),
        ("5.", [5]),
        (".5", [5]),  # no digit before the point, no fraction
        ("a1b", [1]),
        ("१२ ²", []),
        ("- 5", [5]),
        ("", []),
    ],
)
def test_values(text, values):
    assert [numeral.value for numeral in find_numerals(text)] == values


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("-3.25", [(1, 2), (3, 5)]),
        ("1.2.3", [(0, 1), (2, 3), (4, 5)]),
        ("007", [(0, 3)]),
        ("x१२ ²", []),
    ],
)
def test_digit_runs_know_neither_sign_nor_point(text, spans):
    found = find_numerals(text, digit_runs=True)
    assert [(n.start, n.end) for n in found] == spans
    assert [n.text for n in found] == [text[a:b] for a, b in spans]
    assert all(n.sign == 1 for n in found)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("-3.25", {1: 0, 3: -1, 4: -2}),
        ("007", {0: 2, 1: 1, 2: 0}),
        ("0.05", {0: 0, 2: -1, 3: -2}),
        ("x12", {1: 1, 2: 0}),
        ("-120.5", {1: 2, 2: 1, 3: 0, 5: -1}),
    ],
)
def test_places(text, places):
    (numeral,) = find_numerals(text)
    assert numeral.places() == places


@pytest.mark.parametrize("text", ["-3.25", "x -120.05 y", "007", "60718293.4"])
def test_digits_times_places_are_the_value(text):
    (numeral,) = find_numerals(text)
    total = sum(int(text[i]) * 10.0**place for i, place in numeral.places().items())
    assert numeral.sign * total == pytest.approx(numeral.value, rel=1e-12)


def test_signs_and_positions_of_several():
    found = find_numerals("at -5, 12 and -0.5")
    assert [(n.start, n.end, n.sign) for n in found] == [(3, 5, -1), (7, 9, 1), (14, 18, -1)]
