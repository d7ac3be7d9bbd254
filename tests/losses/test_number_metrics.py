"""The metrics of numbers equal those of a loop over tokens."""

import pytest
import torch
from number_scanner import read
from tokens import SIZE, SPELLED, TOKENIZER, VOCABULARY, batch, labels_of, sure_logits

from mm_numeric.answers import ROLES
from mm_numeric.losses.number_metrics import METRICS, named_metrics
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans, TokenNumber
from mm_numeric.numbers.vocabulary import NumberToken, NumberVocabulary

DIGITS = [SPELLED.index(digit) for digit in "0123456789"]


def slow(logits, labels):
    """Return how many number tokens are right, of how many, and the error of each number."""
    right, tokens, errors = 0, 0, []
    for scores, ids in zip(logits.double(), labels.tolist(), strict=True):
        characters = ["_" if label == IGNORE_INDEX else SPELLED[label] for label in ids]
        for number in read(characters):
            expected = value = 0.0
            for digit in number:
                probs = scores[digit.position][DIGITS].softmax(0).tolist()
                expected += 10.0**digit.place * sum(i * p for i, p in enumerate(probs))
                value += 10.0**digit.place * digit.value
                right += scores[digit.position].argmax().item() == ids[digit.position]
                tokens += 1
            errors.append(abs(expected - value))
    return right, tokens, errors


def found(result):
    """Return the mean and the count of each figure that has one."""
    named = named_metrics(result.metric_sums)
    return {name: (s.mean.item(), s.items.item()) for name, s in named.items() if s.items}


@pytest.mark.parametrize("name", ["ce", "ntl_was", "nl_ntl"])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_a_loop_however_the_logits_come(name, seed):
    logits, labels = batch(seed)
    right, tokens, errors = slow(logits, labels)
    assert 0 < right < tokens
    wanted = {
        "accuracy": (pytest.approx(right / tokens), tokens),
        "error/free": (pytest.approx(sum(errors) / len(errors)), len(errors)),
    }
    made = NumericLoss(name, vocabulary=VOCABULARY)
    supervised = labels != IGNORE_INDEX
    spans, rows = made.spans(labels), logits[supervised]
    head = torch.randn(SIZE, SIZE, dtype=torch.float64)
    hidden = torch.linalg.solve(head, rows.T).T
    for result in (
        made(logits, labels, metrics=True, shift=False),
        made(rows, labels[supervised], spans, metrics=True),
        made.from_hidden(hidden, head, labels[supervised], spans, metrics=True, shift=False),
        NumericLoss(name, vocabulary=VOCABULARY, ce_weight=0.0, balance="fixed")(
            logits, labels, metrics=True, shift=False
        )
        if name != "ce"
        else made(logits, labels, metrics=True, shift=False),
    ):
        assert found(result) == wanted
    assert made(logits, labels, shift=False).metric_sums is None


def test_batches_add_up_and_one_without_numbers_adds_nothing():
    logits, labels = batch(1)
    made = NumericLoss("ce", vocabulary=VOCABULARY)
    whole = made(logits, labels, metrics=True, shift=False).metric_sums
    each = [
        made(logits[i, None], labels[i, None], metrics=True, shift=False).metric_sums
        for i in range(4)
    ]
    torch.testing.assert_close(torch.stack(each).sum(dim=0), whole)
    assert not each[2].any()  # "__ab, x." has no number
    assert found(made(logits[2, None], labels[2, None], metrics=True, shift=False)) == {}


def test_a_word_that_is_more_likely_than_the_digit_is_wrong():
    labels = labels_of("12")
    logits = sure_logits("1a") + sure_logits("12", height=30.0)
    assert found(
        NumericLoss("ce", vocabulary=VOCABULARY)(logits, labels, metrics=True, shift=False)
    ) == {
        "accuracy": (0.5, 2),
        "error/free": (pytest.approx(0, abs=1e-9), 1),  # of digits alone, 2 is the most likely
    }


def test_each_role_and_each_bin_in_its_own_unit():
    """Two places of a grid as tokens of their own, and a time in digits."""
    bins = {SPELLED.index("a"): 100.0, SPELLED.index("b"): 300.0, SPELLED.index("c"): 900.0}
    tokens = (NumberToken(i, value, "bins") for i, value in bins.items())
    digits = NumberVocabulary.from_tokenizer(TOKENIZER)
    vocabulary = NumberVocabulary(tuple(tokens)) | digits
    numbers = []
    for text, roles in {"ab": "x y", "7:30": "hour minute"}.items():
        at, sample = 0, []
        for piece, role in zip(
            text.split(":") if ":" in text else text, roles.split(), strict=True
        ):
            classes = [vocabulary.classes[SPELLED.index(c)] for c in piece]
            value = bins.get(SPELLED.index(piece[0])) or float(piece)
            places = tuple(reversed(range(len(piece))))
            positions = tuple(range(at, at + len(piece)))
            sample.append(TokenNumber(value, 1, positions, tuple(classes), places, role, 0))
            at += len(piece) + 1 if ":" in text else len(piece)
        numbers.append(sample)
    labels = labels_of("ab", "7:30")
    spans = NumberSpans.build(numbers, [{0: 0, 1: 1}, {i: 2 + i for i in range(4)}])
    supervised = labels != IGNORE_INDEX
    said = sure_logits("cb__", "5:38") / 2 + sure_logits("ab__", "5:38") / 2  # c or a: 500
    result = NumericLoss("ce", vocabulary=vocabulary)(
        said[supervised], labels[supervised], spans, metrics=True, shift=False
    )
    errors = {name: mean for name, (mean, _) in found(result).items() if name != "accuracy"}
    assert errors == pytest.approx(
        {"error/x": 400.0, "error/y": 0.0, "error/hour": 2.0, "error/minute": 8.0}, abs=1e-6
    )
    assert [name.partition("/")[2] for name in METRICS[:-1]] == list(ROLES)
