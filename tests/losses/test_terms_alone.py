"""Terms without cross-entropy, under autocast, and on spans that are not theirs."""

import pytest
import torch
from chunked_heads import head
from objective_steps import EACH, SPECS, made, stepped
from tokens import SIZE, TOKENIZER, VOCABULARY, ToyTokenizer, batch, labels_of

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.spec import ObjectiveSpec, TermSpec
from mm_numeric.numbers.spans import IGNORE_INDEX, NumberSpans
from mm_numeric.numbers.vocabulary import NumberVocabulary

ADDED = [name for name, spec in SPECS.items() if spec.terms and spec.ce_tokens == "all"]
WHOLE = [("ntl_was", {"reweigh": True}), ("nl_ntl", {"reweigh": True}), ("raft", {})]


def alone_and_together(name, options):
    """Return an objective of one term alone, and cross-entropy with it."""
    terms = (TermSpec(name=name, options=options),)
    return [
        made(ObjectiveSpec(terms=terms, numeric_weight=0.7, ce_weight=weight))
        for weight in (0.0, 1.0)
    ]


@pytest.mark.parametrize("form", ["full", "rows"])
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in ("emd", "ntl_mse", "relative_soft")), *WHOLE]
)
def test_a_term_alone_is_what_it_adds_to_cross_entropy(name, options, form):
    logits, labels = batch(0)
    alone, together = alone_and_together(name, options)
    arguments = {"spans": alone.spans(labels)}
    if form == "rows":
        logits, labels = logits[labels != IGNORE_INDEX], labels[labels != IGNORE_INDEX]
    result, gradient = stepped(alone, logits, labels, **arguments)
    plain, without = stepped(made("ce"), logits, labels, **arguments)
    both, expected = stepped(together, logits, labels, **arguments)
    torch.testing.assert_close(plain.loss + result.loss, both.loss)
    torch.testing.assert_close(without + gradient, expected)
    assert list(result.sums) == [name]


def test_a_ratio_still_goes_by_cross_entropy():
    logits, labels = batch(0)
    result = made("emd", ce_weight=0.0)(logits, labels, shift=False)
    torch.testing.assert_close(result.loss, 0.3 * result.components["ce"])


def test_a_term_alone_without_numbers_is_0_with_a_gradient():
    logits = torch.randn(2, 3, 40)
    result, gradient = stepped(made("ntl_was", ce_weight=0.0), logits, torch.full((2, 3), -100))
    assert result.loss == 0
    assert gradient.shape == logits.shape
    assert not gradient.any()


@pytest.mark.parametrize("name", EACH)
def test_autocast_changes_nothing(name):
    """Terms are calculated in float32, and not as products of matrices in bf16."""
    logits, labels = batch(0, torch.float32)
    expected, wanted = stepped(made(name), logits, labels)
    leaf = logits.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = made(name)(leaf, labels, shift=False)
    result.loss.backward()
    assert torch.equal(result.loss, expected.loss)
    torch.testing.assert_close(leaf.grad, wanted, rtol=1e-6, atol=1e-9)


def test_the_backward_of_a_head_may_be_inside_of_autocast():
    _, labels = batch(0)
    inputs = [t.float().requires_grad_() for t in head(labels)]
    result = made("ntil_soft").from_hidden(*inputs[:2], labels, bias=inputs[2], shift=False)
    expected = torch.autograd.grad(result.loss, inputs, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(torch.autograd.grad(result.loss, inputs), expected)


def test_a_first_call_without_gradients_does_no_harm():
    logits, labels = batch(0, torch.float32)
    whole = made("ntl_mse")
    with torch.inference_mode():
        whole(logits, labels, shift=False)
    _, gradient = stepped(whole, logits, labels)
    assert gradient.any()


def test_spans_of_other_labels_are_rejected():
    logits, labels = batch(0)
    whole = made("ntil")
    rows = labels[labels != IGNORE_INDEX]
    chosen = logits[labels != IGNORE_INDEX]
    with pytest.raises(ValueError, match="the spans are not those of these labels"):
        whole(chosen, rows, whole.spans(labels.flip(0)))
    unshifted = labels_of("1234")
    with pytest.raises(ValueError, match="the spans are not those of these labels"):
        whole(
            torch.randn(1, 4, SIZE),
            unshifted,
            NumberSpans.from_labels(unshifted.roll(1), VOCABULARY),
            shift=False,
        )
    with pytest.raises(ValueError, match="the spans are not those of these labels"):
        whole(chosen[:3], rows[:3], whole.spans(labels))


@pytest.mark.parametrize(
    "term",
    [
        TermSpec(name="own_terms:TimeDistance"),
        TermSpec(name="own_terms:BoxDistance"),
        TermSpec(name="emd", roles={"x": 2}),
    ],
)
def test_label_ids_know_no_roles(term):
    whole = made(ObjectiveSpec(terms=(term,)))
    with pytest.raises(ValueError, match=f"the term {term.name} needs roles and groups"):
        whole(*batch(0), shift=False)
    logits, labels = batch(0)
    spans = NumberSpans.from_labels(labels, VOCABULARY)  # the caller's own choice
    whole(logits, labels, spans, shift=False)


def test_mistakes_are_one_sentence():
    with pytest.raises(ValueError, match="pass a tokenizer as the second argument"):
        NumericLoss("ce", vocabulary=TOKENIZER)
    with pytest.raises(ValueError, match="or a NumberVocabulary as vocabulary="):
        NumericLoss("ce", VOCABULARY)
    with pytest.raises(ValueError, match="pass the tokenizer of the model"):
        NumericLoss("ce")
    message = r"terms.0: expected settings .* found 'emd'\. Write {name: emd}"
    with pytest.raises(ValueError, match=message):
        NumericLoss("ce", vocabulary=VOCABULARY, terms=("emd",))
    with pytest.raises(ValueError, match=r"labels must be \[b, t\], not \[3\]"):
        made("ce").spans(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="without terms does not train the numbers"):
        NumericLoss("ce", vocabulary=VOCABULARY, ce_tokens="text")
    with pytest.raises(ValueError, match="the token 'a' appears twice in the list"):
        NumberVocabulary.from_tokens(TOKENIZER, ["a", "b", "a"])
    pieces = {str(digit): digit for digit in range(10)} | {"##34": 10}
    with pytest.raises(
        ValueError, match=r"tokens like '##34' \(WordPiece\) continue the previous word"
    ):
        NumberVocabulary.from_tokenizer(ToyTokenizer(pieces))


def test_a_circle_closes_with_its_smallest_step():
    """West is as far from north as east is."""
    compass = {"N": 0, "E": 90, "S": 180, "W": 270}
    vocabulary = NumberVocabulary.from_tokens(
        ToyTokenizer({k: i for i, k in enumerate(compass)}), compass
    )
    terms = (TermSpec(name="ntl_was", options={"cost": "modular", "scale": "published"}),)
    whole = NumericLoss(ObjectiveSpec(terms=terms), vocabulary=vocabulary)
    costs = [
        whole(80 * torch.eye(4)[None, None, i], torch.zeros(1, 1).long(), shift=False)
        .components["ntl_was"]
        .item()
        for i in range(4)
    ]
    assert costs == pytest.approx([0, 90, 180, 90])
