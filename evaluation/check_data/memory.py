"""Estimate the GPU memory of a training step, without loading weights.

    weights       parameters x bytes of their dtype; quantised linear layers 0.52 (nf4) or 1 (int8)
    copies        2 bytes for each float32 weight that autocast copies to bf16 or fp16, if gradients
                  pass through the layer of the weight
    gradients     trained parameters x bytes of their dtype; adapters are float32
    optimiser     AdamW: two moments per trained parameter, in its dtype (8-bit optimisers: 2 bytes)
    activations   b t L (x h + 4 c k + y f) bytes for the longest micro-batch, b rows of t tokens
    logits        the logits of the answer tokens and their gradient, in the dtype of the weights;
                  10 bytes for each logit with autocast, as accelerate makes copies in float32. At
                  2^27 logits or more: c bytes for 2^27 logits if the loss is computed in chunks

The model has L layers with h hidden units, k units of keys and f intermediate units in the MLP.
These layers compute with c bytes per number. x and y depend on the dtype of the weights, and on
whether ``trainer.bf16`` or ``fp16`` makes autocast compute in 16 bits:

    weights, computed in    x      y    x and y with LoRA
    16 bits, 16 bits        28     8    42  10    inputs of adapters are stored in float32, too
    16 bits, autocast       28     8    30   8
    float32, autocast       38     8    30   8    residual stream and inputs of norms in float32
    float32, float32        48    16    36  16

With activation checkpointing, each layer stores its input (b t h numbers in the dtype of the
weights). Only one layer at a time stores its other activations and copies of frozen weights. Eager
attention adds 8 bytes for each pair of tokens and head. A frozen vision tower stores nothing.

The formula is from Korthikanti et al. 2022 (Reducing Activation Recomputation in Large Transformer
Models, section 4). Their factor of 34 bytes per hidden unit is for GPT-2's layer with dropout. The
factors here are for layers with RMSNorm in float32, a gated MLP, grouped keys and fused attention.
They are the sizes, rounded up, of the tensors that autograd saves in transformers' Qwen2 and Qwen3.
``tests/evaluation/check_data/test_memory.py`` checks the factors against these tensors.

The memory of CUDA itself and fragmentation, 1 to 2 GiB, are not included.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from mm_numeric.config.modules import ADAPTED, FROZEN, TRAINED
from mm_numeric.config.schema import Config
from mm_numeric.data.lengths import row_tokens
from mm_numeric.families.family import Family
from mm_numeric.losses.linear_cross_entropy import CHUNKED_FROM
from mm_numeric.models.adapters import adapted_experts, adapted_layers
from mm_numeric.models.parameter_groups import VISION_MODULES, ModelModules

GIB = 1 << 30
_QUANTISED_BYTES = {"nf4": 0.52, "int8": 1.0}
_COPY_BYTES = 2  # per weight, in bf16 or fp16
_STORED = {
    (2.0, False): (28, 8),
    (2.0, True): (28, 8),
    (4.0, True): (38, 8),
    (4.0, False): (48, 16),
}
_STORED_WITH_LORA = {
    (2.0, False): (42, 10), (2.0, True): (30, 8), (4.0, True): (30, 8), (4.0, False): (36, 16)
}  # fmt: skip
"""(bytes of a weight, True if autocast computes in 16 bits) -> x and y in the module docstring."""

_MIXED_LOGIT_BYTES = 10  # logit and gradient in float32 (4 each), gradient in 16 bits (2)
_PAIR_BYTES = 8  # per pair of tokens: attention scores and probabilities in bf16 and float32
_PARTS = ("weights", "copies", "gradients", "optimiser", "activations", "logits")
_SCALED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class RowLength(NamedTuple):
    """Token counts of a training row. The count ``question`` includes the ``image`` tokens."""

    question: int
    answer: int
    image: int


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of a training step on one GPU in bytes, without DeepSpeed's sharding."""

    weights: float
    copies: float
    gradients: float
    optimiser: float
    activations: float
    logits: float
    rows: int
    """Number of rows of the largest micro-batch."""

    tokens: int
    """Number of tokens of the longest row."""

    has_unknown_vision: bool = False
    """True if the sizes of the vision tower are not known: ``activations`` does not include it."""

    @property
    def total(self) -> float:
        """Return the total memory, in bytes."""
        return sum(getattr(self, name) for name in _PARTS)

    def text(self) -> str:
        """Format the estimate in one line."""
        sizes = {name: getattr(self, name) for name in _PARTS}
        parts = ", ".join(f"{n} {_size(size)}" for n, size in sizes.items() if size)
        batch = f"{self.rows} row{'s' if self.rows > 1 else ''} of up to {self.tokens:,} tokens"
        text = f"{_size(self.total)} by estimate ({parts}), for {batch} on one GPU without sharding"
        unknown = "; without the activations of the vision tower, whose sizes are not known"
        return text + unknown * self.has_unknown_vision


def estimate_memory(
    config: Config, family: Family, settings: Any, lengths: Sequence[RowLength]
) -> MemoryEstimate:
    """Estimate the memory of a training step in bytes; the module docstring has the formula.

    ``settings`` is the configuration of the checkpoint (transformers). All rows of the micro-batch
    are assumed to be as long as the longest row in ``lengths``.
    """
    text = settings.get_text_config()
    dtype = _dtype(config, settings)
    modules = ModelModules(family, config.modules, 0.0, config.title)
    model = empty_model(family, settings)
    adapters = _adapter_parameters(model, modules, config)
    trained = weights = 0.0
    for name, parameter in model.named_parameters():
        how = modules.settings.of(modules.module_of(name)).how
        trained += parameter.numel() * (how == TRAINED)
        weights += parameter.numel() * _parameter_bytes(config, modules, name, parameter, dtype)
    trainer = config.trainer
    longest = max(row_tokens(family, row.question, row.answer) for row in lengths)
    rows = min(trainer.get("per_device_train_batch_size", 8), len(lengths))
    answers = max(row.answer for row in lengths) * rows
    logits = _logit_bytes(config, text, float(answers * text.vocab_size), dtype)
    states = 2.0 if "8bit" in str(trainer.get("optim", "")) else 2.0 * dtype
    activations = layer_bytes(
        text, config, rows * longest, longest, dtype, _how(modules, "language")
    )
    vision = getattr(settings, "vision_config", None)
    stages: list[tuple[Any, int]] | None = []
    if vision is not None and _how(modules, "vision") != FROZEN:
        stages = vision_stages(vision)
        patches = max(row.image for row in lengths)
        patches *= getattr(vision, "spatial_merge_size", 1) ** 2
        for stage, factor in stages or ():
            count = factor * patches
            activations += layer_bytes(
                stage, config, rows * count, count, dtype, _how(modules, "vision")
            )
    return MemoryEstimate(
        weights=weights + 4.0 * adapters,
        copies=copied_bytes(model, modules, config, dtype),
        gradients=trained * dtype + 4.0 * adapters,
        optimiser=trained * states + 8.0 * adapters,
        activations=activations,
        logits=logits,
        rows=rows,
        tokens=longest,
        has_unknown_vision=stages is None,
    )


def _logit_bytes(config: Config, text: Any, count: float, dtype: float) -> float:
    is_mixed = _is_mixed(config)
    if count >= CHUNKED_FROM and not any(getattr(text, name, None) for name in _SCALED_LOGITS):
        return float(CHUNKED_FROM) * (2 if is_mixed else dtype)
    return count * (_MIXED_LOGIT_BYTES if is_mixed else 2 * dtype)


def vision_stages(vision: Any) -> list[tuple[Any, int]] | None:
    """Return (configuration, factor) for each stage of a vision tower; None if sizes are unknown.

    A stage has ``factor`` tokens for each token of the last stage. ``vision`` is the configuration
    of the tower (transformers). Most towers have one stage. DaViT (Florence-2) has several: each
    has more units and fewer tokens than the stage before, and two layers for each of ``depths``.
    """
    if isinstance(getattr(vision, "depths", None), list | tuple):
        stages, factor = [], 1
        sizes = zip(
            vision.embed_dim, vision.num_heads, vision.depths, vision.patch_stride, strict=True
        )
        for units, heads, depth, stride in reversed(list(sizes)):
            stack = SimpleNamespace(
                hidden_size=units,
                num_attention_heads=heads,
                num_hidden_layers=2 * depth,
                intermediate_size=round(vision.mlp_ratio * units),
            )
            stages.append((stack, factor))
            factor *= stride**2
        return stages
    sizes_of_one = (
        _units(vision),
        _first(vision, "num_attention_heads", "num_heads"),
        _first(vision, "num_hidden_layers", "depth"),
    )
    return [(vision, 1)] if all(isinstance(size, int) for size in sizes_of_one) else None


def layer_bytes(
    stack: Any, config: Config, tokens: int, longest: int, dtype: float, how: str
) -> float:
    """Return the bytes that the layers of a language model or vision tower store for backward.

    Args:
        stack: The configuration of the layers (transformers).
        config: Sets attention, autocast and activation checkpointing.
        tokens: Number of tokens of the micro-batch, with padding.
        longest: Number of tokens of the longest row.
        dtype: Bytes of a weight, such as 2 for bf16.
        how: ``trained``, ``adapted`` or ``frozen``. A frozen language model stores as much as a
            trained language model, because gradients pass through it to trained modules.
    """
    hidden, heads = _units(stack), _first(stack, "num_attention_heads", "num_heads")
    layers = _first(stack, "num_hidden_layers", "depth")
    inner = _first(stack, "intermediate_size", "d_ff", "n_inner") or 4 * hidden
    head = getattr(stack, "head_dim", None) or hidden // heads
    keys = head * (_first(stack, "num_key_value_heads") or heads)
    mixed = _is_mixed(config)
    per_hidden, per_inner = (_STORED_WITH_LORA if how == ADAPTED else _STORED)[dtype, mixed]
    compute = 2 if mixed else dtype
    stored = per_hidden * max(hidden, head * heads) + 4 * compute * keys + per_inner * inner
    whole = tokens * stored
    if config.model.attention == "eager":
        whole += _PAIR_BYTES * tokens * longest * heads
    return dtype * tokens * hidden * layers + whole if _is_checkpointed(config) else whole * layers


def copied_bytes(model: Any, modules: ModelModules, config: Config, dtype: float) -> float:
    """Return the bytes of the 16-bit copies of float32 weights that autocast makes.

    The backward pass needs the copies in all layers that gradients pass through. With activation
    checkpointing, only one layer at a time has copies of frozen weights; autocast keeps the copies
    of trained weights until the end of the forward pass.
    """
    if not _is_mixed(config) or dtype == 2:
        return 0.0
    layers = _first(model.config.get_text_config(), "num_hidden_layers", "num_layers")
    total = 0.0
    for name, parameter in model.named_parameters():
        module = modules.module_of(name)
        how = modules.settings.of(module).how
        passed = module not in VISION_MODULES or _how(modules, "vision") != FROZEN
        if parameter.dim() < 2 or module == "embeddings" or not passed:
            continue
        one = _is_checkpointed(config) and how != TRAINED and module != "head"
        is_quantised = _parameter_bytes(config, modules, name, parameter, dtype) != dtype
        total += 0.0 if is_quantised else parameter.numel() / (layers if one else 1)
    return _COPY_BYTES * total


def empty_model(family: Family, settings: Any) -> nn.Module:
    """Return the family's model without memory for its weights (on the device ``meta``)."""
    cls = family.model_class
    with torch.device("meta"):
        model: nn.Module = (getattr(cls, "from_config", None) or cls)(settings)
    return model


def _adapter_parameters(model: nn.Module, modules: ModelModules, config: Config) -> int:
    if config.lora is None:
        return 0
    weights = [f"{name}.weight" for name in adapted_layers(model, modules)]
    weights += adapted_experts(model, modules, config.lora)
    shapes = [model.get_parameter(name).shape for name in weights]
    return config.lora.rank * sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)


def _parameter_bytes(
    config: Config, modules: ModelModules, name: str, parameter: nn.Parameter, dtype: float
) -> float:
    is_linear = parameter.dim() == 2 and modules.module_of(name) not in ("embeddings", "head")
    if config.model.quantize is None or not is_linear:
        return dtype
    return _QUANTISED_BYTES[config.model.quantize]


def _dtype(config: Config, settings: Any) -> float:
    name = config.model.dtype
    if name == "auto":
        name = str(getattr(settings, "dtype", None) or "float32").removeprefix("torch.")
    return 4.0 if name == "float32" else 2.0


def _is_mixed(config: Config) -> bool:
    return bool(config.trainer.get("bf16") or config.trainer.get("fp16"))


def _is_checkpointed(config: Config) -> bool:
    names = "activation_checkpointing", "gradient_checkpointing"
    return any(config.trainer.get(name) for name in names)


def _how(modules: ModelModules, module: str) -> str:
    return modules.settings.of(module).how


def _units(stack: Any) -> Any:
    """Return the number of hidden units; Qwen2-VL's vision tower stores it as ``embed_dim``."""
    units = getattr(stack, "embed_dim", None)
    return units if isinstance(units, int) else getattr(stack, "hidden_size", None)


def _first(stack: Any, *names: str) -> Any:
    return next((v for name in names if (v := getattr(stack, name, None)) is not None), None)


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"
