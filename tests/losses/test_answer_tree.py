"""The tree of all answers: its nodes, and the probability of each answer, by loops in float64."""

import math
import random

import pytest
import torch
from answer_trees import NUMBER_TREE, NUMBERS, TIME_TREE, TIMES, answers_of, tree_of
from term_losses import marked_spans
from tokens import TOKENIZER

from mm_numeric.losses.answer_tree import AnswerTree
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.numbers.vocabulary import NumberVocabulary


def beginnings(tree):
    """Return the tokens that the model reads before each node, from what each extra token sees."""
    extra = [
        tuple(tree.tokens[seen.nonzero().flatten()].tolist())  # shorter beginnings come first
        for seen in tree.sees
    ]
    return [(() if node == 0 else extra[node - 1]) for node in tree.node.tolist()]


@pytest.mark.parametrize(
    ("values", "extra", "nodes"),
    [
        (TIMES, 9 + 3 + 12 + 72, 1 + 1 + 12 + 72),
        (NUMBERS, 9 + 3, 1 + 9 + 3),
        ({str(n): n for n in range(1000)}, 99, 100),
        ({str(n): n for n in range(-20, 21)}, 5, 6),
    ],
)
def test_number_of_extra_tokens_and_nodes(values, extra, nodes):
    """Of times: ``7``, ``10``, ``7:`` and ``7:0``; after ``7`` and ``10`` there is only a colon."""
    tree = tree_of(values)
    assert (len(tree.tokens), len(tree.node)) == (extra, nodes)


def test_one_token_for_each_number_needs_no_extra_token():
    """Such as 0 to 999 of Llama 3."""
    tree = AnswerTree.of({(n, 1000): float(n) for n in range(1000)})
    assert not len(tree.tokens)
    assert tree.node.tolist() == [0]


def test_an_extra_token_sees_itself_and_what_it_continues():
    tree = tree_of(TIMES)
    for token, depth, sees in zip(tree.tokens, tree.depth, tree.sees, strict=True):
        seen = sees.nonzero().flatten()
        assert seen[-1] < len(tree.tokens)
        assert tree.tokens[seen[-1]] == token
        assert len(seen) == depth
    found = {"".join("x7 30:a.9,51b-284(6)cd"[i] for i in b) for b in beginnings(tree)}
    assert {"", "1", "7:", "12:0"} < found


@pytest.mark.parametrize(
    ("tree", "values"), [(TIME_TREE, TIMES), (NUMBER_TREE, NUMBERS)], ids=["times", "numbers"]
)
def test_probabilities_equal_loops(tree, values):
    """The softmax of each node is over the tokens that continue an answer."""
    scores = torch.randn(len(tree.node), len(tree.ids), dtype=torch.float64) * 3
    label = next(iter(values))
    found = answers_of(tree, scores, [label])[0].answers
    ids = [tuple(TOKENIZER.ids(text + "x")) for text in values]
    of_node = {
        beginning: dict(zip(tree.ids.tolist(), row, strict=True))
        for beginning, row in zip(beginnings(tree), scores.tolist(), strict=True)
    }
    after = {}
    for own in ids:
        for end, token in enumerate(own):
            after.setdefault(own[:end], set()).add(token)
    by_value = {}
    for own, value in zip(ids, values.values(), strict=True):
        prob = 1.0
        for end, token in enumerate(own):
            logits = of_node.get(own[:end])
            if logits is not None:
                prob *= math.exp(logits[token]) / sum(math.exp(logits[t]) for t in after[own[:end]])
        by_value[value] = prob
    wanted = torch.tensor([by_value[value] for value in tree.values.tolist()], dtype=torch.float64)
    torch.testing.assert_close(found.probs[0], wanted)
    torch.testing.assert_close(found.probs.sum(), torch.ones((), dtype=torch.float64))


def test_labels_are_read_from_the_numbers_of_the_rows():
    labels = random.Random(0).sample(list(TIMES), 5)
    spans = marked_spans(*((label, "hour minute") for label in labels))
    assert TIME_TREE.label_values(spans).tolist() == [TIMES[label] for label in labels]
    with pytest.raises(ValueError, match="2 rows have 3 answers: a loss of whole answers needs"):
        NUMBER_TREE.label_values(marked_spans(("7", "free"), ("1 2", "free free")))


def test_a_call_without_the_tree_is_an_error():
    loss_of = NumericLoss("expected_risk", vocabulary=NumberVocabulary.from_tokenizer(TOKENIZER))
    labels = torch.tensor([TOKENIZER.ids("29")])
    for call in (
        lambda: loss_of(torch.zeros(1, 2, 22), labels, shift=False),
        lambda: loss_of.from_hidden(torch.zeros(1, 2, 4), torch.zeros(22, 4), labels, shift=False),
        lambda: loss_of.from_losses(
            torch.zeros(2), torch.zeros(2, 4), torch.zeros(22, 4), marked_spans(("29", "free"))
        ),
    ):
        with pytest.raises(ValueError, match="the term expected_risk needs the probabilities"):
            call()
