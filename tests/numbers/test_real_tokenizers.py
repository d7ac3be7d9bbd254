"""Real tokenizers: which of their tokens are numbers, how numbers are read, what losses they give.

Every table was written down from the vocabularies themselves, not from what the library says.
"""

import copy
import functools
import math
import random
from collections import Counter

import pytest
import torch
from objective_steps import NUMERIC, SPECS, made
from real_tokenizers import load
from torch.nn import functional

from mm_numeric.answers import Mark
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import IGNORE_INDEX, numbers_in_answer, numbers_in_labels
from mm_numeric.numbers.vocabulary import NumberVocabulary

NAMES = ("llama2", "llama3", "qwen2", "gpt2", "t5-small")
LLAMA3 = pytest.param("llama3", marks=pytest.mark.slow)  # takes seconds to load
each_tokenizer = pytest.mark.parametrize("name", [LLAMA3 if n == "llama3" else n for n in NAMES])


@functools.cache
def vocabulary_of(name):
    """Return the number tokens of a real tokenizer."""
    return NumberVocabulary.from_tokenizer(load(name))


@functools.cache
def ids_of(name):
    """Return the id of each token of a real tokenizer."""
    return load(name).get_vocab()


@functools.cache
def size_of(name):
    """Return the number of columns of a head for a real tokenizer."""
    return max(ids_of(name).values()) + 1


def encode(name, text):
    """Return ids and offsets of a text."""
    encoding = load(name)(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoding["input_ids"], encoding["offset_mapping"]


# Which tokens are numbers

COUNTS = {  # a space is written _
    "llama2": "0=10",
    "qwen2": "0=10",
    "llama3": "0=10 00=100 000=1000",
    "gpt2": """
        0=10 00=100 000=777 0000=94 00000=6 000000=2 0000000=1 00000000=3 0000000000000000=1
        _0=10 _00=100 _000=406 _0000=178 _00000=1 _000000=1 _00000000=1
    """,
    "t5-small": """
        0=10 00=100 000=186 0000=30 _0=9 _00=66 _000=21 _0000=107
        0.0=74 0.00=6 0.000=6 00.0=1 _0.0=3 .00=2 .00.=1
        0,0=1 0,00=1 0,000=10 00,000=9 000,000=3 _0,0=2 _0,000=1 _00,000=1 _000,000=1
        0.=6 00.=11 _0.=10 _00.=10 _0000.=14 0,=7 _0,=10 _00,=22 _0000,=9
        0-=2 _0-=6 _00-=4 _000-=1 -0=9 -00=21 -0000=1 ,000,000=1 ,000.=1
    """,
}


def counts(name):
    """Return how many number tokens there are in each digit group."""
    shapes = (entry.split("=") for entry in COUNTS[name].split())
    return {shape.replace("_", " "): int(count) for shape, count in shapes}


NUMBERS = {  # token, value, digit group, digits
    "llama2": [("0", 0, "0", "0"), ("9", 9, "0", "9")],
    "qwen2": [("0", 0, "0", "0"), ("9", 9, "0", "9")],
    "llama3": [
        ("0", 0, "0", "0"),
        ("00", 0, "00", "00"),
        ("000", 0, "000", "000"),
        ("007", 7, "000", "007"),
        ("999", 999, "000", "999"),
    ],
    "gpt2": [
        ("7", 7, "0", "7"),
        ("Ġ7", 7, " 0", "7"),
        ("007", 7, "000", "007"),
        ("Ġ42", 42, " 00", "42"),
        ("Ġ2024", 2024, " 0000", "2024"),
        ("20439", 20439, "00000", "20439"),
        ("66666666", 66666666, "00000000", "66666666"),
        ("0" * 16, 0, "0" * 16, "0" * 16),
    ],
    "t5-small": [
        ("7", 7, "0", "7"),
        ("▁7", 7, " 0", "7"),
        ("▁42", 42, " 00", "42"),
        ("3.3", 33, "0.0", "33"),
        ("9.95", 995, "0.00", "995"),
        ("0.05", 5, "0.00", "005"),
        ("10.1", 101, "00.0", "101"),
        ("▁0.", 0, " 0.", "0"),
        ("▁2016,", 2016, " 0000,", "2016"),
        ("-24", 24, "-00", "24"),
        ("-2018", 2018, "-0000", "2018"),
        ("▁800-", 800, " 000-", "800"),
        ("▁1,000", 1000, " 0,000", "1000"),
        ("▁1,5", 15, " 0,0", "15"),
        (",000,000", 0, ",000,000", "000000"),
        (".05.", 5, ".00.", "05"),
    ],
}

TEXT = {  # tokens that only look like numbers, or are a piece of a number without a digit
    "llama2": "<0x30> <0x39> <0x2E> nan inf NaN Inf ▁inf e ² ½ ¹ ₀ ⅓ 二 ². . - , ▁ ▁- <unk> </s>",
    # à¥§ is १, ï¼Ķ is ４ and Â² is ² in the letters of byte-level BPE
    "llama3": "nan inf NaN Inf Infinity infinity Ġinf Ġnan ĠInfinity e à¥§ ï¼Ķ Â² Â½ ² . - , Ġ Ġ-",
    "qwen2": "nan inf NaN Inf Infinity Ġinf Ġnan ĠInfinity e Â² Â½ ² . - , Ġ Ġ- <|im_end|>",
    "gpt2": "nan inf Inf Ġinf Ġnan ĠInfinity e Â² Â½ ² . - , Ġ Ġ- <|endoftext|>",
    "t5-small": "<extra_id_7> (4) 2:00 ▁9/11 ▁$1 5% 1/2 /01/ ▁1-800- 7-9 0-0 ▁10-15 . - , ▁",
}


@pytest.mark.slow
@each_tokenizer
def test_how_many_tokens_of_each_shape_are_numbers(name):
    vocabulary = vocabulary_of(name)
    assert Counter(token.digit_group for token in vocabulary.tokens) == counts(name)
    assert len(vocabulary) == sum(counts(name).values())


@each_tokenizer
def test_tokens_that_are_numbers(name):
    ids, vocabulary = ids_of(name), vocabulary_of(name)
    for token, *expected in NUMBERS[name]:
        _, *found = vocabulary.tokens[vocabulary.classes[ids[token]]]
        assert found == expected, token


@each_tokenizer
def test_tokens_that_are_no_numbers(name):
    ids, vocabulary = ids_of(name), vocabulary_of(name)
    for token in TEXT[name].split():
        assert token in ids, token
        assert ids[token] not in vocabulary.classes, token
    assert not set(load(name).all_special_ids) & set(vocabulary.classes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2", "gpt2", "t5-small"])
def test_the_tokenizer_is_left_as_it_was(name):
    tokenizer = load(name)

    def state():
        return (
            tokenizer.get_vocab(),
            len(tokenizer),
            tokenizer.all_special_ids,
            encode(name, "-3.2"),
        )

    before = state()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    numbers_in_labels(before[3][0], vocabulary)
    NumericLoss("ntil_soft", vocabulary=vocabulary)
    assert state() == before


# How numbers are read

MARKS = {
    "-3.25": [(0, 5)],
    "1,234": [(0, 1), (2, 5)],
    "007": [(0, 3)],
    "12:34": [(0, 2), (3, 5)],
    "0.05": [(0, 4)],
    "199": [(0, 3)],
    " -5": [(1, 3)],
    "x 42, 7": [(2, 4), (6, 7)],
}
VALUES = {
    "-3.25": [-3.25],
    "1,234": [1, 234],
    "007": [7],
    "12:34": [12, 34],
    "0.05": [0.05],
    "199": [199],
    " -5": [-5],
    "x 42, 7": [42, 7],
}
# The tokens of each number, and the place of the last digit of each
BY_DIGIT = {
    "-3.25": [{"3": 0, "2": -1, "5": -2}],
    "1,234": [{"1": 0}, {"2": 2, "3": 1, "4": 0}],
    "007": [[("0", 2), ("0", 1), ("7", 0)]],
    "12:34": [{"1": 1, "2": 0}, {"3": 1, "4": 0}],
    "0.05": [[("0", 0), ("0", -1), ("5", -2)]],
    "199": [[("1", 2), ("9", 1), ("9", 0)]],
    " -5": [{"5": 0}],
    "x 42, 7": [{"4": 1, "2": 0}, {"7": 0}],
}
BY_THREE = {
    "-3.25": [{"3": 0, "25": -2}],
    "1,234": [{"1": 0}, {"234": 0}],
    "007": [{"007": 0}],
    "12:34": [{"12": 0}, {"34": 0}],
    "0.05": [{"0": 0, "05": -2}],
    "199": [{"199": 0}],
    " -5": [{"5": 0}],
    "x 42, 7": [{"42": 0}, {"7": 0}],
}
TOKENS = {
    "llama2": BY_DIGIT,
    "qwen2": BY_DIGIT,
    "llama3": BY_THREE,
    "gpt2": {**BY_THREE, "x 42, 7": [{"Ġ42": 0}, {"Ġ7": 0}]},
    "t5-small": {
        "-3.25": [{"-3": 0, "25": -2}],
        "1,234": [{"▁1,": 0}, {"2": 2, "34": 0}],
        "007": [{"00": 1, "7": 0}],
        "12:34": [{"▁12": 0}, {"34": 0}],
        "0.05": [{"0.05": -2}],
        "199": [{"199": 0}],
        " -5": [{"-5": 0}],
        "x 42, 7": [{"▁42": 0}, {"▁7": 0}],
    },
}
THOUSANDS = {  # 1,234 as one number
    **{name: {"1": 3, "2": 2, "3": 1, "4": 0} for name in ("llama2", "qwen2")},
    **{name: {"1": 3, "234": 0} for name in ("llama3", "gpt2")},
    "t5-small": {"▁1,": 3, "2": 2, "34": 0},
}


def pairs(table):
    """Return token and place of each token of a number."""
    return list(table.items()) if isinstance(table, dict) else table


def tokens_and_places(name, ids, number):
    """Return the same of a number that was found."""
    vocabulary, tokenizer = vocabulary_of(name), load(name)
    for position, target in zip(number.positions, number.targets, strict=True):
        assert vocabulary.tokens[target].id == ids[position]
    at = [ids[position] for position in number.positions]
    return list(zip(tokenizer.convert_ids_to_tokens(at), number.places, strict=True))


@each_tokenizer
@pytest.mark.parametrize("text", MARKS)
def test_numbers_in_text(name, text):
    """From the label ids alone, and through marks and offsets."""
    ids, offsets = encode(name, text)
    vocabulary = vocabulary_of(name)
    found = numbers_in_labels(ids, vocabulary)
    assert [number.value for number in found] == VALUES[text]
    assert [number.sign for number in found] == [-1 if v < 0 else 1 for v in VALUES[text]]
    expected = [pairs(table) for table in TOKENS[name][text]]
    assert [tokens_and_places(name, ids, number) for number in found] == expected
    marks = [Mark(*mark) for mark in MARKS[text]]
    assert numbers_in_answer(text, marks, ids, offsets, vocabulary) == found


@each_tokenizer
def test_the_other_reading_of_a_comma(name):
    ids, offsets = encode(name, "1,234")
    vocabulary = vocabulary_of(name)
    (found,) = numbers_in_labels(ids, vocabulary, thousands_separators=True)
    assert (found.value, found.sign) == (1234, 1)
    assert tokens_and_places(name, ids, found) == pairs(THOUSANDS[name])
    assert numbers_in_answer("1,234", [Mark(0, 5)], ids, offsets, vocabulary) == [found]


@pytest.mark.parametrize(
    ("text", "thousands", "values"),
    [
        ("1,5", False, []),  # ▁1,5 is one token, and two numbers
        ("1,000", False, []),
        ("1,000", True, [1000]),
        ("5,000", True, [5000]),
        ("10-15", False, []),
        ("1-2-3", False, [3]),  # 1-2, -3: after a digit a minus is no sign
        ("3.3.3", False, []),  # ▁3., 3.3
        ("2.000.1", False, [2, 1]),  # 2.000, ., 1
        ("2:00 or 5%", False, []),  # tokens that are no numbers
    ],
)
def test_what_t5_writes_in_tokens_of_its_own(text, thousands, values):
    ids, _ = encode("t5-small", text)
    found = numbers_in_labels(ids, vocabulary_of("t5-small"), thousands_separators=thousands)
    assert [number.value for number in found] == values


@each_tokenizer
def test_random_numbers_are_read_as_they_stand_in_the_text(name):
    source = random.Random(name)
    written = []
    for _ in range(300):
        whole = str(source.randrange(10 ** source.randint(1, 7))).zfill(source.randint(1, 4))
        fraction = source.choice(["", "", f".{source.randrange(10 ** source.randint(1, 5))}"])
        written.append(source.choice(["", "", "-"]) + whole + fraction)
    text = " and ".join(written)
    ids, offsets = encode(name, text)
    found = numbers_in_labels(ids, vocabulary_of(name))
    assert [number.value for number in found] == [float(number) for number in written]
    assert [number.sign for number in found] == [1 - 2 * n.startswith("-") for n in written]
    tokens = vocabulary_of(name).tokens
    for number in found:
        worth = zip(number.targets, number.places, strict=True)
        total = sum(tokens[target].value * 10.0**place for target, place in worth)
        assert number.sign * total == pytest.approx(number.value, rel=1e-12, abs=1e-12)
    marks = [Mark(numeral.start, numeral.end) for numeral in find_numerals(text)]
    assert numbers_in_answer(text, marks, ids, offsets, vocabulary_of(name)) == found


# The losses they give


def sure_of(name, wanted, written, height=60.0):
    """Return labels [1, t] of one text, and logits of a model that is certain of another one.

    Each number token becomes that of its digit group with the digits of the other text.
    """
    vocabulary = vocabulary_of(name)
    labels, _ = encode(name, wanted)
    of_digits = {(token.digit_group, token.digits): token.id for token in vocabulary.tokens}
    digits = "".join(c for c in written if c.isdigit())
    predicted = list(labels)
    for number in numbers_in_labels(labels, vocabulary):
        for position, target in zip(number.positions, number.targets, strict=True):
            token = vocabulary.tokens[target]
            here, digits = digits[: len(token.digits)], digits[len(token.digits) :]
            predicted[position] = of_digits[token.digit_group, here]
    assert not digits
    certain = functional.one_hot(torch.tensor([predicted]), size_of(name))
    return torch.tensor([labels]), height * certain.double()


BY_PLACE = ("emd", "emd_exp", "relative", "magnitude", "relative_soft", "magnitude_soft", "nl_ntl")
BY_VALUE = ("ntl_was", "ntl_was_cdf", "ntl_mae", "ntl_mse")


@functools.cache
def objective_of(name, terms, **options):
    """Return an objective of some terms for a real tokenizer."""
    specs = tuple(TermSpec(name=term, options=options) for term in terms)
    return NumericLoss(ObjectiveSpec(terms=specs), vocabulary=vocabulary_of(name))


def totals(objective, labels, logits):
    """Return the sum of the losses of each term."""
    sums = objective(logits, labels, shift=False).sums
    return {term: part.total.item() for term, part in sums.items()}


def relative(predicted, wanted):
    return abs(predicted - wanted) / (max(predicted, wanted) + 1)


def magnitude(predicted, wanted):
    return math.log((max(predicted, wanted) + 1) / (min(predicted, wanted) + 1))


@pytest.mark.slow
@each_tokenizer
@pytest.mark.parametrize(
    ("wanted", "written", "emd", "emd_exp", "numbers"),
    [
        ("3.015", "4.015", 1, 1.2**3, [(4.015, 3.015)]),
        ("3.015", "3.115", 1, 1.2**2, [(3.115, 3.015)]),
        ("199", "200", 1 + 9 + 9, 1.2**2 + 9 * 1.2 + 9, [(200, 199)]),
        ("-3.25", "-3.52", 3 + 3, 3 * 1.2 + 3, [(3.52, 3.25)]),
        ("12:34", "11:40", 1 + 1 + 4, 1 + 1.2 + 4, [(11, 12), (40, 34)]),
        ("0.05", "0.00", 5, 5, [(0, 0.05)]),
        ("1,234", "1,284", 5, 5 * 1.2, [(284, 234)]),
        ("007", "007", 0, 0, []),
    ],
)
def test_a_wrong_number_costs_the_same_however_it_is_cut(
    name, wanted, written, emd, emd_exp, numbers
):
    found = totals(objective_of(name, BY_PLACE), *sure_of(name, wanted, written))
    assert found["emd"] == pytest.approx(emd, rel=1e-9, abs=1e-15)
    assert found["emd_exp"] == pytest.approx(emd_exp, rel=1e-9, abs=1e-15)
    for kind, formula in (("relative", relative), ("magnitude", magnitude)):
        expected = sum(formula(*number) for number in numbers)
        assert found[kind] == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert found[f"{kind}_soft"] == pytest.approx(expected, rel=1e-9, abs=1e-15)
    share = sum(abs(x - y) / (x + y) for x, y in numbers)
    assert found["nl_ntl"] == pytest.approx(share, rel=1e-5, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "was"),
    [
        ("llama2", 1),
        ("qwen2", 1),
        pytest.param("llama3", 100, marks=pytest.mark.slow),
        ("gpt2", 100),
        ("t5-small", 1),
    ],
)
def test_published_was_is_by_the_value_of_the_token(name, was):
    """015 for 115 is a token of three digits in two of them; T5 has 0 for 1, and 15."""
    published = objective_of(name, BY_VALUE, scale="published")
    found = totals(published, *sure_of(name, "3.015", "3.115"))
    assert found["ntl_was"] == pytest.approx(was, rel=1e-9)
    assert found["ntl_was_cdf"] == pytest.approx(was, rel=1e-9)
    assert found["ntl_mae"] == pytest.approx(was, rel=1e-9)
    assert found["ntl_mse"] == pytest.approx(was**2, rel=1e-9)


# 0.3 x NTL-WAS of near-uniform logits next to a CE of 11.8, from outside; what ntloss says of them
NEAR_UNIFORM = {"llama3": (45.7, 2.8), "gpt2": (43.2, 0.0), "t5-small": (16.7, 0.0)}
each_that_joins = pytest.mark.parametrize("name", [LLAMA3, "gpt2", "t5-small"])


def near_uniform(name):
    """Return labels [1, t] of a sentence with numbers, and near-uniform logits [1, t, v]."""
    ids, _ = encode(name, "The answer is 12345 and 3.25, not 2024.")
    generator = torch.Generator().manual_seed(0)
    return torch.tensor([ids]), 0.1 * torch.randn(1, len(ids), size_of(name), generator=generator)


@each_that_joins
def test_ntl_does_not_dominate_on_tokens_that_join_digits(name):
    labels, logits = near_uniform(name)
    published, scaled = (
        made(preset, vocabulary_of(name))(logits, labels, shift=False).components
        for preset in ("ntl_was_published", "ntl_was")
    )
    outside, _ = NEAR_UNIFORM[name]
    assert 0.3 * published["ntl_was"] == pytest.approx(outside, rel=0.2)  # another sentence
    assert 0.3 * published["ntl_was"] > published["ce"]
    assert 0.5 < 0.3 * scaled["ntl_was"] < 0.3 * 9


@pytest.mark.slow
@each_that_joins
def test_tokens_digits_is_the_default_of_ntloss(name):
    """Equal to 1e-6, of a copy: NTLoss adds ten tokens to the tokenizer that it is given."""
    ntloss = pytest.importorskip("ntloss")
    labels, logits = near_uniform(name)
    theirs = ntloss.NTLoss(copy.deepcopy(load(name)), vocab_size=size_of(name))(logits, labels)
    loss = NumericLoss(
        "ntl_was", vocabulary=vocabulary_of(name), number_tokens="digits", reweigh=True
    )
    result = loss(logits, labels, shift=False)
    assert 0.3 * result.components["ntl_was"] == pytest.approx(0.3 * theirs.item(), abs=1e-6)
    assert 0.3 * result.components["ntl_was"] == pytest.approx(NEAR_UNIFORM[name][1], abs=0.1)
    assert result.sums["ntl_was"].items == {"llama3": 2, "gpt2": 0, "t5-small": 0}[name]


@each_that_joins
def test_tokens_digits_in_marked_answers(name):
    ids, offsets = encode(name, "12345")
    vocabulary = vocabulary_of(name).only_digits()
    assert numbers_in_answer("12345", [Mark(0, 5)], ids, offsets, vocabulary) == (
        numbers_in_labels(ids, vocabulary)
    )


@pytest.mark.slow
@each_tokenizer
def test_a_wrong_unit_costs_more_than_a_wrong_tenth(name):
    (units_labels, units), (tenths_labels, tenths) = (
        sure_of(name, "3.015", written) for written in ("4.015", "3.115")
    )
    vocabulary = vocabulary_of(name)
    # In ntil, whose size is that of cross-entropy, the terms alone can tell.
    for preset in ("ntil_soft", "ntil"):
        balance = NumericLoss(SPECS[preset], vocabulary=vocabulary, balance="fixed")
        more, less = (
            balance(logits, labels, shift=False)
            for logits, labels in ((units, units_labels), (tenths, tenths_labels))
        )
        assert more.components["ce"].item() == pytest.approx(less.components["ce"].item())
        assert more.loss > less.loss + 0.01
    terms = objective_of(name, BY_PLACE)
    found = [totals(terms, *sure_of(name, "3.015", text)) for text in ("4.015", "3.115")]
    for term in ("emd_exp", "relative", "magnitude", "relative_soft", "magnitude_soft", "nl_ntl"):
        assert found[0][term] > 1.15 * found[1][term] > 0


@pytest.mark.slow
@each_tokenizer
def test_the_columns_of_a_padded_head_change_nothing(name):
    labels, logits = sure_of(name, "-3.25 or 1,234", "-3.52 or 1,284", height=3.0)
    padded = functional.pad(logits, (0, 100), value=-1e4)
    found = []
    for scores in (logits, padded):
        scores = scores.requires_grad_()
        result = NumericLoss("ntil_soft", vocabulary=vocabulary_of(name))(
            scores, labels, shift=False
        )
        (grad,) = torch.autograd.grad(result.loss, scores)
        found.append((result.loss.detach(), grad[..., : logits.shape[-1]]))
        assert not grad[..., logits.shape[-1] :].any()
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


SPREAD = ("ntil", "ntl_was_published", "gce+ntl_was")
"""Presets whose terms read digits, values and whole vocabularies."""


@functools.cache
def two_samples(name):
    """Return random logits [2, t, v], and labels of a text with numbers and one without."""
    rows = [encode(name, text)[0] for text in ("-3.25, 12", "none")]
    width = max(map(len, rows))
    labels = torch.tensor([row + [IGNORE_INDEX] * (width - len(row)) for row in rows])
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(2, width, size_of(name), generator=generator), labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        *(("gpt2", preset) for preset in ["ce", *NUMERIC]),
        *((name, preset) for name in ("llama2", "llama3", "t5-small") for preset in SPREAD),
    ],
)
def test_every_preset_trains(name, preset):
    logits, labels = two_samples(name)
    loss = NumericLoss(SPECS[preset], vocabulary=vocabulary_of(name))
    for batch, has_numbers in ((slice(0, 2), True), (slice(1, 2), False)):
        scores = logits[batch].clone().requires_grad_()
        result = loss(scores, labels[batch], shift=False)
        result.loss.backward()
        assert result.loss.isfinite()
        assert scores.grad.isfinite().all()
        assert scores.grad.any()
        for term in loss.terms:
            assert (result.sums[term].total > 0) == has_numbers
