"""What holds for every preset and every term: the edges that published code trips over."""

import pytest
import torch
from objective_steps import EACH, NUMERIC, SPECS, made, stepped
from term_losses import certain, losses_of, marked_spans
from tokens import SIZE, SPELLED, VOCABULARY, ToyTokenizer, labels_of, random_logits

from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.losses.term import make_term
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary
from mm_numeric.registry import TERMS

STEPS = ("relative", "magnitude")
"""Their value jumps from one digit to the next. Their gradient is, as published, not its derivative
but that of a sharp softmax, so that no difference quotient can confirm it; a formula does, in
``test_the_straight_through_gradient``."""


# Vocabularies and batches that are as small as can be


DIGITS_ONLY = "7302945861"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EACH)
def test_a_vocabulary_of_ten_digits(name, dtype):
    """There is no text at all, which is as if no text were likely."""
    ids = {digit: i for i, digit in enumerate([*DIGITS_ONLY, "x"])}
    with_text = ToyTokenizer(ids)
    digits = ToyTokenizer({digit: i for digit, i in ids.items() if digit != "x"})
    labels = torch.tensor([with_text.ids("1205"), [*with_text.ids("99"), -100, -100]])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 10, generator=generator, dtype=torch.float64).to(dtype)
    (expected, wanted), (result, gradient) = (
        stepped(made(name, NumberVocabulary.from_tokenizer(tokenizer)), z, labels)
        for tokenizer, z in (
            (with_text, torch.nn.functional.pad(logits, (0, 1), value=-3e4)),
            (digits, logits),
        )
    )
    torch.testing.assert_close(result.loss, expected.loss)
    torch.testing.assert_close(gradient, wanted[..., :10])


WITH_E = NumberVocabulary.from_tokenizer(
    ToyTokenizer({token: i for i, token in enumerate(SPELLED + "e")})
)


TO_TRY = {
    "199, 200": [199, 200],
    "0, 1": [0, 1],
    "-5, 5": [-5, 5],
    "12:59, 1:00": [12, 59, 1, 0],
    "0.05, 0.5": [0.05, 0.5],
    "007": [7],
    "1e-3": [1, -3],
    "1,234": [1, 234],
    "6" * 60: [float("6" * 60)],
    "0" * 60: [0],
    "ab": [],
    "___": [],
    "7": [7],
}


@pytest.mark.parametrize("name", EACH)
def test_numbers_to_try(name):
    """Each is read, costs something finite, and has a gradient at each of its digits."""
    spelled = (SPELLED + "e").index
    whole = made(name, WITH_E)
    for text, values in TO_TRY.items():
        labels = torch.tensor([[IGNORE_INDEX if c == "_" else spelled(c) for c in text]])
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(*labels.shape, SIZE + 1, generator=generator)
        if not whole.spec.digit_runs:
            assert whole.spans(labels).value.tolist() == values, text
        result, gradient = stepped(whole, logits, labels)
        assert result.loss.isfinite(), text
        assert gradient.isfinite().all(), text
        assert result.loss >= 0, text
        trained = (labels != IGNORE_INDEX)[0]
        assert torch.equal(gradient[0].any(dim=-1), trained), text


# Derivatives


TWO_NUMBERS = "-4.7,05"


def on_logits(name):
    """Return a term as a function of logits [n, v], cross-entropy left out, and logits."""
    spec = ObjectiveSpec(terms=(TermSpec(name=name),), numeric_weight=1.0, ce_weight=0.0)
    whole, labels = made(spec), labels_of(TWO_NUMBERS)[0]
    spans = marked_spans((TWO_NUMBERS, "free free"))
    # Not more than one spread of digits: off the kinks of an absolute value.
    logits = random_logits(labels[None], 1)[0] / 3
    return lambda z: whole(z, labels, spans, shift=False).loss, logits


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TERMS if name not in STEPS])
def test_gradcheck(name):
    term, logits = on_logits(name)
    assert torch.autograd.gradcheck(term, logits.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_no_derivative(name):
    """Why the two are left out above: a small step changes nothing, and the gradient is not 0."""
    term, logits = on_logits(name)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(term(logits), logits)
    assert gradient.any()
    assert torch.equal(term(logits), term(logits - 1e-6 * gradient / gradient.norm()))


# A label of 0


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("lead", [0.5, 3.0])
def test_a_label_of_0_is_learnt(name, lead):
    """More of 0 costs less, however the model prefers 6; but for terms as they were published."""
    scores = certain("6", height=lead).requires_grad_()
    losses_of(make_term(name, {}), scores, "0").sum().backward()
    assert scores.grad.isfinite().all()
    if name == "nl_ntl":  # |X - 0| / (X + 0) is 1
        assert scores.grad.abs().max() < 1e-7
    elif name in STEPS and lead > 1:
        assert 0 < -scores.grad[0, 0] < 1e-9
    else:
        assert scores.grad[0, 0] < -1e-3


def test_nl_ntl_learns_a_label_of_0_with_a_larger_epsilon():
    scores = certain("6", height=3.0).requires_grad_()
    losses_of(make_term("nl_ntl", {"epsilon": 1.0}), scores, "0").sum().backward()
    assert scores.grad[0, 0] < -1e-3


@pytest.mark.parametrize("reweigh", [False, True])
def test_nl_ntl_without_numbers(reweigh):
    terms = (TermSpec(name="nl_ntl", options={"reweigh": reweigh}),)
    logits = torch.randn(2, 3, SIZE)
    for labels in (labels_of("ab", "c", width=3), torch.full((2, 3), IGNORE_INDEX)):
        result, gradient = stepped(made("nl_ntl", terms=terms), logits, labels)
        assert result.components["nl_ntl"] == 0
        assert gradient.isfinite().all()


# How steep


@pytest.mark.parametrize("wrong", range(1, 9))
@pytest.mark.parametrize(
    ("lead", "least", "most"), [(0.5, 0.05, 1), (1, 1e-4, 1e-2), (2, 1e-8, 1e-6), (5, 1e-22, 1e-19)]
)
def test_the_published_relative_term_has_no_gradient_where_a_wrong_digit_leads(
    wrong, lead, least, most
):
    """Label 923, first digit wrong: kept, for it is what is compared with; EMD has its own."""
    scores = certain("923", height=lead)
    scores[0] = 0
    scores[0, wrong] = lead
    scores.requires_grad_()
    (found,) = torch.autograd.grad(
        losses_of(make_term("relative", {}), scores, "923").sum(), scores
    )
    assert least < found.norm() < most
    for name, needed in (("emd", 0.1), ("relative_soft", 1e-3), ("magnitude_soft", 1e-3)):
        (found,) = torch.autograd.grad(losses_of(make_term(name, {}), scores, "923").sum(), scores)
        assert found.norm() > needed


# What is wrong is seen


@pytest.mark.parametrize("name", TERMS)
def test_nan_in_one_digit_is_nan(name):
    term, logits = on_logits(name)
    for row in (1, 2, 3):
        if labels_of(TWO_NUMBERS)[0][row] == SPELLED.index("."):
            continue
        spoilt = logits.clone()
        spoilt[row, SPELLED.index("6")] = torch.nan
        assert term(spoilt).isnan()


@pytest.mark.parametrize("name", NUMERIC)
def test_text_that_is_ruled_out_is_fine(name):
    """Some models mask tokens with -inf."""
    labels = labels_of("a12.5", "-7")
    logits = random_logits(labels, 0, torch.float32)
    logits[..., SPELLED.index("(")] = -torch.inf
    result, gradient = stepped(made(name), logits, labels)
    assert result.loss.isfinite()
    assert gradient.isfinite().all()


def test_cross_entropy_gives_a_noisy_label_its_distribution():
    """As rps does, and expected distances do not: see ``test_proper``."""
    probs = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1]).double()
    labels = labels_of(*"2334444556")
    scores = torch.zeros(SIZE).double().requires_grad_()
    optimiser = torch.optim.LBFGS([scores], max_iter=200, line_search_fn="strong_wolfe")
    for name in ("ce", "digit_ce"):

        def loss(name=name):
            optimiser.zero_grad()
            value = made(name)(scores.expand(10, 1, SIZE), labels, shift=False).loss
            value.backward()
            return value

        with torch.no_grad():
            scores.zero_()
        optimiser.step(loss)
        found = scores.detach().softmax(-1)[[SPELLED.index(d) for d in "23456"]]
        torch.testing.assert_close(found, probs, rtol=0, atol=1e-3)


def tensors_of(spans):
    return [tensor for tensor in vars(spans).values() if tensor is not None]


def test_spans_of_a_batch_are_borrowed():
    """An objective changes neither its inputs nor the spans."""
    labels = labels_of("a12.5", "-7")
    logits = random_logits(labels, 0)
    spans = NumberSpans.from_labels(labels, VOCABULARY)
    before = [labels.clone(), logits.clone(), *(t.clone() for t in tensors_of(spans))]
    for name in SPECS:
        stepped(made(name), logits, labels, spans=spans)
    after = [labels, logits, *tensors_of(spans)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
