"""Load the model, tokenizer and image processor that a config names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.utils import GENERATION_CONFIG_NAME

from mm_numeric.baselines.baseline import with_baseline
from mm_numeric.compat import keep_checkpoint_names
from mm_numeric.config.schema import TINY, Config, ModelConfig
from mm_numeric.data.images import limit_images
from mm_numeric.data.lengths import max_positions
from mm_numeric.families.family import Family
from mm_numeric.io.atomic_files import atomic_folder
from mm_numeric.io.files import is_memory_full, memory_full_message, read_json
from mm_numeric.io.log import shows_progress
from mm_numeric.models.adapters import base_of_adapters, has_adapters, load_adapted
from mm_numeric.models.checkpoint_values import (
    CheckpointValueError,
    check_image_processor,
    check_values,
    explain_value,
    weights_as_in_files,
)
from mm_numeric.models.location_tokens import load_with_tokens
from mm_numeric.registry import API, FAMILIES, choose
from mm_numeric.runs.folder import MODEL
from mm_numeric.runs.trust import checkpoint_code

_TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model")
"""Patterns of tokenizer files. A folder with a checkpoint must have at least one such file."""

_FILES = ("*.safetensors", "*.json", "*.model")
_LFS_POINTER = b"version https://git-lfs."
"""First bytes of the pointer files that a `git clone` without git-lfs has instead of weights."""

_MISSING_PACKAGES = "Missing optional dependencies: "
"""Text before the names of packages in a ValueError of transformers 5.23."""


def device_type() -> str:
    """Return the type of the device on which models run, such as ``cuda`` or ``cpu``.

    Apple's MPS is not used, because it does not support float64, which is needed for exact sums.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps" or not torch.accelerator.is_available():
        return "cpu"
    return accelerator.type


def model_source(config: Config, folder: Path) -> str:
    """Return the hub name or the folder from which to load the model of a config.

    If ``model.name`` is ``tiny``, first create a tiny random model in a subfolder of ``folder``.
    """
    if config.model.name != TINY:
        return config.model.name
    source = folder / "init"
    if not source.is_dir():
        source.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(source) as unfinished:
            family_class(config).make_tiny(unfinished, seed=config.trainer.get("seed", 42))
    return str(source)


def family_class(config: Config) -> type[Family]:
    """Return the class of a config's model family; raise ValueError for any other class."""
    where = f"{config.title}, model.family"
    families = {**FAMILIES, API: "mm_numeric.families.api:Api"}
    cls: type[Family] = choose(config.model.family, families, "family", where)
    if not isinstance(cls, type) or not issubclass(cls, Family):
        raise ValueError(
            f"{where}: {config.model.family!r} is not a subclass of "
            "mm_numeric.families.family:Family."
        )
    if "name" not in vars(cls):  # messages must not name the parent
        cls.name = cls.__name__
    return cls


def load_family(config: Config, source: str) -> Family:
    """Load the prompt format, tokenizer and image processor of a checkpoint (its ``Family``)."""
    cls = family_class(config)
    limit_images(config.data.largest_image)
    if config.model.family == API:
        return cls.load(source, config.model)
    _check_source(source, f"{config.title}, model.name")
    if config.model.baseline is not None:
        cls = with_baseline(cls, config.model.baseline, f"{config.title}, model.baseline")
    with _short_errors(config, source):
        family = cls.load(source, config.model)
        if family.takes_images:
            check_image_processor(family)
        family.max_positions = _max_positions(family, source, config.model)
    return family


def _check_source(source: str, where: str) -> None:
    path = Path(source)
    if path.is_dir():
        if not any(found for name in _TOKENIZER_FILES for found in path.glob(name)):
            remedy = "copy the tokenizer files of its base model into it"
            if (path / MODEL).is_dir():
                remedy = f"name the weights of this run, {path / MODEL}"
            files = ", ".join(_TOKENIZER_FILES)
            raise ValueError(
                f"{where}: the folder {source!r} has no tokenizer ({files}); {remedy}."
            )
        return
    if path.is_file() or source.startswith((".", "~", os.sep)):
        found = "a file, not a folder" if path.is_file() else "there is no such folder"
        raise ValueError(f"{where}: {source!r}: {found}.{_nearest_folder(path)}")


def _nearest_folder(path: Path) -> str:
    """Return a hint with the checkpoint folder next to ``path`` whose name is similar, or ""."""
    siblings = [p.name for p in path.parent.glob("*") if (p / "config.json").is_file()]
    near = get_close_matches(path.name, siblings, n=1)
    return f" Did you mean {str(path.parent / near[0])!r}?" if near else ""


def _max_positions(family: Family, source: str, model: ModelConfig) -> int | None:
    """Return the maximum sequence length of the model ``source``; None if unlimited or unknown."""
    if has_adapters(source):
        base, revision = base_of_adapters(source)
        try:
            return max_positions(family.load_config(base, replace(model, revision=revision)))
        except OSError:  # load_adapted reports a missing base model
            return None
    if Path(source).is_dir() and not Path(source, "config.json").is_file():
        return None
    return max_positions(family.load_config(source, model))


def load_model(config: Config, family: Family, source: str) -> Any:
    """Load the model in ``source``, and its base model if ``source`` holds only adapters."""
    with _short_errors(config, source):
        settings = Path(source, GENERATION_CONFIG_NAME)
        if settings.is_file():
            read_json(settings)  # transformers would ignore a damaged file
        if has_adapters(source):
            model = load_adapted(family, source, config.model)
        else:
            model = load_with_tokens(family, source, config.model)
    if family.tensor_parallel > 1 and not model.tp_size:  # the weights were not divided
        raise _no_plan(source)
    keep_checkpoint_names(model)
    return model


def share_weights(family: Family, source: str, model: ModelConfig, ranks: int) -> None:
    """Make ``load_model`` load this rank's part of the weights, for ``predict.tensor_parallel``.

    Raises ValueError if ``ranks`` ranks cannot share the model in the folder ``source``.
    """
    where = "predict.tensor_parallel"
    if ranks == 1:
        raise ValueError(
            f"{where}: there is one rank; start several with `torchrun --nproc-per-node N -m "
            "mm_numeric predict ...`, or set it to false."
        )
    if has_adapters(source):
        raise ValueError(
            f"{where}: {source} holds adapters, which ranks cannot share; set it to false."
        )
    text = family.load_config(source, model).get_text_config()
    if not text.base_model_tp_plan:
        raise _no_plan(source)
    heads = getattr(text, "num_key_value_heads", ranks)
    if heads % ranks:
        raise ValueError(
            f"{where}: {ranks} ranks cannot share the {heads} key-value heads of {source} equally; "
            "start a number of ranks that divides them, or set it to false."
        )
    family.tensor_parallel = ranks


def _no_plan(source: str) -> ValueError:
    return ValueError(
        f"predict.tensor_parallel: transformers has no tensor parallel plan for a model like "
        f"{source}; set it to false, so that each rank loads the whole model."
    )


def quiet_unless_terminal() -> None:
    """Disable the progress bars of transformers if the output is not a terminal."""
    if not shows_progress():
        transformers.utils.logging.disable_progress_bar()


@contextmanager
def _short_errors(config: Config, source: str) -> Iterator[None]:
    """Context manager that replaces errors of ``from_pretrained`` with short ValueErrors."""
    folder = Path(source)
    try:
        if has_adapters(source):
            check_values(folder)
            folder = Path(base_of_adapters(source)[0])
        check_values(folder)
        with weights_as_in_files(folder):
            yield
    except Exception as error:
        damage = find_damage(Path(source)) or find_damage(folder)
        message = f"{damage}; restore it." if damage else _reason(error, source)
        if isinstance(error, CheckpointValueError):
            message = str(error)
        elif is_memory_full(error):
            message = memory_full_message(error)
        elif message is None:
            message = explain_value(error, folder)
        if message is None:
            raise
        raise ValueError(f"{config.title}, model.name: {message}") from error


def find_damage(folder: Path) -> str | None:
    """Return a message with the first unreadable file of a checkpoint; None if all are readable."""
    for file in sorted(file for pattern in _FILES for file in folder.glob(pattern)):
        with file.open("rb") as content:
            if content.read(len(_LFS_POINTER)) == _LFS_POINTER:
                return f"{file}: a git-lfs pointer, not the file; `git lfs pull` downloads it"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{file}: not a whole file of weights ({error})"
    for file in sorted(folder.glob("*.json")):
        try:
            if not isinstance(read_json(file), dict):
                return f"{file}: expected a JSON object"
        except ValueError as error:
            return str(error).removesuffix(".")
    return None


def _reason(error: Exception, source: str) -> str | None:
    """Return a short message for a known error of ``from_pretrained``; None for other errors."""
    first, *_ = [line.strip() for line in str(error).strip().splitlines()] or [""]
    if isinstance(error, ImportError) or _MISSING_PACKAGES in first:
        what = first.rpartition(_MISSING_PACKAGES)[2].partition(". ")[0].rstrip(".:")
        return f"{source!r} needs a package that is not installed ({what}); install it."
    path = Path(source)
    no_config = isinstance(error, KeyError) and not (path / "config.json").is_file()
    if isinstance(error, OSError) or no_config:
        here = "" if path.exists() else f" There is no such folder here.{_nearest_folder(path)}"
        return (
            f"{source!r} cannot be loaded ({first}).{here} Give a hub name, a folder with a "
            f"checkpoint, or {TINY!r}."
        )
    if isinstance(error, ValueError) and "trust_remote_code=True" in str(error):
        classes = checkpoint_code(Path(source)) or ["see its files on the hub"]
        return (
            f"{source!r} needs Python code of its own to be loaded ({', '.join(classes)}); if you "
            "trust whoever made it, set model.trust_remote_code to true."
        )
    lines = [line.strip() for line in str(error).splitlines() if "size mismatch" in line]
    if isinstance(error, RuntimeError) and lines:  # only under ZeRO-3; else load_weights reports it
        return (
            f"{source!r} has weights of another shape ({lines[0]}); set the folder of a complete "
            "checkpoint."
        )
    return None
