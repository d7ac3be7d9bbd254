"""Numbers do not depend on how a text is cut into tokens; and what a number is, by a scanner."""

import random

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokens import ToyTokenizer

from mm_numeric.answers import Mark
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import numbers_in_answer, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberVocabulary

few = examples(200)
PARTS = [*"0123456789..,,--- :a", "12", "007", "345", "0.5", "-6", "1,234", ",000", " 98", "3.015"]
texts = st.lists(st.sampled_from(PARTS), min_size=3, max_size=12).map("".join)
cuts = st.integers(0, 2**60)
readings = st.sampled_from([{}, {"digit_runs": True}, {"thousands_separators": True}])

DIGITS = "0123456789"


def scanned(text, *, digit_runs=False, thousands_separators=False):
    """Return start and end of each number of a text, one character after the other."""

    def run(i):
        while i < len(text) and text[i] in DIGITS:
            i += 1
        return i

    found, i = [], 0
    while i < len(text):
        if text[i] not in DIGITS:
            i += 1
            continue
        start, end = i, run(i)
        if digit_runs:
            found.append((start, end))
            i = end
            continue
        if thousands_separators and end - start <= 3 and text[start] != "0":
            while end < len(text) and text[end] == "," and run(end + 1) == end + 4:
                end += 4
        if end < len(text) and text[end] == "." and run(end + 1) > end + 1:
            end = run(end + 1)
        minus = start > 0 and text[start - 1] == "-"
        if minus and not (start > 1 and text[start - 2] in DIGITS):
            start -= 1
        found.append((start, end))
        i = end
    return found


@pytest.mark.slow
@given(texts, readings)
@examples(500)
def test_numerals_are_those_of_the_scanner(text, reading):
    found = find_numerals(text, **reading)
    assert [(n.start, n.end) for n in found] == scanned(text, **reading)
    assert [n.text for n in found] == [text[n.start : n.end] for n in found]
    for numeral in found:
        assert numeral.sign == (-1 if numeral.text[0] == "-" else 1)
        digits = [i for i in range(numeral.start, numeral.end) if text[i] in DIGITS]
        point = text.find(".", numeral.start, numeral.end)
        units = max(i for i in digits if point < 0 or i < point)
        expected = {i: digits.index(units) - n for n, i in enumerate(digits)}
        assert numeral.places() == expected
        total = sum(int(text[i]) * 10.0**place for i, place in expected.items())
        assert numeral.value == pytest.approx(numeral.sign * total, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,234", [1234]),
        ("-1,234.5", [-1234.5]),
        ("12,345,678", [12345678]),
        ("1,234,56", [1234, 56]),
        ("1,2345", [1, 2345]),
        ("1,234,5678", [1234, 5678]),
        ("1234,567", [1234, 567]),
        ("0,123", [0, 123]),
        ("0.5,123", [0.5, 123]),
        ("5, 123", [5, 123]),
        ("1,000-2,000", [1000, 2000]),
        (",123", [123]),
    ],
)
def test_thousands(text, values):
    assert [numeral.value for numeral in find_numerals(text, thousands_separators=True)] == values


def cut(text, where):
    """Cut a text after character i where bit i of a number is set."""
    pieces, start = [], 0
    for end in range(1, len(text) + 1):
        if end == len(text) or where >> (end - 1) & 1:
            pieces.append(text[start:end])
            start = end
    return pieces


def tokenizer_of(pieces):
    """Return a tokenizer of some pieces, and the ids of them; a space is marked with ▁."""
    marked = [piece.replace(" ", "▁") for piece in pieces]
    vocabulary = {token: 3 * i + 1 for i, token in enumerate(dict.fromkeys([*marked, *DIGITS]))}
    return ToyTokenizer(vocabulary), [vocabulary[token] for token in marked]


def writes_one_number(piece, inside):
    """Return True if a piece of text, which holds digits of these numbers, is a piece of one."""
    return len(inside) == 1 and set(piece.lstrip(" ")) <= set(DIGITS + ".,-")


@given(texts, cuts, readings)
@few
def test_a_number_is_the_same_however_it_is_cut(text, where, reading):
    """Those that share a token with another number or with text are left out, and no others."""
    pieces = cut(text, where)
    tokenizer, ids = tokenizer_of(pieces)
    at = [position for position, piece in enumerate(pieces) for _ in piece]
    numerals = find_numerals(text, **reading)
    inside = [set() for _ in pieces]
    for numeral in numerals:
        for i in numeral.places():
            inside[at[i]].add(numeral)
    whole = [
        numeral
        for numeral in numerals
        if all(writes_one_number(pieces[at[i]], inside[at[i]]) for i in numeral.places())
    ]
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    found = numbers_in_labels(ids, vocabulary, **reading)
    assert [number.value for number in found] == [numeral.value for numeral in whole]
    for number, numeral in zip(found, whole, strict=True):
        assert number.sign == numeral.sign
        assert number.positions == tuple(dict.fromkeys(at[i] for i in numeral.places()))
        digits = []
        for position, target, place in zip(
            number.positions, number.targets, number.places, strict=True
        ):
            token = vocabulary.tokens[target]
            assert token.id == ids[position]
            digits += [
                (digit, place + len(token.digits) - 1 - n) for n, digit in enumerate(token.digits)
            ]
        assert digits == [(text[i], place) for i, place in numeral.places().items()]
    if "digit_runs" not in reading:
        offsets = [(at.index(i), at.index(i) + len(piece)) for i, piece in enumerate(pieces)]
        marks = [Mark(numeral.start, numeral.end) for numeral in whole]
        assert numbers_in_answer(text, marks, ids, offsets, vocabulary) == found


@pytest.mark.slow
@given(texts, cuts, st.integers(0, 2**24))
@few
def test_what_is_not_trained_on_ends_a_number(text, where, seed):
    """As a space in its place would."""
    pieces = cut(text, where)
    source = random.Random(seed)
    hidden = [source.random() < 0.2 for _ in pieces]
    tokenizer, ids = tokenizer_of([*pieces, " "])
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    labels = [-100 if h else i for h, i in zip(hidden, ids, strict=False)]
    spaces = [ids[-1] if h else i for h, i in zip(hidden, ids, strict=False)]
    assert numbers_in_labels(labels, vocabulary) == numbers_in_labels(spaces, vocabulary)


@pytest.mark.slow
@given(texts, cuts)
@few
def test_a_mark_on_a_number_that_shares_a_token_is_rejected(text, where):
    pieces = cut(text, where)
    tokenizer, ids = tokenizer_of(pieces)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    offsets, start = [], 0
    for piece in pieces:
        offsets.append((start, start + len(piece)))
        start += len(piece)
    found = {number.value for number in numbers_in_labels(ids, vocabulary)}
    for numeral in find_numerals(text):
        mark = [Mark(numeral.start, numeral.end)]
        if numeral.value in found:
            continue
        with pytest.raises(ValueError, match="so that it has no numeric loss"):
            numbers_in_answer(text, mark, ids, offsets, vocabulary)
