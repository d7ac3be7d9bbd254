"""The norm of the gradient by part of the model, before clipping, at the steps that are logged.

Each rank squares what it holds, and one sum over ranks puts that together: nothing is gathered.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerState, TrainingArguments

from mm_numeric.compat import before_deepspeed_step, deepspeed_loss_scale, zero2_gradient
from mm_numeric.config.modules import MODULE_NAMES
from mm_numeric.models.parameter_groups import ModelModules


def is_logged(step: int, args: TrainingArguments, state: TrainerState) -> bool:
    """Say whether a step will be logged, as transformers' DefaultFlowCallback decides behind it.

    It is not known under ``logging_strategy: epoch``: such a log has no norms.
    """
    if step == 1 and args.logging_first_step:
        return True
    return args.logging_strategy == "steps" and step % state.logging_steps == 0


class GradientNorms:
    """Measures the gradient of a step between its backward pass and its clipping."""

    def __init__(self, parts: ModelModules, accelerator: Any) -> None:
        """Measure by these parts."""
        self.parts, self.accelerator = parts, accelerator
        self._found: dict[str, float] = {}
        self._step = -1

    def measuring(
        self, model: nn.Module, step: int, engine: Any = None
    ) -> AbstractContextManager[None]:
        """Return what the last backward pass of a step runs in, on all ranks.

        Args:
            model: What is trained, as it is after wrapping or before.
            step: The step that it ends.
            engine: DeepSpeed's, if it trains.
        """
        if engine is None:
            return self._behind(model, step)
        if engine.zero_optimization_stage() == 0:  # its optimisers keep gradients in other places
            return nullcontext()
        return self._before_step(model, step, engine)

    def of_step(self, step: int) -> dict[str, float]:
        """Return the norm of each part that is trained; none if that step was not measured."""
        return self._found if step == self._step else {}

    @contextmanager
    def _behind(self, model: nn.Module, step: int) -> Iterator[None]:
        yield
        scaler = getattr(self.accelerator, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        self._measure(model, step, _square, scale, sharded=False)

    @contextmanager
    def _before_step(self, model: nn.Module, step: int, engine: Any) -> Iterator[None]:
        """Look at what DeepSpeed steps on: accelerate lets it step inside of the backward pass."""

        def look() -> None:
            of = _square_of_piece if engine.zero_optimization_stage() < 3 else _square_of_shard
            self._measure(model, step, of, deepspeed_loss_scale(engine), sharded=True)

        with before_deepspeed_step(engine, look):
            yield

    def _measure(
        self,
        model: nn.Module,
        step: int,
        square: Callable[[Tensor], Tensor | None],
        scale: float,
        *,
        sharded: bool,
    ) -> None:
        """Add up squares by part, over ranks where each holds a piece."""
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        names = [self.parts.module_of(name) for name, _ in trained]
        present = [part for part in MODULE_NAMES if part in names]
        sums = torch.zeros(len(present), dtype=torch.float64, device=self.accelerator.device)
        for part, (_, parameter) in zip(names, trained, strict=True):
            of_parameter = square(parameter)
            if of_parameter is not None:
                sums[present.index(part)] += of_parameter.to(sums)
        if sharded:
            sums = self.accelerator.reduce(sums, reduction="sum")
        self._found = {p: math.sqrt(s) / scale for p, s in zip(present, sums.tolist(), strict=True)}
        self._step = step


def _square_norm(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dtype=torch.float32).double().square()


def _square(parameter: Tensor) -> Tensor | None:
    """Return the square of a gradient that every rank has, or has its piece of (FSDP2)."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor):
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        assert isinstance(norm, DTensor)
        return norm.full_tensor().double().square()
    return None if gradient is None else _square_norm(gradient)


def _square_of_piece(parameter: Any) -> Tensor | None:
    """Return the square of this rank's piece under ZeRO-1 and 2."""
    gradient = zero2_gradient(parameter)
    return None if gradient is None else _square_norm(gradient)


def _square_of_shard(parameter: Tensor) -> Tensor | None:
    """Return the square of this rank's piece under ZeRO-3."""
    from deepspeed.utils import safe_get_local_grad

    gradient = safe_get_local_grad(parameter)
    return None if gradient is None else _square_norm(gradient)
