"""Call the output head of a model in training with less memory.

Axes    b samples, t positions, n supervised rows, d width of the model, v vocabulary

During a forward pass the head is replaced in one of two ways. Both change results by rounding only.

Chunked loss, for micro-batches with many logits: the objective computes one chunk of logits at a
time (``Objective.from_hidden``), and the replaced head returns the loss. The loss is computed
inside of the model because only there the input of the head is known and ZeRO-3 has gathered its
weight, and because DDP follows the outputs of the model. This is correct only if the head is linear
and the model returns the head's output unchanged. Models that scale (Granite, Cohere) or soft-cap
(Gemma 2) their logits are excluded.

Tied head, if the head shares its weight with the embeddings: a linear layer whose weight gradient
is contiguous. That of ``torch.nn.functional.linear`` is transposed, and torch 2.13 sums it with the
gradient of the embeddings in a third buffer of their size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mm_numeric.losses.normalization import Counts
from mm_numeric.losses.objective import Objective, ObjectiveResult
from mm_numeric.numbers.spans import NumberSpans

CHUNKED_FROM = 1 << 27
"""Number of logits of a micro-batch, n * v, from which the loss is computed in chunks.

2**27 logits need 512 MiB in float32, and their gradient as much. Chunks need a third more
arithmetic. On a CPU they took 1.1 to 2.1 times as long, and 33 MiB instead of 1,632 MiB for 1,536
rows with a vocabulary of 151,936. Smaller micro-batches would be a single chunk."""


class ChunkedHead:
    """Runs a model in training with its output head replaced where that saves memory."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], whole: Any) -> None:
        """Inspect the head of ``whole``, the unwrapped ``model``.

        Runs the model once on the inputs of a micro-batch, so all ranks must do it together.
        """
        self.head = linear_head(whole)
        self.is_tied = self.head is not None and is_tied(whole, self.head)
        self.is_replaceable = self.head is not None and logits_equal_head_output(
            model, self.head, inputs
        )

    def is_chunked(
        self, inputs: Mapping[str, Any], labels: Tensor, objective: Objective, chunked_from: int
    ) -> bool:
        """Return True if the loss of a micro-batch is computed in chunks of logits."""
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
        """Return the outputs of a model and the result of the objective, with number metrics.

        From ``chunked_from`` logits the loss is computed in chunks, and the outputs have no logits.
        ``labels`` are those of the positions for which the model computes logits.
        """
        head = self.head
        if head is None or not self.is_chunked(inputs, labels, objective, chunked_from):
            with _contiguous_gradient(head) if head and self.is_tied else nullcontext():
                outputs = model(**inputs)
            return outputs, objective(outputs.logits, labels, spans, counts=counts, figures=True)
        results: list[ObjectiveResult] = []

        def loss_of(hidden: Tensor) -> Tensor:
            result = objective.from_hidden(
                hidden, head.weight, labels, spans, bias=head.bias, counts=counts, figures=True
            )
            results.append(result)
            return result.loss.reshape(1)

        with _replaced_forward(head, loss_of):
            outputs = model(**inputs)
        return outputs, replace(results[0], loss=outputs.logits.reshape(()))


def linear_head(model: Any) -> nn.Linear | None:
    """Return the output head of a model if it is a plain linear layer, else None.

    It is not plain with an adapter (LoRA, ``modules_to_save``), with a quantised or sharded weight,
    or if its ``forward`` has been replaced (``device_map``).
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        return None
    return None if "forward" in vars(head) else head


def is_tied(model: Any, head: nn.Linear) -> bool:
    """Return True if a head without bias shares its trained weight with the input embeddings."""
    trained = head.weight.requires_grad and head.bias is None
    return trained and model.get_input_embeddings().weight is head.weight


@torch.no_grad()
def logits_equal_head_output(model: nn.Module, head: nn.Linear, inputs: Mapping[str, Any]) -> bool:
    """Return True if the logits of a model are bit for bit the output of its head.

    The head is replaced by artificial logits from -100 to 100, which scaling, soft-capping or a
    cast of the dtype would change.
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
    """``linear`` with a contiguous weight gradient, to which torch adds another one in place."""

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
    """Sum the gradients of a tied head in one buffer; under autocast they are copied anyway."""

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
