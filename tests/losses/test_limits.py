"""Logits at the limits of their dtype and of -inf, and calls that an objective does not support."""

import pytest
import torch
from objective_steps import made, stepped
from term_losses import losses_of, marked_spans
from tokens import SIZE, TOKENIZER, VOCABULARY, batch, labels_of

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.term import make_term

SOFT_TARGETS = ("gce", "gce+ntl_was")  # infinite where the target has some probability


INF = torch.inf
LARGEST = torch.finfo(torch.float32).max
TEXT, ROLES = "7:05, 1 2 50 37 3.5", "hour minute | x y x y | free"


def logits_at(edges, dtype):
    """Return logits [n, v]: each digit of ``TEXT`` has the next edge, one after the other.

    An edge has the logits of the label and of two other digits in units of the largest number of
    the dtype; None leaves a logit as it is.
    """
    logits = torch.randn(len(TEXT), SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)
    for i, row in enumerate(row for row, character in enumerate(TEXT) if character.isdigit()):
        for step, factor in zip((0, 1, 4), edges[i % len(edges)], strict=True):
            if factor is not None:
                token = TOKENIZER.vocabulary[str((int(TEXT[row]) + step) % 10)]
                logits[row, token] = factor * torch.finfo(dtype).max
    return logits


@pytest.mark.parametrize(
    ("edges", "dtype"),
    [
        (((1, None, None), (1, 1, 0.99)), torch.float16),
        (((1, None, None), (1, 1, 0.99)), torch.bfloat16),
        (((None, 1, None), (-1, -1, -1)), torch.float16),
        (((None, 1, None), (-1, -1, -1)), torch.bfloat16),
        (((None, -INF, -INF),), torch.float16),
        (((-INF, None, None),), torch.float16),
    ],
    ids=["label-fp16", "label-bf16", "other-fp16", "other-bf16", "other-inf", "label-inf"],
)
def test_logits_at_the_limits(edges, dtype):
    """As the page of the settings says: loss and gradient are exact, or infinite."""
    labels, spans = labels_of(TEXT)[0], marked_spans((TEXT, ROLES))
    logits = logits_at(edges, dtype)
    for name in PRESETS:
        whole = made(name)
        found, gradient = stepped(whole, logits, labels, spans=spans)
        # In float64, a masked digit has a probability of 0 with a logit of -1e9, too.
        exact, wanted = stepped(whole, logits.double().clamp(min=-1e39), labels, spans=spans)
        if edges[0][1] == -INF:
            infinite = name in SOFT_TARGETS
        elif edges[0][0] == -INF:
            infinite = name != "raft"
        else:
            infinite = max(component.total.item() for component in exact.sums.values()) > LARGEST
            assert not (infinite and dtype == torch.float16), name
        if infinite:
            assert found.loss == INF, name
        else:  # float32 has a resolution of 0.004 at 65,504
            torch.testing.assert_close(found.loss.double(), exact.loss, rtol=1e-4, atol=0.01)
        if infinite and whole.spec.balance == "ratio":
            assert not gradient.isfinite().all(), name
        else:  # a gradient above 65,504 is infinite in fp16
            torch.testing.assert_close(gradient, wanted.to(dtype), rtol=0.01, atol=1e-3)


def test_a_digit_of_minus_infinity_without_target_probability_is_no_nan():
    """The target underflows far from the label: 0 times infinity is 0."""
    scores = torch.zeros(1, 10)
    scores[0, [0, 9]] = -INF
    losses = losses_of(make_term("gce", {"sigma": 0.05}), scores.requires_grad_(), "4")
    losses.sum().backward()
    torch.testing.assert_close(losses, torch.tensor([8.0]).log())
    assert scores.grad.isfinite().all()


def test_the_error_in_a_trainer_names_loss_func():
    """Trainer calls a compute_loss_func with outputs, labels and num_items_in_batch."""
    transformers = pytest.importorskip("transformers")
    logits, labels = batch(0)
    outputs = transformers.modeling_outputs.CausalLMOutput(logits=logits)
    for items in (None, torch.tensor(12)):
        with pytest.raises(ValueError, match=r"loss_func\(loss_of, shift="):
            NumericLoss("ntl_was", vocabulary=VOCABULARY)(outputs, labels, num_items_in_batch=items)


def test_transforms_of_torch_func_are_rejected():
    logits, labels = batch(0)
    made = NumericLoss("ntl_was", vocabulary=VOCABULARY)

    def loss(z):
        return made(z, labels, shift=False).loss

    hidden = torch.func.grad(
        lambda z: made.from_hidden(z, torch.eye(22).double(), labels, shift=False).loss
    )
    for transform in (torch.func.grad(loss), hidden):
        with pytest.raises(ValueError, match=r"does not support torch\.func .* loss\.backward\(\)"):
            transform(logits)
    with pytest.raises(ValueError, match=r"does not support torch\.func"):
        torch.func.vmap(lambda z, y: made(z[None], y[None], shift=False).loss)(logits, labels)


def test_second_derivatives_are_rejected():
    logits, labels = batch(0)
    leaf = logits.requires_grad_()
    loss = NumericLoss("ntl_was", vocabulary=VOCABULARY)(leaf, labels, shift=False).loss
    (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.square().sum().backward()
