"""LoRA and DoRA: adapters put on the linear layers of parts, saved, read back and merged.

What is saved of a model with adapters is what was trained and no more:

adapter_config.json, adapter_model.safetensors    as PEFT writes them, with where the model is that
                                                  they belong on
trained.safetensors                               the parts that were trained as they are, if any
config.json                                       of the model
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils import set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mm_numeric.compat import ADAPTED_MODEL, is_adapter, is_partitioned, original_layer
from mm_numeric.config.modules import ADAPTED, MODULE_NAMES, TRAINED, LoraSettings
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.models.parameter_groups import ModelParts

ADAPTER, SETTINGS, TRAINED_WEIGHTS = (
    "adapter_model.safetensors",
    "adapter_config.json",
    "trained.safetensors",
)


def has_adapters(source: str) -> bool:
    """Say whether a folder holds adapters, and not a whole model."""
    return Path(source, SETTINGS).is_file()


def add_adapters(
    model: Any, parts: ModelParts, lora: LoraSettings | None, base: str, revision: str
) -> Any:
    """Put adapters on the parts that get some.

    Args:
        model: As it was loaded; adapters that it already has go on, if they are the same.
        parts: What is done with each part.
        lora: What adapters are like; None for none.
        base: Where the model is without them, and in which revision: kept beside adapters.
        revision: See ``base``.

    Raises:
        ValueError: If a part has no linear layers, or the model has other adapters.
    """
    if isinstance(model, PeftModel):
        _refuse_others(model, lora, parts, base)
        return model
    if lora is None:
        return model
    wanted = _lora_config(model, parts, lora)
    wanted.base_model_name_or_path, wanted.revision = base, revision
    return get_peft_model(model, wanted)


def load_adapted(family: Family, source: str, settings: ModelConfig) -> PeftModel:
    """Load the model that a folder's adapters belong on, and put them on it.

    Raises:
        ValueError: If the model or an adapter cannot be loaded, or is not what was saved.
    """
    config = LoraConfig.from_pretrained(source)
    base, revision = str(config.base_model_name_or_path), config.revision or "main"
    try:
        model = family.load_model(base, replace(settings, revision=revision))
    except OSError as error:
        raise ValueError(
            f"model.name: the adapters in {source} belong on the model in {base!r}, which cannot "
            f"be loaded ({str(error).strip().partition(chr(10))[0]}); put it back, or correct "
            f"base_model_name_or_path in {Path(source, SETTINGS)}."
        ) from error
    config.inference_mode = False  # as it is saved, nothing could be trained on
    adapted = get_peft_model(model, config)
    read_adapted(adapted, Path(source))
    return adapted


def save_adapted(model: PeftModel, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Save what was trained of a model with adapters.

    Args:
        model: The model; its ``requires_grad`` says what was trained.
        folder: Where to.
        state: Its weights, where they had to be gathered from several ranks.
    """
    state = model.state_dict() if state is None else state
    adapters = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    _write(adapters, folder / ADAPTER)
    config = model.peft_config["default"]
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config.inference_mode = False
    own = _trained_whole(model)
    if own:
        weights = {name.removeprefix(ADAPTED_MODEL): state[name] for name in own}
        _write(weights, folder / TRAINED_WEIGHTS)
    model.config.save_pretrained(folder)


def read_adapted(model: PeftModel, folder: Path) -> None:
    """Read what ``save_adapted`` wrote into a model that has such adapters, every weight.

    Raises:
        ValueError: If a weight is missing, one too many, or of another shape.
    """
    adapters = _read(folder / ADAPTER)
    own = {name.removeprefix(ADAPTED_MODEL): p for name, p in model.named_parameters()}
    trained = {name.removeprefix(ADAPTED_MODEL) for name in _trained_whole(model)}
    whole = {}
    if trained or (folder / TRAINED_WEIGHTS).is_file():
        whole = _read(folder / TRAINED_WEIGHTS)
    changed = [p for n, p in own.items() if n in trained or n in whole or is_adapter(n)]
    with gathered_parameters(changed), torch.no_grad():
        wanted = get_peft_model_state_dict(model, save_embedding_layers=False)
        _refuse_gaps(adapters, wanted, folder / ADAPTER)
        known = trained | (whole.keys() & own.keys())
        _refuse_gaps(whole, {name: own[name] for name in known}, folder / TRAINED_WEIGHTS)
        set_peft_model_state_dict(model, adapters)
        for name, value in whole.items():
            own[name].copy_(value)
            own[name].requires_grad_()  # says what was trained; see _refuse_others


def saved_parameters(model: PeftModel) -> list[Tensor]:
    """Return what ``save_adapted`` saves: adapters, and what is trained beside them."""
    whole = set(_trained_whole(model))
    return [p for n, p in model.named_parameters() if n in whole or is_adapter(n)]


def merged(model: Any) -> Any:
    """Return a model whose adapters have become part of its weights, in the weights' own dtype."""
    return model.merge_and_unload() if isinstance(model, PeftModel) else model


def _lora_config(model: Any, parts: ModelParts, lora: LoraSettings) -> LoraConfig:
    """Return the adapters of a model in PEFT's words.

    Raises:
        ValueError: If a part has no linear layers.
    """
    targets = adapted_layers(model, parts)
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_dora=lora.dora,
        target_modules=targets,
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in targets),
    )


def adapted_layers(model: nn.Module, parts: ModelParts) -> list[str]:
    """Return the full names of the layers that get adapters.

    In the language model those that the family names; of the embeddings their tables; elsewhere
    every linear layer.

    Raises:
        ValueError: If a part has none, or one whose tensor stands in two places.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        own = name.removesuffix(".base_layer")  # where there are adapters already
        if is_adapter(name) or not isinstance(module, nn.Linear | Conv1D | nn.Embedding):
            continue
        part = parts.part(f"{own}.weight")
        named = part != "language" or re.fullmatch(parts.family.lora_targets, own)
        is_table = isinstance(module, nn.Embedding)
        if parts.settings.of(part).how == ADAPTED and named and is_table == (part == "embeddings"):
            found[own] = part
    for part in MODULE_NAMES:
        if parts.settings.of(part).how == ADAPTED and part not in found.values():
            raise ValueError(
                f"{parts.where}, modules.{part}: it is adapted, but this model has no layer that "
                "LoRA supports in it; make it trained or frozen."
            )
    places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, part in found.items():
        layer = model.get_submodule(name)
        if places[id(original_layer(layer).weight)] > 1:
            raise ValueError(
                f"{parts.where}, modules.{part}: {name} is adapted, and its tensor is used "
                "elsewhere in this model too; make the part trained or frozen."
            )
    return list(found)


def _refuse_others(
    model: PeftModel, lora: LoraSettings | None, parts: ModelParts, source: str
) -> None:
    """Refuse to go on from adapters with other ones, or without the parts trained beside them."""
    saved = model.peft_config["default"]
    theirs = {
        "rank": saved.r,
        "alpha": saved.lora_alpha,
        "dropout": saved.lora_dropout,
        "dora": saved.use_dora,
        "layers": sorted(model.base_model.targeted_module_names),
    }
    ours: dict[str, Any] = {"layers": []}
    if lora is not None:
        ours = {**asdict(lora), "layers": sorted(adapted_layers(model.get_base_model(), parts))}
    differs = [name for name in theirs if theirs[name] != ours.get(name)]
    whole = {parts.part(name) for name in _trained_whole(model)}
    frozen = [
        part for part in MODULE_NAMES if part in whole and parts.settings.of(part).how != TRAINED
    ]
    if differs or frozen:
        what = f"adapters with other {differs[0]}" if differs else f"a trained {frozen[0]}"
        raise ValueError(
            f"{parts.where}, model.name: {source} holds {what}; go on with the same parts and "
            "lora, or make a whole model of its run with `mm-numeric export` and start from that."
        )


def _trained_whole(model: PeftModel) -> list[str]:
    """Return the names of the parameters that are trained themselves, beside adapters."""
    return [n for n, p in model.named_parameters() if p.requires_grad and not is_adapter(n)]


def _refuse_gaps(found: dict[str, Tensor], wanted: dict[str, Any], where: Path) -> None:
    shapes = {name: tuple(value.shape) for name, value in wanted.items()}
    theirs = {name: tuple(value.shape) for name, value in found.items()}
    wrong = sorted(n for n in shapes.keys() | theirs.keys() if shapes.get(n) != theirs.get(n))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{where}: {len(wrong)} weights are not those of this model and its parts; {name} is "
            f"{theirs.get(name, 'missing')} there and {shapes.get(name, 'missing')} here."
        )


@contextmanager
def gathered_parameters(parameters: list[Tensor]) -> Iterator[None]:
    """Put parameters together that ZeRO-3 has cut up, and cut them up again behind."""
    pieces = [parameter for parameter in parameters if is_partitioned(parameter)]
    if not pieces:
        yield
        return
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters(pieces, modifier_rank=0):
        yield


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read ({error}).") from error


def _write(weights: dict[str, Tensor], file: Path) -> None:
    whole = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    save_file(whole, file, metadata={"format": "pt"})
