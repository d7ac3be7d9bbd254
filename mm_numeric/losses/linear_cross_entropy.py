"""Chunked linear cross-entropy: losses and number-token logits from hidden states.

Axes    n supervised positions (those with a label), d hidden size, v vocabulary,
        k labels that are number tokens, c number tokens in the vocabulary

With a vocabulary of 150,000 the logits are the largest tensor of a training step, and their softmax
and gradient have the same size. Here the logits are computed in chunks that share one memory. If
the output head is frozen, as with LoRA, the forward pass also multiplies each chunk's softmax by
the weight. The product is almost the gradient of the hidden states. If the head is trained, the
backward pass computes the logits again, which is a third more arithmetic.

``torch.nn.functional.linear_cross_entropy`` of torch 2.13 is not used: it rounds the losses of bf16
hidden states to bf16 (an error of 0.03), and takes ten times as long on a CPU.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mm_numeric.losses.cross_entropy import (
    chunks,
    difference,
    full_precision,
    kernels,
    logsumexp,
    to_compute_dtype,
    uses_kernels,
)

CHUNKED_FROM = 1 << 27
"""Smallest number of logits per micro-batch, n * v, for which the loss is computed in chunks.

2**27 logits need 512 MiB in float32, and their gradient needs 512 MiB more. On a CPU with n = 1,536
and v = 151,936, the chunked loss needed 33 MiB instead of 1,632 MiB, and 1.1 to 2.1 times as long.
Smaller micro-batches would fit into a single chunk."""


def head_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    number_rows: Tensor | slice,
    number_ids: Tensor,
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
        is_frozen: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        statistics, others = [], []
        pieces = chunks(len(hidden), len(weight), hidden.device, frozen=is_frozen)
        memory = _ChunkMemory(hidden, pieces, len(weight))
        for rows in pieces:
            logits, floats = memory.logits(hidden[rows], weight, bias)
            statistics.append(_statistics(logits, floats, labels[rows], with_softmax=is_frozen))
            if is_frozen:
                # ``logits`` is the softmax before division by its sum. Label and number tokens are
                # set to 0: their gradient has other terms, and the backward pass adds all of it.
                logits.scatter_(1, labels[rows, None], 0).index_fill_(1, number_ids, 0)
                normaliser, _, largest, _ = statistics[-1]
                total = (normaliser - largest).exp_()
                others.append((logits @ weight).to(total).div_(total[:, None]))
        parts = zip(*statistics, strict=True)
        normaliser, at_labels, _, likely = (torch.cat(part) for part in parts)
        of = slice(None) if is_frozen else number_rows
        numbers = head_scores(hidden, weight, bias, of, number_ids)
        saved = (torch.cat(others), at_labels, numbers) if is_frozen else (hidden, bias)
        ctx.save_for_backward(weight, labels, normaliser, number_rows, number_ids, *saved)
        ctx.is_frozen, ctx.dtype = is_frozen, hidden.dtype
        most_likely = likely[number_rows]
        ctx.mark_non_differentiable(most_likely)
        numbers = numbers[number_rows] if is_frozen else numbers
        return normaliser - at_labels, numbers, normaliser[number_rows], most_likely

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_losses: Tensor,
        grad_number_logits: Tensor,
        grad_normaliser: Tensor,
        _: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        gradients = _gradient_of_hidden if ctx.is_frozen else _gradients
        with full_precision(grad_losses.device):
            return *gradients(ctx, grad_losses, grad_number_logits, grad_normaliser), *[None] * 4


def _statistics(
    logits: Tensor, floats: Tensor | None, labels: Tensor, *, with_softmax: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logsumexp, logit of the label, largest logit and its token for each row, [n].

    If ``with_softmax``, the softmax before division by its sum overwrites the logits. ``floats`` is
    memory for the computation; None if the Triton kernels compute.
    """
    if floats is None:
        found = kernels().row_statistics(logits, None, labels)
        if with_softmax:
            scale = torch.ones_like(found[2])
            kernels().write_softmax(logits, logits, None, labels, found[2], scale, scale)
        return found
    at_labels = logits.gather(1, labels[:, None]).squeeze(1).to(floats)
    largest, likely = logits.max(dim=-1)
    largest = largest.to(floats)
    normaliser = logsumexp(logits, largest, out=floats)  # also writes the softmax to ``floats``
    if with_softmax and logits is not floats:
        logits.copy_(floats)
    return normaliser, at_labels, largest, likely


def _gradient_of_hidden(
    ctx: Any, grad_losses: Tensor, grad_number_logits: Tensor, grad_normaliser: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradient of the hidden states if the output head is frozen.

    The forward pass saved the softmax times the weight, [n, d], with a softmax of 0 at the label
    and the number tokens. Their share is added here, from the saved logits of the labels, [n], and
    of the number tokens, [n, c].
    """
    weight, labels, normaliser, number_rows, number_ids, others, wanted, numbers = ctx.saved_tensors
    scale = grad_losses.index_add(0, number_rows, grad_normaliser)
    is_number = labels[:, None] == number_ids
    numbers = (numbers - normaliser[:, None]).exp_() * scale[:, None]
    numbers -= is_number * grad_losses[:, None]
    numbers.index_add_(0, number_rows, grad_number_logits)
    own = (wanted - normaliser).exp_() * scale - grad_losses
    own = own.masked_fill(is_number.any(dim=1), 0)
    grad = others * scale[:, None] + own[:, None] * weight[labels].to(scale)
    grad += numbers @ weight[number_ids].to(scale)
    return grad.to(ctx.dtype), None, None


def _gradients(
    ctx: Any, grad_losses: Tensor, grad_number_logits: Tensor, grad_normaliser: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of hidden states, weight and bias, computing the logits again.

    Each chunk has the logits of some tokens at all positions. So one product computes a row of the
    weight's gradient, and rounds it once. With chunks of positions, the gradient would be a float32
    sum as large as the weight, to which every chunk adds.
    """
    weight, labels, normaliser, number_rows, number_ids, hidden, bias = ctx.saved_tensors
    scale = grad_losses.index_add(0, number_rows, grad_normaliser)
    grad_hidden = torch.zeros_like(hidden, dtype=scale.dtype)
    grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
    with_bias = bias is not None and ctx.needs_input_grad[2]
    grad_bias = torch.empty_like(bias) if with_bias else None
    pieces = chunks(len(weight), len(hidden), hidden.device)
    memory = _ChunkMemory(hidden, pieces, len(hidden))
    for tokens in pieces:
        part = weight[tokens]
        logits, floats = memory.logits(hidden, part, None if bias is None else bias[tokens])
        column = labels - tokens.start
        if floats is None:
            grad = floats = logits
            kernels().write_softmax(grad, logits, None, column, normaliser, scale, grad_losses)
        else:
            softmax = difference(logits, normaliser, floats).exp_()
            grad = softmax.mul_(scale[:, None])
            is_here = (column >= 0) & (column < len(part))
            column = column.clamp(0, len(part) - 1)[:, None]
            grad.scatter_add_(1, column, (is_here * -grad_losses)[:, None])
        if grad_bias is not None:
            grad_bias[tokens] = grad.sum(dim=0)
        grad = grad if logits is floats else logits.copy_(grad)
        grad_hidden += grad @ part
        if grad_weight is not None:
            torch.mm(grad.T, hidden, out=grad_weight[tokens])
    grad_hidden.index_add_(0, number_rows, grad_number_logits @ weight[number_ids].to(scale))
    if grad_weight is not None or grad_bias is not None:
        # The rows of the number tokens get two gradients: of the losses and of ``numbers``. Add
        # both in float32 and recompute the rows: a sum of rounded products would be less exact.
        grad = head_scores(hidden, weight, bias, slice(None), number_ids)
        grad = (grad - normaliser[:, None]).exp_() * scale[:, None]
        grad -= (labels[:, None] == number_ids) * grad_losses[:, None]
        grad.index_add_(0, number_rows, grad_number_logits)
        if grad_bias is not None:
            grad_bias[number_ids] = grad.sum(dim=0).to(grad_bias)
        if grad_weight is not None:
            grad_weight[number_ids] = grad.to(hidden).T @ hidden
    return grad_hidden.to(hidden), grad_weight, grad_bias


class _ChunkMemory:
    """Memory for the logits of one chunk, which the next chunk overwrites.

    Allocating a tensor for each chunk would take as much memory as all logits on Linux: glibc
    (2.36) does not reuse the memory of a freed aligned tensor for another one of the same size.
    """

    def __init__(self, like: Tensor, pieces: Sequence[slice], others: int) -> None:
        """Allocate memory for the largest chunk; ``others`` is the size of the other axis."""
        self.products = like.new_empty((pieces[0].stop - pieces[0].start) * others)
        fused = uses_kernels(self.products)
        self.floats = None if fused else to_compute_dtype(self.products)

    def logits(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits, and a tensor of the same shape for intermediate results.

        The second tensor is float32, or float64 for float64 logits. If the logits already have this
        dtype, it is the tensor of the logits. The Triton kernels need none: then it is None.
        """
        shape = len(hidden), len(weight)
        products = self.products[: shape[0] * shape[1]].view(shape)
        if bias is None:
            torch.mm(hidden, weight.T, out=products)
        else:
            torch.addmm(bias, hidden, weight.T, out=products)
        if self.floats is None:
            return products, None
        if self.floats is self.products:
            return products, products
        return products, self.floats[: products.numel()].view(shape)


def linear_cross_entropy_with_numbers(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    number_rows: Tensor,
    number_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return cross-entropy losses and number-token logits, given hidden states and output head.

    Without autocast, the results are those of::

        logits = to_compute_dtype(linear(hidden, weight, bias))
        normaliser = logits.logsumexp(dim=-1)
        losses = normaliser - logits.gather(1, labels[:, None]).squeeze(1)
        numbers = logits[number_rows]
        return losses, numbers[:, number_ids], normaliser[number_rows], numbers.argmax(dim=-1)

    But the logits are computed in chunks, and only one chunk is in memory at a time. Under
    autocast, the products use autocast's dtype. Losses are float32 for bf16 and fp16 inputs.

    Args:
        hidden: [n, d] last hidden states of the supervised positions.
        weight: [v, d] weight of the output head.
        bias: [v] bias of the output head, or None.
        labels: [n] label of each position; ``IGNORE_INDEX`` is not allowed.
        number_rows: [k] indices of the labels that are number tokens; no duplicates.
        number_ids: [c] ids of the number tokens.

    Returns:
        The losses [n]; and, for the k labels of ``number_rows``, the logits of the number tokens
        [k, c], the logsumexp over the vocabulary [k], and the id of the most likely token [k].
    """
    device = hidden.device.type
    is_trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    is_frozen = hidden.requires_grad and not is_trained
    arguments = (labels, number_rows, number_ids, is_frozen)
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return _LinearCrossEntropyWithNumbers.apply(hidden, weight, bias, *arguments)
    dtype = torch.get_autocast_dtype(device)
    head = (tensor if tensor is None else tensor.to(dtype) for tensor in (hidden, weight, bias))
    with torch.autocast(device, enabled=False):
        return _LinearCrossEntropyWithNumbers.apply(*head, *arguments)
