"""Cache the features of images on disk if the vision tower is frozen (``data.vision_cache``).

If the projector is frozen too, its outputs are cached; if it is trained, its inputs are cached.
"""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import TrainingArguments
from transformers.utils import ModelOutput

from mm_numeric.compat import config_without_source
from mm_numeric.config.schema import Config
from mm_numeric.data.image_cache import VisionCache
from mm_numeric.models.parameter_groups import ModelModules
from mm_numeric.training.output_head import evaluating

_FEATURES = ("pooler_output", "deepstack_features")
"""Fields in the result of ``get_image_features`` that models use (transformers 5.15 to 5.24)."""

_PROJECTED = "projector_input"
_PROJECTORS = ("multi_modal_projector", "connector", "visual.merger")


def make_vision_cache(
    model: Any, modules: ModelModules, config: Config, args: TrainingArguments
) -> VisionCache:
    """Let a model read and write the cache ``data.vision_cache``, and return the cache.

    Raises ValueError if the vision tower is trained, or its features cannot be cached.
    """
    where = f"{config.title}, data.vision_cache"
    plugin = args.deepspeed_plugin
    if args.fsdp or (plugin is not None and plugin.zero_stage == 3):
        raise ValueError(
            f"{where}: with ZeRO-3 or FSDP, all ranks run the vision tower together, and a rank "
            "with cached features would not; use DDP or ZeRO-2, or remove vision_cache."
        )
    trained = {modules.module_of(n) for n, p in model.named_parameters() if p.requires_grad}
    if "vision" in trained:
        raise ValueError(
            f"{where}: the vision tower is trained, so that the features of an image change; set "
            "modules.vision to frozen, or remove vision_cache."
        )
    owner = [m for m in model.modules() if hasattr(m, "get_image_features")]
    if not owner or "mm_encoder_outputs" not in inspect.signature(owner[-1].forward).parameters:
        raise ValueError(
            f"{where}: {modules.family.name} takes no image features in place of images in "
            f"transformers {transformers.__version__}; remove vision_cache, or install "
            "transformers 5.18 or newer for Qwen-VL, LLaVA and others."
        )
    inner, projector = owner[-1], None
    if "projector" in trained:
        named = dict(inner.named_modules())
        projector = next((named[name] for name in _PROJECTORS if name in named), None)
        if projector is None:
            raise _not_cached(where)
    digest = _hash(model, modules, {"vision", "projector"} - trained)
    for setting in (config.model.attention, args.bf16, args.fp16, args.tf32):
        digest.update(repr(setting).encode())
    assert config.data.vision_cache is not None
    cache = VisionCache(Path(config.data.vision_cache), digest.hexdigest())

    def insert_features(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        rows = kwargs.pop("vision_rows", None)
        if rows is None:
            return None
        features = [row["features"] if "features" in row else compute(row) for row in rows]
        outputs = _output(features, projector)
        return args, {**kwargs, "mm_encoder_outputs": {"image": outputs}}

    def compute(row: Mapping[str, Any]) -> dict[str, Any]:
        features = _features(inner, row["inputs"], projector, where)
        cache.write(row["key"], _map(features, lambda tensor: tensor.to("cpu", copy=True)))
        return features

    inner.register_forward_pre_hook(insert_features, with_kwargs=True)
    return cache


def _hash(model: Any, modules: ModelModules, frozen: set[str]) -> Any:
    """Return a hash of the ``frozen`` modules' weights, the model config and library versions."""
    config = config_without_source(model.config)
    config.pop("text_config", None)
    versions = torch.__version__, transformers.__version__
    digest = hashlib.sha256(repr((versions, sorted(config.items()))).encode())
    for name, parameter in model.named_parameters():
        if modules.module_of(name) in frozen:
            digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
            values = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(memoryview(values.numpy()))
    return digest


def _not_cached(where: str) -> ValueError:
    return ValueError(
        f"{where}: the projector is trained, and the image features of this model are not simply "
        "its output; set modules.projector to frozen, or remove vision_cache."
    )


@torch.no_grad()
def _features(
    inner: Any, inputs: Mapping[str, Tensor], projector: nn.Module | None, where: str
) -> dict[str, Any]:
    seen: list[Tensor] = []
    known = inspect.signature(inner.get_image_features).parameters
    given = {name: tensor for name, tensor in inputs.items() if name in known}
    with evaluating(inner):
        if projector is None:
            output = inner.get_image_features(**given, return_dict=True)
            return {name: output[name] for name in _FEATURES if output.get(name) is not None}
        with projector.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
            output = inner.get_image_features(**given, return_dict=True)
        pooled = output.pooler_output
        is_list = not isinstance(pooled, Tensor)
        flat = (torch.cat(list(pooled)) if is_list else pooled).flatten()
        is_last = len(seen) == 1 and torch.equal(projector(seen[0]).flatten(), flat)
        if not is_last or output.get("deepstack_features") is not None:
            raise _not_cached(where)
        return {_PROJECTED: seen[0], "is_list": is_list}


@dataclass
class _Features(ModelOutput):
    pooler_output: Any = None
    deepstack_features: Any = None


def _output(rows: Sequence[Mapping[str, Any]], projector: nn.Module | None) -> _Features:
    """Join the features of rows into the result of ``get_image_features`` for all their images."""
    if projector is not None:
        pooled = projector(torch.cat([row[_PROJECTED] for row in rows]))
        is_list = rows[0]["is_list"]
        return _Features(pooler_output=[pooled.flatten(0, -2)] if is_list else pooled)
    found: dict[str, Any] = {"pooler_output": _join([row["pooler_output"] for row in rows])}
    if "deepstack_features" in rows[0]:
        layers = zip(*(row["deepstack_features"] for row in rows), strict=True)
        found["deepstack_features"] = [_join(layer) for layer in layers]
    return _Features(**found)


def _join(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [tensor for part in parts for tensor in part]


def _map(value: Any, function: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _map(each, function) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_map(each, function) for each in value]
    return function(value) if isinstance(value, Tensor) else value
