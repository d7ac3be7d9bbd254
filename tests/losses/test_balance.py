"""How large numeric terms are next to cross-entropy, over the steps of a run."""

import itertools

import pytest
import torch
from objective_steps import NUMERIC, made, stepped
from tokens import SIZE, batch, labels_of, random_logits

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import Balance
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import LossSum
from mm_numeric.numbers.spans import IGNORE_INDEX

TWO_TERMS = (TermSpec(name="emd", weight=2.0), TermSpec(name="relative_soft", weight=0.5))


def running(name="ntil_soft", **changes):
    """Return an objective with running means."""
    return made(name, balance="running", numeric_weight=0.3, **changes)


def mean_of_terms(objective, sums):
    """Return the weighted sum of the means of the numeric terms."""
    return sum(
        term.weight * sums[term.name].total.item() / max(1, sums[term.name].items.item())
        for term in objective.spec.terms
    )


def text(seed=0):
    """Return logits and labels without a number."""
    labels = labels_of("ab, x", "cd")
    return random_logits(labels, seed), labels


def test_the_first_step_is_fixed():
    for seed in range(2):
        logits, labels = batch(seed)
        found, gradient = stepped(running(), logits, labels)
        expected, wanted = stepped(
            made("ntil_soft", balance="fixed", numeric_weight=0.3), logits, labels
        )
        assert torch.equal(found.loss, expected.loss)
        assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("terms", [TWO_TERMS, (TermSpec(name="ntl_was", weight=3.0),)])
def test_later_steps_take_the_means_of_those_before(terms):
    """CE + 0.3 * CE' / terms' * terms, where ' is 0.9 of itself and 0.1 of each step after it."""
    spec = ObjectiveSpec(terms=terms, balance="running")
    whole, means = made(spec), None
    for seed in range(6):
        logits, labels = batch(seed)
        result = whole(logits, labels, shift=False)
        ce, numeric = result.components["ce"].item(), mean_of_terms(whole, result.sums)
        factor = 0.3 if means is None else 0.3 * means[0] / means[1]
        assert result.loss.item() == pytest.approx(ce + factor * numeric, rel=1e-6)
        whole.balance.end_step(result.sums)
        if means is None:
            means = (ce, numeric)
        else:
            means = (0.9 * means[0] + 0.1 * ce, 0.9 * means[1] + 0.1 * numeric)
        assert whole.balance.means.tolist() == pytest.approx(list(means))


def test_the_factor_has_no_gradient():
    whole = running("ntl_was")
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    means = whole.balance.means.tolist()
    _, found = stepped(whole, *batch(1))
    same = made("ntl_was", balance="fixed", numeric_weight=0.3 * means[0] / means[1])
    torch.testing.assert_close(found, stepped(same, *batch(1))[1])


@pytest.mark.parametrize("reduction", ["items", "samples"])
@pytest.mark.parametrize("name", ["ntl_was", "ntil_soft", "digit_ce"])
def test_a_step_is_the_same_however_it_is_split(name, reduction):
    """Losses, gradients and means over three steps: in one piece, by sample, and in two pieces.

    One sample has no number and one no label.
    """
    found = []
    for cuts in ([0, 5], [0, 1, 2, 3, 4, 5], [0, 2, 5]):
        whole, steps = running(name, reduction=reduction), []
        for seed in range(3):
            logits, labels = batch(seed)
            logits = torch.cat([logits, logits[:1]])
            labels = torch.cat([labels, torch.full_like(labels[:1], IGNORE_INDEX)])
            counts = Counts.of(labels[labels != IGNORE_INDEX], whole.spans(labels))
            pieces = [
                stepped(whole, logits[a:b], labels[a:b], counts=counts)
                for a, b in itertools.pairwise(cuts)
            ]
            sums = {
                part: LossSum(
                    sum(result.sums[part].total for result, _ in pieces),
                    sum(result.sums[part].items for result, _ in pieces),
                )
                for part in pieces[0][0].sums
            }
            whole.balance.end_step(sums)
            loss = sum(result.loss for result, _ in pieces)
            steps.append((loss, torch.cat([gradient for _, gradient in pieces])))
        found.append((steps, whole.balance.means.tolist()))
    for steps, means in found[1:]:
        torch.testing.assert_close(steps, found[0][0], rtol=1e-6, atol=1e-9)
        assert means == pytest.approx(found[0][1], rel=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_run_that_goes_on_is_the_one_that_was_never_stopped(steps):
    first = running()
    for seed in range(steps):
        first.balance.end_step(first(*batch(seed), shift=False).sums)
    second = running()
    second.load_state_dict(first.state_dict())
    for seed in range(steps, steps + 2):
        one, other = (stepped(whole, *batch(seed)) for whole in (first, second))
        torch.testing.assert_close(one[0].loss, other[0].loss, rtol=0, atol=0)
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)
        first.balance.end_step(one[0].sums)
        second.balance.end_step(other[0].sums)
    assert torch.equal(first.balance.means, second.balance.means)


def test_an_objective_is_a_module():
    """Its state are the means, which move with it, and which a model that contains it saves."""
    whole = running()
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), whole)
    assert "1.balance.means" in model.state_dict()
    assert model.to("meta")[1].balance.means.device.type == "meta"
    assert list(made("ntil").state_dict()) == []
    assert "running" in repr(whole)


def test_a_state_is_taken_to_where_the_sums_are():
    """A run on a GPU resumes from numbers in a file; the device "meta" stands for it."""
    balance = Balance(ObjectiveSpec(terms=(TermSpec(name="emd"),), balance="running"))
    balance.load_state_dict({"means": torch.tensor([2.0, 3.0])})
    there = LossSum(torch.ones((), device="meta"), torch.ones((), device="meta").long())
    sums = {"ce": there, "emd": there}
    assert (balance.factor(sums) * there.total).device.type == "meta"
    balance.end_step(sums)
    assert (balance.factor(sums) * there.total).device.type == "meta"


def test_a_run_may_start_without_a_number():
    """Its first steps are fixed; the means begin at the first step that has one."""
    whole = running("ntl_was")
    for seed in range(2):
        whole.balance.end_step(whole(*text(seed), shift=False).sums)
    logits, labels = batch(0)
    expected = made("ntl_was", balance="fixed", numeric_weight=0.3)(logits, labels, shift=False)
    result = whole(logits, labels, shift=False)
    torch.testing.assert_close(result.loss, expected.loss)
    whole.balance.end_step(result.sums)
    fresh = running("ntl_was")
    fresh.balance.end_step(result.sums)
    assert torch.equal(whole.balance.means, fresh.balance.means)


def test_steps_without_numbers_leave_the_means_alone():
    """Or the terms would weigh 1 / 0.9 ** 30 = 24 times as much after 30 steps of text."""
    whole = running("ntl_was")
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    before = whole.balance.means
    for seed in range(30):
        whole.balance.end_step(whole(*text(seed), shift=False).sums)
    assert torch.equal(whole.balance.means, before)


def test_nan_is_in_the_loss_and_not_in_the_means():
    """A step of fp16 that overflows is skipped by its scaler; those after it continue."""
    whole = running("ntl_was")
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    logits, labels = batch(1)
    result = whole(torch.full_like(logits, torch.nan), labels, shift=False)
    assert result.loss.isnan()
    before = whole.balance.means
    whole.balance.end_step(result.sums)
    assert torch.equal(whole.balance.means, before)
    assert whole(logits, labels, shift=False).loss.isfinite()
    whole.balance.reset()
    assert torch.equal(
        whole(logits, labels, shift=False).loss, made("ntl_was")(logits, labels, shift=False).loss
    )


@pytest.mark.parametrize("balance", ["fixed", "ratio"])
def test_other_balances_have_no_memory(balance):
    whole = made("ntil_soft", balance=balance)
    before = whole(*batch(1), shift=False).loss
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    assert whole.state_dict() == {}
    assert torch.equal(whole(*batch(1), shift=False).loss, before)


def test_without_terms_there_is_nothing_to_keep():
    whole = made("ce", balance="running")
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    assert not whole.balance.means.any()


@pytest.mark.parametrize("name", NUMERIC)
def test_every_preset_runs(name):
    """A batch without numbers or labels, and one in bf16, after a step."""
    whole = running(name)
    whole.balance.end_step(whole(*batch(0), shift=False).sums)
    labels = torch.full((2, 5), IGNORE_INDEX)
    result, gradient = stepped(whole, torch.randn(2, 5, SIZE), labels)
    assert result.loss == 0
    assert not gradient.any()
    logits, labels = batch(1, torch.bfloat16)
    result, gradient = stepped(whole, logits, labels)
    assert result.loss.dtype == torch.float32
    assert gradient.isfinite().all()
