"""Triton kernels for CUDA: one reads the logits once, the other writes their gradient once.

Axes    r rows of the logits, n rows that have a label, v vocabulary

Their definitions::

    chosen = logits[rows].float()

    normaliser, (largest, likely) = chosen.logsumexp(dim=-1), chosen.max(dim=-1)
    at_labels = chosen.gather(1, labels[:, None]).squeeze(1)

    is_label = torch.arange(v) == labels[:, None]
    gradient = (chosen - shift[:, None]).exp() * scale[:, None] - is_label * at_labels[:, None]
    out[rows] = gradient.to(out)

torch.compile generates a single pass, too, but its forward pass has two exponentials and an
update of the index of the largest logit for each logit: a GPU reads logits in less time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # logits that a program reads at once
_WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(  # type: ignore[no-untyped-def]
    logits, stride, rows, labels, normaliser, at_labels, highest, likely, tokens,
    block: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    logits += (index if rows is None else tl.load(rows + index)) * stride
    largest = -float("inf")
    shift = 0.0
    where = 0
    total = tl.zeros([block], tl.float32)
    for start in range(0, tokens, block):
        columns = start + tl.arange(0, block)
        values = tl.load(logits + columns, mask=columns < tokens, other=-float("inf"))
        values = values.to(tl.float32)
        before = largest
        largest = tl.maximum(before, tl.max(values, 0))
        where = tl.where(largest > before, start, where)
        shift = tl.where(largest == -float("inf"), 0.0, largest)  # -inf - -inf would be NaN
        total = total * tl.exp(before - shift) + tl.exp(values - shift)
    # To find the index of the largest logit, only its block is read again.
    columns = where + tl.arange(0, block)
    values = tl.load(logits + columns, mask=columns < tokens, other=-float("inf")).to(tl.float32)
    found = tl.min(tl.where(values == largest, columns, tokens - 1), 0)
    tl.store(normaliser + index, tl.log(tl.sum(total, 0)) + shift)
    tl.store(at_labels + index, tl.load(logits + tl.load(labels + index)).to(tl.float32))
    tl.store(highest + index, largest)
    tl.store(likely + index, found)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(  # type: ignore[no-untyped-def]
    out, out_stride, logits, stride, rows, labels, shift, scale, at_labels, tokens,
    block: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = index if rows is None else tl.load(rows + index)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    is_token = columns < tokens
    values = tl.load(logits + row * stride + columns, mask=is_token, other=-float("inf"))
    values = values.to(tl.float32)
    values = tl.exp(values - tl.load(shift + index)) * tl.load(scale + index)
    is_label = columns == tl.load(labels + index).to(tl.int32)
    values = tl.where(is_label, values - tl.load(at_labels + index), values)
    tl.store(out + row * out_stride + columns, values, mask=is_token)


@torch.library.custom_op("mm_numeric::row_statistics", mutates_args=())
def row_statistics(
    logits: Tensor, rows: Tensor | None, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logsumexp, logit of the label, largest logit and its token for n rows, each [n].

    ``logits`` [r, v] are bf16, fp16 or float32, and contiguous along v. ``labels`` are [n], and
    ``rows`` [n] are the rows of the labels. The results are float32, and int64 for the tokens.
    """
    results = _empty_statistics(logits, rows, labels)
    inputs = [_contiguous(tensor) for tensor in (rows, labels)]
    with torch.cuda.device_of(logits):
        _statistics[(len(labels),)](
            logits, logits.stride(0), *inputs, *results, logits.shape[1], _BLOCK, num_warps=_WARPS
        )
    return results


@row_statistics.register_fake
def _empty_statistics(
    logits: Tensor, rows: Tensor | None, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    floats = [torch.empty_like(labels, dtype=torch.float32) for _ in range(3)]
    return floats[0], floats[1], floats[2], torch.empty_like(labels)


@torch.library.custom_op("mm_numeric::write_softmax", mutates_args=("out",))
def write_softmax(
    out: Tensor,
    logits: Tensor,
    rows: Tensor | None,
    labels: Tensor,
    shift: Tensor,
    scale: Tensor,
    at_labels: Tensor,
) -> None:
    """Write the softmax, or the gradient of cross-entropy, of n rows to ``out`` [r, v].

    ``shift``, ``scale`` and ``at_labels`` [n] are float32. ``at_labels`` are subtracted before the
    result is rounded to the dtype of ``out``, which may be the tensor ``logits``. Labels that are
    not one of the v tokens have no column.
    """
    inputs = [_contiguous(x) for x in (rows, labels, shift, scale, at_labels)]
    grid = len(labels), triton.cdiv(logits.shape[1], _BLOCK)
    strided = (out, out.stride(0), logits, logits.stride(0))
    with torch.cuda.device_of(logits):
        _softmax[grid](*strided, *inputs, logits.shape[1], _BLOCK, num_warps=_WARPS)


@write_softmax.register_fake
def _(*_: Tensor | None) -> None:
    pass


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    """Return a copy of an expanded tensor, such as the gradient of a sum."""
    return None if tensor is None else tensor.contiguous()
