"""Stop a run in which a trained module receives no gradient."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from mm_numeric.compat import local_values
from mm_numeric.config.modules import FROZEN, MODULE_NAMES
from mm_numeric.data.collator import Origin
from mm_numeric.io.log import logger
from mm_numeric.models.parameter_groups import VISION_MODULES, ModelModules

_MOST_CHECKS = 10


class GradientCheck(TrainerCallback):
    """Raises ValueError if a trained module has no nonzero gradient in the first step.

    A module passes if any of its parameters has a nonzero gradient. Some parameters may have none:
    LLaVA, for example, does not use the last layer of its CLIP tower. Modules that process images
    are checked at the first step with an image. A step whose samples were all skipped is not
    checked. The vision tower has no gradient while a weight of the projector is zero, as in a new
    Gemma 3; it is then checked again at later steps. Each check makes the host wait for the device,
    so there are at most ten checks. Modules that could not be checked by then are logged.
    """

    def __init__(self, modules: ModelModules) -> None:
        self.modules = modules
        self._hooks = ExitStack()
        self._waiting: list[str] = []
        self._found: set[str] = set()
        self._seen_image = self._seen_answer = False
        self._checks_left = _MOST_CHECKS

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Find the trained modules. With DeepSpeed, register a gradient hook on each parameter."""
        present = {self.modules.module_of(name) for name, _ in model.named_parameters()}
        frozen = {module for module in present if self.modules.settings.of(module).how == FROZEN}
        self._waiting = [module for module in MODULE_NAMES if module in present - frozen]
        if args.deepspeed_plugin is not None:
            for module, parameter in self._trained(model):
                hook = parameter.register_hook(lambda grad, module=module: self._add(module, grad))
                self._hooks.callback(hook.remove)

    def begin_step(self, origins: Sequence[Origin]) -> None:
        """Record whether the next step has images and answers; one origin per micro-batch."""
        self._seen_image = self._seen_image or any(origin.images for origin in origins)
        self._seen_answer = self._seen_answer or any(origin.ids for origin in origins)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Raise ValueError if a trained module has no nonzero gradient on any rank."""
        if not self._waiting:
            return
        for module, parameter in self._trained(model):
            if module in self._waiting and module not in self._found and parameter.grad is not None:
                grad = parameter.grad
                self._add(module, grad.to_local() if hasattr(grad, "to_local") else grad)
        seen = [*(module in self._found for module in self._waiting)]
        seen += [self._seen_image, self._seen_answer]
        weights = self._projector_weights(model) if "vision" in self._waiting else []
        seen += [bool(weight.any()) for weight in weights]
        flags = torch.tensor(seen, dtype=torch.int32, device=args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        count = len(self._waiting)
        found, (image, answer, *nonzero) = flags.tolist()[:count], flags.tolist()[count:]
        missing = [module for module, seen in zip(self._waiting, found, strict=True) if not seen]
        without = [module for module in missing if image or module not in VISION_MODULES]
        if not all(nonzero):
            without = [module for module in without if module != "vision"]
        if without and answer:
            how = self.modules.settings.of(without[0]).how
            raise ValueError(
                f"{self.modules.where}, modules.{without[0]}: it is {how}, but step "
                f"{state.global_step + 1} left no gradient in any of its parameters; freeze it, or "
                "find out why it has no gradient (use_reentrant in gradient_checkpointing_kwargs?)."
            )
        self._waiting = missing
        self._checks_left -= 1
        if missing and not self._checks_left:
            logger.info(
                "modules.%s: not checked for a gradient, as the first %d steps trained no image.",
                missing[0],
                _MOST_CHECKS,
            )
            self._waiting = []
        if not self._waiting:
            self._hooks.close()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the hooks."""
        self._hooks.close()

    def _add(self, module: str, grad: Tensor) -> None:
        if module not in self._found and bool(grad.any()):
            self._found.add(module)

    def _projector_weights(self, model: nn.Module) -> list[Tensor]:
        """Return this rank's part of each trained weight of the projector, without biases."""
        named = [(name, local_values(p)) for name, p in model.named_parameters() if p.requires_grad]
        return [
            values.to_local() if hasattr(values, "to_local") else values
            for name, values in named
            if self.modules.module_of(name) == "projector" and not name.endswith("bias")
        ]

    def _trained(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                yield self.modules.module_of(name), parameter
