"""Compute logits at some positions, and losses in chunks, in the output head (``lm_head``).

Axes    n supervised positions (those with a label), v vocabulary

During a forward pass, the ``forward`` method of the head is replaced. This changes the results only
by rounding errors. ``logits_to_keep`` is not used: models differ in the values that they accept,
and models with custom code may lack it. But all models call the module that
``get_output_embeddings()`` returns. The replaced method does one of two things:

Supervised positions: the head computes logits only at positions with a label.

Chunked loss, for micro-batches with many logits: the head computes the loss from one chunk of
logits at a time, and returns the loss instead of logits. The logits [n, v] are never all in
memory. Because this happens inside the model's forward pass, it works with ZeRO-3 and DDP.
The head must be linear, and the model must return the output of its head unchanged. This excludes
models that scale their logits (Granite, Cohere) or soft-cap them (Gemma 2).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.numeric_loss import NumericLoss, ObjectiveResult
from mm_numeric.numbers.spans import NumberSpans


def output_head(model: Any) -> nn.Module | None:
    """Return the output head (``lm_head``) of a model; None if the model has no output head."""
    try:
        head = model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return head if isinstance(head, nn.Module) else None


def selected_logits(
    model: Any, head: nn.Module | None, inputs: Mapping[str, Any], positions: Tensor, count: int
) -> Tensor:
    """Run a model, and return its logits [n, v] at n positions.

    ``head`` is the model's output head; if it is None, the model computes logits at all positions.
    ``positions`` [n] are indices into the ``count`` = b * t flattened positions of the batch. (If
    they were a mask, the host would have to wait for the number of positions.)
    """
    if head is None:
        logits: Tensor = model(**inputs).logits
    else:
        with selecting(head, positions, count):
            logits = model(**inputs).logits
    logits = logits.flatten(0, -2)
    return logits if len(logits) == len(positions) else logits[positions]


def at_positions(hidden: Tensor, positions: Tensor, count: int) -> Tensor:
    """Select the hidden states [n, d] at ``positions`` from the head's input [b, t, d].

    Raises ValueError if the input does not have ``count`` = b * t positions.
    """
    hidden = hidden.flatten(0, -2)
    if len(hidden) != count:
        raise ValueError(
            f"the output head has {len(hidden)} positions in a batch whose labels have {count}: "
            "the model changes the length of its sequences, which the labels do not show."
        )
    return hidden[positions.to(hidden.device)]  # another GPU, with a device_map


def selecting(
    head: nn.Module,
    positions: Tensor,
    count: int,
    compute: Callable[[Tensor], Tensor] | None = None,
) -> AbstractContextManager[None]:
    """Context manager in which a head computes logits [1, n, v] at n positions only.

    ``positions`` and ``count`` are defined in ``selected_logits``. ``compute`` replaces the head's
    method ``forward``.
    """
    whole: Callable[[Tensor], Tensor] = compute or head.forward
    return replaced_forward(
        head, lambda hidden: whole(at_positions(hidden, positions, count)[None])
    )


@contextmanager
def replaced_forward(head: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context manager in which ``forward`` replaces the method ``forward`` of a module."""
    before = vars(head).get("forward")  # accelerate replaces it too
    head.forward = forward  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager with a model in evaluation mode: no dropout, which draws random numbers."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class ChunkedHead:
    """Runs forward passes of a training with less memory for the output head (``lm_head``).

    Attributes:
        all_positions: Reason why logits are computed at all positions; "" if they are computed only
            at the supervised positions.
        one_piece: Reason why the loss cannot be computed in chunks; "" if it can be.
        compute: Replacement of ``forward`` for a head that is tied to the embeddings; else None.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        whole: Any,
        count: int,
        *,
        is_compiled: bool = False,
        is_sharded: bool = False,
    ) -> None:
        """Check whether ``forward`` of the output head can be replaced.

        This runs the model once on the micro-batch ``inputs`` with ``count`` = b * t positions, so
        all ranks must call it together. ``whole`` is the model without its DDP or DeepSpeed
        wrapper. ``is_compiled`` is True if torch.compile is used, which would compile the model
        again for each replaced method. ``is_sharded`` is True if FSDP shards the head's weight.
        """
        self.head: Any = output_head(whole)
        self.compute: Callable[[Tensor], Tensor] | None = None
        self.all_positions, self.one_piece = "", ""
        if is_compiled or self.head is None:
            reason = "torch.compile" if is_compiled else "the model has no output embeddings"
            self.all_positions = self.one_piece = reason
            return
        linear_head = plain_linear(self.head)
        if linear_head is not None and not is_sharded:
            self.compute = tied_product(whole, linear_head)
        selects, is_unchanged = probe(model, self.head, inputs, count)
        if not selects:
            reason = "the model does not return the logits that its output head computes"
            self.all_positions = self.one_piece = reason
        elif is_sharded:
            self.one_piece = "FSDP shards the weight of the output head"
        elif linear_head is None:
            self.one_piece = "the output head has an adapter, or is no plain linear layer"
        elif not is_unchanged:
            self.one_piece = "the model changes the logits of its output head"

    def is_chunked(self, positions: Tensor, loss_of: NumericLoss, chunked_from: float) -> bool:
        """Return True if a micro-batch has too many logits to compute its loss in one piece."""
        # Without cross-entropy only the logits of numbers are needed, which are few.
        if self.one_piece or loss_of.spec.ce_weight == 0:
            return False
        return bool(positions.numel() * self.head.out_features >= chunked_from)

    def loss_in_chunks(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        loss_of: NumericLoss,
        labels: Tensor,
        spans: NumberSpans | None,
        counts: Counts | None,
        positions: Tensor,
        count: int,
    ) -> tuple[Any, ObjectiveResult]:
        """Run the model on a micro-batch; return the model outputs and the result of the loss.

        ``outputs.logits`` contains the loss. ``positions`` [n] are the flattened positions of
        ``labels`` [n], and ``count`` is the number of positions of the micro-batch, b * t.
        """
        head = self.head
        results: list[ObjectiveResult] = []

        def compute_loss(hidden: Tensor) -> Tensor:
            result = loss_of.from_hidden(
                at_positions(hidden, positions, count),
                head.weight,
                labels,
                spans,
                bias=head.bias,
                shift=False,
                counts=counts,
                metrics=True,
            )
            results.append(result)
            return result.loss.reshape(1)

        with replaced_forward(head, compute_loss):
            outputs = model(**inputs)
        # BART and others add a bias of zeros, [1, v], so that the loss is returned v times.
        return outputs, replace(results[0], loss=outputs.logits.flatten()[0])


def plain_linear(head: nn.Module | None) -> nn.Linear | None:
    """Return ``head`` if it is an unmodified ``nn.Linear``, else None.

    A head is modified if it has an adapter (LoRA, ``modules_to_save``), a quantised or sharded
    weight, or a replaced ``forward`` method (``device_map``).
    """
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        return None
    return None if "forward" in vars(head) else head


@torch.no_grad()
def probe(
    model: nn.Module, head: nn.Module, inputs: Mapping[str, Any], count: int
) -> tuple[bool, bool]:
    """Return two bools: can the head compute logits at some positions only, and return a loss?

    To test this, the head returns artificial logits at one position. The first bool is True if the
    model then returns logits at one position. For a linear head, these logits are values from -100
    to 100. The second bool is True if the model returns them unchanged, so that it does not scale,
    soft-cap or cast logits.
    """
    returned: list[Tensor] = []
    compute, linear_head = head.forward, plain_linear(head)

    def artificial(hidden: Tensor) -> Tensor:
        if linear_head is None:
            logits: Tensor = compute(hidden.flatten(0, -2)[:1][None])
        else:
            dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
            size = linear_head.out_features
            logits = torch.linspace(-100, 100, size, dtype=dtype, device=hidden.device)[None, None]
        if hidden.shape[:-1].numel() == count:
            returned.append(logits)
        return logits.clone()

    try:
        with evaluating(model), replaced_forward(head, artificial):
            logits = model(**inputs).logits
    except torch.OutOfMemoryError:  # logits at all positions would need even more memory
        raise
    except (RuntimeError, ValueError, IndexError):  # the model reshapes its logits to [b, t, v]
        return False, False
    if len(returned) != 1 or not isinstance(logits, Tensor) or logits.shape != returned[0].shape:
        return False, False
    same = logits.dtype == returned[0].dtype and torch.equal(logits, returned[0])
    return True, same and linear_head is not None


def tied_product(model: Any, head: nn.Linear) -> Callable[[Tensor], Tensor] | None:
    """Return a ``forward`` that saves memory if the head's weight is that of the input embeddings.

    torch adds the weight gradients of the head and of the embeddings. ``linear`` returns a
    transposed gradient, which torch 2.13 cannot add in place: it allocates a third tensor of the
    same size. Returns None if the weight is not shared or not trained, or the head has a bias.
    """
    trained = head.weight.requires_grad and head.bias is None
    if not trained or model.get_input_embeddings().weight is not head.weight:
        return None

    def product(hidden: Tensor) -> Tensor:
        # Checked here because accelerate enables autocast only inside the model's ``forward``.
        if torch.is_autocast_enabled(hidden.device.type):
            return linear(hidden, head.weight)
        return _TiedLinear.apply(hidden, head.weight)

    return product


class _TiedLinear(torch.autograd.Function):
    """Linear layer whose weight gradient is contiguous, so that torch accumulates it in place."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return linear(hidden, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        hidden, weight = ctx.saved_tensors
        grad_weight = grad.flatten(0, -2).T @ hidden.flatten(0, -2)
        return (grad @ weight if ctx.needs_input_grad[0] else None), grad_weight
