"""An objective next to a cross-entropy that another library calculated."""

import pytest
import torch
from chunked_heads import full, head
from objective_steps import EACH, made
from tokens import SIZE, batch
from torch.nn import functional

from mm_numeric.numbers.spans import IGNORE_INDEX


def prepared():
    """Return hidden states [n, d], weight and bias as leaves, and labels [b, t]."""
    _, labels = batch(0)
    inputs = head(labels)
    inputs[0] = inputs[0][labels != IGNORE_INDEX]
    return [tensor.requires_grad_() for tensor in inputs], labels


@pytest.mark.parametrize("name", EACH)
def test_equals_the_logits(name):
    leaves, labels = prepared()
    wanted = labels[labels != IGNORE_INDEX]
    objective = made(name)
    spans = objective.spans(labels)
    expected, gradients = full(objective, [leaf.detach() for leaf in leaves], wanted, spans=spans)
    losses = functional.cross_entropy(functional.linear(*leaves), wanted, reduction="none")
    result = objective.from_losses(losses, *leaves[:2], spans, bias=leaves[2])
    result.loss.backward()
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.components, expected.components, rtol=1e-9, atol=1e-12)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-9, atol=1e-12)


def test_a_fused_kernel_of_torch():
    """Its backward calculates the logits again, a chunk at a time."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch has no fused cross-entropy")
    (hidden, weight, bias), labels = prepared()
    wanted = labels[labels != IGNORE_INDEX]
    objective = made("ntl_was")
    spans = objective.spans(labels)
    losses = functional.linear_cross_entropy(
        hidden,
        weight,
        wanted,
        linear_bias=bias,
        reduction="none",
        options=torch.nn.LinearCrossEntropyOptions(),
    )
    result = objective.from_losses(losses, hidden, weight, spans, bias=bias)
    expected = objective.from_hidden(hidden, weight, wanted, spans, bias=bias, shift=False)
    torch.testing.assert_close(result.loss, expected.loss)
    torch.testing.assert_close(
        torch.autograd.grad(result.loss, (hidden, weight, bias)),
        torch.autograd.grad(expected.loss, (hidden, weight, bias)),
    )


def test_shapes_that_do_not_belong_together_are_rejected():
    (hidden, weight, bias), labels = prepared()
    objective = made("ntl_was")
    spans = objective.spans(labels)
    losses = torch.zeros(len(hidden))
    for arguments in ((losses.mean(), hidden, weight), (losses[1:], hidden, weight),
                      (losses, hidden, weight[:, 1:])):  # fmt: skip
        with pytest.raises(ValueError, match=r"from_losses takes losses \[n\], hidden states"):
            objective.from_losses(*arguments, spans)
    with pytest.raises(ValueError, match=f"not one of the {SIZE - 5} tokens of the head"):
        objective.from_losses(losses, hidden, weight[:-5], spans, bias=bias)
