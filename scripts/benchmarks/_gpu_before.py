"""Cross-entropy as commit 3429b85c computed it on a GPU, to measure what newer kernels gain.

The functions are those of ``mm_numeric.losses.cross_entropy`` and ``linear_cross_entropy`` of that
commit, without numeric terms, selected rows and bias. Axes: n rows, v vocabulary, d width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 27  # logits


def _chunks(count: int, others: int) -> list[slice]:
    size = max(1, CHUNK // others)
    return [slice(at, min(at + size, count)) for at in range(0, count, size)]


def _logsumexp(logits: Tensor, out: Tensor | None = None) -> Tensor:
    largest = logits.amax(dim=-1).float()
    return torch.sub(logits, largest[:, None], out=out).exp_().sum(dim=-1).log_().add_(largest)


class CrossEntropy(torch.autograd.Function):
    """Losses [n] from logits [n, v] and labels [n]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the losses."""
        pieces = _chunks(*logits.shape)
        normaliser = torch.cat([_logsumexp(logits[rows]) for rows in pieces])
        ctx.save_for_backward(logits, labels, normaliser)
        return normaliser - logits.gather(1, labels[:, None]).squeeze(1).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Compute the gradient of the logits."""
        logits, labels, normaliser = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for rows in _chunks(*logits.shape):
            softmax = (logits[rows] - normaliser[rows, None]).exp_()
            torch.mul(softmax, scale[rows, None], out=grad[rows])
        wanted = (logits.gather(1, labels[:, None]).squeeze(1).float() - normaliser).exp_()
        grad.scatter_(1, labels[:, None], (wanted * scale - scale).to(grad)[:, None])
        return grad, None


class LinearCrossEntropy(torch.autograd.Function):
    """Losses [n] from hidden states [n, d], the weight [v, d] of the head and labels [n]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Compute the losses, with the logits of one chunk of rows in memory at a time."""
        normalisers, wanted = [], []
        for rows in _chunks(len(hidden), len(weight)):
            logits = hidden[rows] @ weight.T
            wanted.append(logits.gather(1, labels[rows, None]).squeeze(1).float())
            normalisers.append(_logsumexp(logits))
        normaliser = torch.cat(normalisers)
        ctx.save_for_backward(hidden, weight, labels, normaliser)
        return normaliser - torch.cat(wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Compute the gradients, and again the logits, in chunks of the vocabulary."""
        hidden, weight, labels, normaliser = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for tokens in _chunks(len(weight), len(hidden)):
            part = weight[tokens]
            logits = hidden @ part.T
            grad = (logits - normaliser[:, None]).exp_().mul_(scale[:, None])
            column = labels - tokens.start
            is_here = (column >= 0) & (column < len(part))
            column = column.clamp(0, len(part) - 1)[:, None]
            grad.scatter_add_(1, column, (is_here * -scale)[:, None])
            grad = logits.copy_(grad)
            grad_hidden += grad @ part
            if grad_weight is not None:
                torch.mm(grad.T, hidden, out=grad_weight[tokens])
        return grad_hidden.to(hidden), grad_weight, None
