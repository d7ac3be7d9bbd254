"""Which tokens are numbers."""

import pytest
from tokens import SPELLED, VOCABULARY, ToyTokenizer

from mm_numeric.answers import Mark
from mm_numeric.numbers.spans import numbers_in_answer, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

DIGITS = {str(digit): 40 - 3 * digit for digit in range(10)}


def test_classes_are_in_order_of_value_whatever_the_ids():
    assert [token.id for token in VOCABULARY.tokens] == [SPELLED.index(d) for d in "0123456789"]
    assert [token.value for token in VOCABULARY.tokens] == list(range(10))
    assert len(VOCABULARY) == 10
    assert {token.digit_group for token in VOCABULARY.tokens} == {"0"}


def test_the_tokenizer_is_left_as_it_was():
    tokenizer = ToyTokenizer()
    before = dict(tokenizer.vocabulary)
    NumberVocabulary.from_tokenizer(tokenizer)
    assert tokenizer.vocabulary == before
    assert set(vars(tokenizer)) == {"vocabulary"}


def test_what_only_looks_like_a_digit_has_no_value():
    odd = ["<0x30>", "<0x39>", "१", "８", "²", "nan", "inf", "Infinity", "1e5", "½", "mp3", "3rd"]
    odd += ["<extra_id_7>", "<|8|>", "(4)", "$5", "1/2", "12:30", "5%", ".", "-", "", "_1", "1 2"]
    vocabulary = NumberVocabulary.from_tokenizer(
        ToyTokenizer({**DIGITS, **{token: 100 + i for i, token in enumerate(odd)}})
    )
    assert {token.id for token in vocabulary.tokens} == set(DIGITS.values())


def test_special_tokens_are_no_numbers():
    tokenizer = ToyTokenizer({**DIGITS, "8": 99, "[7]": 98, "77": 97})
    tokenizer.all_special_ids = [97, 98]
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    assert len(vocabulary) == 10
    assert vocabulary.classes[99] == 8
    assert numbers_in_labels([99, 97, 98], vocabulary)[0].value == 8
    assert len(numbers_in_labels([99, 97, 98], vocabulary)) == 1


def test_a_tokenizer_without_digits_is_rejected():
    with pytest.raises(ValueError, match=r"tokenizer toy: no token for the digits 0, 1, .* 9\. "):
        NumberVocabulary.from_tokenizer(ToyTokenizer({"a": 0, "<0x30>": 1, "१": 2}))


@pytest.mark.parametrize("wrong", ["gpt2", None])
def test_what_is_no_tokenizer_is_one_sentence(wrong):
    with pytest.raises(ValueError, match=r"takes a tokenizer, such as .* not (None|'gpt2')"):
        NumberVocabulary.from_tokenizer(wrong)


def test_one_missing_digit_is_named():
    seven = {digit: i for digit, i in DIGITS.items() if digit != "7"}
    with pytest.raises(ValueError, match=r"no token for the digit 7\. Use a tokenizer"):
        NumberVocabulary.from_tokenizer(ToyTokenizer(seven))


@pytest.mark.parametrize(
    ("token", "value", "digit_group", "digits"),
    [
        ("12", 12, "00", "12"),
        ("007", 7, "000", "007"),
        ("▁12", 12, " 00", "12"),
        ("Ġ7", 7, " 0", "7"),
        (" 7", 7, " 0", "7"),
        ("-24", 24, "-00", "24"),
        ("3.", 3, "0.", "3"),
        ("▁0.5", 5, " 0.0", "05"),
        ("1,000", 1000, "0,000", "1000"),
        (",000", 0, ",000", "000"),
        ("5-", 5, "0-", "5"),
    ],
)
def test_tokens_of_several_digits_and_of_signs(token, value, digit_group, digits):
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer({**DIGITS, token: 99}))
    (found,) = (t for t in vocabulary.tokens if t.id == 99)
    assert found == (99, value, digit_group, digits)
    assert vocabulary.tokens[vocabulary.classes[99]] is found


def test_tables_that_no_softmax_can_run_over_are_rejected():
    one, two = NumberToken(1, 0.0, "0", "0"), NumberToken(1, 1.0, "0", "1")
    for tokens in ((), (one,), (one, two)):
        with pytest.raises(ValueError, match="at least two tokens with different ids"):
            NumberVocabulary(tokens)
    with pytest.raises(ValueError, match="must be finite"):
        NumberVocabulary((one, NumberToken(2, float("nan"), "0", "1")))


def test_a_point_after_a_space_is_no_decimal_point():
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer({**DIGITS, ".": 50, "Ġ.": 51}))
    three, five = DIGITS["3"], DIGITS["5"]
    assert len(numbers_in_labels([three, 50, five], vocabulary)) == 1
    assert len(numbers_in_labels([three, 51, five], vocabulary)) == 2


@pytest.mark.parametrize(
    ("between", "value"), [("Ġ-", -5), ("(-", -5), ("-", 5), (",-", -5), ("a", 5)]
)
def test_the_sign_is_that_of_the_text(between, value):
    """Whatever else its token holds: "3 -5" and "3(-5" have a sign, "3-5" has none."""
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer({**DIGITS, between: 50}))
    found = numbers_in_labels([DIGITS["3"], 50, DIGITS["5"]], vocabulary)
    assert [number.value for number in found] == [3, value]


def test_a_number_with_a_digit_in_another_token_is_left_out():
    vocabulary = NumberVocabulary.from_tokenizer(ToyTokenizer({**DIGITS, "mp3": 50, "5-7": 51}))
    for middle in (50, 51):
        found = numbers_in_labels(
            [DIGITS["4"], 200, middle, DIGITS["2"], 200, DIGITS["8"]], vocabulary
        )
        assert [number.value for number in found] == [4, 8]


def test_location_tokens_are_worth_their_position():
    places = {f"<loc{i:04d}>": 3000 - i for i in range(1024)}
    vocabulary = NumberVocabulary.from_tokens(ToyTokenizer({**DIGITS, **places}), list(places))
    assert [token.value for token in vocabulary.tokens] == list(range(1024))
    (zero,) = numbers_in_labels([3000], vocabulary)
    assert (zero.value, zero.sign) == (0, 1)
    found = numbers_in_labels([3000 - 12, 3000 - 1023, DIGITS["3"]], vocabulary)
    assert [(n.value, n.positions, n.places) for n in found] == [
        (12, (0,), (0,)),
        (1023, (1,), (0,)),
    ]
    answer = "<loc0012><loc0345>"
    marks = [Mark(0, 9, "y", 0), Mark(9, 18, "x", 0)]
    marked = numbers_in_answer(answer, marks, [2988, 2655], [(0, 9), (9, 18)], vocabulary)
    assert [(n.value, n.role) for n in marked] == [(12, "y"), (345, "x")]


def test_words_of_your_own():
    words = {"half": 0.5, "two": 2, "one": 1, "minus one": -1}
    tokenizer = ToyTokenizer({word: i for i, word in enumerate(words)})
    vocabulary = NumberVocabulary.from_tokens(tokenizer, words)
    assert [token.value for token in vocabulary.tokens] == [-1, 0.5, 1, 2]
    found = numbers_in_labels([0, 1, 3], vocabulary)
    assert [(number.value, number.sign) for number in found] == [(0.5, 1), (2, 1), (-1, -1)]


def test_a_missing_token_is_named():
    tokenizer = ToyTokenizer({"<loc0000>": 0, "<loc0002>": 2})
    with pytest.raises(
        ValueError, match=r"tokenizer toy: no token '<loc0001>' and 1 more of the 4"
    ):
        NumberVocabulary.from_tokens(tokenizer, [f"<loc{i:04d}>" for i in range(4)])
    with pytest.raises(ValueError, match=r"no token 'three'\. Add"):
        NumberVocabulary.from_tokens(tokenizer, {"<loc0000>": 1.0, "three": 3.0})


def test_digits_and_location_tokens_together():
    tokenizer = ToyTokenizer({**DIGITS, "<a>": 90, "<b>": 91, "-": 92})
    both = NumberVocabulary.from_tokenizer(tokenizer) | NumberVocabulary.from_tokens(
        tokenizer, ["<a>", "<b>"]
    )
    found = numbers_in_labels([92, DIGITS["7"], 91, DIGITS["1"], DIGITS["2"]], both)
    assert [number.value for number in found] == [-7, 1, 12]
    assert len({token.digit_group for token in both.tokens}) == 2


def test_single_digits_and_location_tokens_together():
    """A number that is partly in a token of two digits keeps its single digits."""
    tokenizer = ToyTokenizer({**DIGITS, "42": 80, "<a>": 90, "<b>": 91})
    digits = NumberVocabulary.from_tokenizer(tokenizer).only_digits()
    locations = NumberVocabulary.from_tokens(tokenizer, ["<a>", "<b>"])
    for both in (digits | locations, locations | digits):
        found = numbers_in_labels([80, DIGITS["5"], 91], both)
        assert [(number.value, number.positions) for number in found] == [(425, (1,)), (1, (2,))]


def test_tokens_of_your_own_share_no_digit_group_with_pieces_of_numbers():
    """Hours 00 to 23, next to the pieces 24 and 60 of a longer number."""
    hours = {f"{hour:02d}": 100 + hour for hour in range(24)}
    tokenizer = ToyTokenizer({**DIGITS, **hours, "24": 124, "60": 160})
    of_hours = NumberVocabulary.from_tokens(tokenizer, list(hours))
    for both in (
        NumberVocabulary.from_tokenizer(tokenizer) | of_hours,
        of_hours | NumberVocabulary.from_tokenizer(tokenizer),
    ):
        assert [t.id for t in both.tokens if t.digit_group == "00"] == [124, 160]
        (digit_group,) = {t.digit_group for t in both.tokens if not t.digits}
        assert [t.id for t in both.tokens if t.digit_group == digit_group] == list(hours.values())


def test_a_token_of_your_own_is_no_longer_read_as_text():
    tokenizer = ToyTokenizer({**DIGITS, "50": 90, "60": 91})
    words = NumberVocabulary.from_tokens(tokenizer, {"50": 0.5, "60": 0.6})
    both = NumberVocabulary.from_tokenizer(tokenizer) | words
    found = numbers_in_labels([DIGITS["1"], 90, DIGITS["2"]], both)
    assert [number.value for number in found] == [1, 0.5, 2]
    assert found == numbers_in_labels([DIGITS["1"], 90, DIGITS["2"]], words | both)
