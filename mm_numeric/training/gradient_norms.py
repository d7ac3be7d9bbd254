"""Gradient norm of each module before clipping at logged steps, and the share of clipped steps.

If gradients are sharded, each rank sums the squares of its shard; then the ranks add their sums.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerState, TrainingArguments

from mm_numeric.compat import before_deepspeed_step, deepspeed_loss_scale, zero2_gradient
from mm_numeric.config.modules import MODULE_NAMES
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.training.unread import Unread


def is_logged(step: int, args: TrainingArguments, state: TrainerState) -> bool:
    """Return True if transformers.Trainer will log the values of a step.

    Always False for ``logging_strategy: epoch``: the last step of an epoch is not known in advance.
    """
    if step == 1 and args.logging_first_step:
        return True
    at_end = step == state.max_steps  # which LogLines adds
    return args.logging_strategy == "steps" and (at_end or step % state.logging_steps == 0)


class GradientNorms:
    """Measures the gradient norm of each module after the backward pass and before clipping."""

    def __init__(self, modules: ModelModules, accelerator: Any) -> None:
        self.modules, self.accelerator = modules, accelerator
        self._found: list[Unread] = []
        self._step = -1

    @contextmanager
    def measuring(self, model: nn.Module, step: int, engine: Any = None) -> Iterator[None]:
        """Measure the gradient norms of the ``backward`` that is called inside the context.

        Use it for the last backward pass of the optimiser step ``step``. All ranks must enter the
        context. ``engine`` is the DeepSpeed engine, or None without DeepSpeed.
        """
        if engine is None:
            yield
            scaler = getattr(self.accelerator, "scaler", None)
            scale = 1.0 if scaler is None else scaler.get_scale()
            self._measure(model, step, attrgetter("grad"), scale, sharded=False)
            return
        stage = engine.zero_optimization_stage()
        if stage == 0:  # its optimisers store gradients elsewhere
            yield
            return

        def measure() -> None:
            from deepspeed.utils import safe_get_local_grad

            shard = zero2_gradient if stage < 3 else safe_get_local_grad
            self._measure(model, step, shard, deepspeed_loss_scale(engine), sharded=True)

        with before_deepspeed_step(engine, measure):
            yield

    def unread(self, step: int) -> list[Unread]:
        """Return the gradient norm of each trained module at ``step``, or [] if not measured."""
        return self._found if step == self._step else []

    def _measure(
        self,
        model: nn.Module,
        step: int,
        gradient_of: Callable[[Tensor], Tensor | None],
        scale: float,
        *,
        sharded: bool,
    ) -> None:
        """Compute and store the gradient norm of each module.

        ``gradient_of`` returns the gradient of a parameter or, if ``sharded``, this rank's shard of
        it. Norms are divided by ``scale``, the factor by which the loss was scaled.
        """
        gradients: dict[str, list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                own = gradients.setdefault(self.modules.module_of(name), [])
                gradient = gradient_of(parameter)
                own += [] if gradient is None else [gradient]
        present = [module for module in MODULE_NAMES if module in gradients]
        sums = torch.stack([_squared_norm(gradients[m], self.accelerator.device) for m in present])
        if sharded:
            sums = self.accelerator.reduce(sums, reduction="sum")

        def entries(sums: list[float]) -> dict[str, float]:
            norms = zip(present, sums, strict=True)
            return {f"gradient_norm/{module}": math.sqrt(s) / scale for module, s in norms}

        self._found, self._step = [Unread([sums], entries)], step


class ClippedSteps:
    """Counts the optimiser steps whose gradient is clipped to ``max_norm``; 0: no clipping."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self._steps = 0
        self._clipped: Tensor | int = 0  # stays on the device, because reading it waits for it

    def add(self, norm: Tensor | float | None) -> None:
        """Count a step with this gradient norm before clipping; None: the norm is not known."""
        if self.max_norm > 0 and norm is not None:
            self._steps += 1
            self._clipped = self._clipped + (norm > self.max_norm)

    def unread(self) -> list[Unread]:
        """Return the share of clipped steps since the last call, for the log; [] without steps."""
        clipped, steps = torch.as_tensor(self._clipped), self._steps
        self._steps = self._clipped = 0
        name = "clipping/share_of_steps"
        return [Unread([clipped], lambda count: {name: count[0] / steps})] if steps else []


def _squared_norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """Return the sum of the squares of the gradients of a module, float64."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32))
    if isinstance(norms, DTensor):  # under FSDP2; the ranks reduce all norms of a module together
        norms = norms.full_tensor()
    return norms.to(device).double().square().sum()
