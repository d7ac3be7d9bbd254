"""Checkpoints: weights from a hub name or a folder, and the frame that a folder was trained in."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig
from transformers.utils import (
    is_flash_attn_2_available,
    is_flash_attn_3_available,
    is_flash_attn_4_available,
)

from mm_numeric.config.schema import ModelConfig
from mm_numeric.geometry.coordinates import RENAMED, Coordinates
from mm_numeric.geometry.frames import Resize

BASELINE = "mm_numeric_baseline"
"""In config.json of a model that was trained as a baseline: which one, its settings, what it
measured."""

FRAME = "frame.json"
"""Beside the weights of a trained model: how it saw images and wrote places."""


def load_weights(
    model_class: Any, family: str, source: str, model: ModelConfig, *, new: str | None = None
) -> Any:
    """Load every weight of a checkpoint into a class, from safetensors.

    Args:
        model_class: A class of transformers.
        family: What it is called, for errors.
        source: A hub name or a folder.
        model: The settings; its ``name`` is not looked at.
        new: What the names of weights begin with that the checkpoint need not have.

    Raises:
        ValueError: If the checkpoint is of another class, lacks weights or holds some of another
            shape, or is to be quantised without bitsandbytes or run with an attention whose package
            is not there.
    """
    check_type(model_class, family, source, model)
    refuse_missing_attention(model.attention)
    loaded, info = model_class.from_pretrained(
        source,
        revision=model.revision,
        dtype=model.dtype,
        attn_implementation=model.attention,
        use_safetensors=True,
        trust_remote_code=model.trust_remote_code,
        quantization_config=quantization(model),
        ignore_mismatched_sizes=True,  # refused below, in a sentence
        output_loading_info=True,
    )
    if new is not None:
        missing = {name for name in info["missing_keys"] if not name.startswith(new)}
        info = {**info, "missing_keys": missing}
    refuse_gaps(info, source)
    return loaded


def check_type(model_class: Any, family: str, source: str, model: ModelConfig) -> None:
    """Refuse a checkpoint of another class.

    A folder without ``config.json``, that of a tokenizer alone, cannot say what it is.

    Raises:
        ValueError: If it is of another class.
    """
    wanted = getattr(model_class, "config_class", None)
    if wanted is None or (Path(source).is_dir() and not Path(source, "config.json").is_file()):
        return
    config, _ = PreTrainedConfig.get_config_dict(source, revision=model.revision)
    if config.get("model_type") != wanted.model_type:
        raise ValueError(
            f"model.name: {source!r} is a checkpoint of type {config.get('model_type')!r}, and "
            f"model.family says {family}, which is {wanted.model_type!r}; set model.family to the "
            "family that it belongs to."
        )


def refuse_missing_attention(attention: str) -> None:
    """Refuse flash attention where its package cannot be used.

    Raises:
        ValueError: If it cannot.
    """
    usable = {
        "flash_attention_2": is_flash_attn_2_available,
        "flash_attention_3": is_flash_attn_3_available,
        "flash_attention_4": is_flash_attn_4_available,
    }
    if attention in usable and not usable[attention]():
        raise ValueError(
            f"model.attention: {attention} needs the package flash-attn of that generation and a "
            "GPU that it runs on, and one is missing here; install it, or set model.attention: "
            "sdpa, with which torch takes a flash kernel of its own where it can."
        )


def refuse_gaps(info: dict[str, Any], source: str) -> None:
    """Refuse a checkpoint that did not fill the model: what it lacks would be random numbers.

    Raises:
        ValueError: If a weight is missing or of another shape.
    """
    for what, why in (("missing_keys", "lacks"), ("mismatched_keys", "has in another shape")):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info[what])
        if names:
            raise ValueError(
                f"model.name: {source!r} {why} {len(names)} weights of the model "
                f"({', '.join(names[:3])}{' ...' if len(names) > 3 else ''}); give the folder of a "
                "complete checkpoint."
            )


def quantization(model: ModelConfig) -> BitsAndBytesConfig | None:
    """Return how weights are quantised while they are loaded.

    Raises:
        ValueError: If bitsandbytes is not installed.
    """
    if model.quantize is None:
        return None
    if find_spec("bitsandbytes") is None:
        raise ValueError(
            f"model.quantize: {model.quantize} needs bitsandbytes, which is not installed; run "
            "`pip install bitsandbytes`, or take model.quantize out."
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
    """Write how a model saw images and wrote places beside its weights."""
    frame = {"resize": asdict(resize), "coordinates": asdict(coordinates)}
    (folder / FRAME).write_text(json.dumps(frame, indent=1) + "\n", encoding="utf-8")


def check_saved_frame(
    source: str, resize: Resize, coordinates: Coordinates, where: str = "model.image_size"
) -> None:
    """Refuse a folder whose model was trained in another frame: its boxes would be read wrongly.

    Args:
        source: The folder, or a hub name.
        resize: How images are seen here.
        coordinates: How places are written here.
        where: What says how images are seen here, for errors.

    Raises:
        ValueError: If the frame beside the weights is another.
    """
    file = Path(source, FRAME)
    if not file.is_file():
        return
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        theirs = {**saved["resize"], **RENAMED.update(saved["coordinates"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a frame ({error}); delete it or restore it.") from error
    for name, ours in {**asdict(resize), **asdict(coordinates)}.items():
        if theirs.get(name) != ours:
            setting = where if name in asdict(resize) else "model.coordinates"
            raise ValueError(
                f"{setting}: the model in {source} was trained with {name} {theirs.get(name)!r}, "
                f"and here it is {ours!r}: its coordinates would be read in another frame. Set it "
                f"as it was, or delete {file} to train the model for the new frame."
            )
