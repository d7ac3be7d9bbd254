"""Presets, their settings, and the warning about values that the published weight is not for."""

import pytest
import torch
from tokens import TOKENIZER, VOCABULARY, ToyTokenizer, batch

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS, SUMMARIES, read_spec, with_changes
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import NumberClasses
from mm_numeric.numbers.vocabulary import NumberVocabulary

BY_VALUE = ("ntl_was", "ntl_was_cdf", "ntl_mse", "ntl_mae", "ntl_huber", "rps")
GROUPS = NumberVocabulary.from_tokenizer(
    ToyTokenizer(
        {token: i for i, token in enumerate([*"0123456789x", *(f"{i:03d}" for i in range(1000))])}
    )
)


def with_term(name, vocabulary=VOCABULARY, **options):
    """Return CE plus one term with options."""
    terms = (TermSpec(name=name, options=options),)
    return NumericLoss("ce", vocabulary=vocabulary, terms=terms)


@pytest.mark.parametrize("name", BY_VALUE)
def test_on_single_digits_the_scale_changes_no_bit(name):
    logits, labels = batch(0, torch.float32)
    one, other = (
        with_term(name, scale=scale)(logits, labels, shift=False).loss
        for scale in ("range", "published")
    )
    assert one == other


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
def test_the_largest_loss_of_a_group_of_three_digits_is_that_of_a_digit(name, largest, published):
    """000 for 999; or with reweigh text for 999, which costs 1.01 times as much."""
    by_id = {token.digits: token.id for token in GROUPS.tokens}
    labels = torch.tensor([[by_id["999"]]])
    for reweigh in (False, True) if name not in ("ntl_was_cdf", "rps") else (False,):
        logits = torch.zeros(1, 1, 1011, dtype=torch.float64)
        logits[..., 10 if reweigh else by_id["000"]] = 90.0
        for scale, expected in (("range", largest), ("published", published)):
            options = {"scale": scale, **({"reweigh": True} if reweigh else {})}
            loss_of = with_term(name, GROUPS, **options)
            found = loss_of(logits, labels, shift=False).components[name].item()
            assert found == pytest.approx(expected * (1.01 if reweigh else 1))


def test_published_values_of_long_tokens_are_warned_about(capsys):
    for name in PRESETS:
        NumericLoss(name, vocabulary=GROUPS)
    published = {"preset": "ntl_was", "scale": "published"}
    NumericLoss(published, vocabulary=VOCABULARY)
    for changes in ({"balance": "running"}, {"number_tokens": "digits"}, {"numeric_weight": 0.0}):
        NumericLoss(published, vocabulary=GROUPS, **changes)
    assert capsys.readouterr().err == ""
    NumericLoss(published, vocabulary=GROUPS)
    found = capsys.readouterr().err
    assert "ntl_was: the values of number tokens are up to 999" in found
    assert "Set scale: range, number_tokens: digits or balance: running." in found


def test_an_option_of_the_only_term():
    spec = read_spec({"preset": "ntl_was", "squash": 3, "numeric_weight": 0.5}, "objective")
    assert spec == ObjectiveSpec(
        terms=(TermSpec(name="ntl_was", options={"squash": 3}),), numeric_weight=0.5
    )
    assert NumericLoss("ntl_was", vocabulary=VOCABULARY, squash=3, numeric_weight=0.5).spec == spec
    kept = with_changes(spec, {"reweigh": True, "squash": 2}, "objective").terms[0]
    assert kept.options == {"squash": 2, "reweigh": True}


def test_an_option_that_one_of_several_terms_has():
    spec = read_spec({"preset": "ntil_soft", "normalise_places": True}, "objective")
    assert [term.options for term in spec.terms] == [{"normalise_places": True}, {}, {}]
    assert NumericLoss("ntil_soft", vocabulary=VOCABULARY, normalise_places=True).spec == spec


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("ntl_was", {"squish": 3}, "squish.*squash"),
        ("ntil", {"temperature": 1.5}, "no setting 'temperature'.* Options of one of several te"),
        ("ce", {"squash": 3}, "no setting 'squash'"),
        ("emd_exp", {"growth": 0.0}, "growth must be > 0, not 0"),
        ("emd_exp", {"places": "linear", "growth": 0.5}, "growth must be >= 1 where places is lin"),
        *(
            (name, {"scale": "digit"}, f"{name}: scale is one of range, published, not 'digit'")
            for name in ("ntl_was", "rps")
        ),
        ({"terms": "emd"}, {}, "terms: 'emd' is not a list"),
        (["ntil"], {}, "objective: name a preset"),
        ({"preset": "ntl"}, {}, "objective.*'ntl'"),
        ({"terms": [{"name": "emb"}]}, {}, r"objective\.terms\.0\.name.*'emb'"),
    ],
)
def test_invalid_settings(name, option, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        NumericLoss(name, vocabulary=VOCABULARY, **option)


def test_presets_are_what_the_papers_weigh():
    """The table of the documentation is made from the presets, and this one is not."""
    fixed = {
        "ce": "1 ce",
        "ce_times_1.3": "1.3 ce",
        "ce_numbers_times_2": "1 ce + 1 (digit_ce)",
        "digit_ce": "1 ce of text + 1 (digit_ce)",
        "gce": "1 ce of text + 1 (gce)",
        "gce+ntl_was": "1 ce of text + 1 (gce + 0.3 ntl_was)",
        "raft": "1 ce of text + 1 (raft)",
        "ntil_soft": "1 ce + 0.3 (emd_exp + 0.2 relative_soft + 0.2 magnitude_soft)",
    }
    names = ("ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "nl_ntl", "rps")
    fixed |= {name: f"1 ce + 0.3 ({name})" for name in names}
    ratio = {
        "emd": "1 ce + 0.3 (emd)",
        "emd_exp": "1 ce + 0.3 (emd_exp)",
        "ntil": "1 ce + 0.3 (emd_exp + 0.2 relative + 0.2 magnitude)",
    }
    expected = {name: f"{text}, balance fixed" for name, text in fixed.items()}
    expected |= {name: f"{text}, balance ratio" for name, text in ratio.items()}
    assert {name: str(spec) for name, spec in PRESETS.items()} == expected
    options = {name: [t.options for t in s.terms if t.options] for name, s in PRESETS.items()}
    assert {n: o for n, o in options.items() if o} == {"ce_numbers_times_2": [{"places": "none"}]}


def test_the_objectives_to_choose_from_are_presets():
    assert SUMMARIES.keys() < PRESETS.keys()
    assert len(SUMMARIES) == 9


def test_tokens_digits_needs_digits():
    words = NumberVocabulary.from_tokens(ToyTokenizer({"a": 0, "b": 1}), {"a": 0.0, "b": 1.0})
    with pytest.raises(ValueError, match="requires tokens that are one digit"):
        NumericLoss("ntl_was", vocabulary=words, number_tokens="digits")
    assert len(NumericLoss("ntl_was", vocabulary=GROUPS, number_tokens="digits").vocabulary) == 10


def test_the_reach_of_a_token_is_that_of_its_digit_group():
    tokens = ToyTokenizer({**TOKENIZER.vocabulary, "zero": 90, "half": 91, "three": 92})
    words = NumberVocabulary.from_tokens(tokens, {"zero": 0, "half": 0.5, "three": 3})
    both = NumberVocabulary.from_tokenizer(tokens) | words
    classes = NumberClasses.of(both, torch.device("cpu"), torch.float64)
    assert classes.reach.tolist() == [3.0 if own.id >= 90 else 9.0 for own in both.tokens]
