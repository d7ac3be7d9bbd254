"""Load model weights; save and check ``frame.json`` (image resizing and coordinate format)."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from transformers import BitsAndBytesConfig, PreTrainedConfig, ProcessorMixin
from transformers.distributed import DistributedConfig
from transformers.utils import (
    has_file,
    is_flash_attn_2_available,
    is_flash_attn_3_available,
    is_flash_attn_4_available,
)

from mm_numeric.config.schema import ModelConfig
from mm_numeric.families.chat_template import default_template
from mm_numeric.geometry.coordinates import Coordinates
from mm_numeric.geometry.frame_presets import FRAME
from mm_numeric.geometry.frames import Resize

BASELINE = "mm_numeric_baseline"
"""Key in config.json, for models trained with a baseline. The value holds the baseline's name,
settings and fitted statistics."""

ADAPTER_SETTINGS = "adapter_config.json"
"""PEFT's configuration, in a folder that holds adapters instead of a whole model."""


def load_weights(
    model_class: Any,
    family: str,
    source: str,
    model: ModelConfig,
    *,
    new: str | None = None,
    ranks: int = 1,
) -> Any:
    """Load a checkpoint from safetensors, and raise ValueError if weights are missing.

    If ``new`` is set, weights with this name prefix may be missing; they get random values. If
    ``ranks`` is more than 1, the weights are sharded by the tensor parallel plan of transformers.
    """
    if Path(source, ADAPTER_SETTINGS).is_file():  # transformers would load the base model
        raise ValueError(
            f"model.name: {source!r} holds adapters, and a whole model is needed here; export its "
            "run with `mm-numeric export`, and set the folder of the result."
        )
    check_model_type(model_class, family, source, model)
    require_attention(model.attention)
    try:
        loaded, info = model_class.from_pretrained(
            source,
            revision=model.revision,
            dtype=model.dtype,
            attn_implementation=model.attention,
            use_safetensors=True,
            trust_remote_code=model.trust_remote_code,
            quantization_config=quantization(model),
            ignore_mismatched_sizes=True,  # require_all_weights has a shorter error message
            output_loading_info=True,
            **({"distributed_config": DistributedConfig(tp_size=ranks)} if ranks > 1 else {}),
        )
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        raise ValueError(
            f"model.attention: {str(error).split()[0]} does not support {model.attention}; set "
            "model.attention to eager."
        ) from error
    if new is not None:
        missing = {name for name in info["missing_keys"] if not name.startswith(new)}
        info = {**info, "missing_keys": missing}
    require_all_weights(info, source)
    return loaded


def check_model_type(model_class: Any, family: str, source: str, model: ModelConfig) -> None:
    """Raise ValueError if a checkpoint has another ``model_type`` than the family.

    A folder without ``config.json`` (which holds only a tokenizer) is accepted.
    """
    wanted = getattr(model_class, "config_class", None)
    if wanted is None or (Path(source).is_dir() and not Path(source, "config.json").is_file()):
        return
    config, _ = PreTrainedConfig.get_config_dict(source, revision=model.revision)
    if config.get("model_type") != wanted.model_type:
        raise ValueError(
            f"model.name: {source!r} is a checkpoint of type {config.get('model_type')!r}, and "
            f"{family} is {wanted.model_type!r}; correct model.family."
        )


def processor_template(source: str, revision: str) -> str | None:
    """Return the chat template of a checkpoint's processor; None if it has none.

    Older checkpoints have the template in chat_template.json, which tokenizers do not read.
    """
    settings, _ = ProcessorMixin.get_processor_dict(source, revision=revision)
    return default_template(settings.get("chat_template"))


def check_image_token(image_id: int, config: Any, source: str) -> None:
    """Raise ValueError unless the tokenizer's image token ``image_id`` is the model's."""
    if getattr(config, "image_token_id", image_id) != image_id:
        raise ValueError(
            f"model.name: in {source!r} the image token of the tokenizer is {image_id}, and that "
            f"of the model is {config.image_token_id}; correct image_token_id (or "
            "image_token_index) in its config.json."
        )


def require_attention(attention: str) -> None:
    """Raise ValueError if ``attention`` is a flash attention version that cannot be used here."""
    usable = {
        "flash_attention_2": is_flash_attn_2_available,
        "flash_attention_3": is_flash_attn_3_available,
        "flash_attention_4": is_flash_attn_4_available,
    }
    if attention in usable and not usable[attention]():
        raise ValueError(
            f"model.attention: {attention} needs its version of the package flash-attn and a GPU "
            "that it supports; install them, or set model.attention to sdpa."
        )


def require_all_weights(info: dict[str, Any], source: str) -> None:
    """Raise ValueError if transformers' ``info`` of loading lists missing or mismatched weights."""
    for key, fault in (("missing_keys", "lacks"), ("mismatched_keys", "has in another shape")):
        names = [str(found[0] if isinstance(found, tuple) else found) for found in info[key]]
        require_no_weights(source, fault, names)


def require_no_weights(source: str, fault: str, names: Iterable[str]) -> None:
    """Raise ValueError if ``names``, the list of missing or wrong weights, is not empty.

    ``fault`` is the verb of the message: ``lacks`` in ``<checkpoint> lacks 3 weights``.
    """
    if found := sorted(names):
        raise ValueError(
            f"model.name: {source!r} {fault} {len(found)} weights "
            f"({', '.join(found[:3])}{' ...' if len(found) > 3 else ''}); set the folder of a "
            "complete checkpoint of this family."
        )


def quantization(model: ModelConfig) -> BitsAndBytesConfig | None:
    """Return the bitsandbytes configuration for ``model.quantize``, or None if it is not set."""
    if model.quantize is None:
        return None
    if find_spec("bitsandbytes") is None:
        raise ValueError(
            f"model.quantize: {model.quantize} needs bitsandbytes; run `pip install bitsandbytes`, "
            "or remove model.quantize."
        )
    if model.quantize == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def save_frame(folder: Path, resize: Resize, coordinates: Coordinates) -> None:
    """Save the image resizing and coordinate format as ``frame.json`` next to the weights."""
    frame = {"resize": asdict(resize), "coordinates": asdict(coordinates)}
    (folder / FRAME).write_text(json.dumps(frame, indent=1) + "\n", encoding="utf-8")


def saved_frame(source: str, revision: str) -> Path | None:
    """Return the path of the frame.json in a folder or hub repository; None if there is none."""
    if Path(source).is_dir():
        file = Path(source, FRAME)
        return file if file.is_file() else None
    if not has_file(source, FRAME, revision=revision):
        return None
    return Path(hf_hub_download(source, FRAME, revision=revision))


def without_frame(source: str) -> str:
    """Return advice for an error message: how to remove the frame.json of a model."""
    file = Path(source, FRAME)
    return f"delete {file}" if file.is_file() else f"delete {FRAME} in a copy"


def check_saved_frame(
    source: str,
    resize: Resize,
    coordinates: Coordinates,
    where: str = "model.image_size",
    *,
    revision: str = "main",
) -> None:
    """Raise ValueError if a model was trained with another image resizing or coordinate format.

    The decoded coordinates would then be wrong. frame.json holds the values used in training.
    ``where``, for error messages, is the setting or file that sets the current image resizing.
    """
    file = saved_frame(source, revision)
    if file is None:
        return
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        theirs = {**saved["resize"], **saved["coordinates"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a frame ({error}); delete it or restore it.") from error
    for name, ours in {**asdict(resize), **asdict(coordinates)}.items():
        if theirs.get(name) != ours:
            setting = where if name in asdict(resize) else "model.coordinates"
            raise ValueError(
                f"{setting}: the model in {source} was trained with {name} {theirs.get(name)!r}, "
                f"and here it is {ours!r}: its coordinates would be read in another frame. Set the "
                f"same value, or {without_frame(source)} to train the model for the new frame."
            )
