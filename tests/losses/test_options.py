"""Settings of an objective: roles, which numbers there are, and where cross-entropy applies."""

import dataclasses

import pytest
import torch
from objective_steps import made, stepped
from term_losses import losses_of, marked_spans
from tiny_models import small_config, tiny_checkpoint, tiny_family
from tokens import SIZE, TOKENIZER, VOCABULARY, batch, labels_of, random_logits
from torch.nn import functional

from mm_numeric.answers import ROLES, Mark, Written
from mm_numeric.data.collator import TrainingCollator, make_collator
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import make_term
from mm_numeric.losses.terms.digit_cross_entropy import PlaceWeightedCrossEntropy
from mm_numeric.numbers.numerals import find_numerals
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.training.setup import make_trainer, training_arguments

# Roles

ANSWERS = [
    ("10 20 35 47, 7:05", "x y x y | hour minute"),
    ("ab, 42", "free"),
    ("12:59", "hour minute"),
]
WEIGHTS = {"x": 2.0, "y": 0.0, "hour": 3}


def answered():
    """Return logits [n, v] and labels [n] of the answers, and their spans."""
    labels = torch.tensor([token for text, _ in ANSWERS for token in TOKENIZER.ids(text)])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(labels), SIZE, generator=generator, dtype=torch.float64)
    return logits, labels, marked_spans(*ANSWERS)


def weighed(name, weights, reduction):
    """Return the mean of a term, its losses weighed by role, one answer at a time."""
    logits, _, _ = answered()
    ids = torch.tensor([token.id for token in VOCABULARY.tokens])
    term, at, of_answer = make_term(name, {}), 0, []
    for text, roles in ANSWERS:
        rows = logits[at : at + len(text)]
        at += len(text)
        digits = [i for i, character in enumerate(text) if character.isdigit()]
        losses = losses_of(term, rows[digits][:, ids], text)
        of_number = zip(find_numerals(text), roles.replace("|", "").split(), strict=True)
        found = [
            weights.get(role, 1.0)
            for numeral, role in of_number
            for _ in range(len(numeral.text) if term.per == "token" else 1)
        ]
        of_answer.append(losses * torch.tensor(found, dtype=torch.float64))
    if reduction == "items":
        return torch.cat(of_answer).mean()
    return torch.stack([losses.mean() for losses in of_answer]).mean()


@pytest.mark.parametrize("reduction", ["items", "samples"])
@pytest.mark.parametrize("name", ["ntl_was", "emd_exp", "nl_ntl", "relative_soft"])
def test_losses_are_weighted_by_role(name, reduction):
    """Divided by how many there are: a role of weight 0 is out of the sum and not of the count."""
    for weights in ({}, WEIGHTS):
        terms = (TermSpec(name=name, roles=weights),)
        whole = made("ntl_was", terms=terms, reduction=reduction)
        found = whole(*answered()).components[name]
        torch.testing.assert_close(found, weighed(name, weights, reduction))


def test_a_role_of_weight_0_gets_no_gradient_but_that_of_cross_entropy():
    logits, labels, spans = answered()
    found = []
    for terms in (
        (TermSpec(name="ntl_was", roles={role: 0 for role in ROLES if role != "x"}),),
        (),
    ):
        whole = made(ObjectiveSpec(terms=terms))
        found.append(stepped(whole, logits, labels, spans=spans)[1])
    differ = (found[0] != found[1]).any(dim=1).nonzero().squeeze(1)
    is_x = spans.role[spans.number] == ROLES.index("x")
    assert differ.tolist() == spans.position[is_x].tolist()


@pytest.mark.parametrize("name", ["own_terms:BoxOverlap", "own_terms:TimeDistance"])
def test_shapes_have_no_single_role(name):
    with pytest.raises(ValueError, match=f"objective.terms, {name}: .* remove roles") as caught:
        made(ObjectiveSpec(terms=(TermSpec(name=name, roles={"x": 2}),)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"hours": 1}, r"roles of the term emd: there is no role 'hours'\. Did you mean 'hour'\?"),
        ({"x": -1}, "roles.x must be >= 0 and finite, not -1"),
        ({"x": float("nan")}, "roles.x must be >= 0 and finite, not nan"),
        ({"x": float("inf")}, "roles.x must be >= 0 and finite, not inf"),
        ({"x": True}, "roles.x must be >= 0 and finite, not True"),
        ({"x": "2"}, "roles.x must be >= 0 and finite, not '2'"),
    ],
)
def test_roles_that_mean_nothing_are_one_sentence(roles, message):
    with pytest.raises(ValueError, match=message):
        TermSpec(name="emd", roles=roles)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weights_are_finite(weight):
    with pytest.raises(ValueError, match="weight must be >= 0 and finite, not"):
        TermSpec(name="emd", weight=weight)
    for setting in ("numeric_weight", "ce_weight"):
        with pytest.raises(ValueError, match="weight must be >= 0 and finite"):
            ObjectiveSpec(**{setting: weight})


def test_digit_runs_know_neither_roles_nor_shapes():
    """They are read from label ids: roles would weigh nothing, and boxes would cost nothing."""
    with pytest.raises(ValueError, match="digit_runs reads label ids, which have no r"):
        ObjectiveSpec(terms=(TermSpec(name="emd", roles={"x": 2}),), digit_runs=True)
    with pytest.raises(
        ValueError, match=r"terms, own_terms:TimeDistance: digit_runs finds no boxes and times"
    ):
        made("ntil", digit_runs=True, terms=(TermSpec(name="own_terms:TimeDistance"),))


# Where cross-entropy applies


@pytest.mark.parametrize("seed", range(3))
def test_cross_entropy_on_text_leaves_number_tokens_out_of_its_sum(seed):
    logits, labels = batch(seed)
    result, gradient = stepped(made("emd", ce_tokens="text", numeric_weight=0.0), logits, labels)
    total, count, numbers = 0.0, 0, []
    for i, sample in enumerate(labels.tolist()):
        for t, label in enumerate(sample):
            if label == IGNORE_INDEX:
                continue
            count += 1
            if label in VOCABULARY.classes:
                numbers.append(gradient[i, t])
            else:
                total -= logits[i, t].log_softmax(-1)[label].item()
    assert result.loss.item() == pytest.approx(total / count)
    assert result.sums["ce"].items == count
    assert not torch.stack(numbers).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digit_ce", {"places": "none"}),
        ("digit_ce", {"growth": 1.0}),
        ("digit_ce", {"places": "linear", "growth": 1.0}),
        ("gce", {"sigma": 0.05}),
        ("gce", {"sigma": 1e-30}),
    ],
)
def test_the_replacement_of_cross_entropy_can_be_cross_entropy(name, options, dtype):
    """Weights by place that are all 1, and a Gaussian without width."""
    logits, labels = batch(0, dtype)
    terms = (TermSpec(name=name, options=options),)
    found, gradient = stepped(made(name, terms=terms), logits, labels)
    expected, wanted = stepped(made("ce"), logits, labels)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("places", ["exponential", "linear", "powers"])
def test_digit_ce_weighs_1_on_average_in_each_number(places):
    """A model that is as wrong at every digit costs the same, however long its numbers are."""
    scores = torch.zeros(9, 10).double()
    losses = losses_of(
        PlaceWeightedCrossEntropy(places=places, growth=2.0), scores, "1234, 0.5, 987"
    )
    for of_number in losses.split([4, 2, 3]):
        assert of_number.mean().item() == pytest.approx(scores[0].logsumexp(0).item())
        assert (of_number.diff() < 0).all()


# Which numbers there are


def test_thousands_are_one_number():
    """Its digits weigh 1.2 ** 3, ... 1, and it is off by its value, whatever the comma."""
    comma, plain = labels_of("a1,234.5"), labels_of("a1234.5")
    logits = random_logits(comma, 0)
    without = torch.cat([logits[:, :2], logits[:, 3:]], dim=1)  # the row of the comma
    for name in ("emd_exp", "nl_ntl", "digit_ce"):
        one = made(name, thousands_separators=True)(logits, comma, shift=False).sums[name]
        other = made(name)(without, plain, shift=False).sums[name]
        torch.testing.assert_close(one.total, other.total)
        assert made(name)(logits, comma, shift=False).sums[name].total != one.total
    assert (
        made("nl_ntl", thousands_separators=True)(logits, comma, shift=False).sums["nl_ntl"].items
        == 1
    )
    assert made("nl_ntl")(logits, comma, shift=False).sums["nl_ntl"].items == 2


class Told:
    """A task whose answer is a text, with the time in it marked."""

    @staticmethod
    def format(text, frame=None):
        """Return the text and its marks: hour and minute around the first colon."""
        colon = text.index(":")
        start = text.rfind(" ", 0, colon) + 1
        start += text[start] == "-"
        marks = (Mark(start, colon, "hour", 0), Mark(colon + 1, colon + 3, "minute", 0))
        return Written(text, marks)


TEXT = "7:05, 12 of 1,234 at -3.5 or 3-5"


def collated(clock_examples, text=TEXT, **settings):
    """Return the value and the role of each number of a batch of two answers, and its spans."""
    family = tiny_family()
    vocabulary = NumberVocabulary.from_tokenizer(family.tokenizer)
    collator = TrainingCollator(family, Told(), vocabulary, **settings)
    examples = [
        dataclasses.replace(clock_examples[1][0], answer=answer) for answer in (text, "at 12:59")
    ]
    made = collator(examples)
    spans, labels = made["spans"], made["labels"]
    rows = spans.position.tolist()
    assert rows == sorted(set(rows))  # no token is in two numbers
    ids = torch.tensor([token.id for token in vocabulary.tokens])
    assert torch.equal(labels[spans.position], ids[spans.target])
    assert spans.number.tolist() == sorted(spans.number.tolist())
    numbers = list(zip(spans.value.tolist(), (ROLES[i] for i in spans.role), strict=True))
    assert spans.times.shape == (0 if settings.get("digit_runs") else 2, 2)
    return numbers, spans


SECOND = [(12, "hour"), (59, "minute")]


@pytest.mark.slow
def test_marked_numbers_are_those_of_the_task(clock_examples):
    for thousands in (False, True):
        numbers, _ = collated(clock_examples, thousands_separators=thousands)
        assert numbers == [(7, "hour"), (5, "minute"), *SECOND]


@pytest.mark.parametrize("thousands", [False, True])
def test_all_numbers_are_those_and_the_others(clock_examples, thousands):
    numbers, spans = collated(clock_examples, every_number=True, thousands_separators=thousands)
    some = [1234] if thousands else [1, 234]
    others = [(value, "free") for value in (12, *some, -3.5, 3, 5)]
    assert numbers == [(7, "hour"), (5, "minute"), *others, *SECOND]
    assert spans.group.tolist() == [0, 0, *[-1] * len(others), 0, 0]
    assert spans.sample.tolist() == [0] * (len(others) + 2) + [1, 1]


def test_a_mark_wins_over_what_the_text_would_say(clock_examples):
    """-7:05 holds -7 in its text; the task marks 7."""
    numbers, _ = collated(clock_examples, "at 1.5 or -7:05", every_number=True)
    assert numbers[:3] == [(1.5, "free"), (7, "hour"), (5, "minute")]


def test_digit_runs_read_every_number_either_way(clock_examples):
    for every_number in (False, True):
        numbers, _ = collated(clock_examples, digit_runs=True, every_number=every_number)
        values = [7, 5, 12, 1, 234, 3, 5, 3, 5, 12, 59]
        assert numbers == [(value, "free") for value in values]


@pytest.mark.parametrize("numbers", ["task", "all"])
def test_a_config_says_which_numbers_are_trained(tmp_path, clock_examples, numbers):
    config = small_config(
        tmp_path, f"objective={{preset: ntl_was, numbers: {numbers}, thousands_separators: true}}"
    )
    trainer = make_trainer(
        config,
        training_arguments(config),
        clock_examples[1],
        make_collator(config, tiny_family()),
        tiny_checkpoint(),
    )
    assert trainer.data_collator.collate.every_number == (numbers == "all")
    assert trainer.data_collator.collate.thousands_separators
    assert not trainer.data_collator.collate.digit_runs


def test_labels_hold_all_numbers_either_way():
    """In a trainer of your own there are no marks."""
    logits, labels = batch(0)
    found = [
        made("ntl_was", numbers=numbers)(logits, labels, shift=False).loss
        for numbers in ("task", "all")
    ]
    assert torch.equal(*found)
    padded = functional.pad(labels[:, :-1], (1, 0), value=IGNORE_INDEX)
    assert made("ntl_was", numbers="all")(logits, padded, shift=True).loss.isfinite()
