"""Reduce the memory that the output head (``lm_head``) needs during training.

Axes    n positions whose logits are computed, v vocabulary

During a training forward pass, the ``forward`` method of the head is replaced in one of two ways.
Both change the results only by rounding errors.

Chunked loss, for micro-batches with many logits: the head computes the loss from one chunk of
logits at a time, and returns the loss instead of logits. The logits [n, v] are never all in
memory. This happens inside the forward pass of the model, so that it works with ZeRO-3 and DDP.
The head must be linear, and the model must return the output of its head unchanged. This excludes
models that scale their logits (Granite, Cohere) or soft-cap them (Gemma 2).

Contiguous gradient, for a head that shares its weight with the input embeddings: torch adds the
gradients of the head and of the embeddings. ``torch.nn.functional.linear`` returns a transposed
gradient, which torch 2.13 cannot add in place: it allocates a third tensor of the same size. The
replaced ``forward`` method returns a contiguous gradient, which torch adds in place.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mm_numeric.losses.linear_cross_entropy import CHUNKED_FROM as CHUNKED_FROM
from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.numbers.spans import NumberSpans


class ChunkedHead:
    """Runs training forward passes with less memory for the output head (``lm_head``)."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], whole: Any) -> None:
        """Check if the output head is tied to the embeddings, and if it allows a loss in chunks.

        This runs the model once on the micro-batch ``inputs``, so that all ranks must call it
        together. ``whole`` is the model without its DDP or DeepSpeed wrapper.
        """
        self.head = linear_head(whole)
        self.is_tied = self.head is not None and is_tied(whole, self.head)
        self.is_replaceable = self.head is not None and logits_equal_head_output(
            model, self.head, inputs
        )

    def is_chunked(
        self, inputs: Mapping[str, Any], labels: Tensor, objective: Objective, chunked_from: int
    ) -> bool:
        """Return True if a micro-batch has too many logits to compute its loss in one piece."""
        # Without cross-entropy only the logits of numbers are needed, which are few.
        if self.head is None or not self.is_replaceable or objective.spec.ce_weight == 0:
            return False
        rows = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        if "logits_to_keep" in inputs or rows is None:
            rows = labels
        return rows.numel() * self.head.out_features >= chunked_from

    def __call__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        objective: Objective,
        labels: Tensor,
        spans: NumberSpans | None,
        counts: Counts,
        chunked_from: int = CHUNKED_FROM,
    ) -> tuple[Any, ObjectiveResult]:
        """Run the model on a micro-batch; return the model outputs and the result of the objective.

        If the number of logits (positions times vocabulary size) is at least ``chunked_from``, the
        loss is computed in chunks, and ``outputs.logits`` contains the loss instead of the logits.
        """
        head = self.head
        if head is None or not self.is_chunked(inputs, labels, objective, chunked_from):
            with _contiguous_gradient(head) if head and self.is_tied else nullcontext():
                outputs = model(**inputs)
            return outputs, objective(
                outputs.logits, labels, spans, shift=False, counts=counts, figures=True
            )
        results: list[ObjectiveResult] = []

        def loss_of(hidden: Tensor) -> Tensor:
            result = objective.from_hidden(
                hidden,
                head.weight,
                labels,
                spans,
                bias=head.bias,
                shift=False,
                counts=counts,
                figures=True,
            )
            results.append(result)
            return result.loss.reshape(1)

        with _replaced_forward(head, loss_of):
            outputs = model(**inputs)
        return outputs, replace(results[0], loss=outputs.logits.reshape(()))


def linear_head(model: Any) -> nn.Linear | None:
    """Return the output head of a model if it is an unmodified ``nn.Linear``, else None.

    A head is modified if it has an adapter (LoRA, ``modules_to_save``), a quantised or sharded
    weight, or a replaced ``forward`` method (``device_map``).
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        return None
    return None if "forward" in vars(head) else head


def is_tied(model: Any, head: nn.Linear) -> bool:
    """Return True if a head is trained, has no bias, and shares its weight with the embeddings."""
    trained = head.weight.requires_grad and head.bias is None
    return trained and model.get_input_embeddings().weight is head.weight


@torch.no_grad()
def logits_equal_head_output(model: nn.Module, head: nn.Linear, inputs: Mapping[str, Any]) -> bool:
    """Return True if the model returns the output of its head unchanged, bit for bit.

    To test this, the head is made to return values from -100 to 100. Scaling, soft-capping or
    casting to another dtype would change them.
    """
    returned: list[Tensor] = []

    def artificial(hidden: Tensor) -> Tensor:
        dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        row = torch.linspace(-100, 100, head.out_features, dtype=dtype, device=hidden.device)
        returned.append(row.expand(*hidden.shape[:-1], -1))
        return returned[-1].clone()

    inputs = dict(inputs)
    if "logits_to_keep" in inputs:  # one row is enough
        inputs["logits_to_keep"] = torch.zeros_like(inputs["logits_to_keep"])
        inputs["logits_to_keep"][0, 0] = True
    was_training = model.training
    model.eval()  # without dropout, which would change the random numbers of the training
    try:
        with _replaced_forward(head, artificial):
            logits = model(**inputs).logits
    finally:
        model.train(was_training)
    if len(returned) != 1:
        return False
    expected = returned[0]
    same_kind = logits.dtype == expected.dtype and logits.shape == expected.shape
    return same_kind and torch.equal(logits, expected)


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


@contextmanager
def _contiguous_gradient(head: nn.Linear) -> Iterator[None]:
    """Context manager: make the weight gradient of a tied head contiguous, which saves memory."""

    def product(hidden: Tensor) -> Tensor:
        # Checked here because accelerate enables autocast inside of the call of the model.
        if torch.is_autocast_enabled(hidden.device.type):
            return linear(hidden, head.weight)
        product: Tensor = _TiedLinear.apply(hidden, head.weight)
        return product

    with _replaced_forward(head, product):
        yield


@contextmanager
def _replaced_forward(head: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    head.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward
