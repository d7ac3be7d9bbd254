"""How a trainer calls the head of a model: for as little time and memory as it can be.

Axes    b samples, t positions, n supervised rows, d width of the model, v vocabulary

Two things can stand in the head's place while a model is called; each is the same to a rounding.

The objective itself, where there are many logits: it makes a chunk of them at a time
(``Objective.from_hidden``), and what the head returns is the loss. It has to be calculated there:
what goes into the head is known there, ZeRO-3 has the weight whole there and nowhere else, and DDP
goes by what comes out of a model. It is right only where the head is linear and the model returns
what its head says, and nothing made of it: a scale (Granite, Cohere) or a soft cap (Gemma 2) would
be left out.

A product with another backward, where the head is the table of the embeddings: the gradient that
``linear`` makes is a transposed one, and torch (2.13) adds that of the embeddings to it in a third
buffer of their size.
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

LEAN_FROM = 1 << 27
"""Logits of a micro-batch, n * v, from which on they are not made: half a GiB in float32, and as
much again for their gradient. Without them the head takes a third more arithmetic; on a CPU 1.1 to
2.1 times the time, and 33 MiB where 1,536 rows of 151,936 take 1,632. Of a few rows on a CPU, and
half a GiB on a GPU, from_hidden would make one chunk: there is nothing to win."""


class TrainedHead:
    """The head of a model in training, and what may stand in its place."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any], whole: Any) -> None:
        """Look at a model; all ranks do so together, for it is called once.

        Args:
            model: As it is called in training, whatever it is wrapped in.
            inputs: Those of a micro-batch.
            whole: The model without what it is wrapped in.
        """
        self.head = linear_head(whole)
        self.is_tied = self.head is not None and is_tied(whole, self.head)
        self.hands_on = self.head is not None and hands_on(model, self.head, inputs)

    def is_lean(
        self, inputs: Mapping[str, Any], labels: Tensor, objective: Objective, lean_from: int
    ) -> bool:
        """Say whether a micro-batch has so many logits that none are made."""
        # Terms alone look at few logits.
        if self.head is None or not self.hands_on or objective.spec.ce_weight == 0:
            return False
        rows = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        if "logits_to_keep" in inputs or rows is None:
            rows = labels
        return rows.numel() * self.head.out_features >= lean_from

    def __call__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        objective: Objective,
        labels: Tensor,
        spans: NumberSpans | None,
        counts: Counts,
        lean_from: int = LEAN_FROM,
    ) -> tuple[Any, ObjectiveResult]:
        """Return the outputs of a model, and what the objective says of them, figures too.

        Args:
            model: As above.
            inputs: What it is called with.
            objective: What is trained on.
            labels: As the objective takes them, for the rows that the head is called with.
            spans: As above.
            counts: As above.
            lean_from: So many logits are not made; the outputs are without them then.
        """
        if self.is_lean(inputs, labels, objective, lean_from):
            assert self.head is not None
            return _without_logits(model, self.head, inputs, objective, labels, spans, counts)
        head = self.head if self.is_tied else None
        with nullcontext() if head is None else _one_gradient(head):
            outputs = model(**inputs)
        return outputs, objective(outputs.logits, labels, spans, counts=counts, figures=True)


def linear_head(model: Any) -> nn.Linear | None:
    """Return the head of a model if it is a linear layer and nothing else.

    None where there is an adapter on it (LoRA, ``modules_to_save``), its weight is quantised or
    split over devices, or something has replaced how it is called (``device_map``).
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear or type(head.weight) is not nn.Parameter:
        return None
    return None if "forward" in vars(head) else head


def is_tied(model: Any, head: nn.Linear) -> bool:
    """Say whether a head without a bias is trained together with the embeddings, as one tensor."""
    trained = head.weight.requires_grad and head.bias is None
    return trained and model.get_input_embeddings().weight is head.weight


@torch.no_grad()
def hands_on(model: nn.Module, head: nn.Linear, inputs: Mapping[str, Any]) -> bool:
    """Say whether a model returns as its logits, bit for bit, what its head returns.

    It is tried with made-up logits from -100 to 100, which a scale, cap or cast does not leave be.
    """
    said: list[Tensor] = []

    def made_up(hidden: Tensor) -> Tensor:
        dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        row = torch.linspace(-100, 100, head.out_features, dtype=dtype, device=hidden.device)
        said.append(row.expand(*hidden.shape[:-1], -1))
        return said[-1].clone()

    inputs = dict(inputs)
    if "logits_to_keep" in inputs:  # one row is enough
        inputs["logits_to_keep"] = torch.zeros_like(inputs["logits_to_keep"])
        inputs["logits_to_keep"][0, 0] = True
    was_training = model.training
    model.eval()  # without dropout, so that training goes on with the same random numbers
    try:
        with _in_place_of(head, made_up):
            logits = model(**inputs).logits
    finally:
        model.train(was_training)
    same = len(said) == 1 and logits.dtype == said[0].dtype and logits.shape == said[0].shape
    return same and torch.equal(logits, said[0])


def _without_logits(
    model: nn.Module,
    head: nn.Linear,
    inputs: Mapping[str, Any],
    objective: Objective,
    labels: Tensor,
    spans: NumberSpans | None,
    counts: Counts,
) -> tuple[Any, ObjectiveResult]:
    """Call a model with the objective in its head's place."""
    found: list[ObjectiveResult] = []

    def charged(hidden: Tensor) -> Tensor:
        weight, bias = head.weight, head.bias
        result = objective.from_hidden(
            hidden, weight, labels, spans, bias=bias, counts=counts, figures=True
        )
        found.append(result)
        return result.loss.reshape(1)

    with _in_place_of(head, charged):
        outputs = model(**inputs)
    return outputs, replace(found[0], loss=outputs.logits.reshape(()))


class _Product(torch.autograd.Function):
    """``linear``, whose gradient for the weight another one can be added to in place."""

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
def _one_gradient(head: nn.Linear) -> Iterator[None]:
    """Have the gradients of a tied head summed up in one buffer; autocast copies them anyway."""

    def product(hidden: Tensor) -> Tensor:
        # Asked here: accelerate turns autocast on within the call of the model.
        if torch.is_autocast_enabled(hidden.device.type):
            return linear(hidden, head.weight)
        product: Tensor = _Product.apply(hidden, head.weight)
        return product

    with _in_place_of(head, product):
        yield


@contextmanager
def _in_place_of(head: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Call something else where a model calls its head."""
    head.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward
