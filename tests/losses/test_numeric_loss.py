"""Objectives: cross-entropy plus terms, and the promises that hold for all of them."""

import math
import random
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from objective_steps import EACH, NUMERIC, SPECS, made, stepped
from tokens import SIZE, SPELLED, VOCABULARY, batch, labels_of, random_logits, random_text
from tokens import sure_logits as sure
from torch.nn import functional

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.training.integrations import loss_func, step_counts

ADDED = [name for name in NUMERIC if SPECS[name].ce_tokens == "all"]  # to all of cross-entropy
SOUND = [name for name in ADDED if SPECS[name].reduction == "items"]
property_test = examples(25)
seeds = st.integers(0, 10_000)


def cross_entropy(logits, labels):
    """Return torch's own cross-entropy over [b, t]."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EACH)
def test_lower_precision_is_calculated_in_float32(name, dtype):
    logits, labels = batch(1, dtype)
    expected, wanted = stepped(made(name), logits.double(), labels)
    result, gradient = stepped(made(name), logits, labels)
    assert result.loss.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    # One rounding to the dtype; the rest is float32, through a softmax of temperature 0.1.
    rtol = max(torch.finfo(dtype).eps, 1e-4)
    torch.testing.assert_close(gradient.double(), wanted, rtol=rtol, atol=1e-6)


# The published oracles


def test_ntil_published_on_decimals():
    """NTIL of 3.115 and of 4.015 in place of 3.015: the published reading inverts their order."""
    found = {}
    for wrong in ("3.115", "4.015"):
        for name in ("ntil_published", "ntil"):
            parts = made(name)(sure(wrong), labels_of("3.015"), shift=False).components
            found[name, wrong] = (parts["relative"].item(), parts["magnitude"].item())
    assert found["ntil_published", "3.115"] == pytest.approx((0.431, 0.9905), abs=5e-4)
    assert found["ntil_published", "4.015"] == pytest.approx((0.1, 0.1116), abs=5e-5)
    assert found["ntil", "3.115"] == pytest.approx((0.1 / 4.115, math.log(4.115 / 4.015)))
    assert found["ntil", "4.015"] == pytest.approx((1 / 5.015, math.log(5.015 / 4.015)))


def test_the_published_noise_is_gumbel_of_a_hundredth():
    """A digit that leads by 0.01 is overtaken as often as a logistic number is above 1: 26.9 %."""
    labels = labels_of("1," * 1000)
    logits = torch.full((*labels.shape, SIZE), -20.0)
    logits[..., SPELLED.index("1")], logits[..., SPELLED.index("2")] = 0.01, 0.0
    torch.manual_seed(0)
    relative = NumericLoss(SPECS["ntil_published"], vocabulary=VOCABULARY)(
        logits, labels, shift=False
    ).components["relative"]
    # 2 for 1 costs 1/3. The share of 1000 has a standard deviation of 0.014.
    assert 3 * relative.item() == pytest.approx(0.269, abs=0.05)
    assert (
        NumericLoss("ntil", vocabulary=VOCABULARY)(logits, labels, shift=False).components[
            "relative"
        ]
        == 0
    )


def test_published_samples_without_digits_count_as_nothing():
    """Four digits that are off by one, with growth 1, 1.2, ... and three samples of text."""
    labels = labels_of("2222", "ab", "cd", "x")
    parts = made("ntil_published")(sure("3333", "ab", "cd", "x"), labels, shift=False).components
    emd_exp = (1 + 1.2 + 1.44 + 1.728) / 4
    assert parts["emd_exp"].item() == pytest.approx(emd_exp / 4)
    assert parts["relative"].item() == pytest.approx(1111 / 3334 / 4)
    sound = made("ntil")(sure("3333", "ab", "cd", "x"), labels, shift=False).components
    assert sound["emd_exp"].item() == pytest.approx(emd_exp)


def test_the_ratio_makes_the_loss_1_3_times_cross_entropy():
    logits, labels = batch(2)
    for name in ADDED:
        loss = made(name, balance="ratio", numeric_weight=0.3)(logits, labels, shift=False).loss
        torch.testing.assert_close(loss, 1.3 * cross_entropy(logits, labels), rtol=1e-6, atol=0)


# Promises


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("balance", ["fixed", "ratio"])
@pytest.mark.parametrize("name", EACH)
def test_weight_0_is_cross_entropy_exactly(name, balance, dtype):
    logits, labels = batch(3, dtype)
    plain, expected = stepped(made("ce"), logits, labels)
    changed = made(name, numeric_weight=0.0, balance=balance, ce_weight=1.0, ce_tokens="all")
    result, gradient = stepped(changed, logits, labels)
    assert torch.equal(result.loss, plain.loss)
    assert torch.equal(gradient, expected)
    assert all(result.sums[term.name].total > 0 for term in changed.spec.terms)  # still logged


def test_ce_is_that_of_torch():
    logits, labels = batch(3, torch.float32)
    result, gradient = stepped(made("ce"), logits, labels)
    leaf = logits.clone().requires_grad_()
    expected = cross_entropy(leaf, labels)
    expected.backward()
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(gradient, leaf.grad)


def test_a_term_of_weight_0_is_logged_and_not_trained():
    logits, labels = batch(4)
    terms = (TermSpec(name="emd"), TermSpec(name="relative", weight=0.0))
    for balance in ("fixed", "ratio"):
        both, gradient = stepped(made("emd", terms=terms, balance=balance), logits, labels)
        alone, expected = stepped(made("emd", balance=balance), logits, labels)
        assert torch.equal(both.loss, alone.loss)
        assert torch.equal(gradient, expected)
        assert both.components["relative"] > 0


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("seed", range(2))
def test_micro_batches_with_global_counts_add_up(name, seed):
    """One sample at a time, one of them without a number, and one without a label."""
    logits, labels = batch(seed)
    labels = torch.cat([labels, torch.full_like(labels[:1], IGNORE_INDEX)])
    logits = torch.cat([logits, logits[:1]])
    whole = made(name, balance="fixed")
    counts = Counts.of(labels[labels != IGNORE_INDEX], whole.spans(labels))
    expected, wanted = stepped(whole, logits, labels)
    steps = [stepped(whole, logits[i : i + 1], labels[i : i + 1], counts=counts) for i in range(5)]
    torch.testing.assert_close(sum(result.loss for result, _ in steps), expected.loss)
    gradient = torch.cat([gradient for _, gradient in steps])
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-9)
    for part, total in expected.sums.items():
        added = [result.sums[part] for result, _ in steps]
        assert sum(one.items for one in added) == total.items
        assert sum(one.total for one in added).item() == pytest.approx(total.total.item())


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("balance", ["fixed", "ratio"])
def test_a_batch_without_numbers_is_cross_entropy(name, balance):
    labels = labels_of("__ab", "c.d-")
    logits = random_logits(labels, 0)
    result, gradient = stepped(made(name, balance=balance), logits, labels)
    plain, expected = stepped(made("ce"), logits, labels)
    assert torch.equal(result.loss, plain.loss)
    assert torch.equal(gradient, expected)
    assert all(result.sums[term.name].total == 0 for term in SPECS[name].terms)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("balance", ["fixed", "ratio"])
@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (2, 0)])
def test_a_batch_without_labels_is_0_with_a_gradient(name, balance, shape):
    labels = torch.full(shape, IGNORE_INDEX)
    logits = torch.randn(*shape, SIZE)
    result, gradient = stepped(made(name, balance=balance), logits, labels)
    assert result.loss == 0
    assert gradient.shape == logits.shape
    assert not gradient.any()


@pytest.mark.parametrize(
    "name", [name for name in NUMERIC if name not in ("gce", "gce+ntl_was")]
)  # soft targets
@pytest.mark.parametrize("balance", ["fixed", "ratio"])
def test_a_perfect_prediction_costs_nothing(name, balance):
    texts = ("a -12.5, 07", "3:45")
    result, gradient = stepped(made(name, balance=balance), sure(*texts), labels_of(*texts))
    assert result.loss < 1e-12
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("balance", ["fixed", "ratio"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sixty_digits_are_finite(name, balance, dtype):
    labels = labels_of("a1234567890" * 3, "9" * 60, "-0." + "7" * 57)
    logits = random_logits(labels, 0, dtype)
    result, gradient = stepped(made(name, balance=balance), logits, labels)
    assert result.loss.isfinite()
    assert gradient.isfinite().all()
    numeric = [total.total for part, total in result.sums.items() if part != "ce"]
    assert all(total.isfinite() and total > 0 for total in numeric)
    assert not torch.equal(gradient, stepped(made("ce"), logits, labels)[1])


@pytest.mark.parametrize("name", EACH)
def test_the_largest_logits_of_fp16_are_finite(name):
    labels = labels_of("12.5, ab", "-7")
    logits = random_logits(labels, 0, torch.float16).sign() * 65504
    result, gradient = stepped(made(name), logits, labels)
    assert result.loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", EACH)
def test_nan_is_never_hidden(name):
    logits, labels = batch(0)
    spans = made(name).spans(labels)
    row = (labels != IGNORE_INDEX).flatten().nonzero()[spans.position[0]]
    logits.flatten(0, 1)[row] = float("nan")
    result = made(name)(logits, labels, shift=False)
    assert result.loss.isnan()
    hidden = {"ce"} if SPECS[name].ce_tokens == "text" else set()  # what is not a number is fine
    assert {part for part, mean in result.components.items() if not mean.isnan()} == hidden


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_an_error_where_it_is_asked_for(value):
    logits, labels = batch(0)
    made("ntil", on_nan="error")(logits, labels, shift=False)
    logits[labels != IGNORE_INDEX] = value
    with pytest.raises(ValueError, match=r"the loss is nan in ce, emd_exp, relative, magnitude: "):
        made("ntil", on_nan="error")(logits, labels, shift=False)


# Ways to call


@pytest.mark.parametrize("name", ["ce", "ntl_was", "ntil", "ntil_published"])
def test_the_same_from_unshifted_labels_and_from_rows(name):
    logits, labels = batch(6)
    whole = made(name)
    shifted = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    expected, wanted = stepped(whole, logits, shifted)
    result, gradient = stepped(whole, logits, labels, shift=True)
    assert torch.equal(result.loss, expected.loss)
    assert torch.equal(gradient, wanted)

    supervised = shifted != IGNORE_INDEX
    spans = whole.spans(shifted)
    result, gradient = stepped(whole, logits, shifted[supervised], spans=spans)
    assert torch.equal(result.loss, expected.loss)
    assert torch.equal(gradient, wanted)
    result, gradient = stepped(whole, logits[supervised], shifted[supervised], spans=spans)
    torch.testing.assert_close(result.loss, expected.loss)
    torch.testing.assert_close(gradient, wanted[supervised])
    torch.testing.assert_close(result.components, expected.components)


def test_shift_predicts_each_token_from_the_one_before():
    labels = labels_of("a12")
    logits = torch.zeros(1, 3, SIZE)
    logits[0, 0, SPELLED.index("1")] = logits[0, 1, SPELLED.index("2")] = 80
    assert made("ce")(logits, labels, shift=True).loss < 1e-6
    assert made("ce")(logits, labels, shift=False).loss > 20


@pytest.mark.parametrize("from_hidden", [False, True])
def test_labels_of_all_positions_require_shift(from_hidden):
    """Without it the loss would be finite and wrong, if the labels are those of transformers."""
    logits, labels = batch(0)
    whole = made("ntil")
    call = partial(whole.from_hidden, weight=torch.eye(SIZE).double()) if from_hidden else whole
    with pytest.raises(ValueError, match=r"labels \[b, t\] require shift=True .* or shift=False"):
        call(logits, labels=labels)
    counts = step_counts(whole, [labels], shift=True)
    assert call(logits, labels=labels, shift=True, counts=counts).loss.isfinite()
    with pytest.raises(
        ValueError, match="made with shift=True, and the loss is called with shift=F"
    ):
        call(logits, labels=labels, shift=False, counts=counts)
    with pytest.raises(TypeError, match="shift"):
        step_counts(whole, [labels])
    with pytest.raises(TypeError, match="shift"):
        loss_func(whole)


@pytest.mark.parametrize("labels", [torch.zeros(2, 3), np.zeros((2, 3), np.int64), [[1, 2]]])
def test_labels_that_are_no_ids_are_an_error(labels):
    with pytest.raises(ValueError, match="labels are token ids, a tensor of int64 or int32, not "):
        made("ntil")(torch.zeros(2, 3, SIZE), labels, shift=True)


def test_sums_carry_no_gradient():
    logits, labels = batch(0)
    result = made("ntil")(logits.requires_grad_(), labels, shift=False)
    assert result.loss.requires_grad
    assert not any(total.total.requires_grad for total in result.sums.values())
    assert list(result.sums) == ["ce", "emd_exp", "relative", "magnitude"]


@pytest.mark.parametrize(
    ("shape", "labels_shape", "arguments"),
    [
        ((2, 5, SIZE), (2, 6), {}),
        ((2, 5, SIZE), (1, 4), {}),
        ((2, 5, SIZE), (10,), {}),
        ((10, SIZE), (2, 5), {}),
        ((10, SIZE), (9,), {"spans": True}),
        ((10, SIZE), (10,), {}),
        ((10, SIZE), (10,), {"spans": True, "shift": True}),
        ((SIZE,), (), {"spans": True}),
    ],
)
def test_shapes_that_do_not_belong_together_are_rejected(shape, labels_shape, arguments):
    if "spans" in arguments:
        spans = NumberSpans.from_labels(labels_of("ab"), VOCABULARY)
        arguments = {**arguments, "spans": spans}
    message = r"an objective takes logits \[b, t, :\] with labels .* got logits \[.*\], labels \["
    with pytest.raises(ValueError, match=message):
        made("ce")(torch.zeros(shape), torch.zeros(labels_shape, dtype=torch.long), **arguments)


def test_rows_without_a_label_are_rejected():
    """-100 would be read as an index from the end."""
    labels = torch.tensor([3, IGNORE_INDEX, 4])
    spans = NumberSpans.from_labels(labels_of("ab"), VOCABULARY)
    with pytest.raises(ValueError, match="the label -100 is not one of the 200 tokens"):
        made("ce")(torch.zeros(3, 200), labels, spans, shift=False)


def test_unknown_names_say_the_nearest():
    with pytest.raises(
        ValueError, match=r"no objective 'ntill'\. Did you mean 'ntil'\? Known: ce, "
    ):
        NumericLoss("ntill", vocabulary=VOCABULARY)
    terms = (TermSpec(name="magnitud"),)
    with pytest.raises(ValueError, match=r"no loss term 'magnitud'\. Did you mean 'magnitude'\?"):
        NumericLoss(ObjectiveSpec(terms=terms), vocabulary=VOCABULARY)
    terms = (TermSpec(name="emd_exp", options={"grows": 1.2}),)
    with pytest.raises(
        ValueError, match=r"loss term emd_exp: there is no setting 'grows'\. Did you mean 'growth'"
    ):
        NumericLoss(ObjectiveSpec(terms=terms), vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="no setting 'numeric_wieght'"):
        NumericLoss("ntil", vocabulary=VOCABULARY, numeric_wieght=1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"balance": "ratios"}, "balance is one of fixed, ratio, running, not 'ratios'"),
        ({"reduction": "mean"}, "reduction is one of items, samples, not 'mean'"),
        ({"numeric_weight": -0.1}, "numeric_weight must be >= 0"),
        ({"ce_weight": -1}, "weight must be >= 0"),
        ({"numeric_weight": "0.5"}, "numeric_weight: '0.5' is not a number"),
        ({"terms": [{"name": "emd", "wieght": 2}]}, "terms.0: there is no setting 'wieght'"),
        ({"terms.0.weight": 2}, "Options of one of several terms belong"),
        (
            {"terms": (TermSpec(name="emd"), TermSpec(name="emd"))},
            "terms must be different, and ce is",
        ),
        ({"terms": (TermSpec(name="ce"),)}, "ce is always included"),
    ],
)
def test_changes_that_mean_nothing_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        NumericLoss("emd", vocabulary=VOCABULARY, **changes)


def test_terms_may_be_mappings_and_are_shown():
    terms = [{"name": "emd_exp"}, TermSpec(name="relative", weight=0.2)]
    own = made("ce", terms=terms, numeric_weight=0.5)
    assert own.spec.terms == (TermSpec(name="emd_exp"), TermSpec(name="relative", weight=0.2))
    shown = "<NumericLoss 1 ce + 0.5 (emd_exp + 0.2 relative), balance fixed, "
    assert repr(own).startswith(shown + f"{len(VOCABULARY.tokens)} number tokens")


class Misses:
    """A term from outside: 1 for each number token that is not the most likely one."""

    per = "token"

    def __call__(self, numbers, spans):
        """Return the losses, [k]."""
        return (numbers.logits.argmax(-1) != spans.target).to(numbers.logits)


class Root:
    """A term from outside that is 0 with a gradient of NaN."""

    per = "token"

    def __call__(self, numbers, spans):
        """Return the losses, [k]."""
        return (0 * numbers.logits[:, 0]).sqrt()


@pytest.fixture
def my_package(monkeypatch):
    """Make a package of somebody else."""
    monkeypatch.setitem(sys.modules, "my_package", SimpleNamespace(Misses=Misses, Root=Root))


def test_a_term_of_your_own(my_package):
    spec = ObjectiveSpec(terms=(TermSpec(name="my_package:Misses"),))
    result = made(spec)(sure("13"), labels_of("12"), shift=False)
    assert result.components["my_package:Misses"] == 0.5


@pytest.mark.parametrize(("weight", "share"), [(0.0, 1.0), (0.3, 0.0)])
def test_a_term_without_weight_cannot_spoil_the_gradient(my_package, weight, share):
    logits, labels = batch(0)
    spec = ObjectiveSpec(
        terms=(TermSpec(name="my_package:Root", weight=share),), numeric_weight=weight
    )
    _, gradient = stepped(made(spec), logits, labels)
    assert torch.equal(gradient, stepped(made("ce"), logits, labels)[1])


# Properties of the raw parts


def parts(name, logits, labels):
    """Return the mean of each raw part."""
    return {
        part: mean.item()
        for part, mean in made(name)(logits, labels, shift=False).components.items()
    }


@given(seed=seeds, extra=st.integers(1, 5), name=st.sampled_from(NUMERIC))
@property_test
def test_padding_changes_nothing(seed, extra, name):
    logits, labels = batch(seed)
    wider = torch.cat([logits, 100 * torch.randn(4, extra, SIZE).double()], dim=1)
    padded = functional.pad(labels, (0, extra), value=IGNORE_INDEX)
    expected = pytest.approx(parts(name, logits, labels), rel=1e-9)
    assert parts(name, wider, padded) == expected
    # The same in front, as generation pads.
    assert parts(name, wider.roll(extra, 1), padded.roll(extra, 1)) == expected


@given(seed=seeds, order=st.permutations(range(4)), name=st.sampled_from(NUMERIC))
@property_test
def test_the_order_of_samples_changes_nothing(seed, order, name):
    logits, labels = batch(seed)
    shuffled = parts(name, logits[list(order)], labels[list(order)])
    assert shuffled == pytest.approx(parts(name, logits, labels), rel=1e-9)


OWN_MEAN = [name for name in SOUND if name != "ce_numbers_times_2"]  # a mean over all tokens, as CE


@given(seed=seeds, count=st.integers(1, 3), name=st.sampled_from(OWN_MEAN))
@property_test
def test_samples_of_text_leave_the_numeric_parts_alone(seed, count, name):
    logits, labels = batch(seed)
    text = labels_of(*["ab, x"] * count, width=labels.shape[1])
    more = parts(name, torch.cat([logits, random_logits(text, seed)]), torch.cat([labels, text]))
    expected = parts(name, logits, labels)
    del more["ce"], expected["ce"]
    assert more == pytest.approx(expected, rel=1e-9)


@given(seed=seeds, name=st.sampled_from(NUMERIC))
@property_test
def test_a_shift_of_all_logits_changes_nothing(seed, name):
    logits, labels = batch(seed)
    moved = logits + torch.randn(*labels.shape, 1).double()
    assert parts(name, moved, labels) == pytest.approx(parts(name, logits, labels), rel=1e-6)


@given(seed=seeds, name=st.sampled_from(SOUND))
@property_test
def test_what_is_not_trained_on_changes_nothing(seed, name):
    """Neither the logits at ignored labels, nor their gradient."""
    logits, labels = batch(seed)
    ignored = labels == IGNORE_INDEX
    other = logits.clone()
    other[ignored] = 50 * torch.randn(int(ignored.sum()), SIZE).double()
    first, gradient = stepped(made(name), logits, labels)
    second, again = stepped(made(name), other, labels)
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(gradient, again)
    assert not gradient[ignored].any()


# Gradients


@pytest.mark.parametrize("form", ["full", "rows"])
def test_gradcheck_of_a_whole_objective(form):
    """Cross-entropy, emd_exp and reweighed WAS, with every path through the normaliser."""
    labels = labels_of("_1.5", "a-20")
    logits = random_logits(labels, 0)
    terms = (TermSpec(name="emd_exp"), TermSpec(name="ntl_was", options={"reweigh": True}))
    whole = made(ObjectiveSpec(terms=terms, numeric_weight=0.7))
    spans = whole.spans(labels)
    if form == "rows":
        logits, labels = logits[labels != IGNORE_INDEX], labels[labels != IGNORE_INDEX]
    assert torch.autograd.gradcheck(
        lambda z: whole(z, labels, spans, shift=False).loss, logits.requires_grad_()
    )


def test_random_texts_hold_what_the_tests_need():
    """Decimals, signs, several numbers in a row and runs of text: or the loops prove little."""
    texts = [random_text(random.Random(seed)) for seed in range(20)]
    joined = "".join(texts)
    for needed in (".", "-", ":", ", ", "__", "0"):
        assert needed in joined
    counts = [len(made("ntil").spans(labels_of(text)).value) for text in texts]
    assert max(counts) > 3
