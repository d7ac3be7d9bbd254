"""The unit of a term, the warning about large distances, and options of the only term."""

import pytest
import torch
from tokens import TOKENIZER, VOCABULARY, ToyTokenizer, batch

from mm_numeric.losses.objective import objective
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import NumberClasses, largest_distance
from mm_numeric.losses.term_settings import with_box_scale
from mm_numeric.numbers.vocabulary import NumberVocabulary

BY_VALUE = ("ntl_was", "ntl_was_cdf", "ntl_mse", "ntl_mae", "ntl_huber", "rps")
GROUPS = NumberVocabulary.from_tokenizer(
    ToyTokenizer(
        {token: i for i, token in enumerate([*"0123456789x", *(f"{i:03d}" for i in range(1000))])}
    )
)


@pytest.mark.parametrize("name", BY_VALUE)
def test_on_single_digits_the_scale_changes_no_bit(name):
    logits, labels = batch(0, torch.float32)
    found = [
        objective("ce", VOCABULARY, terms=(TermSpec(name=name, options={"scale": scale}),))(
            logits, labels, shift=False
        )
        for scale in ("range", "published")
    ]
    assert found[0].loss == found[1].loss


@pytest.mark.parametrize(
    ("name", "largest", "published"),
    [
        ("ntl_was", 9, 999),
        ("ntl_was_cdf", 9, 999),
        ("ntl_mse", 81, 999**2),
        ("ntl_mae", 9, 999),
        ("ntl_huber", 8.5, 998.5),
        ("rps", 9, 999),
    ],
)
@pytest.mark.parametrize("reweigh", [False, True])
def test_the_largest_loss_of_a_group_of_three_digits_is_that_of_a_digit(
    name, largest, published, reweigh
):
    """000 for 999, or with reweigh: text for 999, which costs 1.01 times as much."""
    if reweigh and name in ("ntl_was_cdf", "rps"):
        pytest.skip("has no option reweigh")
    by_id = {token.digits: token.id for token in GROUPS.tokens}
    logits = torch.zeros(1, 1, 1011, dtype=torch.float64)
    logits[..., 10 if reweigh else by_id["000"]] = 90.0
    labels = torch.tensor([[by_id["999"]]])
    for scale, expected in (("range", largest), ("published", published)):
        options = {"scale": scale, **({"reweigh": True} if reweigh else {})}
        made = objective("ce", GROUPS, terms=(TermSpec(name=name, options=options),))
        found = made(logits, labels, shift=False).parts[name].item()
        assert found == pytest.approx(expected * (1.01 if reweigh else 1))


@pytest.mark.parametrize("name", [f"{name}_published" for name in BY_VALUE[:5]])
def test_a_term_that_can_dominate_is_named(name, capsys):
    objective(name, GROUPS)
    found = capsys.readouterr().err
    assert (
        f"{name.removesuffix('_published')}: the values of two number tokens differ by up to 999"
        in found
    )
    assert "Set scale: range, tokens: digits or balance: running." in found


def test_where_no_warning_is_due(capsys):
    for name in PRESETS:
        if not name.startswith("ntl_") or not name.endswith("_published"):
            objective(name, GROUPS)
    objective("ntl_was_published", VOCABULARY)
    objective("ntl_was_published", GROUPS, balance="running")
    objective("ntl_was_published", GROUPS, tokens="digits")
    objective("ntl_was_published", GROUPS, squash=3)
    objective("ntl_was_published", GROUPS, weight=0)
    assert capsys.readouterr().err == ""


def test_emd_of_location_tokens_is_named(capsys):
    words = [f"<loc{i:04d}>" for i in range(1024)]
    places = NumberVocabulary.from_tokens(ToyTokenizer({w: i for i, w in enumerate(words)}), words)
    objective("emd", places, balance="fixed")
    assert "emd: the values of two number tokens differ by up to 1023" in capsys.readouterr().err
    objective("emd", GROUPS, balance="fixed")
    assert capsys.readouterr().err == ""


# Options of an objective's only term


def test_an_option_of_the_only_term():
    made = objective("ntl_was", VOCABULARY, squash=3, weight=0.5)
    assert made.spec == ObjectiveSpec(
        terms=(TermSpec(name="ntl_was", options={"squash": 3}),), weight=0.5
    )
    kept = objective("ntl_was_published", VOCABULARY, reweigh=True)
    assert kept.spec.terms[0].options == {"scale": "published", "reweigh": True}


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("ntl_was", {"squish": 3}, "squish.*squash"),
        ("ntil", {"growth": 1.5}, "no setting 'growth'.* Settings of a term are in its options"),
        ("ce", {"squash": 3}, "no setting 'squash'.* Settings of a term are in its options"),
        ("emd_exp", {"growth": 0.0}, "growth must be > 0, not 0"),
        ("emd_exp", {"places": "linear", "growth": 0.5}, "growth must be >= 1 where places is lin"),
        *(
            (name, {"scale": "digit"}, f"{name}: scale is one of range, published, not 'digit'")
            for name in ("ntl_was", "ntl_was_cdf", "rps")
        ),
    ],
)
def test_options_that_are_rejected(name, option, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        objective(name, VOCABULARY, **option)


def test_tokens_digits_needs_digits():
    words = NumberVocabulary.from_tokens(ToyTokenizer({"a": 0, "b": 1}), {"a": 0.0, "b": 1.0})
    with pytest.raises(ValueError, match="requires tokens that are one digit"):
        objective("ntl_was", words, tokens="digits")
    assert len(objective("ntl_was", GROUPS, tokens="digits").vocabulary) == 10


def test_a_loss_that_needs_whole_numbers_rejects_a_vocabulary_of_digits():
    sentence = "pathrisk: it needs all tokens of a number, .* set tokens: all"
    with pytest.raises(ValueError, match=sentence):
        objective("pathrisk", GROUPS, tokens="digits")
    with pytest.raises(ValueError, match=sentence):
        objective("pathrisk", GROUPS.only_digits())


def test_the_scale_of_boxes_is_the_largest_coordinate_unless_it_is_set():
    def scale(spec):
        return objective(spec, VOCABULARY).terms["box_l1"].scale

    whole = PRESETS["box_l1"]
    assert [scale(with_box_scale(whole, top)) for top in (1, 999, None)] == [1, 999, 1000]
    chosen = ObjectiveSpec(terms=(TermSpec(name="box_l1", options={"scale": 7}),))
    assert scale(with_box_scale(chosen, 1)) == 7
    assert with_box_scale(PRESETS["ntil"], 1) == PRESETS["ntil"]


def test_distances_are_within_a_digit_group():
    tokens = ToyTokenizer({**TOKENIZER.vocabulary, "zero": 90, "half": 91, "three": 92})
    words = NumberVocabulary.from_tokens(tokens, {"zero": 0, "half": 0.5, "three": 3})
    both = NumberVocabulary.from_tokenizer(tokens) | words
    classes = NumberClasses.of(both, torch.device("cpu"), torch.float64)
    assert classes.reach.tolist() == [3.0 if own.id >= 90 else 9.0 for own in both.tokens]
    far = [token._replace(value=token.value + 100) for token in words.tokens]
    assert largest_distance([*VOCABULARY.tokens, *far], "published") == 9
