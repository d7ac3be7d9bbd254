"""PathRisk: compared with loops over all valid numbers, and its properties."""

import math
import random
import re

import numpy as np
import pytest
import torch
from device_waits import Waits
from documents import PAGES
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from objective_steps import made
from optimum import optimum
from term_losses import digit_logits, losses_of, marked_spans, term_values
from tokens import TOKENIZER, VOCABULARY, ToyTokenizer, labels_of

from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import NumberClasses, NumberLogits, make_term
from mm_numeric.losses.terms.path_risk import PathRisk
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary

TIME = "hour minute"
TIMES = {f"{h}:{m:02}": 60.0 * h + m for h in range(1, 13) for m in range(60)}


def begin_with(values):
    """Return the values of the texts that begin with each text: ``{"2": [2, 20, 21 ...] ...}``."""
    found = {}
    for text, value in values.items():
        for end in range(1, len(text) + 1):
            found.setdefault(text[:end], []).append(value)
    return {prefix: np.array(of_prefix) for prefix, of_prefix in found.items()}


def expected(pieces, candidates, value, open_values, cap, circle=np.inf):
    """Return the costs at each number token of one label, by a loop over all valid numbers.

    Args:
        pieces: The label as text, cut into tokens.
        candidates: For each piece the tokens that can replace it; empty for a piece of text.
        value: Value of the label.
        open_values: Maps a prefix to the values of all valid texts that begin with it.
        cap: Largest cost.
        circle: Length of the circle that the values are on.
    """
    found, prefix = [], ""
    for piece, others in zip(pieces, candidates, strict=True):
        costs = [cap] * len(others)
        for i, other in enumerate(others):
            if prefix + other in open_values:
                apart = np.abs(open_values[prefix + other] - value)
                costs[i] = min(cap, np.minimum(apart, circle - apart).min())
        if others:
            found.append([cost - min(costs) for cost in costs])
        prefix += piece
    return found


def costs_of(term, spans, vocabulary=VOCABULARY):
    """Return the loss of each number token where the model is certain of each class, [k, c]."""
    classes = NumberClasses.of(vocabulary, torch.device("cpu"), torch.float64)
    shape = (len(spans.target), len(classes.values))
    columns = []
    for j in range(shape[1]):
        scores = torch.full(shape, -1e4).double()
        scores[:, j] = 0.0
        columns.append(term(NumberLogits(scores, scores.logsumexp(-1), classes), spans))
    return torch.stack(columns, dim=1)


def check(term, texts, valid, roles, unit=1.0, circle=np.inf):
    """Compare the costs of labels of single digits with all valid texts and their values."""
    open_values = begin_with({text: value / unit for text, value in valid.items()})
    wanted = []
    for text in texts:
        digits = [list("0123456789") if c.isdigit() else [] for c in text]
        wanted += expected(text, digits, valid[text] / unit, open_values, term.cap, circle)
    found = costs_of(term, marked_spans(*((text, roles) for text in texts)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


# Compared with loops over all valid numbers


@pytest.mark.slow
@pytest.mark.parametrize("cap", [10.0, 200.0])
def test_every_time_equals_the_loop(cap):
    check(PathRisk(cap=cap), list(TIMES), TIMES, TIME, circle=720)
    # 10:00 does not tell that 9:59 is written 09:59
    padded = {f"{time:0>5}": minutes for time, minutes in TIMES.items()}
    check(PathRisk(cap=cap), [time for time in padded if time < "1"], padded, TIME, circle=720)


@pytest.mark.parametrize("cap", [10.0, 60.0])
def test_whole_numbers_equal_the_loop(cap):
    valid = {str(n): float(n) for n in range(20_000)}
    check(PathRisk(cap=cap), [str(n) for n in [*range(130), *range(189, 1300, 7)]], valid, "free")


def test_decimals_equal_the_loop():
    valid = {f"{n / 10:.1f}": n / 10 for n in range(20_000)}
    texts = [f"{n / 10:.1f}" for n in [*range(120), *range(985, 1300, 3)]]
    check(PathRisk(cap=15.0), texts, valid, "free", unit=0.1)
    signed = [f"-{text}" for text in texts]
    found = costs_of(PathRisk(), marked_spans(*((text, "free") for text in signed)))
    unsigned = costs_of(PathRisk(), marked_spans(*((text, "free") for text in texts)))
    assert torch.equal(found, unsigned)


def test_leading_zeros_equal_the_loop():
    """A label with leading zeros is of fixed width, and so are all valid numbers."""
    valid = {f"{n:03}": float(n) for n in range(1000)}
    check(PathRisk(cap=40.0), [f"{n:03}" for n in range(100)], valid, "free")


@pytest.mark.parametrize("largest", [1000, 640])
def test_coordinates_equal_the_loop(largest):
    valid = {str(n): float(n) for n in range(largest + 1)}
    term = PathRisk(cap=50.0, largest_coordinate=largest)
    check(term, [str(n) for n in range(0, largest + 1, 3)], valid, "x")
    fractions = {f"{n / 100:.2f}": n / 100 for n in range(101)}
    term = PathRisk(cap=50.0, largest_coordinate=1)
    check(term, list(fractions), fractions, "y", unit=0.01)


@pytest.mark.parametrize(("largest", "text"), [(0.57, "0.51"), (57.9, "51")])
def test_a_fractional_largest_coordinate_is_rounded_to_the_label(largest, text):
    """The largest valid number is 57, in units of the last digit."""
    costs = costs_of(PathRisk(cap=50.0, largest_coordinate=largest), marked_spans((text, "x")))
    assert costs[-1].tolist() == [1, 0, 1, 2, 3, 4, 5, 6, 50, 50]


PIECES = ToyTokenizer(
    {
        token: i
        for i, token in enumerate(
            [*"x.-:0123456789", *(f"{n:02}" for n in range(100)), *(f"<{n}>" for n in range(8))]
        )
    }
)
LONG = NumberVocabulary.from_tokenizer(PIECES) | NumberVocabulary.from_tokens(
    PIECES, {f"<{n}>": 2.5 * n - 5 for n in range(8)}
)


@pytest.mark.slow
def test_tokens_of_several_digits_equal_the_loop():
    """Tokens of two digits, split from the left, as tokens of three are by Llama 3."""
    open_values = begin_with({str(n): float(n) for n in range(110_000)})
    numbers = [10, 99, 100, 109, 120, 995, 1000, *random.Random(0).choices(range(10_000), k=20)]
    words = [[str(n)[i : i + 2] for i in range(0, len(str(n)), 2)] for n in numbers]
    width = max(map(len, words))
    labels = torch.full((len(words), width), IGNORE_INDEX)
    for row, pieces in zip(labels, words, strict=True):
        row[: len(pieces)] = torch.tensor([PIECES.vocabulary[piece] for piece in pieces])
    found = costs_of(PathRisk(cap=30.0), NumberSpans.from_labels(labels, LONG), LONG).tolist()
    of_width = {w: [j for j, t in enumerate(LONG.tokens) if len(t.digits) == w] for w in (1, 2)}
    for number, pieces in zip(numbers, words, strict=True):
        candidates = [[LONG.tokens[j].digits for j in of_width[len(p)]] for p in pieces]
        wanted = expected(pieces, candidates, float(number), open_values, cap=30.0)
        for piece, costs in zip(pieces, wanted, strict=True):
            of_token = found.pop(0)
            assert [of_token[j] for j in of_width[len(piece)]] == costs, number
    assert not found


def test_a_location_token_has_no_other_completion_than_its_value():
    labels = torch.tensor([[PIECES.vocabulary["<1>"], PIECES.vocabulary["<6>"]]])
    spans = NumberSpans.from_labels(labels, LONG)
    of_values = [t.value for t in LONG.tokens if not t.digits]
    is_location = torch.tensor([not t.digits for t in LONG.tokens])
    found = costs_of(PathRisk(cap=9.0), spans, LONG)[:, is_location].tolist()
    assert found == [[min(9.0, abs(v - label)) for v in of_values] for label in (-2.5, 10.0)]


# Properties


@pytest.mark.parametrize(
    ("text", "roles", "at", "digit", "cost"),
    [
        ("29", "free", 0, 3, 1),
        ("29", "free", 0, 1, 10),
        ("7:58", TIME, 0, 8, 2),
        ("12:59", TIME, 0, 1, 0),
        ("9:58", TIME, 0, 1, 2),  # 10:00
        ("12:02", TIME, 1, 1, 3),  # 11:59
        ("12:02", TIME, 1, 3, 10),  # no time begins with 13
        ("1:03", TIME, 1, 6, 10),  # nor with 1:6
        ("99", "free", 0, 1, 1),
        ("3.05", "free", 0, 2, 6),  # 2.99
    ],
)
def test_costs_to_read(text, roles, at, digit, cost):
    assert costs_of(PathRisk(), marked_spans((text, roles)))[at, digit] == pytest.approx(cost)


texts = st.one_of(
    st.integers(0, 10**15 - 1).map(str),
    st.decimals(0, 10**6, places=3, allow_nan=False).map(str),
    st.integers(0, 999).map("{:05}".format),
    st.sampled_from([*TIMES, "9" * 60, "1" + "0" * 40, "0" * 30]),
)


@given(text=texts, cap=st.floats(0.1, 1e6))
@examples(50)
def test_the_label_costs_nothing_and_no_number_costs_less(text, cap):
    """It is 0 with a gradient of 0 at the label, never negative, and at most the cap."""
    spans = marked_spans((text, TIME if ":" in text else "free"))
    costs = costs_of(PathRisk(cap=cap), spans)
    assert (costs >= 0).all()
    assert (costs <= cap).all()
    assert not costs.gather(1, spans.target[:, None]).any()


OPEN_TIMES = begin_with(TIMES)


@given(text=st.sampled_from(list(TIMES)), at=st.integers(0, 3), seed=st.integers(0, 999))
@examples(50)
def test_a_digit_whose_best_completion_is_farther_is_never_rewarded(text, at, seed):
    """Probability that moves to such a digit never lowers the loss, and raises it below the cap."""
    digits = [i for i, character in enumerate(text) if character != ":"]
    at %= len(digits)

    def best(digit):
        values = OPEN_TIMES.get(f"{text[: digits[at]]}{digit}", np.array([np.inf]))
        apart = np.abs(values - TIMES[text])
        return np.minimum(apart, np.abs(720 - apart)).min()

    near, far = sorted(random.Random(seed).sample(range(10), 2), key=best)
    before = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(10)))
    after = before.clone()
    after[near], after[far] = before[near] / 2, before[far] + before[near] / 2
    low, high = (
        PathRisk()(
            digit_logits(probs.log().expand(len(digits), 10), torch.zeros(len(digits))),
            marked_spans((text, TIME)),
        )[at]
        for probs in (before, after)
    )
    assert high >= low - 1e-12
    if best(near) < min(10, best(far)):
        assert high > low


def test_the_gradient_leads_to_a_close_number_and_not_to_the_label_alone():
    """For 29, both 2 and 3 become more likely as first digits, and 1 becomes less likely."""
    scores = torch.zeros(2, 10).double().requires_grad_()
    losses_of(PathRisk(), scores, "29").sum().backward()
    assert scores.grad[0, 2] < scores.grad[0, 3] < 0 < scores.grad[0, 1]


# Within an objective


ANSWERS = [("7:58", TIME), ("29, 3.05", "free free"), ("x", ""), ("12:02, 640", f"{TIME} | x")]


WHOLE = made(ObjectiveSpec(terms=(TermSpec(name="pathrisk"),)))


def of_answers(answers):
    """Return logits [n, v] that depend on the text, the labels [n] and the spans of answers."""
    logits = [
        torch.randn(len(text), 22, generator=torch.Generator().manual_seed(len(text))).double()
        for text, _ in answers
    ]
    labels = torch.tensor([token for text, _ in answers for token in TOKENIZER.ids(text)])
    return torch.cat(logits), labels, marked_spans(*answers)


@pytest.mark.parametrize("answers", [ANSWERS, ANSWERS[::-1]])
def test_times_in_a_batch_are_independent_of_the_other_samples(answers):
    each, *alone = (
        term_values(PathRisk(), logits, spans)
        for logits, _, spans in map(of_answers, [answers, *([own] for own in answers)])
    )
    torch.testing.assert_close(each, torch.cat(alone))


def test_a_time_is_two_numbers_if_only_the_labels_are_known():
    spans = NumberSpans.from_labels(labels_of("7:58"), VOCABULARY)
    apart = [
        costs_of(PathRisk(), NumberSpans.from_labels(labels_of(t), VOCABULARY)) for t in ("7", "58")
    ]
    assert torch.equal(costs_of(PathRisk(), spans), torch.cat(apart))


def test_an_hour_that_is_not_on_a_dial_is_a_number():
    as_time = costs_of(PathRisk(), marked_spans(("19:58", TIME)))
    assert torch.equal(as_time, costs_of(PathRisk(), marked_spans(("19:58", "free free"))))


def test_the_head_and_the_logits_agree():
    whole, (logits, labels, spans) = WHOLE, of_answers(ANSWERS)
    expected = whole(logits, labels, spans, shift=False)
    result = whole.from_hidden(logits, torch.eye(22).double(), labels, spans, shift=False)
    torch.testing.assert_close(result.components, expected.components)


def test_a_step_with_times_reads_nothing_back():
    whole, (logits, labels, spans) = WHOLE, of_answers(ANSWERS)
    leaf = logits.requires_grad_()
    whole(leaf, labels, spans, shift=False)  # the tables are made once
    with Waits() as waits:
        whole(leaf, labels, spans, shift=False).loss.backward()
    assert waits.found == ["aten._local_scalar_dense.default"]  # one look at the labels


@pytest.mark.parametrize("cap", [0, -1.0, float("inf")])
def test_an_invalid_cap_is_rejected(cap):
    with pytest.raises(ValueError, match="pathrisk: cap must be > 0 and finite, not"):
        make_term("pathrisk", {"cap": cap})


@pytest.mark.parametrize("largest", [0, float("nan")])
def test_an_invalid_largest_coordinate_is_rejected(largest):
    with pytest.raises(ValueError, match="pathrisk: largest_coordinate must be > 0, not"):
        PathRisk(largest_coordinate=largest)


# The optimum for noisy labels, as docs/losses/pathrisk.md has it

CLOCK = {int(minutes) % 720: text for text, minutes in TIMES.items()}
WEIGHT = 0.3


def noisy_labels(shown, deviation=5.0):
    """Return the labels of one time with Gaussian noise, rounded, and their probabilities."""
    shifts = range(-30, 31)
    ends = [math.erf((d - 0.5) / deviation / 2**0.5) for d in (*shifts, 31)]
    shares = np.diff(ends) / (ends[-1] - ends[0])
    return {CLOCK[(shown + d) % 720]: share for d, share in zip(shifts, shares, strict=True)}


def best_probabilities(labels, costs, weight):
    """Return ``{prefix: {token: probability}}``, where CE plus ``weight`` times PathRisk is least.

    After each prefix, q(d) / p(d) = m + weight * C(d) for the digits d: q is their distribution, C
    their mean cost, and m makes p sum to 1. PathRisk does not change the probability of a colon.
    """
    after = {}
    for text, share in labels.items():
        for i, character in enumerate(text):
            after.setdefault(text[:i], []).append((character, share, costs[text, i]))
    found = {}
    for prefix, tokens in after.items():
        q, cost, total = {}, np.zeros(10), sum(share for _, share, _ in tokens)
        for character, share, own in tokens:
            q[character] = q.get(character, 0.0) + share / total
            cost = cost + share / total * own
        digits = {c: q[c] for c in q if c != ":"}
        low, high = -weight * min([cost[int(c)] for c in digits], default=0.0), 1.0
        for _ in range(50):
            m = (low + high) / 2
            p = {c: q[c] / (m + weight * cost[int(c)]) for c in digits}
            low, high = (m, high) if sum(p.values()) > 1 else (low, m)
        found[prefix] = q | {c: sum(digits.values()) * p[c] for c in digits}
    return found


@pytest.fixture(scope="module")
def costs_of_times():
    """Return the cost of each digit [10] at each character of each time; 0 at colons."""
    found = iter(costs_of(PathRisk(), marked_spans(*((text, TIME) for text in TIMES))).numpy())
    return {
        (text, i): np.zeros(10) if c == ":" else next(found)
        for text in TIMES
        for i, c in enumerate(text)
    }


def greedy_answer(probabilities):
    text = ""
    while text in probabilities:
        text += max(probabilities[text], key=probabilities[text].get)
    return text


def share_within_5(labels, probabilities, answer):
    """Return the probability of the answers that are within 5 minutes of one."""
    near = {CLOCK[(int(TIMES[answer]) + d) % 720] for d in range(-5, 6)} & labels.keys()
    return sum(math.prod(probabilities[text[:i]][c] for i, c in enumerate(text)) for text in near)


def test_the_best_probabilities_are_the_optimum(costs_of_times):
    labels = noisy_labels(7 * 60 + 58)
    expected = best_probabilities(labels, costs_of_times, WEIGHT)
    found = optimum(PRESETS["pathrisk"], labels)
    assert PRESETS["pathrisk"].numeric_weight == WEIGHT
    for text in labels:
        p = math.prod(expected[text[:i]][c] for i, c in enumerate(text))
        assert found.probs[text] == pytest.approx(p, abs=1e-4)


@pytest.mark.parametrize(("weight", "error", "confidence", "share"), [
    (0.0, 0.0, 0.729, 0.729), (WEIGHT, 1.2, 0.82, 0.71),
])  # fmt: skip
def test_gaussian_labels_on_the_dial(costs_of_times, weight, error, confidence, share):
    """The greedy answer is off, and too confident; the times are those of one hour."""
    text = re.sub(r"\s+", " ", PAGES["docs/losses/pathrisk.md"])
    assert "off by 1.2 minutes, and has a probability of 0.82" in text
    assert "where 0.71 of the labels are (0.729 are" in text
    found = []
    for shown in range(7 * 60, 8 * 60):
        labels = noisy_labels(shown)
        table = best_probabilities(labels, costs_of_times, weight)
        answer = greedy_answer(table)
        apart = abs(TIMES[answer] - shown)
        true = best_probabilities(labels, costs_of_times, 0.0)
        found.append([apart, *(share_within_5(labels, own, answer) for own in (table, true))])
    assert np.mean(found, axis=0) == pytest.approx([error, confidence, share], abs=0.006)
