"""Chunked linear cross-entropy: losses and number-token logits from hidden states.

Axes    n supervised positions (those with a label), d hidden size, v vocabulary,
        k labels that are number tokens, c number tokens in the vocabulary

With a vocabulary of 150,000 the logits are the largest tensor of a training step, and their softmax
and gradient have the same size. Here the logits are computed in chunks of rows. Each chunk is freed
after use and computed again in the backward pass. The output head then needs a third more
arithmetic, and a fraction of the memory.

``torch.nn.functional.linear_cross_entropy`` of torch 2.13 is not used: it rounds the losses of bf16
hidden states to bf16 (an error of 0.03), and takes ten times as long on a CPU.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mm_numeric.losses.cross_entropy import chunks, full_precision, to_compute_dtype

CHUNKED_FROM = 1 << 27
"""Smallest number of logits per micro-batch, n * v, for which the loss is computed in chunks.

2**27 logits need 512 MiB in float32, and their gradient needs 512 MiB more. Chunking needs a third
more arithmetic. Measured on a CPU with n = 1,536 and v = 151,936: 33 MiB instead of 1,632 MiB, in
1.1 to 2.1 times the time. Smaller micro-batches would fit into a single chunk."""


def head_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, number_rows: Tensor, number_ids: Tensor
) -> Tensor:
    """Compute only the logits of the number tokens, [k, c], from hidden states.

    ``number_rows`` [k] are the indices of the hidden states [n, d] whose label is a number token.
    ``number_ids`` [c] are the ids of the number tokens: only their output-head weights are used.
    """
    number_bias = None if bias is None else bias[number_ids]
    return to_compute_dtype(linear(hidden[number_rows], weight[number_ids], number_bias))


class _LinearCrossEntropyWithNumbers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        number_rows: Tensor,
        number_ids: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        normalisers, wanted, likely = [], [], []
        for chunk, logits in _logits_in_chunks(hidden, weight, bias):
            wanted.append(logits.gather(1, labels[chunk, None]).squeeze(1))
            largest, index = logits.max(dim=-1)
            likely.append(index)
            normalisers.append(_logsumexp_(logits, largest))
        normaliser = torch.cat(normalisers)
        number_logits = head_scores(hidden, weight, bias, number_rows, number_ids)
        ctx.save_for_backward(hidden, weight, bias, labels, normaliser, number_rows, number_ids)
        most_likely = torch.cat(likely)[number_rows]
        ctx.mark_non_differentiable(most_likely)
        losses = normaliser - torch.cat(wanted)
        return losses, number_logits, normaliser[number_rows], most_likely

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_losses: Tensor,
        grad_number_logits: Tensor,
        grad_normaliser: Tensor,
        _: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        with full_precision(grad_losses.device):
            return _gradients(ctx, grad_losses, grad_number_logits, grad_normaliser)


def _gradients(
    ctx: Any, grad_losses: Tensor, grad_number_logits: Tensor, grad_normaliser: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of hidden states, weight and bias, recomputing the logits in chunks."""
    hidden, weight, bias, labels, normaliser, number_rows, number_ids = ctx.saved_tensors
    scale = grad_losses.index_add(0, number_rows, grad_normaliser)
    grad_hidden = torch.empty_like(hidden)
    # Sums over chunks are accumulated in float32 or float64, not in the dtype of the weight.
    grad_weight = torch.zeros_like(weight, dtype=scale.dtype) if ctx.needs_input_grad[1] else None
    with_bias = bias is not None and ctx.needs_input_grad[2]
    grad_bias = torch.zeros_like(bias, dtype=scale.dtype) if with_bias else None
    for chunk, grad in _logits_in_chunks(hidden, weight, bias):
        grad.sub_(normaliser[chunk, None]).exp_().mul_(scale[chunk, None])
        grad.scatter_add_(1, labels[chunk, None], -grad_losses[chunk, None])
        if grad_bias is not None:
            grad_bias += grad.sum(dim=0)
        grad = grad.to(hidden)
        grad_hidden[chunk] = grad @ weight
        if grad_weight is not None:
            _add_product(grad_weight, grad, hidden[chunk])
    grad = grad_number_logits.to(hidden)
    grad_hidden.index_add_(0, number_rows, grad @ weight[number_ids])
    if grad_weight is not None:
        grad_weight.index_add_(0, number_ids, (grad.T @ hidden[number_rows]).to(grad_weight))
    if grad_bias is not None:
        grad_bias.index_add_(0, number_ids, grad_number_logits.sum(dim=0))
    sums = ((grad_weight, weight), (grad_bias, bias))
    grads = (total if total is None else total.to(like) for total, like in sums)
    return grad_hidden, *grads, None, None, None


def _logits_in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield each chunk of rows with its logits, in a tensor that the next chunk overwrites.

    Allocating a tensor for each chunk would take as much memory as all logits on Linux: glibc
    (2.36) does not use the memory of a freed aligned tensor again for another of the same size.
    """
    pieces = chunks(len(hidden), len(weight), hidden.device)
    shape = min(pieces[0].stop, len(hidden)), len(weight)
    products = hidden.new_empty(shape)
    floats = to_compute_dtype(products)
    for chunk in pieces:
        rows = hidden[chunk]
        logits = products[: len(rows)]
        if bias is None:
            torch.mm(rows, weight.T, out=logits)
        else:
            torch.addmm(bias, rows, weight.T, out=logits)
        yield chunk, logits if floats is products else floats[: len(rows)].copy_(logits)


def _logsumexp_(logits: Tensor, largest: Tensor) -> Tensor:
    """Return the logsumexp of each row, given its largest logit, and overwrite the logits."""
    finite = largest.masked_fill(largest.isinf(), 0.0)
    return logits.sub_(finite[:, None]).exp_().sum(dim=-1).log_().add_(finite)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left.T, right)
    else:
        total += left.T @ right


def linear_cross_entropy_with_numbers(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    number_rows: Tensor,
    number_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return cross-entropy losses and number-token logits, given hidden states and output head.

    The logits ``hidden @ weight.T + bias`` are computed in chunks, and only one chunk is in memory
    at a time. Under autocast, its dtype is used. Losses are float32 for bf16 and fp16 inputs.

    Args:
        hidden: [n, d] last hidden states of the supervised positions.
        weight: [v, d] weight of the output head.
        bias: [v] bias of the output head, or None.
        labels: [n] label of each position; ``IGNORE_INDEX`` is not allowed.
        number_rows: [k] indices of the labels that are number tokens; no duplicates.
        number_ids: [c] ids of the number tokens.

    Returns:
        The losses [n]. Then, at ``number_rows``: the logits of the number tokens [k, c],
        the logsumexp over the vocabulary [k], and the id of the most likely token [k].
    """
    device = hidden.device.type
    arguments = (labels, number_rows, number_ids)
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return _LinearCrossEntropyWithNumbers.apply(hidden, weight, bias, *arguments)
    dtype = torch.get_autocast_dtype(device)
    head = (tensor if tensor is None else tensor.to(dtype) for tensor in (hidden, weight, bias))
    with torch.autocast(device, enabled=False):
        return _LinearCrossEntropyWithNumbers.apply(*head, *arguments)
