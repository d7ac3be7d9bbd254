"""Check settings of transformers.TrainingArguments without loading transformers.

TrainingArguments accepts ``learning_rate="1e-5"`` and keeps the string. Here its names, types and
defaults are parsed from its source, so that a config is checked in milliseconds and against the
installed version.
"""

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mm_numeric.parsing import read_scalar
from mm_numeric.registry import unknown

_SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_HOLDERS: dict[str, type] = {"dict": dict, "list": list}

OURS: Mapping[str, Any] = {
    "remove_unused_columns": False,
    "report_to": "none",
    "logging_nan_inf_filter": False,
}
"""Defaults that differ from those of transformers. The collator reads examples, not columns; a
non-finite loss stops the run anyway, and the filter would synchronise the GPU at every step."""

BY_MACHINE = ("disable_tqdm", "use_cpu", "dataloader_pin_memory")
"""Settings that depend on the terminal and the accelerator, unless the config has them."""

_ONLY: Mapping[str, tuple[Any, str]] = {
    "remove_unused_columns": (False, "the collator reads examples, not columns"),
    "label_smoothing_factor": (0, "the objective is the loss"),
    "average_tokens_across_devices": (True, "the objective counts over all ranks"),
    "enable_jit_checkpoint": (False, "SIGTERM saves a checkpoint anyway"),
    "resume_from_checkpoint": (None, "there is `mm-numeric train ... --resume`"),
}

_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")

_WORDS: Mapping[str, tuple[str, ...]] = {
    "train_sampling_strategy": ("random", "sequential", "group_by_length"),
    "log_level": _LEVELS,
    "log_level_replica": _LEVELS,
}
"""Allowed values of settings that transformers does not validate: unknown values would silently
mean ``random``, and its ``batch_rebalance`` needs a column with lengths."""

_FROM_1 = (
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "dataloader_prefetch_factor",
)

_MORE_TYPES: Mapping[str, tuple[str, ...]] = {"fsdp": ("bool",)}
"""Types that transformers documents for a setting but does not annotate."""

DEEPSPEED = Path(__file__).parents[1] / "configs" / "deepspeed"
"""Folder of the shipped DeepSpeed configs; ``trainer.deepspeed`` names one of them."""

NO_DEFAULT = object()
"""Marks a default that is not a literal."""


@dataclass(frozen=True)
class TrainerSetting:
    """One field of TrainingArguments."""

    types: tuple[str, ...]
    """The members of its annotation, such as ``("float", "str", "None")``."""

    default: Any


@functools.cache
def trainer_settings() -> dict[str, TrainerSetting]:
    """Return every field of the installed TrainingArguments."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ValueError("trainer: transformers is not installed; run `pip install mm-numeric`.")
    source = Path(spec.origin).with_name("training_args.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments":
            return {
                line.target.id: TrainerSetting(_types(line.annotation), _default(line.value))
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                if not line.target.id.startswith("_")
            }
    raise ValueError("trainer: this version of transformers has no TrainingArguments.")


def check_trainer_settings(raw: Any, where: str) -> dict[str, Any]:
    """Check names and types of settings of TrainingArguments."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where}: expected settings as `key: value`, found {raw!r:.60}.")
    known = trainer_settings()
    checked = {}
    for key, value in raw.items():
        if key not in known:
            raise unknown(key, known, "setting of transformers.TrainingArguments", where)
        types = (*_MORE_TYPES.get(key, ()), *known[key].types)
        checked[str(key)] = _check(types, value, f"{where}.{key}")
        only, why = _ONLY.get(key, (value, ""))
        if value != only:
            raise ValueError(f"{where}.{key}: only {only!r} can be used here, for {why}.")
        if key in _WORDS and value not in _WORDS[key]:
            raise unknown(value, _WORDS[key], "value", f"{where}.{key}")
        if key in _FROM_1 and value is not None and checked[key] < 1:
            raise ValueError(f"{where}.{key} must be at least 1, not {value}.")
        if key == "deepspeed" and isinstance(value, str):
            find_deepspeed(value, f"{where}.{key}")
    return checked


def deepspeed_settings() -> dict[str, Path]:
    """Return the files of the shipped DeepSpeed configs, by name."""
    return {path.stem: path for path in sorted(DEEPSPEED.glob("*.json"))}


def find_deepspeed(name: str, where: str) -> Path:
    """Return the file of a DeepSpeed config, given its path or the name of a shipped one."""
    if Path(name).is_file():
        return Path(name)
    shipped = deepspeed_settings()
    if name in shipped:
        return shipped[name]
    if Path(name).suffix or Path(name).parent != Path():
        raise ValueError(f"{where}: there is no file {name}. What ships: {', '.join(shipped)}.")
    raise unknown(name, shipped, "DeepSpeed setting", where)


def trainer_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all other settings whose default is a literal."""
    return {
        name: setting.default
        for name, setting in trainer_settings().items()
        if name not in settings and setting.default is not NO_DEFAULT and name not in BY_MACHINE
    }


def _check(types: tuple[str, ...], value: Any, where: str) -> Any:
    """Check one value against the members of an annotation."""
    kinds = [_SCALARS[name] for name in types if name in _SCALARS]
    holders = tuple(
        _HOLDERS[n] for n in (name.partition("[")[0] for name in types) if n in _HOLDERS
    )
    if (value is None and "None" in types) or f"Literal[{value!r}]" in types:
        return value
    if isinstance(value, Mapping | list) or (holders and not kinds):
        if isinstance(value, holders):
            return value
        raise ValueError(f"{where}: {value!r:.60} is not one of {', '.join(types)}.")
    is_known = type(value) in kinds or (float in kinds and type(value) is int)
    if not kinds or (is_known and value == value):  # nan is not equal to itself
        return value
    return read_scalar(kinds[0], value, where)


def _types(annotation: ast.expr) -> tuple[str, ...]:
    """Return the members of ``float | str | None`` as strings."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return (*_types(annotation.left), *_types(annotation.right))
    return (ast.unparse(annotation),)


def _default(value: ast.expr | None) -> Any:
    """Return a default if it is a literal, also inside ``field(default=...)``."""
    if isinstance(value, ast.Call):
        value = next((k.value for k in value.keywords if k.arg == "default"), None)
    if value is None:
        return NO_DEFAULT
    try:
        return ast.literal_eval(value)
    except ValueError:
        return NO_DEFAULT
