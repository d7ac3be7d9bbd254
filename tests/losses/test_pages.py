"""The pages in docs/losses: every formula and preset, computed by hand from the text of the pages.

Everything before the first test is written from the pages alone, in floats and loops, and uses
nothing of the library. Numbers are lists of tokens, such as ``["12", "3", ".", "45"]``.
"""

import math
import re
from functools import cache
from typing import NamedTuple

import pytest
import torch
from documents import PAGES
from objective_steps import SPECS, made
from tokens import ToyTokenizer

from mm_numeric.losses.presets import PRESETS
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.numbers.vocabulary import NumberVocabulary

INDEX = PAGES["docs/losses/index.md"]
LOCATIONS = {f"<{n}>": 3.0 * n for n in range(6)}
ALL = ["x", *"7302945861", "-", ".", " ", ":", *(f"{n:02}" for n in range(99, -1, -1)), *LOCATIONS]
SAMPLES = [
    ["x", ["12", "3", ".", "45"], " ", ["7"], "-", ["<4>"]],
    ["x", " ", "x"],
    ["-", ["0", ".", "05"], "x", ["00", "7"], " ", ["99"], " ", ["8", ".", "5"]],
    [["1", "0", "1"], "x", ["29"]],
]
"""The tokens of each sample; a number is a list."""


class Token(NamedTuple):
    """A number token in a label, and the symbols of the page "Losses, Notation"."""

    y: str
    z: dict  # every token of the vocabulary -> its logit
    i: int
    k: int


def value(token):
    return LOCATIONS[token] if token in LOCATIONS else float(int(token))


@cache
def group(token):
    """Return the tokens that can replace one, by value."""
    if token in LOCATIONS:
        return list(LOCATIONS)
    return sorted((t for t in ALL if t.isdigit() and len(t) == len(token)), key=value)


@cache
def scaled(token):
    values = [value(j) for j in group(token)]
    return value(token) * 9 / (max(values) - min(values))


def softmax(z, tokens):
    whole = sum(math.exp(z[j]) for j in tokens)
    return {j: math.exp(z[j]) / whole for j in tokens}


def mean_under_p(t, values):
    p = softmax(t.z, group(t.y))
    return sum(p[j] * values(j) for j in p)


def per_digit(t, weight):
    """Return the sum over the digits of a token; a location token is one digit."""
    p, total = softmax(t.z, group(t.y)), 0.0
    digits = 1 if t.y in LOCATIONS else len(t.y)
    for n in range(digits):
        digit = value if t.y in LOCATIONS else lambda j, n=n: int(j[n])
        expected = sum(p[j] * abs(digit(j) - digit(t.y)) for j in p)
        total += weight ** (t.i + digits - 1 - n) * expected
    return total


def cumulative(t, v, cost):
    """Return the sum over the sorted values of a cost of CDF_p - CDF_q, times the gap."""
    p, tokens, total = softmax(t.z, group(t.y)), group(t.y), 0.0
    for n in range(len(tokens) - 1):
        below = sum(p[j] for j in tokens[: n + 1])
        reached = v(t.y) <= v(tokens[n])
        total += cost(below - reached) * (v(tokens[n + 1]) - v(tokens[n]))
    return total


def blurred(t):
    """Return the cross-entropy to the target exp(-(v_j - v_y)^2 / 2)."""
    heights = {j: math.exp(-((value(j) - value(t.y)) ** 2) / 2) for j in group(t.y)}
    q = {j: height / sum(heights.values()) for j, height in heights.items()}
    big_p = softmax(t.z, ALL)
    return -sum(q[j] * math.log(big_p[j]) for j in q)


def huber(error):
    return error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5


def relative(x, y):
    return abs(x - y) / (max(x, y) + 1)


def magnitude(x, y):
    return math.log((max(x, y) + 1) / (min(x, y) + 1))


OF_TOKENS = {
    "ntl_was": lambda t, v: mean_under_p(t, lambda j: abs(v(j) - v(t.y))),
    "ntl_was_cdf": lambda t, v: cumulative(t, v, abs),
    "ntl_mse": lambda t, v: (mean_under_p(t, v) - v(t.y)) ** 2,
    "ntl_mae": lambda t, v: abs(mean_under_p(t, v) - v(t.y)),
    "ntl_huber": lambda t, v: huber(mean_under_p(t, v) - v(t.y)),
    "raft": lambda t, v: (sum(softmax(t.z, ALL)[j] * v(j) for j in group(t.y)) - v(t.y)) ** 2,
    "rps": lambda t, v: cumulative(t, v, lambda difference: difference**2),
    "gce": lambda t, v: blurred(t),
    "emd": lambda t, v: per_digit(t, 1.0),
    "emd_exp": lambda t, v: per_digit(t, 1.2),
}
OF_NUMBERS = {
    "nl_ntl": ("expected", lambda x, y: abs(x - y) / (x + y + 1.2e-7)),
    "relative": ("likely", relative),
    "magnitude": ("likely", magnitude),
    "relative_soft": ("expected", relative),
    "magnitude_soft": ("expected", magnitude),
}


def number_loss(name, tokens):
    kind, loss = OF_NUMBERS[name]
    if kind == "expected":
        found = [mean_under_p(t, value) for t in tokens]
    else:
        found = [value(max(group(t.y), key=t.z.get)) for t in tokens]
    x = sum(v * 10.0**t.k for v, t in zip(found, tokens, strict=True))
    return loss(x, sum(value(t.y) * 10.0**t.k for t in tokens))


def digit_ce(tokens, growth):
    weights = [growth**t.i for t in tokens]
    mean = sum(weights) / len(weights)
    losses = [-math.log(softmax(t.z, ALL)[t.y]) for t in tokens]
    return [w / mean * loss for w, loss in zip(weights, losses, strict=True)]


def tokens_of(sample):
    return [t for piece in sample for t in ([piece] if isinstance(piece, str) else piece)]


def numbers_of(sample, logits, *, runs):
    """Return the number tokens of each number; ``logits`` has those of each token in order."""
    found, at = [], 0
    for piece in sample:
        if isinstance(piece, str):
            at += 1
            continue
        text = "".join(piece)
        parts = [text] if not runs else text.split(".")
        decimals = 0 if runs else len(text.partition(".")[2])
        own, part, before = [], 0, 0
        for token in piece:
            if token == "." and runs:
                found.append(own)
                own, part, before = [], part + 1, 0
            elif token != ".":
                before += len(token)
                i = 0 if token in LOCATIONS else len(parts[part].replace(".", "")) - before
                own.append(Token(token, logits[at], i, i - decimals))
            at += 1
        found.append(own)
    return found


FORMULA = re.compile(
    r"(?:([\d.]+) )?CE( of text)?(?: \+ ([\d.]+ )?\(?(.+?)\)?)?(, terms scaled to CE)?"
)


def by_hand(name, samples, logits):
    """Return the loss of a preset, or of one as published, as the table of all presets says."""
    base = name.removesuffix("_published")
    if base == "ntl_was_cdf":
        formula, unit = "CE + 0.3 ntl_was_cdf", "number tokens"
    else:
        row = rf"^\| `{re.escape(base)}` \| (.*?) \| (.*?) \|"
        formula, unit = re.search(row, INDEX, re.M).groups()
    unit = "samples" if name in ("ntil_published", "emd_exp_published") else unit
    factor, text_only, weight, terms, ratio = FORMULA.fullmatch(formula).groups()
    numbers = [
        numbers_of(sample, own, runs=unit == "samples")
        for sample, own in zip(samples, logits, strict=True)
    ]
    ce, supervised = 0.0, 0
    for sample, own in zip(samples, logits, strict=True):
        for token, z in zip(tokens_of(sample), own, strict=True):
            supervised += 1
            is_number = token.isdigit() or token in LOCATIONS
            ce -= 0 if text_only and is_number else math.log(softmax(z, ALL)[token])
    ce, total = ce / supervised, 0.0
    v = value if name == "ntl_was_published" else scaled
    for term in (terms or "").split(" + ") if terms else ():
        share, _, own = term.rpartition(" ")
        losses = []  # of each sample
        for of_sample in numbers:
            if own == "digit_ce":
                growth = 1.0 if name == "ce_numbers_times_2" else 1.2
                losses.append([loss for tokens in of_sample for loss in digit_ce(tokens, growth)])
            elif own in OF_NUMBERS:
                losses.append([number_loss(own, tokens) for tokens in of_sample])
            else:
                losses.append([OF_TOKENS[own](t, v) for tokens in of_sample for t in tokens])
        if unit == "samples":
            mean = sum(sum(own) / max(1, len(own)) for own in losses) / len(losses)
        else:
            of_all = own in ("digit_ce", "gce") and unit.startswith("supervised tokens")
            items = supervised if of_all else sum(map(len, losses))
            mean = sum(map(sum, losses)) / items
        total += float(share or 1) * mean
    if ratio:
        total *= ce / (total + 1e-10)
    return float(factor or 1) * ce + float(weight or 1) * total


# The tests

TOKENS = ToyTokenizer({token: i for i, token in enumerate(ALL)})
NUMBERS = NumberVocabulary.from_tokenizer(TOKENS) | NumberVocabulary.from_tokens(TOKENS, LOCATIONS)


def batch_of(samples, seed=0):
    """Return logits [b, t, v] and labels [b, t], and the logits as dictionaries by token."""
    rows = [TOKENS.ids(tokens_of(sample)) for sample in samples]
    width = max(map(len, rows))
    labels = torch.tensor([row + [IGNORE_INDEX] * (width - len(row)) for row in rows])
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*labels.shape, len(ALL), generator=generator, dtype=torch.float64)
    tables = [
        [dict(zip(ALL, z.tolist(), strict=True)) for z in own[: len(row)]]
        for own, row in zip(logits, rows, strict=True)
    ]
    return logits, labels, tables


def test_every_formula_and_every_preset_of_the_pages_is_computed_here():
    """The first word of each line of the first block of a page is the name of a formula."""
    found = set()
    for page, text in PAGES.items():
        if page.startswith("docs/losses/") and "![Loss of" in text:
            found |= set(re.findall(r"^([a-z]\S*)  +\S", text.partition("![Loss of")[0], re.M))
    presets = {"ce", "ce_times_1.3", "ce_numbers_times_2", "digit_ce", "ntil"}
    soft = {"relative_soft", "magnitude_soft"}  # in the text of the page
    assert found == {*OF_TOKENS, *OF_NUMBERS, *presets} - soft
    assert set(re.findall(r"^\| `(\S+)` \|", INDEX, re.M)) == set(PRESETS)


@pytest.mark.parametrize("name", SPECS)
def test_a_preset_is_what_its_page_says(name):
    logits, labels, tables = batch_of(SAMPLES)
    found = made(name, NUMBERS)(logits, labels, shift=False).loss.item()
    assert found == pytest.approx(by_hand(name, SAMPLES, tables), rel=1e-7)
