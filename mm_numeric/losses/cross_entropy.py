"""Compute cross-entropy and select the number-token logits; both share one gradient tensor.

Axes    r positions, n supervised positions (those with a label), v vocabulary,
        k labels that are number tokens, c number tokens in the vocabulary

A numeric loss needs the logits of few tokens. In plain PyTorch, the gradient of selecting them is
a second tensor as large as all logits. Here both gradients are written to one tensor. On a GPU,
``triton_kernels`` reads the logits once in each pass.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mm_numeric.io.log import logger

_CACHED_CHUNK = 1 << 18  # logits per chunk and CPU thread: 1 MiB, about a core's level-2 cache
_CPU_CHUNK = 1 << 22  # logits per chunk and CPU thread, for products with the output head
_FROZEN_CPU_CHUNK = 1 << 24  # with a frozen head, two products per chunk read its whole weight
_GPU_CHUNK = 1 << 27  # logits per chunk on a GPU: half a GiB of float32


class _CrossEntropyWithNumbers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        rows: Tensor | None,
        labels: Tensor,
        number_rows: Tensor,
        number_ids: Tensor,
        with_likely: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        number_at = number_rows if rows is None else rows[number_rows]
        if uses_kernels(logits):
            normaliser, at_labels, _, likely = kernels().row_statistics(logits, rows, labels)
            likely = likely[number_rows] if with_likely else None
        else:
            normalisers = []
            for _, index in _pieces(len(labels), rows, logits):
                part = logits[index]
                normalisers.append(logsumexp(part, to_compute_dtype(part.amax(dim=-1))))
            normaliser = joined(normalisers)
            at_labels = _at_labels(logits, rows, labels).to(normaliser)
            likely = most_likely(logits, number_at) if with_likely else None
        ctx.set_materialize_grads(False)
        number_logits = logits[number_at[:, None], number_ids].to(normaliser)
        ctx.save_for_backward(logits, rows, labels, normaliser, number_rows, number_at, number_ids)
        if likely is not None:
            ctx.mark_non_differentiable(likely)
        return normaliser - at_labels, number_logits, normaliser[number_rows], likely

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_losses: Tensor | None,
        grad_number_logits: Tensor | None,
        grad_normaliser: Tensor | None,
        _: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        logits, rows, labels, normaliser, number_rows, number_at, number_ids = ctx.saved_tensors
        if grad_losses is None:
            grad_losses = torch.zeros_like(normaliser)
        scale = grad_losses
        if grad_normaliser is not None:
            scale = grad_losses.index_add(0, number_rows, grad_normaliser)
        grad = _gradient_like(logits, filled=len(labels) == len(logits))
        if uses_kernels(logits):
            kernels().write_softmax(grad, logits, rows, labels, normaliser, scale, grad_losses)
        else:
            for chunk, index in _pieces(len(labels), rows, logits):
                softmax = (logits[index] - normaliser[chunk, None]).exp_()
                if isinstance(index, slice):
                    torch.mul(softmax, scale[chunk, None], out=grad[index])
                else:
                    grad[index] = softmax.mul_(scale[chunk, None]).to(grad)
            if rows is None and grad.dtype == scale.dtype:  # same as below, less arithmetic
                grad.scatter_add_(1, labels[:, None], -grad_losses[:, None])
                if grad_number_logits is not None:
                    at = number_at[:, None], number_ids
                    grad[at] = grad[at] + grad_number_logits
                return grad, *[None] * 5
            # The gradient at labels and number tokens has terms besides the softmax. Add them
            # before rounding to the logits' dtype: in bf16, a softmax of 0.999 minus 1 would be 0.
            wanted = (_at_labels(logits, rows, labels).to(normaliser) - normaliser).exp_()
            wanted = (wanted * scale - grad_losses).to(grad)
            if rows is None:
                grad.scatter_(1, labels[:, None], wanted[:, None])
            else:
                grad[rows, labels] = wanted
        if grad_number_logits is None:  # no term is trained
            return grad, *[None] * 5
        numbers = logits[number_at[:, None], number_ids].to(normaliser)
        numbers = (numbers - normaliser[number_rows, None]).exp_() * scale[number_rows, None]
        is_wanted = labels[number_rows, None] == number_ids
        numbers -= is_wanted * grad_losses[number_rows, None]
        grad[number_at[:, None], number_ids] = (numbers + grad_number_logits).to(grad)
        return grad, *[None] * 5


def _at_labels(logits: Tensor, rows: Tensor | None, labels: Tensor) -> Tensor:
    """Return the logit of each label, [n]. If ``rows`` is None, no index tensor is needed."""
    if rows is None:
        return logits.gather(1, labels[:, None]).squeeze(1)
    return logits[rows, labels]


def cross_entropy_with_numbers(
    logits: Tensor,
    labels: Tensor,
    number_rows: Tensor,
    number_ids: Tensor,
    rows: Tensor | None = None,
    with_likely: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the cross-entropy at each supervised position, and the logits of the number tokens.

    The results have a gradient, but no second derivatives. They are computed in float32 if the
    logits are bf16 or fp16.

    Args:
        logits: [n, v] for n supervised positions; or [r, v] for r positions, with ``rows``.
        labels: [n] label of each supervised position; ``IGNORE_INDEX`` is not allowed.
        number_rows: [k] indices of the labels that are number tokens; no duplicates.
        number_ids: [c] ids of the number tokens.
        rows: [n] indices of the supervised positions in ``logits``; no duplicates. None if all
            positions in ``logits`` are supervised.
        with_likely: Whether to return the most likely tokens.

    Returns:
        Losses [n]; and, for the k labels of ``number_rows``, the logits of the number tokens
        [k, c], the logsumexp over the vocabulary [k], and the most likely token [k] or None.
    """
    arguments = (logits, rows, labels, number_rows, number_ids, with_likely)
    return _CrossEntropyWithNumbers.apply(*arguments)


def uses_kernels(logits: Tensor) -> bool:
    """Return True if ``triton_kernels`` computes the loss: on a GPU, but not in float64."""
    if not logits.is_cuda or logits.dtype == torch.float64 or logits.stride(-1) != 1:
        return False
    return torch.compiler.is_compiling() or triton_runs()


def kernels() -> Any:
    """Return the module ``triton_kernels``, which is imported at its first use."""
    from mm_numeric.losses import triton_kernels

    return triton_kernels


@cache
def triton_runs() -> bool:
    """Return True if Triton runs on this machine, and log a warning if it does not."""
    try:
        label = torch.zeros(1, dtype=torch.long, device="cuda")
        kernels().row_statistics(torch.zeros(1, 1, device="cuda"), None, label)
    except Exception as error:  # of Triton, of its compiler or of the driver
        logger.warning(
            "the loss is slower, because Triton does not run here: install triton, a C compiler "
            "and the headers of Python (%s)",
            error,
        )
        return False
    return True


@torch.no_grad()
def most_likely(logits: Tensor, at: Tensor) -> Tensor:
    """Return [k] token ids: the most likely token at each of the positions ``at`` [k]."""
    pieces = chunks(len(at), logits.shape[-1], logits.device)
    # argmax gives the same result, but takes four times as long on a CPU.
    return joined([logits[at[piece]].max(dim=-1).indices for piece in pieces])


def _gradient_like(logits: Tensor, *, filled: bool = False) -> Tensor:
    """Allocate a zero tensor like the logits, or an empty one if the caller will fill it.

    On a CPU, numpy allocates the memory, which is five times as fast as torch.
    """
    if logits.device.type != "cpu" or not logits.numel() or torch.compiler.is_compiling():
        return torch.empty_like(logits) if filled else torch.zeros_like(logits)
    allocate = np.empty if filled else np.zeros
    pages = allocate(logits.numel() * logits.element_size(), dtype=np.uint8)
    return torch.from_numpy(pages).view(logits.dtype).view(logits.shape)


def _pieces(count: int, rows: Tensor | None, logits: Tensor) -> Iterator[tuple[slice, Any]]:
    """Split ``count`` labels into chunks; yield a slice ``chunk`` and an ``index`` for each.

    ``logits[index]`` are the logits of ``labels[chunk]``. ``rows`` are the positions of all labels
    in ``logits``; None if every position has a label.
    """
    for chunk in chunks(count, logits.shape[-1], logits.device, cached=True):
        yield chunk, chunk if rows is None else rows[chunk]


def chunks(
    rows: int, tokens: int, device: torch.device, *, cached: bool = False, frozen: bool = False
) -> list[slice]:
    """Split logits [rows, tokens] into slices of rows, of a suitable size for the device.

    On a CPU, ``cached`` makes slices small enough for the level-2 cache. ``frozen`` makes them
    large, because each slice is multiplied twice by the whole weight of a frozen head.
    """
    if device.type != "cpu":
        elements = _GPU_CHUNK
    elif torch.compiler.is_compiling():  # torch.compile cannot trace get_num_threads
        elements = _FROZEN_CPU_CHUNK if frozen else _CPU_CHUNK
    else:
        elements = _CACHED_CHUNK if cached else _FROZEN_CPU_CHUNK if frozen else _CPU_CHUNK
        elements *= torch.get_num_threads()
    size = max(1, elements // max(1, tokens))
    starts = range(0, rows, size)
    return [slice(start, min(start + size, rows)) for start in starts] or [slice(0, 0)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the results of chunks, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def logsumexp(logits: Tensor, largest: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the logsumexp of each row [n] of logits [n, v], given its largest logit [n].

    ``torch.logsumexp`` of a bf16 tensor first needs a float32 copy. Here the only float32 tensor
    holds the differences from the largest logit, and then their exponentials. If ``out`` [n, v] is
    given, it is this tensor; float32 logits may be passed as their own ``out``.
    """
    finite = largest.nan_to_num(nan=math.nan, posinf=0.0, neginf=0.0)
    return difference(logits, finite, out).exp_().sum(dim=-1).log_().add_(finite)


def difference(logits: Tensor, shift: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute logits [n, v] minus ``shift`` [n] in ``shift``'s dtype; ``out`` gets the result."""
    if out is not None and out is not logits and logits.device.type == "cpu":
        return out.copy_(logits).sub_(shift[:, None])  # torch.sub converts to a third tensor here
    return torch.sub(logits, shift[:, None], out=out)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def to_compute_dtype(logits: Tensor) -> Tensor:
    """Convert logits to float32; float64 logits are returned as they are."""
    return logits if logits.dtype == torch.float64 else logits.float()
