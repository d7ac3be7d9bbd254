"""Losses of whole answers: loops over all answers in float64, and what noisy labels make of them.

``optimum`` trains a table of probabilities; docs/losses/whole-answers.md has what is found here.
"""

import math

import pytest
import torch
from answer_trees import NUMBER_TREE, NUMBERS, TIME_TREE, TIMES, answers_of, cross_entropy, optimum

from mm_numeric.losses.term import make_term
from mm_numeric.losses.terms.whole_answers import ExpectedRisk

TREES = {
    "times": (TIME_TREE, TIMES, ["12:00", "10:58"]),
    "numbers": (NUMBER_TREE, NUMBERS, ["0", "29", "99", "100", "120"]),
}
each_tree = pytest.mark.parametrize("name", TREES)
NOISES = {
    "bimodal": (NUMBER_TREE, {"29": 0.65, "39": 0.35}),
    "skewed": (NUMBER_TREE, {str(28 + k): math.exp(-k / 2.5) for k in range(12)}),
    "around 12:00": (
        TIME_TREE,
        {"11:57": 1, "11:58": 2, "11:59": 4, "12:00": 6, "12:01": 4, "12:02": 2, "12:03": 1},
    ),
}


def normalised(labels):
    return {text: weight / sum(labels.values()) for text, weight in labels.items()}


def with_ce(term, weight):
    return lambda numbers, spans: cross_entropy(numbers, spans) + weight * term(numbers, spans)


def case(name, seed=0):
    """Return a tree, its texts by value, labels, and the probabilities and loss arguments."""
    tree, values, labels = TREES[name]
    generator = torch.Generator().manual_seed(seed)
    shape = len(labels), len(tree.node), len(tree.ids)
    scores = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    arguments = answers_of(tree, scores, labels)
    probs = arguments[0].answers.probs.tolist()
    texts = sorted(values, key=values.get)
    return values, labels, texts, probs, arguments


def apart(values, a, b):
    """Return the distance of two texts."""
    found = abs(values[a] - values[b])
    return min(found, 720 - found) if values is TIMES else found


@each_tree
@pytest.mark.parametrize("cap", [None, 10.0])
def test_expected_risk_equals_loops(name, cap):
    values, labels, texts, probs, arguments = case(name)
    found = ExpectedRisk(cap=cap)(*arguments)
    for label, own, loss in zip(labels, probs, found.tolist(), strict=True):
        wanted = sum(
            p * min(cap or math.inf, apart(values, t, label))
            for p, t in zip(own, texts, strict=True)
        )
        assert loss == pytest.approx(wanted, abs=1e-9)


def test_options_must_be_positive():
    with pytest.raises(ValueError, match="cap must be > 0, not 0"):
        make_term("expected_risk", {"cap": 0.0})


# What noisy labels make of the losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "answer", "prob", "of_labels"),
    [
        ("bimodal", "29", 0.898, 0.65),
        ("skewed", "29", 0.317, 0.223),
        ("around 12:00", "12:00", 0.529, 0.3),
    ],
)
def test_expected_risk_is_not_proper(noise, answer, prob, of_labels):
    """The Bayes answer alone costs less than the distribution of the labels, and CE plus 0.3 times
    the term is too certain of it: ``prob`` in place of ``of_labels``."""
    tree, labels = NOISES[noise]
    labels = normalised(labels)
    texts = list(labels)
    values = NUMBERS if tree is NUMBER_TREE else TIMES

    def cost(x):
        return sum(prob * apart(values, x, text) for text, prob in labels.items())

    assert cost(answer) == min(map(cost, texts)) < sum(labels[x] * cost(x) for x in texts)
    mixed = optimum(tree, with_ce(ExpectedRisk(), 0.3), labels)
    assert mixed[int(values[answer])] == pytest.approx(prob, abs=0.002)
    assert labels[answer] == pytest.approx(of_labels, abs=0.002)
