"""Losses that a model adds to cross-entropy, such as the router losses of a mixture of experts.

Axes    b samples, t positions, n supervised positions (those with a label), v vocabulary

An objective computes its loss from logits, so the model gets no labels and computes no loss itself.
Router losses are among the outputs of a model. Other losses that a model adds, such as a loss on
hidden states, are only known as a difference: the model's own loss with labels, minus cross-entropy
and router losses.
"""

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from mm_numeric.losses.cross_entropy import to_compute_dtype
from mm_numeric.numbers.spans import IGNORE_INDEX
from mm_numeric.training.output_head import at_positions, output_head, replaced_forward

COMPARED_TOKENS = 64
"""Largest number of supervised tokens for which the model's own loss is compared."""

TOLERANCE, TOLERANCE_16_BIT = 1e-4, 1e-2
"""Largest relative difference of two losses that count as equal; the second value applies if the
model rounds its loss to 16 bits. For losses below 1, the absolute difference has this limit."""

_ROUTER_LOSSES = {
    ("aux_loss", "encoder_aux_loss", "decoder_aux_loss"): (
        "router_aux_loss_coef",
        "aux_loss_coef",
        "moe_loss_weight",
    ),
    ("encoder_z_loss", "decoder_z_loss"): ("router_z_loss_coef",),
}
"""Loss outputs of transformers models, and the names of their weights in a model or its config."""

_UNLABELLED, _EQUAL, _FAILED, _DIFFERENT = range(4)

Log = Callable[[int, str], None]


@dataclass(frozen=True)
class OwnLoss:
    """The losses of a model that are trained besides the objective."""

    needs_labels: bool = False
    """True if the model needs labels to compute these losses, and so logits at all positions."""

    has_others: bool = False
    """True if the model adds losses other than router losses."""

    def losses(
        self, outputs: Any, model: Any, labels: Tensor, router_weight: float | None = None
    ) -> dict[str, Tensor]:
        """Return the weighted losses of a micro-batch: ``router``, and ``own`` for all others.

        ``labels`` [b, t] come from ``with_a_label``. ``router_weight`` replaces the weight of the
        load balancing losses that the model or its config has.
        """
        router = router_loss(outputs, model, router_weight)
        found = {} if router is None else {"router": router}
        if self.has_others:
            added = router_loss(outputs, model)
            expected = _mean_cross_entropy(outputs.logits, labels)
            found["own"] = outputs.loss - (expected if added is None else expected + added)
        return found


def router_loss(outputs: Any, model: Any, weight: float | None = None) -> Tensor | None:
    """Return the weighted router losses in the outputs of a ``model``; None if there are none.

    ``weight`` replaces the weight of the load balancing losses that the model or its config has.
    """
    total = None
    for names, weights in _ROUTER_LOSSES.items():
        losses = [loss for n in names if isinstance(loss := getattr(outputs, n, None), Tensor)]
        if losses:
            own = _weight(model, weights) if weight is None or "aux_loss" not in names else weight
            part = own * sum(losses[1:], losses[0])
            total = part if total is None else total + part
    return total


def aligned(labels: Tensor, supervised: Tensor | None) -> Tensor:
    """Return labels [b, t] that are aligned with the logits.

    If ``supervised`` is None, ``labels`` are already [b, t]. Otherwise ``labels`` are [n], for the
    positions where the mask ``supervised`` [b, t] is True.
    """
    if supervised is None:
        return labels
    ignored = torch.full(supervised.shape, IGNORE_INDEX, device=labels.device)
    return ignored.masked_scatter(supervised, labels)


def with_a_label(labels: Tensor) -> Tensor:
    """Return labels [b, t]; if all are ignored, the first becomes token 0, so that a mean exists.

    The loss of this token has no effect: it is in the model's own loss, and in the cross-entropy
    that is subtracted from it.
    """
    if (labels != IGNORE_INDEX).any():
        return labels
    return pad(labels.flatten()[1:], (1, 0)).reshape(labels.shape)


def model_labels(labels: Tensor, shift: bool) -> Tensor:
    """Return labels [b, t] for the model; undo the shift if the model shifts labels itself."""
    return pad(labels, (1, -1), value=IGNORE_INDEX) if shift else labels


@torch.no_grad()
def probe_own_loss(
    model: nn.Module,
    inputs: Mapping[str, Any],
    labels: Tensor,
    *,
    shift: bool,
    policy: str,
    accelerator: Any,
    log: Log,
    is_compiled: bool = False,
) -> OwnLoss | None:
    """Find the losses that a model adds: compare its own loss with cross-entropy and router losses.

    Args:
        model: The model in its training mode, with its DDP or DeepSpeed wrapper if it has one. It
            is run once or twice on the micro-batch, so all ranks must call this together. The
            buffers of the model and the random states are restored.
        inputs: Arguments of the model without labels.
        labels: [b, t] aligned with the logits. The first ``COMPARED_TOKENS`` labels are compared.
        shift: True for decoder-only models, which shift their labels.
        policy: ``ObjectiveSpec.own_loss``: ``stop`` or ``keep``.
        accelerator: The ``accelerate.Accelerator``.
        log: Called with the logging level and the text of a message.
        is_compiled: True if torch.compile would compile the model again when it gets labels.

    Returns:
        The losses to train besides the objective. None if no rank has a label in this micro-batch;
        then call this again with another one.

    Raises:
        ValueError: On all ranks, if the losses differ on one rank, and the policy is ``stop``.
    """
    whole = base_model(accelerator.unwrap_model(model))
    parameters = inspect.signature(whole.forward).parameters
    if "labels" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return OwnLoss()
    probe = _Probe(model, whole, inputs, labels, shift)
    # Only if needed, because importing the compiler takes seconds.
    eager = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    with _unchanged(model), eager:
        status, own, expected, error = probe.compared()
    found = torch.tensor([[status, own, expected]], device=accelerator.device)
    found = found if accelerator.num_processes == 1 else accelerator.gather(found)
    status, own, expected = max(found.tolist())
    if status == _UNLABELLED:
        return None
    if status == _FAILED:
        log(
            logging.WARNING,
            "it is not known whether the model adds a loss of its own to cross-entropy, because "
            f"its loss with labels could not be computed ({error or 'on another rank'}); router "
            "losses among its outputs are trained, and others are not.",
        )
        return OwnLoss()
    if status == _EQUAL:
        return OwnLoss(probe.needs_labels, probe.has_z_loss)
    numbers = (
        f"the model's own loss is {own:.6g} in the first batch, but cross-entropy and its router "
        f"losses are {expected:.6g}"
    )
    if policy == "stop":
        raise ValueError(
            f"own_loss: {numbers}, so that an objective would not train what the model adds; set "
            "own_loss to keep, to train it too, or to ignore, to train the objective alone."
        )
    log(logging.INFO, f"{numbers}: the difference is trained (own_loss: {policy}).")
    return OwnLoss(needs_labels=True, has_others=True)


def base_model(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, or ``model`` itself without PEFT."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class _Probe:
    """Computes the own loss of a model, and its expected value from the same forward pass."""

    def __init__(
        self, model: nn.Module, whole: Any, inputs: Mapping[str, Any], labels: Tensor, shift: bool
    ) -> None:
        self.model, self.whole, self.inputs, self.shift = model, whole, inputs, shift
        self.size = labels.shape
        flat = labels.flatten()
        positions = (flat != IGNORE_INDEX).nonzero().squeeze(1)[:COMPARED_TOKENS]
        self.is_labelled = len(positions) > 0
        # Without a label, this rank still runs the model, because other ranks may wait for it.
        self.positions = positions if self.is_labelled else positions.new_zeros(1)
        self.labels = flat[self.positions]
        self.z_weight = getattr(_text_config(whole), "z_loss_coefficient", None) or 0.0
        self.has_z_loss, self.needs_labels = bool(self.z_weight), bool(self.z_weight)

    def compared(self) -> tuple[int, float, float, str]:
        """Return the result of ``compare``, and an error message; "" if it did not fail."""
        error = ""
        for is_selected in (True, False) if output_head(self.whole) else (False,):
            try:
                return *self.compare(is_selected), error
            except Exception as reason:  # the model may raise any exception
                error = f"{type(reason).__name__}: {reason}"
        return _FAILED, math.nan, math.nan, error

    def compare(self, is_selected: bool) -> tuple[int, float, float]:
        """Return a status such as ``_EQUAL``, the own loss, and its expected value.

        If ``is_selected``, the output head computes logits at the compared positions only.
        """
        outputs, logits = self._selected() if is_selected else self._whole()
        if getattr(outputs, "loss", None) is None:
            return _EQUAL, 0.0, 0.0  # the model has no own loss
        router = router_loss(outputs, self.whole)
        if router is not None and router_loss(self._outputs(is_selected), self.whole) is None:
            self.needs_labels = True
        expected = cross_entropy(to_compute_dtype(logits), self.labels.to(logits.device))
        if self.z_weight:
            scale = to_compute_dtype(outputs.logits).logsumexp(dim=-1).square().mean()
            expected = expected + self.z_weight * scale
        wanted = expected.item() + (0.0 if router is None else router.item())
        own = to_compute_dtype(outputs.loss)
        is_rounded = any(own == own.to(dtype) for dtype in (torch.bfloat16, torch.float16))
        if not self.is_labelled:
            return _UNLABELLED, 0.0, 0.0
        if not math.isfinite(own.item() - wanted):
            raise ValueError(f"the loss is {own.item()}")
        allowed = (TOLERANCE_16_BIT if is_rounded else TOLERANCE) * max(1.0, abs(wanted))
        is_equal = abs(own.item() - wanted) <= allowed
        return _EQUAL if is_equal else _DIFFERENT, own.item(), wanted

    def _selected(self) -> tuple[Any, Tensor]:
        """Run the model with logits at the compared positions; return the outputs and the logits.

        A model that shifts its labels compares the logits at each position with the next label. So
        it gets an ignored label before the compared labels, and an additional last position, whose
        logits are not returned.
        """
        count, labels = len(self.positions), self.labels
        if self.shift:
            labels = pad(labels, (1, 0), value=IGNORE_INDEX)
        outputs = self._outputs(True, labels=labels[None])
        logits = outputs.logits.flatten(0, -2)
        if len(logits) != len(labels):
            raise ValueError("the model does not return the logits of its output head")
        return outputs, logits[:count]

    def _whole(self) -> tuple[Any, Tensor]:
        """Run the model with logits at all positions; return the outputs and compared logits."""
        labels = torch.full(self.size, IGNORE_INDEX, device=self.labels.device)
        labels.flatten()[self.positions] = self.labels
        outputs = self._outputs(False, labels=model_labels(labels, self.shift))
        # Leave out the logits of virtual tokens (PEFT), which are before the others.
        return outputs, outputs.logits[:, -self.size[1] :].flatten(0, 1)[self.positions]

    def _outputs(self, is_selected: bool, **labels: Tensor) -> Any:
        if not is_selected:
            return self.model(**self.inputs, **labels)
        head: Any = output_head(self.whole)
        compute, positions = head.forward, self.positions
        if self.shift:
            positions = torch.cat([positions, positions[-1:]])

        def selected(hidden: Tensor) -> Tensor:
            # In float32, because a model in bf16 would compute its loss in bf16.
            return to_compute_dtype(
                compute(at_positions(hidden, positions, self.size.numel())[None])
            )

        with replaced_forward(head, selected):
            return self.model(**self.inputs, **labels)


def _mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    flat = labels.to(logits.device).flatten()
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(1)
    return cross_entropy(to_compute_dtype(logits.flatten(0, -2)[positions]), flat[positions])


def _text_config(model: Any) -> Any:
    """Return the config of the language model; None if a model of the user has no config."""
    config = getattr(model, "config", None)
    return getattr(config, "get_text_config", lambda: config)()


def _weight(model: Any, names: tuple[str, ...]) -> float:
    """Return the weight of router losses: the first attribute in ``names`` of model or config."""
    text = _text_config(model)
    found = (getattr(owner, name, None) for owner in (model, text) for name in names)
    return next((float(weight) for weight in found if weight is not None), 0.0)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the random states and the buffers of a model after the context."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")
    try:
        with torch.random.fork_rng([device.index or 0 for device in devices], device_type=kind):
            yield
    finally:
        for module, name, buffer, before in buffers:
            setattr(module, name, buffer.copy_(before))  # the model may also have replaced it
