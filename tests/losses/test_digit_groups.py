"""Terms on tokens of several digits, of several digit groups, and on tokens that are whole numbers.

The loops below are the definitions, one token at a time in float64, and use nothing of the library.
"""

import itertools
import math
import random
from typing import NamedTuple

import pytest
import torch
from tokens import ToyTokenizer

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import TERMS

PIECES = {  # by digit group; none but the first is complete
    "0": list("0123456789"),
    "00": ["00", "07", "12", "34", "99"],
    "000": ["000", "015", "115", "900"],
    "0.0": ["0.0", "0.5", "9.5"],
    " 0": ["▁0", "▁3", "▁9"],
    " 00": ["▁77"],
}
OWN = [
    {f"<loc{i}>": float(i) for i in range(4)},
    {"<ten>": 10.0, "<half>": 0.5, "<minus>": -2.5, "<0.5>": 0.5},
]
LEAD = [*PIECES[" 0"], *PIECES[" 00"]]  # only in front of a number
TEXT = ["x", "▁x", ".", "-", "▁-"]


class Class(NamedTuple):
    """A number token."""

    id: int
    value: float
    digits: tuple[float, ...]
    """From the last to the first; the value itself where it is a number on its own."""


def _ids():
    """Return the id of each token, out of order and with gaps."""
    tokens = [token for digit_group in [*PIECES.values(), *OWN] for token in digit_group] + TEXT
    ids = list(range(len(tokens) + 4))
    random.Random(5).shuffle(ids)
    return dict(zip(tokens, ids, strict=False))


IDS = _ids()
SIZE = len(IDS) + 4
TOKENIZER = ToyTokenizer(IDS)
DIGITS = NumberVocabulary.from_tokenizer(TOKENIZER)
VOCABULARY = DIGITS
for words in OWN:
    VOCABULARY = VOCABULARY | NumberVocabulary.from_tokens(TOKENIZER, words)


def _classes():
    """Return the classes of the digit group that each number token is in, by token."""
    found = {}
    for digit_group in PIECES.values():
        digits = [[c for c in token if c in "0123456789"] for token in digit_group]
        members = [
            Class(IDS[token], float("".join(d)), tuple(float(c) for c in reversed(d)))
            for token, d in zip(digit_group, digits, strict=True)
        ]
        found.update(dict.fromkeys(digit_group, members))
    for table in OWN:
        members = [Class(IDS[token], value, (value,)) for token, value in table.items()]
        found.update(dict.fromkeys(table, members))
    return found


CLASSES = _classes()


class Seat(NamedTuple):
    """A number token among the labels."""

    sample: int
    position: int
    members: list[Class]
    wanted: Class
    place: int
    from_right: int


def batch(seed, samples=2, numbers=5, own=True):
    """Return the seats of each number, and labels [b, t]."""
    source = random.Random(seed)
    rows, found = [], []
    for sample in range(samples):
        row = [None, "x"]  # what is not trained on, and text
        for kind in ["piece", "own", *source.choices(["own", "piece", "piece"], k=numbers - 2)]:
            if kind == "own" and own:
                token = source.choice(list(source.choice(OWN)))
                found.append([seat(sample, len(row), token, 0, 0)])
                row.append(token)
            else:
                tokens = pieces(source)
                found.append(seats(sample, len(row), tokens))
                row += tokens
            row.append(source.choice(["x", "▁x"]))
        rows.append(row)
    labels = torch.full((samples, max(map(len, rows))), IGNORE_INDEX)
    for i, row in enumerate(rows):
        for j, token in enumerate(row):
            labels[i, j] = IGNORE_INDEX if token is None else IDS[token]
    return found, labels


def pieces(source):
    """Write a number in several tokens: maybe a sign, maybe a point or a token with a point."""
    whole = [token for name in ("0", "00", "000") for token in PIECES[name]]
    first = source.choice([*whole, *3 * LEAD])
    tokens = [first, *source.choices(whole, k=source.randrange(3))]
    if first not in LEAD and source.random() < 0.3:
        tokens.insert(0, source.choice(["-", "▁-"]))
    fraction = source.choice(["none", "point", "token"])
    if fraction == "point":
        tokens += [".", *source.choices(whole, k=source.randint(1, 2))]
    if fraction == "token":
        tokens += [source.choice(PIECES["0.0"]), *source.choices(whole, k=source.randrange(2))]
    return tokens


def seat(sample, position, token, place, from_right):
    """Say what one number token stands for."""
    (wanted,) = (member for member in CLASSES[token] if member.id == IDS[token])
    return Seat(sample, position, CLASSES[token], wanted, place, from_right)


def seats(sample, at, tokens):
    """Say what each number token of one number stands for."""
    _, _, fraction = "".join(tokens).partition(".")
    found, right = [], 0
    for i, token in reversed(list(enumerate(tokens))):
        if token in CLASSES:
            found.append(seat(sample, at + i, token, right - len(fraction), right))
            right += len(found[-1].wanted.digits)
    return found[::-1]


# The loops


def probabilities(scores, members, temperature=1.0):
    """Return the softmax over a digit group; scores [v]."""
    heights = [(scores[m.id] / temperature).exp() for m in members]
    total = sum(heights)
    return [height / total for height in heights]


def normaliser(scores):
    """Return the log of the sum over the whole vocabulary; scores [v]."""
    return scores.exp().sum().log()


def mass(scores, members):
    """Return the probability of a digit group; scores [v]."""
    return sum(scores[m.id].exp() for m in members) / scores.exp().sum()


def unit(members, options):
    """Return the factor of values and distances: by default the range of a digit group is 9."""
    values = [m.value for m in members]
    if options.get("scale") == "published" or len(set(values)) == 1:
        return 1.0
    return 9 / (max(values) - min(values))


def costs(members, options):
    """Return what each class costs where another is wanted, as nested lists."""
    cost = options.get("cost", "absolute")
    table = []
    for a in members:
        row = []
        for b in members:
            apart = abs(a.value - b.value) * unit(members, options)
            if cost == "modular":
                values = sorted({m.value * unit(members, options) for m in members})
                steps = [b - a for a, b in itertools.pairwise(values)]
                apart = min(apart, values[-1] - values[0] + min(steps, default=0) - apart)
                apart = max(0.0, apart)
            elif cost == "log":
                logs = [math.copysign(math.log1p(abs(v)), v) for v in (a.value, b.value)]
                apart = abs(logs[0] - logs[1])
            elif cost != "absolute":
                order = [token.id for token in VOCABULARY.tokens]
                apart = cost[order.index(a.id)][order.index(b.id)]
            row.append(apart)
        table.append(row)
    wrong = [apart for row in table for apart in row if apart > 0]
    if "squash" in options and wrong:
        near, far = min(wrong), max(wrong)
        for row in table:
            for j, apart in enumerate(row):
                share = (apart - near) / (far - near) if far > near else 0.0
                row[j] = 1 + share * (options["squash"] - 1) if apart > 0 else 0.0
    return table


def ntl_was(scores, seat, options):
    table = costs(seat.members, options)
    row = table[seat.members.index(seat.wanted)]
    expected = sum(p * c for p, c in zip(probabilities(scores, seat.members), row, strict=True))
    if not options.get("reweigh"):
        return expected
    inside = mass(scores, seat.members)
    return inside * expected + (1 - inside) * 1.01 * max(map(max, table))


def spread(seat, tau):
    """Return a target that falls with the squared distance to the value wanted."""
    apart = [m.value - seat.wanted.value for m in seat.members]
    heights = [math.exp(-(d**2) / tau) for d in apart]
    return [height / sum(heights) for height in heights]


def area(scores, seat, options, power=1):
    """Return the area between the cumulative distributions, or between their squares."""
    sigma = options.get("sigma", 0.0)
    q = spread(seat, 2 * sigma**2) if sigma else [float(m is seat.wanted) for m in seat.members]
    p = probabilities(scores, seat.members)
    steps = sorted(zip([m.value for m in seat.members], p, q, strict=True), key=lambda s: s[0])
    total = ahead = scores.new_zeros(())
    for (value, p_j, q_j), (following, _, _) in itertools.pairwise(steps):
        ahead = ahead + p_j - q_j
        gap = (following - value) * unit(seat.members, options)
        total = total + ahead.abs() ** power * gap
    return total


def off(kind):
    """Return a term whose loss is how far the expected value is off."""

    def term(scores, seat, options):
        delta = options.get("delta", 1.0)

        def penalty(miss):
            if kind == "huber":
                return miss**2 / 2 if abs(miss) <= delta else delta * (abs(miss) - delta / 2)
            return miss**2 if kind == "mse" else abs(miss)

        members, factor = seat.members, unit(seat.members, options)
        p = probabilities(scores, members)
        expected = sum(p_j * m.value for p_j, m in zip(p, members, strict=True))
        found = penalty((expected - seat.wanted.value) * factor)
        if not options.get("reweigh"):
            return found
        values = [m.value for m in members]
        worst = penalty((max(values) - min(values)) * factor)
        inside = mass(scores, members)
        return inside * found + (1 - inside) * 1.01 * worst

    return term


def gce(scores, seat, options):
    target = spread(seat, 2 * options.get("sigma", 1.0) ** 2)
    share = zip(target, seat.members, strict=True)
    return sum(prob * (normaliser(scores) - scores[m.id]) for prob, m in share)


def raft(scores, seat, options):
    """Return the squared error of the expected value, where other tokens count as 0."""
    factor = unit(seat.members, options)
    probs = [scores[m.id].exp() / scores.exp().sum() for m in seat.members]
    expected = sum(p * m.value for p, m in zip(probs, seat.members, strict=True))
    return ((expected - seat.wanted.value) * factor) ** 2


def place_weight(from_right, options):
    growth = options.get("growth", 1.2)
    return {
        "exponential": growth**from_right,
        "linear": 1 + (growth - 1) * from_right,
        "powers": 10.0**from_right,
        "none": 1.0,
    }[options.get("places", "exponential")]


def emd_exp(scores, seat, options):
    total = scores.new_zeros(())
    for p_j, m in zip(probabilities(scores, seat.members), seat.members, strict=True):
        for i, (a, b) in enumerate(zip(m.digits, seat.wanted.digits, strict=True)):
            total = total + p_j * abs(a - b) * place_weight(seat.from_right + i, options)
    return total


TOKEN_TERMS = {
    "gce": gce,
    "ntl_was": ntl_was,
    "ntl_was_cdf": area,
    "ntl_mse": off("mse"),
    "ntl_mae": off("mae"),
    "ntl_huber": off("huber"),
    "raft": raft,
    "rps": lambda scores, seat, options: area(scores, seat, options, power=2),
    "emd": lambda scores, seat, _: emd_exp(scores, seat, {"places": "none"}),
    "emd_exp": emd_exp,
}


def digit_ce(scores, number, options):
    """Return the loss of each token of a number; scores [b, t, v]."""
    weights = [place_weight(seat.from_right, options) for seat in number]
    found = []
    for weight, seat in zip(weights, number, strict=True):
        row = scores[seat.sample, seat.position]
        found.append(weight * len(number) / sum(weights) * (normaliser(row) - row[seat.wanted.id]))
    return found


def straight_through(scores, members):
    """Return the value of the most likely token, with the gradient of the expected one."""
    p = probabilities(scores, members, temperature=0.1)
    expected = sum(p_j * m.value for p_j, m in zip(p, members, strict=True))
    best = max(members, key=lambda m: scores[m.id].item())
    return best.value + expected - expected.detach()


def expected_value(scores, members):
    p = probabilities(scores, members)
    return sum(p_j * m.value for p_j, m in zip(p, members, strict=True))


def of_number(name, scores, number, options):
    """Return the loss of a whole number; scores [b, t, v]."""
    value = expected_value if name.endswith(("soft", "ntl")) else straight_through
    rows = [scores[seat.sample, seat.position] for seat in number]
    predicted = sum(
        value(row, seat.members) * 10.0**seat.place for row, seat in zip(rows, number, strict=True)
    )
    wanted = sum(seat.wanted.value * 10.0**seat.place for seat in number)
    miss, sizes = (predicted - wanted).abs(), [predicted.abs(), abs(wanted)]
    if name == "nl_ntl":
        found = miss / (sum(sizes) + options.get("epsilon", 2.0**-23))
        if not options.get("reweigh"):
            return found
        inside = mass(rows[0], number[0].members)
        return inside * found + (1 - inside) * 1.01
    if miss < 1e-12 * max(1.0, abs(wanted)):
        return 0 * miss
    if name.startswith("relative"):
        return miss / (max(sizes) + 1)
    return ((max(sizes) + 1) / (min(sizes) + 1)).log()


def by_loop(name, scores, numbers, options):
    """Return the losses of a term; scores [b, t, v]."""
    if name in TOKEN_TERMS:
        return [
            TOKEN_TERMS[name](scores[seat.sample, seat.position], seat, options)
            for number in numbers
            for seat in number
        ]
    if name == "digit_ce":
        return [loss for number in numbers for loss in digit_ce(scores, number, options)]
    return [of_number(name, scores, number, options) for number in numbers]


# The library against the loops


def random_logits(labels, seed, size=SIZE):
    """Return logits [b, t, v]."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*labels.shape, size, generator=generator, dtype=torch.float64)


def matrix():
    """Return a cost of one's own."""
    source = random.Random(3)
    count = len(VOCABULARY)
    return [[0.0 if i == j else source.uniform(0, 7) for j in range(count)] for i in range(count)]


MATRIX = matrix()
PUBLISHED = {"scale": "published"}
OPTIONS = {
    "digit_ce": [{}, {"places": "linear", "growth": 2.0}, {"places": "powers"}],
    "gce": [{}, {"sigma": 40.0}],
    "ntl_was": [
        {},
        {"reweigh": True},
        {"squash": 3.0},
        {"squash": 9.0, "reweigh": True},
        {"squash": 1.0},
        {"cost": "modular"},
        {"cost": "log"},
        {"cost": "modular", "squash": 2.0, "reweigh": True},
        {"cost": MATRIX},
        {"cost": MATRIX, "squash": 4.0},
        {"cost": MATRIX, "reweigh": True},
        PUBLISHED,
        {"cost": "modular", "reweigh": True, **PUBLISHED},
    ],
    "ntl_was_cdf": [{}, {"sigma": 1.5}, {"sigma": 60.0}, {"sigma": 60.0, **PUBLISHED}],
    "ntl_mse": [{}, {"reweigh": True}, {"reweigh": True, **PUBLISHED}],
    "ntl_mae": [{}, {"reweigh": True}, PUBLISHED],
    "ntl_huber": [{}, {"reweigh": True}, {"delta": 25.0, **PUBLISHED}],
    "raft": [{}],
    "rps": [{}, PUBLISHED],
    "emd": [{}],
    "emd_exp": [
        {},
        {"growth": 2.0},
        {"places": "linear", "growth": 1.5},
        {"places": "powers"},
        {"places": "none"},
    ],
    "relative": [{}],
    "magnitude": [{}],
    "relative_soft": [{}],
    "magnitude_soft": [{}],
    "nl_ntl": [{}, {"epsilon": 1.0}, {"reweigh": True}],
}
WHOLE_VOCABULARY = ("gce", "digit_ce", "raft")


def terms(keep=lambda name, options: True):
    """Parametrize a test with every term and its options, or with some.

    With --quick, with one choice of options.
    """
    return pytest.mark.parametrize(
        ("name", "options"),
        [
            pytest.param(name, options, id=f"{name}-{i}", marks=pytest.mark.full if i else ())
            for name, several in OPTIONS.items()
            for i, options in enumerate(several)
            if keep(name, options)
        ],
    )


def of_any_vocabulary(name, options):
    """Return True if a term has no matrix, which is for one vocabulary."""
    return options.get("cost") is not MATRIX


def only(name, options, vocabulary=VOCABULARY):
    """Return an objective that is one term without cross-entropy."""
    spec = ObjectiveSpec(
        terms=(TermSpec(name=name, options=options),), numeric_weight=1.0, ce_weight=0.0
    )
    return NumericLoss(spec, vocabulary=vocabulary)


def test_every_term_is_here():
    assert set(OPTIONS) == set(TERMS)


def test_the_digit_groups():
    found = {}
    for token in VOCABULARY.tokens:
        found.setdefault(token.digit_group, set()).add(token.id)
    expected = [{IDS[token] for token in members} for members in [*PIECES.values(), *OWN]]
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, expected))
    for members in CLASSES.values():
        for member in members:
            assert VOCABULARY.tokens[VOCABULARY.classes[member.id]].value == member.value


@pytest.mark.parametrize("seed", range(20))
def test_the_numbers_are_where_they_were_written(seed):
    numbers, labels = batch(seed)
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    flat = [seat for number in numbers for seat in number]
    assert [VOCABULARY.tokens[j].id for j in spans.target.tolist()] == [s.wanted.id for s in flat]
    assert spans.place.tolist() == [seat.place for seat in flat]
    assert spans.number.tolist() == [m for m, number in enumerate(numbers) for _ in number]
    at = spans.supervised[spans.position]
    assert at.tolist() == [seat.sample * labels.shape[1] + seat.position for seat in flat]


@terms()
def test_equals_the_loop(name, options):
    """Total, count, loss and gradient."""
    numbers, labels = batch(0)
    mine, theirs = (random_logits(labels, 0).requires_grad_() for _ in range(2))
    result = only(name, options)(mine, labels, shift=False)
    losses = by_loop(name, theirs, numbers, options)
    rows = int((labels != IGNORE_INDEX).sum())
    items = rows if name in ("gce", "digit_ce") else len(losses)
    assert result.sums[name].items == items
    assert result.sums[name].total.item() == pytest.approx(sum(losses).item(), rel=1e-6)
    result.loss.backward()
    (sum(losses) / items).backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-9)


@terms()
def test_a_digit_group_of_one_token_has_no_loss(name, options):
    labels = torch.tensor([[IDS["x"], IDS["▁77"], IDS["x"]]])
    logits = random_logits(labels, 0).float().requires_grad_()
    result = only(name, options)(logits, labels, shift=False)
    (grad,) = torch.autograd.grad(result.loss, logits)
    assert grad.isfinite().all()
    if name == "raft":
        expected = (77 * (1 - logits[0, 1].softmax(0)[IDS["▁77"]])) ** 2
    elif name in WHOLE_VOCABULARY:
        expected = logits[0, 1].logsumexp(0) - logits[0, 1, IDS["▁77"]]
    elif name == "nl_ntl" and options.get("reweigh"):
        expected = 1.01 * (1 - logits[0, 1].softmax(0)[IDS["▁77"]])
    else:
        expected = torch.tensor(0.0)
        assert not grad.any()
    assert result.sums[name].total.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("squash", [1.0, 3.0, 9.0, 1e6])
def test_squash_where_all_wrong_values_are_equally_far(squash, dtype):
    """Two tokens, next to a digit group with far values: a wrong one costs 1."""
    words = {"no": 0.0, "yes": 1.0}
    far = {"one": 1.0, "million": 1e6, "billion": 1e9}
    tokenizer = ToyTokenizer({token: i for i, token in enumerate([*words, *far])})
    two = NumberVocabulary.from_tokens(tokenizer, words)
    for vocabulary in (two, two | NumberVocabulary.from_tokens(tokenizer, far)):
        logits = torch.tensor([[0.3, -0.4, 0.1, 0.2, 2.0]], dtype=dtype).requires_grad_()
        numbers = only("ntl_was", {"squash": squash}, vocabulary)
        loss = numbers(logits[None], torch.tensor([[1]]), shift=False).loss
        expected = logits[0, :2].softmax(0)[0]
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(f, logits, retain_graph=True)[0] for f in (loss, expected))
        )


def close_in_float32(name, options, vocabulary, labels, size):
    """Check loss and gradient of float32 logits against float64."""
    found = []
    for dtype in (torch.float64, torch.float32):
        logits = random_logits(labels, 3, size).float().to(dtype).requires_grad_()
        loss = only(name, options, vocabulary)(logits, labels, shift=False).loss
        found.append((loss.item(), torch.autograd.grad(loss, logits)[0].double()))
    (loss, grad), (rounded, rounded_grad) = found
    assert loss > 0
    assert rounded == pytest.approx(loss, rel=1e-5)
    scale = grad.abs().max()
    assert scale > 0
    torch.testing.assert_close(rounded_grad / scale, grad / scale, rtol=1e-4, atol=1e-5)


@terms(lambda name, options: options.get("cost") in (None, "log"))
def test_values_up_to_ten_to_the_fifteenth(name, options):
    """Next to a digit group of digits; the values are such that float32 can tell them apart."""
    digits = [str(digit) for digit in range(10)]
    far = ["0000000000000000", "0000000000000007", "1000000000000000", "0123456789012345"]
    words = {"none": 0.0, "billion": 1e9, "much": 1e15}
    ids = {token: i for i, token in enumerate([*digits, *far, *words, "x"])}
    tokenizer = ToyTokenizer(ids)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer) | NumberVocabulary.from_tokens(
        tokenizer, words
    )
    tokens = ["4", far[2], "x", far[0], "x", "2", "x", "much", far[3], "x", "7", far[1], "9"]
    labels = torch.tensor([[ids[token] for token in tokens]])
    close_in_float32(name, options, vocabulary, labels, len(ids))


@terms(of_any_vocabulary)
def test_far_values_of_other_digit_groups_leave_digits_alone(name, options):
    """What float32 rounds off is not multiplied by gaps between or within digit groups."""
    digits = list("0123456789")
    far = {"-much": -1e15, "none": 0.0, "much": 1e15}
    tokenizer = ToyTokenizer({token: i for i, token in enumerate([*digits, *far, "1234567", "x"])})
    alone = NumberVocabulary.from_tokenizer(ToyTokenizer({digit: int(digit) for digit in digits}))
    next_to = NumberVocabulary.from_tokenizer(tokenizer)
    next_to = NumberVocabulary.from_tokens(tokenizer, far) | next_to
    labels = torch.tensor([[3, 14, 9, 8, 14, 0]])
    logits = random_logits(labels, 4, 15).float()
    losses = [
        only(name, options, vocabulary)(logits, labels, shift=False).loss
        for vocabulary in (alone, next_to)
    ]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
