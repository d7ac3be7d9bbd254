"""Check the values in the JSON files of a checkpoint, because errors of transformers name no file.

A checkpoint may be damaged or malicious: a model with a billion layers would fill the memory, and a
model without attention heads would end in a traceback.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from PIL import Image
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import CONFIG_MAPPING

from mm_numeric.io.files import read_json

_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "adapter_config.json",
)

_LAYERS = r"n_layers?|num_(?:\w+_)?layers|depth"
_POSITIVE = re.compile(
    rf"{_LAYERS}|(?:n|num)_(?:\w+_)?heads?|vocab_size|hidden_size|n_embd|d_model|embed_dim|head_dim|"
    r"(?:temporal_)?patch_size|(?:spatial_)?merge_size|n_positions|in_channels|num_channels"
)
"""Names of entries whose value must be an integer above 0, null, or a list of such integers."""

_MOST_LAYERS = 10_000
_NOT_NEGATIVE = re.compile(
    r"(?!group_size$)\w*_size|n_inner|d_ff|\w*_pixels|max_position_embeddings|num_\w+"
)
_MAY_BE_ZERO = re.compile(r"num_nextn_predict_layers|num_(?:\w+_)?(?:shared|dense)_layers")

_KINDS: dict[str, tuple[type, ...]] = {
    "text_config": (dict,),
    "vision_config": (dict,),
    "quantization_config": (dict,),
    "auto_map": (dict, list),
    "id2label": (dict,),
    "label2id": (dict,),
    "rope_parameters": (dict,),
    "added_tokens_decoder": (dict,),
    "layer_types": (list,),
    "image_mean": (list,),
    "image_std": (list,),
    "tokenizer_class": (str,),
    "model_max_length": (int, float),
    "min_pixels": (int, float),
    "max_pixels": (int, float),
}
_KIND_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a number"}

_LIBRARIES = ("transformers", "huggingface_hub", "tokenizers", "torch", "peft", "PIL", "numpy")

_STEPS = {
    "preprocessor_config.json": "image_process",
    "processor_config.json": "image_process",
    "tokenizer_config.json": "tokenization",
    "generation_config.json": ".generation.",
}
"""For each file, a part of the names of the modules or functions that use it."""

_SIDE_PX = 224  # side of the image with which an image processor is tested

_MOST_TIMES = 64
"""Largest ratio of a model's weights to the weights in its files, which may be packed or tied."""

_LEAST_TENSORS, _LEAST_WEIGHTS, _MOST_TENSORS = 1_000, 10**8, 10**6
"""Numbers of tensors and weights that are always accepted, and the largest number of tensors."""


class CheckpointValueError(ValueError):
    """A value in a file of a checkpoint is impossible. The message names file, key and value."""


def check_values(folder: Path) -> None:
    """Raise CheckpointValueError if a value in the JSON files of a checkpoint is impossible."""
    for name in _FILES:
        if (folder / name).is_file():
            for path, value in _values(_read(folder / name)):
                if wanted := _wanted(path.rpartition(".")[2], value):
                    raise CheckpointValueError(
                        f"{folder / name}, {path}: {_short(value)} is not {wanted}; correct it."
                    )


def check_image_processor(family: Any) -> None:
    """Test the image processor of a family on an image, so that invalid settings raise errors.

    Raises CheckpointValueError if the pixels of the result are not finite.
    """
    image = Image.new("RGB", (_SIDE_PX, _SIDE_PX))
    family.frame(*image.size)
    for name, values in family.images([family.resize_image_once(image)]).items():
        if not bool(torch.isfinite(values).all()):
            raise CheckpointValueError(
                f"the image processor makes {name} that are not finite; correct image_std, "
                "image_mean and rescale_factor in its preprocessor_config.json."
            )


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except ValueError:  # reported later, by transformers or find_damage
        return {}
    return found if isinstance(found, dict) else {}


def _values(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each entry of an object and of its nested objects."""
    for name, value in found.items():
        yield f"{above}{name}", value
        if isinstance(value, dict):
            yield from _values(value, f"{above}{name}.")


def _wanted(name: str, value: Any) -> str | None:
    """Return the requirement that the value of an entry violates; None if the value is valid."""
    if value is None:
        return None
    if name in _KINDS and (not isinstance(value, _KINDS[name]) or isinstance(value, bool)):
        return _KIND_NAMES[_KINDS[name][0]]
    if name in ("dtype", "torch_dtype") and not isinstance(value, dict):
        dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else 0
        is_dtype = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        return None if is_dtype or value == "auto" else "the name of a dtype, such as float32"
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):  # its values are checked by their own names
            continue
        if _POSITIVE.fullmatch(name) and (type(each) is not int or each < 1):
            if each == 0 and _MAY_BE_ZERO.fullmatch(name):
                continue
            return "a whole number above 0"
        if re.fullmatch(_LAYERS, name) and each > _MOST_LAYERS:
            return f"a possible number of layers, at most {_MOST_LAYERS:,}"
        if _NOT_NEGATIVE.fullmatch(name) and type(each) in (int, float) and each < 0:
            return "0 or more"
    return None


def _short(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False)[:60]}"


@contextmanager
def weights_as_in_files(folder: Path) -> Iterator[None]:
    """Context manager that limits the number of a model's weights to a multiple of those in files.

    A larger model raises CheckpointValueError while it is created, before its weights use memory.
    """
    tensors, weights = 0, 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118
        tensors, weights = tensors + len(shapes), weights + sum(map(prod, shapes))
    limits = (_MOST_TENSORS, float("inf"))
    if tensors:
        limits = (
            max(_LEAST_TENSORS, _MOST_TIMES * tensors),
            max(_LEAST_WEIGHTS, _MOST_TIMES * weights),
        )
    made = [0, 0]

    def count(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and parameter.device.type == "meta":
            made[0] += 1
            made[1] += parameter.numel()
            if made[0] > limits[0] or made[1] > limits[1]:
                raise CheckpointValueError(_too_large(folder, tensors, weights))

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _too_large(folder: Path, tensors: int, weights: int) -> str:
    file = folder / "config.json"
    numbers = [(value, path) for path, value in _values(_read(file)) if type(value) is int]
    value, path = max(numbers, default=(0, "?"))
    return (
        f"{file}: it describes a model of far more weights than the {weights:,} in {tensors} "
        f"tensors of the checkpoint; correct it (its largest number is {path}, {value})."
    )


def explain_value(error: Exception, folder: Path) -> str | None:
    """Return a message with the values of a checkpoint that probably caused a library's error.

    Returns None if the error was not raised in a library (for example, in the user's module), or if
    the folder has no config.json.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    is_ours = modules[-1].startswith("mm_numeric.families.") and type(error) is not ValueError
    is_of_library = is_ours or modules[-1].partition(".")[0] in _LIBRARIES
    if not is_of_library or not (folder / "config.json").is_file():
        return None
    steps = " ".join([*modules, *(frame.f_code.co_name for frame in frames)])
    names = [name for name, step in _STEPS.items() if step in steps and (folder / name).is_file()]
    file = folder / [*names, "config.json"][0]
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    values, usual = [*_values(_read(file))], _usual(file)
    found = _named(reason, values) or _quoted(reason, values, usual) or _unusual(values, usual)
    listed = ", ".join(f"{path} ({_short(value)})" for path, value in found[:3])
    advice = f"check {listed}" if found else "restore it"
    where = file if found or names else folder
    return f"{where} cannot be used ({type(error).__name__}: {reason}); {advice}."


_Values = list[tuple[str, Any]]


def _named(reason: str, values: _Values) -> _Values:
    """Return the entries whose names are in quotation marks in an error message."""
    words = set(re.findall(r"['`](\w+)['`]", reason))
    return [pair for pair in values if pair[0].rpartition(".")[2] in words]


def _quoted(reason: str, values: _Values, usual: dict[str, Any]) -> _Values:
    """Return the entries whose values are in an error message, except default values."""
    words = re.findall(r"['`]([^'`]+)['`]|(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.]*\w)|: (\w+)$", reason)
    quoted = {word for each in words for word in each} - {"", "0", "1"}
    return [
        (path, value)
        for path, value in values
        if isinstance(value, str | int | float)
        and str(value) in quoted
        and usual.get(path, ...) != value
    ]


def _unusual(values: _Values, usual: dict[str, Any]) -> _Values:
    """Return the entries whose values have another type than the default values ``usual``."""
    return [
        (path, value)
        for path, value in values
        if value is not None
        and not path.endswith("_id")
        and (known := usual.get(path)) is not None
        and not isinstance(value, type(known) if type(known) is not float else int | float)
    ]


def _usual(file: Path) -> dict[str, Any]:
    """Return the default values for a config.json of a known model type; {} for other files."""
    kind = _read(file).get("model_type")
    if file.name != "config.json" or not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return {}
    return dict(_values(CONFIG_MAPPING[kind]().to_dict()))
