"""What a wrong number token costs in ntl_was: by distance, round a circle, by ratio, by a table."""

import math

import pytest
import torch
from objective_steps import stepped
from term_losses import VALUES, certain, digit_logits, losses_of, number_spans, random_scores
from tokens import TOKENIZER, VOCABULARY, ToyTokenizer, batch

from mm_numeric.config.reader import config_from_dict
from mm_numeric.losses.objective import Objective, make_term, objective
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import NumberClasses, NumberLogits
from mm_numeric.losses.terms.expected_distance import ExpectedDistance
from mm_numeric.numbers.spans import NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.settings import parse_yaml, with_override

OWN = [[0 if i == j else 1 + (3 * i + j) % 7 for j in range(10)] for i in range(10)]  # no symmetry
COSTS = {
    "absolute": lambda v, y: abs(v - y),
    "modular": lambda v, y: min(abs(v - y), 10 - abs(v - y)),
    "log": lambda v, y: abs(math.log((1 + v) / (1 + y))),
    "own": lambda v, y: OWN[y][v],
}


def term(name, **options):
    """Return ntl_was with a cost of the table above."""
    return ExpectedDistance(cost=OWN if name == "own" else name, **options)


@pytest.mark.parametrize("squash", [None, 1.0, 4.0])
@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("name", COSTS)
def test_equals_the_loop(name, reweigh, squash):
    scores = random_scores(10)
    text = torch.linspace(-2, 4, 10).double()
    found = losses_of(
        term(name, reweigh=reweigh, squash=squash),
        scores,
        "0123456789",
        log_normaliser=torch.logaddexp(scores.logsumexp(-1), text),
    )
    costs = [[COSTS[name](v, y) for v in range(10)] for y in range(10)]
    apart = [cost for row in costs for cost in row if cost]
    if squash is not None:
        steepness = (squash - 1) / (max(apart) - min(apart))
        costs = [[cost and 1 + (cost - min(apart)) * steepness for cost in row] for row in costs]
    worst = max(max(row) for row in costs)
    for y, row in enumerate(scores):
        weights = [math.exp(score) for score in row.tolist()]
        expected = sum(w * cost for w, cost in zip(weights, costs[y], strict=True)) / sum(weights)
        if reweigh:
            mass = sum(weights) / (sum(weights) + math.exp(text[y]))
            expected = mass * expected + 1.01 * worst * (1 - mass)
        assert found[y].item() == pytest.approx(expected)


def test_a_matrix_of_distances_is_the_distance():
    distances = (VALUES[:, None] - VALUES).abs().tolist()
    logits, labels = batch(0)
    found = [
        stepped(objective("ntl_was", VOCABULARY, terms=terms), logits, labels)
        for terms in (
            (TermSpec(name="ntl_was"),),
            (TermSpec(name="ntl_was", options={"cost": distances}),),
        )
    ]
    torch.testing.assert_close(found[0][0].loss, found[1][0].loss)
    torch.testing.assert_close(found[0][1], found[1][1])


def test_rows_are_labels_and_columns_predictions():
    matrix = [[0.0] * 10 for _ in range(10)]
    matrix[3][8] = 5.0
    assert losses_of(ExpectedDistance(cost=matrix), certain("8"), "3").item() == pytest.approx(5)
    assert losses_of(ExpectedDistance(cost=matrix), certain("3"), "8").item() == 0


def of_hours(cost, predicted, wanted):
    """Return what a model costs that is certain of an hour; the tokens are 0 to 23."""
    hours = {f"<{hour}>": hour for hour in range(24)}
    vocabulary = NumberVocabulary.from_tokens(ToyTokenizer(hours), list(hours))
    spans = NumberSpans.from_labels(torch.tensor([[wanted]]), vocabulary)
    scores = 80 * torch.nn.functional.one_hot(torch.tensor([predicted]), 24).double()
    classes = NumberClasses.of(vocabulary, scores.device, scores.dtype)
    numbers = NumberLogits.at(scores, scores.logsumexp(-1), classes, spans.target)
    return ExpectedDistance(cost=cost, scale="published")(numbers, spans).item()


@pytest.mark.parametrize("wanted", range(24))
def test_the_hours_go_round(wanted):
    for predicted in range(24):
        apart = abs(predicted - wanted)
        expected = min(apart, 24 - apart)
        assert of_hours("modular", predicted, wanted) == pytest.approx(expected, abs=1e-30)


def test_9_is_next_to_0():
    assert losses_of(term("modular"), certain("9"), "0").item() == pytest.approx(1)
    assert losses_of(term("modular"), certain("5"), "0").item() == pytest.approx(5)
    assert losses_of(term("modular"), certain("2"), "8").item() == pytest.approx(4)


def test_log_is_the_cost_of_the_ratio():
    """1 for 0 costs as much as 99 for 49, and 199 for 200 next to nothing."""
    values = torch.tensor([0.0, 1.0, 49.0, 99.0, 199.0, 200.0]).double()

    def found(predicted, wanted):
        scores = 80 * torch.eye(6).double()[predicted : predicted + 1]
        numbers = digit_logits(scores, torch.zeros(1), values)
        return term("log")(numbers, number_spans(str(wanted))).item()

    assert found(1, 0) == found(0, 1) == pytest.approx(math.log(2))
    assert found(3, 2) == pytest.approx(math.log(2))
    assert found(4, 5) == pytest.approx(math.log(201 / 200))


@pytest.mark.parametrize("options", [{}, {"reweigh": True}, {"squash": 3.0, "reweigh": True}])
@pytest.mark.parametrize("name", COSTS)
def test_gradcheck(name, options):
    scores = random_scores(3).requires_grad_()
    text = torch.tensor([9.0, 3.0, 4.0]).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, log_normaliser: losses_of(
            term(name, **options), z, "407", log_normaliser=log_normaliser
        ),
        (scores, text),
    )


# What is refused


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("circular", "cost is one of absolute, modular, log, or a matrix; not 'circular'"),
        ([[0, 1], [1, 0, 2]], r"its row 1 has 3 of 2 numbers: \[1\.0, 0\.0, 2\.0\]"),
        ([[0, 1, 2], [1, 0, 2]], "its row 0 has 3 of 2 numbers"),
        ([[0, 1], []], r"its row 1 has 0 of 2 numbers: \[\]"),
        (
            [[0, -1], [1, 0]],
            r"finite numbers >= 0 .* its row 0 has 2 of 2 numbers: \[0\.0, -1\.0\]",
        ),
        ([[0, 1], [1, 0.5]], r"0 on the diagonal; its row 1 .* \[1\.0, 0\.5\]"),
        ([[0, math.inf], [1, 0]], "finite numbers >= 0"),
        ([[0, 1e38], [1, 0]], "finite numbers >= 0"),
        ([[0, math.nan], [1, 0]], "nan is not a number"),
        ([[0, 1], [1, "a"]], r"cost\.1\.1: 'a' is not a number"),
        ([0, 1], r"cost\.0: 0 is not a list"),
        (3, r"cost: 3 is not a list"),
        (None, r"cost: None is not a list"),
    ],
)
def test_costs_that_mean_nothing_are_one_sentence(cost, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_term("ntl_was", {"cost": cost})
    assert "ntl_was" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("row", [[0.0, math.nan, 1.0], [math.nan, 0.0, 1.0], [0.0, 1.0, math.nan]])
def test_nan_is_rejected_in_each_cell(row):
    """Of min([0, nan]) Python says 0."""
    matrix = [[0.0 if i == j else 1.0 for j in range(3)] for i in range(3)]
    matrix[row.index(0.0)] = row
    with pytest.raises(ValueError, match="cost must be a square matrix of finite numbers"):
        ExpectedDistance(cost=matrix)


@pytest.mark.parametrize("count", [0, 2, 11])
def test_a_matrix_for_another_vocabulary_is_one_sentence(count):
    cost = [[float(i != j) for j in range(count)] for i in range(count)]
    whole = objective(
        "ntl_was", VOCABULARY, terms=(TermSpec(name="ntl_was", options={"cost": cost}),)
    )
    with pytest.raises(
        ValueError, match=f"a matrix of {count} x {count}, but .* has 10 number tok"
    ):
        whole(*batch(0), shift=False)


# From a config

CONFIG = """\
task: clock
data: {train: {render: 5}, test: {path: test.csv}}
model: {name: tiny}
trainer: {output_dir: runs/small}
objective:
  terms:
    - name: ntl_was
      options:
        squash: 3
"""


def from_config(cost):
    """Return the objective of a config with a cost, as ``train`` makes it."""
    raw = with_override(parse_yaml(CONFIG, "x"), f"objective.terms.0.options.cost={cost}")
    config = config_from_dict(raw, where="mine.yaml", title="mine")
    return Objective(config.objective.spec, VOCABULARY)


@pytest.mark.parametrize("cost", ["modular", "log", OWN])
def test_a_config_says_what_a_token_costs(cost):
    options = {"cost": cost, "squash": 3.0}
    spec = ObjectiveSpec(terms=(TermSpec(name="ntl_was", options=options),))
    logits, labels = batch(0)
    found, expected = (
        from_config(cost)(logits, labels, shift=False),
        objective(spec, VOCABULARY)(logits, labels, shift=False),
    )
    assert torch.equal(found.loss, expected.loss)
    plain = objective("ntl_was", VOCABULARY)(logits, labels, shift=False)
    assert found.parts["ntl_was"] != plain.parts["ntl_was"]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("circular", "cost is one of absolute, modular, log, or a matrix; not 'circular'"),
        ("[[0, 1], [1]]", "its row 1 has 1 of 2 numbers"),
        ("[[0, -1], [1, 0]]", "its row 0 has 2 of 2 numbers"),
        ("[[0, 1], [1, 2]]", "0 on the diagonal"),
        ("[[0, .nan], [1, 0]]", r"cost\.0\.1: nan is not a number"),
        ("[[0, 1e-1], [1, 0]]", r"cost\.0\.1: '1e-1' is not a number\. .* write 0\.1\."),
        ("[[0, .inf], [1, 0]]", "finite numbers"),
        ("{a: 1}", r"cost: \{'a': 1\} is not a list"),
    ],
)
def test_a_wrong_cost_in_a_config_is_one_sentence(cost, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_config(cost)
    assert "\n" not in str(caught.value)
    assert "loss term ntl_was" in str(caught.value)


def test_the_tokens_of_the_toy_are_in_order_of_value():
    """Which the matrices above rely on, for their ids are not."""
    assert [token.value for token in VOCABULARY.tokens] == list(range(10))
    ids = TOKENIZER.ids("0123456789")
    assert ids == [token.id for token in VOCABULARY.tokens] != sorted(ids)
