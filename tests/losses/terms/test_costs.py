"""What a wrong number token costs in ntl_was: by distance, round a circle, by ratio, by a table."""

import math

import pytest
import torch
from objective_steps import made
from term_losses import certain, digit_logits, losses_of, number_spans
from tokens import ToyTokenizer, batch

from mm_numeric.config.reader import config_from_dict
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import NumberClasses, NumberLogits, make_term
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


@pytest.mark.parametrize("wanted", [0, 11, 23])
def test_the_hours_go_round(wanted):
    for predicted in range(24):
        apart = abs(predicted - wanted)
        expected = min(apart, 24 - apart)
        assert of_hours("modular", predicted, wanted) == pytest.approx(expected, abs=1e-30)


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
        ([[0, math.nan], [1, 0]], "nan is not a number"),  # of min([0, nan]) Python says 0
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


@pytest.mark.parametrize("count", [0, 2, 11])
def test_a_matrix_for_another_vocabulary_is_one_sentence(count):
    cost = [[float(i != j) for j in range(count)] for i in range(count)]
    whole = made("ntl_was", terms=(TermSpec(name="ntl_was", options={"cost": cost}),))
    with pytest.raises(
        ValueError, match=f"a matrix of {count} x {count}, but .* has 10 number tok"
    ):
        whole(*batch(0), shift=False)


# From a config

CONFIG = """\
task: clock
data: {train: {synthetic: {name: clocks, rows: 5}}, test: {path: test.csv}}
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
    return made(config.objective.spec)


@pytest.mark.parametrize("cost", ["modular", "log", OWN])
def test_a_config_says_what_a_token_costs(cost):
    options = {"cost": cost, "squash": 3.0}
    spec = ObjectiveSpec(terms=(TermSpec(name="ntl_was", options=options),))
    logits, labels = batch(0)
    found, expected = (
        from_config(cost)(logits, labels, shift=False),
        made(spec)(logits, labels, shift=False),
    )
    assert torch.equal(found.loss, expected.loss)
    plain = made("ntl_was")(logits, labels, shift=False)
    assert found.components["ntl_was"] != plain.components["ntl_was"]
