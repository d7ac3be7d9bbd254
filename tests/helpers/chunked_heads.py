"""Output heads and hidden states for the chunked loss."""

import torch
from tokens import SIZE
from torch.nn import functional

WIDTH = 12


def head(labels, dtype=torch.float64, size=SIZE):
    """Return hidden states [b, t, d] that know about half of the labels, weight and bias."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, bias = random(size, WIDTH) / 2, random(size)
    knows = (torch.rand(labels.shape, generator=generator) < 0.5)[..., None]
    hidden = random(*labels.shape, WIDTH) + 2 * knows * weight[labels.clamp(min=0)]
    return [tensor.to(dtype) for tensor in (hidden, weight, bias)]


def full(made, inputs, labels, **arguments):
    """Return the same through logits."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = made(functional.linear(*leaves), labels, **{"shift": False, **arguments})
    result.loss.backward()
    return result, [leaf.grad for leaf in leaves]
