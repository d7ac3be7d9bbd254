"""Add LoRA and DoRA adapters to a model; save, load and merge them.

A saved model with adapters is a folder with these files, without the frozen weights:

adapter_config.json          PEFT's configuration, with the name of the base model
base.json                    the base model: its hub name, revision and commit; or, for a folder,
                             its fingerprint and paths. A folder is never looked up on the hub,
                             because its relative path may be the hub name of another model
adapter_model.safetensors    adapters in PEFT's format
trained.safetensors          weights of modules that were trained without adapters, if any
config.json                  configuration of the base model
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils import set_peft_model_state_dict
from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mm_numeric.compat import (
    ADAPTED_MODEL,
    dim,
    is_adapter,
    is_partitioned,
    original_layer,
    unwrapped_name,
)
from mm_numeric.config.modules import ADAPTED, LOCATION_TOKENS, MODULE_NAMES, TRAINED, LoraSettings
from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.family import Family
from mm_numeric.families.model_files import ADAPTER_SETTINGS
from mm_numeric.io.files import read_json, write_json
from mm_numeric.models.location_tokens import load_with_tokens, trained_rows
from mm_numeric.models.parameter_groups import ModelModules

ADAPTER = "adapter_model.safetensors"
TRAINED_WEIGHTS = "trained.safetensors"
BASE = "base.json"
_WEIGHTS = ("*.safetensors", "*.bin")
_BLOCKS, _BLOCK_BYTES = 16, 1 << 16


def has_adapters(source: str) -> bool:
    """Return True if a folder holds adapters instead of a whole model."""
    return Path(source, ADAPTER_SETTINGS).is_file()


def add_adapters(
    model: Any, modules: ModelModules, lora: LoraSettings | None, base: str, revision: str
) -> Any:
    """Add LoRA or DoRA adapters and trainable rows of location tokens; return a PEFT model.

    Adapters are added to the modules (vision, language, ...) that the config sets to ``adapted``.
    If the model already has adapters, they must match the config, and the model is not changed.
    ``base`` and ``revision`` name the base model, and are saved with the adapters.
    """
    if isinstance(model, PeftModel):
        _require_same_adapters(model, lora, modules, base)
        return model
    rows = _location_rows(model, modules)
    if lora is None and not rows:
        return model
    lora = lora or LoraSettings()
    targets, experts = adapted_layers(model, modules), adapted_experts(model, modules, lora)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_dora=lora.dora,
        target_modules=targets or DUMMY_TARGET_MODULES,  # no layer, only rows
        target_parameters=experts or None,
        trainable_token_indices=rows or None,
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in targets),
    )
    config.base_model_name_or_path, config.revision = base, revision
    return get_peft_model(model, config)


def _location_rows(model: Any, modules: ModelModules) -> dict[str, list[int]]:
    """Return the rows to train in each layer; {} unless ``modules.embeddings: location_tokens``."""
    if modules.settings.of("embeddings").how != LOCATION_TOKENS:
        return {}
    head = modules.settings.of("head").how == LOCATION_TOKENS
    return trained_rows(model, modules.family, head=head, where=modules.where)


def base_of_adapters(source: str, config: LoraConfig | None = None) -> tuple[str, str]:
    """Return the adapters' base model: its hub name or folder, and its revision."""
    config = config or _read_config(source)
    named = str(config.base_model_name_or_path), config.revision or "main"
    return find_base(Path(source), named[0]) or named  # adapters of another tool have no base.json


def _read_config(source: str) -> LoraConfig:
    """Read the PEFT config in a folder; raise ValueError if it would make PEFT import a module."""
    config = LoraConfig.from_pretrained(source)
    if config.megatron_config is not None:
        raise ValueError(
            f"{Path(source, ADAPTER_SETTINGS)}: megatron_config would make PEFT import the module "
            f"{config.megatron_core!r}, and a checkpoint may not import code; remove it."
        )
    return config


def load_adapted(family: Family, source: str, settings: ModelConfig) -> PeftModel:
    """Load the adapters in the folder ``source``, and their base model."""
    config = _read_config(source)
    base, revision = base_of_adapters(source, config)
    try:
        model = load_with_tokens(family, base, replace(settings, revision=revision))
    except OSError as error:
        raise ValueError(
            f"model.name: the adapters in {source} belong to {base!r}, which cannot be loaded "
            f"({str(error).strip().partition(chr(10))[0]}); restore it, or correct "
            f"base_model_name_or_path in {Path(source, ADAPTER_SETTINGS)}."
        ) from error
    config.base_model_name_or_path, config.revision = base, revision  # where it was found
    config.inference_mode = False  # the saved value would freeze the adapters
    adapted = get_peft_model(model, config)
    read_adapted(adapted, Path(source))
    return adapted


def save_adapted(model: PeftModel, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Save the adapters and the fully trained weights, but not the frozen weights, in a folder.

    If the weights are sharded across ranks, ``state`` must be the gathered state dict.
    """
    state = model.state_dict() if state is None else state
    adapters = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    _write(adapters, folder / ADAPTER)
    config = model.peft_config["default"]
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config.inference_mode = False
    write_base(folder, str(config.base_model_name_or_path), config.revision)
    if own := _trained_parameters(model):
        weights = {name.removeprefix(ADAPTED_MODEL): state[name] for name in own}
        _write(weights, folder / TRAINED_WEIGHTS)
    model.config.save_pretrained(folder)


def read_adapted(model: PeftModel, folder: Path) -> None:
    """Load the adapters and the fully trained weights from a folder into a model."""
    adapters = _read(folder / ADAPTER)
    own = {name.removeprefix(ADAPTED_MODEL): p for name, p in model.named_parameters()}
    trained = {name.removeprefix(ADAPTED_MODEL) for name in _trained_parameters(model)}
    file = folder / TRAINED_WEIGHTS
    whole = _read(file) if trained or file.is_file() else {}
    changed = [p for n, p in own.items() if n in trained or n in whole or is_adapter(n)]
    with gathered_parameters(changed), torch.no_grad():
        wanted = get_peft_model_state_dict(model, save_embedding_layers=False)
        _require_same_weights(adapters, wanted, folder / ADAPTER)
        known = trained | (whole.keys() & own.keys())
        _require_same_weights(whole, {name: own[name] for name in known}, file)
        set_peft_model_state_dict(model, adapters)
        for name, value in whole.items():
            own[name].copy_(value)
            own[name].requires_grad_()  # marks it as trained; see _require_same_adapters


def merged(model: Any) -> Any:
    """Merge the adapters of a model into its weights; return models without adapters unchanged."""
    return model.merge_and_unload() if isinstance(model, PeftModel) else model


def adapted_layers(model: nn.Module, modules: ModelModules) -> list[str]:
    """Return the full names of the layers that get adapters.

    Only modules that the config sets to ``adapted`` have such layers:

    ``language``: the layers whose names match the pattern ``lora_targets`` of the model family.
    ``embeddings``: the embedding tables.
    Other modules, such as ``vision``: all linear layers.
    """
    found: dict[str, str] = {}
    for name, layer in model.named_modules():
        own = name.removesuffix(".base_layer")  # PEFT adds the suffix to an adapted layer
        if is_adapter(name) or not isinstance(layer, nn.Linear | Conv1D | nn.Embedding):
            continue
        module = modules.module_of(f"{own}.weight")
        if modules.settings.of(module).how != ADAPTED:
            continue
        is_target = module != "language" or re.fullmatch(modules.family.lora_targets, own)
        if is_target and isinstance(layer, nn.Embedding) == (module == "embeddings"):
            found[own] = module
    for module in MODULE_NAMES:
        if modules.settings.of(module).how == ADAPTED and module not in found.values():
            raise ValueError(
                f"{modules.where}, modules.{module}: this model has no layer in it that LoRA "
                "supports; make it trained or frozen."
            )
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, module in found.items():
        if uses[id(original_layer(model.get_submodule(name)).weight)] > 1:
            raise ValueError(
                f"{modules.where}, modules.{module}: {name} cannot be adapted, because its tensor "
                "is used elsewhere too; make the module trained or frozen."
            )
    return list(found)


def adapted_experts(model: nn.Module, modules: ModelModules, lora: LoraSettings) -> list[str]:
    """Return the full names of the expert weights (mixture of experts) that get adapters.

    transformers 5 stores a matrix of all experts in one parameter with three dimensions. It is not
    a layer that PEFT could wrap, so PEFT adapts the parameter.
    """
    if not lora.experts:
        return []
    stacked = (unwrapped_name(name) for name, p in model.named_parameters() if dim(p) == 3)
    found = [
        name
        for name in stacked
        if re.search(r"\bexperts\.\w+$", name)
        and modules.settings.of(modules.module_of(name)).how == ADAPTED
    ]
    if found and (lora.dropout or lora.dora):
        raise ValueError(
            f"{modules.where}, lora: PEFT cannot adapt experts, such as {found[0]}, with dropout "
            "or DoRA; remove dropout and dora, or adapt the other layers only with "
            "`lora.experts: false`."
        )
    return found


def _require_same_adapters(
    model: PeftModel, lora: LoraSettings | None, modules: ModelModules, source: str
) -> None:
    """Raise ValueError if the model's LoRA options or trained modules differ from the config."""
    saved = model.peft_config["default"]
    theirs = {
        "rank": saved.r,
        "alpha": saved.lora_alpha,
        "dropout": saved.lora_dropout,
        "dora": saved.use_dora,
        "layers": sorted(
            [*model.base_model.targeted_module_names, *(saved.target_parameters or ())]
        ),
        "location tokens": saved.trainable_token_indices or {},
    }
    base = model.get_base_model()
    rows = _location_rows(base, modules)
    lora = LoraSettings() if lora is None and rows else lora
    ours: dict[str, Any] = {"layers": [], "location tokens": rows}
    if lora is not None:
        layers = [*adapted_layers(base, modules), *adapted_experts(base, modules, lora)]
        ours |= {**asdict(lora), "layers": sorted(layers)}
    differs = [name for name in theirs if theirs[name] != ours.get(name)]
    whole = {modules.module_of(name) for name in _trained_parameters(model)}
    kept = {name for name in MODULE_NAMES if modules.settings.of(name).how == TRAINED}
    frozen = [name for name in MODULE_NAMES if name in whole - kept]
    if differs or frozen:
        what = f"adapters with other {differs[0]}" if differs else f"a trained {frozen[0]}"
        raise ValueError(
            f"{modules.where}, model.name: {source} holds {what}; continue with the same modules "
            "and lora, or export its run to a whole model with `mm-numeric export` and start there."
        )


def _trained_parameters(model: PeftModel) -> list[str]:
    return [n for n, p in model.named_parameters() if p.requires_grad and not is_adapter(n)]


def _require_same_weights(found: dict[str, Tensor], wanted: dict[str, Any], where: Path) -> None:
    shapes = {name: tuple(value.shape) for name, value in wanted.items()}
    theirs = {name: tuple(value.shape) for name, value in found.items()}
    wrong = sorted(n for n in shapes.keys() | theirs.keys() if shapes.get(n) != theirs.get(n))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{where}: {len(wrong)} weights are not those of this model and its modules; {name} is "
            f"{theirs.get(name, 'missing')} there and {shapes.get(name, 'missing')} here."
        )


@contextmanager
def gathered_parameters(parameters: list[Tensor]) -> Iterator[None]:
    """Context manager that gathers parameters which DeepSpeed ZeRO-3 has partitioned."""
    partitioned = [parameter for parameter in parameters if is_partitioned(parameter)]
    if not partitioned:
        yield
        return
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters(partitioned, modifier_rank=0):
        yield


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read ({error}).") from error


def _write(weights: dict[str, Tensor], file: Path) -> None:
    whole = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    save_file(whole, file, metadata={"format": "pt"})


def write_base(adapters: Path, name: str, revision: str | None) -> None:
    """Write base.json for the base model ``name``, a folder or a hub name.

    For a hub name, the commit of the files in the local cache is stored.
    """
    if not Path(name).is_dir():
        file = try_to_load_from_cache(name, "config.json", revision=revision)
        commit = Path(file).parent.name if isinstance(file, str) else None
        found = {"name": name, "revision": revision or "main", "commit": commit}
    else:
        found = {
            "name": name,
            "fingerprint": fingerprint(Path(name)),
            "relative": Path(os.path.relpath(name, adapters)).as_posix(),
            "absolute": str(Path(name).resolve()),
        }
    write_json(adapters / BASE, found, indent=1)


def find_base(adapters: Path, name: str) -> tuple[str, str] | None:
    """Return the adapters' base model (a folder or hub name) and its revision, from base.json.

    A folder is looked for at three places: at its path relative to the adapters, next to the run of
    the adapters, and at its absolute path. It must have the stored fingerprint. Returns None if
    base.json is missing, or if it names another model than ``name``, the name in PEFT's config.
    """
    file = adapters / BASE
    if not file.is_file():
        return None
    found = read_json(file)
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise ValueError(f"{file}: expected a mapping with the `name` of the base model.")
    if found["name"] != name:
        return None
    if "fingerprint" not in found:
        return name, str(found.get("commit") or found.get("revision") or "main")
    sibling = adapters.resolve().parent.parent / Path(name).name
    near = (adapters / str(found.get("relative"))).resolve()
    paths = [near, sibling, Path(str(found.get("absolute")))]
    folders = [path for path in paths if path.is_dir()]
    for folder in folders:
        if fingerprint(folder) == found["fingerprint"]:
            return str(folder), "main"
    what = f"{folders[0]} has other weights" if folders else "that folder is missing"
    raise ValueError(
        f"model.name: the adapters in {adapters} belong to the folder {name!r}, but "
        f"{what}; it was looked for at {', '.join(map(str, paths))}."
    )


def fingerprint(folder: Path) -> str:
    """Return a SHA-256 of all weight files in a folder: of each, name, size and 16 blocks."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            for index in range(_BLOCKS):
                content.seek(max(0, size - _BLOCK_BYTES) * index // (_BLOCKS - 1))
                digest.update(content.read(_BLOCK_BYTES))
    return digest.hexdigest()
