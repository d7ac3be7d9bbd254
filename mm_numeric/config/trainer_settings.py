"""Check settings for transformers.TrainingArguments without importing transformers.

TrainingArguments itself checks no types: it accepts ``learning_rate="1e-5"`` and keeps the string.
This module parses the field names, types and defaults from the source file of the installed
transformers, so that checking a config takes milliseconds.
"""

import ast
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mm_numeric.registry import unknown
from mm_numeric.settings import read_scalar

_SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_HOLDERS: dict[str, type] = {"dict": dict, "list": list}

OURS: Mapping[str, Any] = {
    "remove_unused_columns": False,
    "report_to": "none",
    "logging_nan_inf_filter": False,
}
"""Defaults that differ from those of transformers, with these reasons.

``remove_unused_columns``: the collator reads ``Example`` objects, not columns.
``logging_nan_inf_filter``: it synchronises the GPU at every step, and a non-finite loss stops the
run in any case.
"""

BY_MACHINE: Mapping[str, str] = {
    "disable_tqdm": "",
    "use_cpu": "",
    "dataloader_pin_memory": "",
    "dataloader_num_workers": " Default: min(4, CPU cores of the rank) if at least 1,000 training "
    "rows that are not streamed have an image, processes are forked and the runs of a comparison "
    "are executed one at a time; otherwise 0.",
}
"""Settings whose default depends on the machine, with an explanation after the help text."""

ONLY: Mapping[str, tuple[Any, str]] = {
    "remove_unused_columns": (False, "the collator reads examples, not columns"),
    "label_smoothing_factor": (0, "the objective is the loss"),
    "average_tokens_across_devices": (True, "the objective counts over all ranks"),
    "eval_strategy": ("no", "the section `evaluate` scores answers during training"),
    "load_best_model_at_end": (False, "`evaluate.best` saves the best weights"),
    "enable_jit_checkpoint": (False, "SIGTERM saves a checkpoint anyway"),
    # transformers halves the batch size only on the rank that had an error.
    "auto_find_batch_size": (False, "a step would have other rows than the config says"),
    "resume_from_checkpoint": (None, "there is `mm-numeric train ... --resume`"),
}
"""Settings with only one allowed value, and the reason for each."""

_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")

_WORDS: Mapping[str, tuple[str, ...]] = {
    "train_sampling_strategy": ("random", "sequential", "group_by_length"),
    "log_level": _LEVELS,
    "log_level_replica": _LEVELS,
}
"""Allowed values of settings that transformers does not validate.

transformers treats an unknown ``train_sampling_strategy`` as ``random``. ``batch_rebalance`` is
excluded because it needs a dataset column with lengths.
"""

_AT_LEAST: Mapping[str, int] = {
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "dataloader_prefetch_factor": 1,
    "dataloader_num_workers": 0,
    "learning_rate": 0,
    "num_train_epochs": 0,
}

SHORT_NAMES: Mapping[str, str] = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "accumulation_steps": "gradient_accumulation_steps",
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "warmup": "warmup_steps",
    "scheduler": "lr_scheduler_type",
    "grad_clip": "max_grad_norm",
}
"""Names of other trainers for settings, and the setting of TrainingArguments that they mean."""

_MORE_TYPES: Mapping[str, tuple[str, ...]] = {"fsdp": ("bool",)}
"""Types that a setting accepts according to its documentation, but not its annotation."""

DEEPSPEED = Path(__file__).parents[1] / "configs" / "deepspeed"
"""Folder of the shipped DeepSpeed configs, which ``trainer.deepspeed`` can name."""

NO_DEFAULT = object()
"""Sentinel: the default of a field is not a literal and so cannot be parsed from source."""


@dataclass(frozen=True)
class TrainerSetting:
    """Types, default and help text of one field of TrainingArguments."""

    types: tuple[str, ...]
    """Types in the field's annotation, such as ``("float", "str", "None")``."""

    default: Any
    help: str


@functools.cache
def trainer_settings() -> dict[str, TrainerSetting]:
    """Return types, default and help text of each field of the installed TrainingArguments."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ValueError(
            "trainer: transformers is not installed; run `pip install 'mm-numeric[train]'`."
        )
    path = Path(spec.origin).parent / "training_args.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments":
            return {
                line.target.id: TrainerSetting(
                    _types(line.annotation), _default(line.value), _help(line.value)
                )
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                if not line.target.id.startswith("_")
            }
    raise ValueError("trainer: this version of transformers has no TrainingArguments.")


def check_trainer_settings(raw: Any, where: str) -> dict[str, Any]:
    """Validate settings for TrainingArguments (names, types, values), and return the settings."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where}: expected settings as `key: value`, found {raw!r:.60}.")
    known = trainer_settings()
    checked = {}
    for key, value in raw.items():
        if key not in known:
            what, meant = "setting of transformers.TrainingArguments", SHORT_NAMES.get(key)
            raise unknown(key, known, what, where, meant)
        types = (*_MORE_TYPES.get(key, ()), *known[key].types)
        checked[str(key)] = _check(types, value, f"{where}.{key}")
        only, why = ONLY.get(key, (value, ""))
        if value != only:
            raise ValueError(f"{where}.{key}: only {only!r} can be used here, for {why}.")
        if key in _WORDS and value not in _WORDS[key]:
            raise unknown(value, _WORDS[key], "value", f"{where}.{key}")
        if key in _AT_LEAST and value is not None and checked[key] < _AT_LEAST[key]:
            raise ValueError(f"{where}.{key} must be at least {_AT_LEAST[key]}, not {value}.")
        if key == "deepspeed" and isinstance(value, str):
            find_deepspeed(value, f"{where}.{key}")
    steps, epochs = checked.get("max_steps"), checked.get("num_train_epochs")
    if steps == 0:
        raise ValueError(
            f"{where}.max_steps is 0, so that epochs are trained instead; remove it, or set it "
            "above 0."
        )
    if epochs == 0 and (steps is None or steps < 0):
        raise ValueError(
            f"{where}.num_train_epochs is 0, so that nothing would be trained; set max_steps or "
            "num_train_epochs above 0."
        )
    return checked


def step_notes(
    trainer: Mapping[str, Any], every_steps: int | None = None, rows: int | None = None
) -> list[str]:
    """Return a note for each setting in steps that the training is too short for.

    Args:
        trainer: Settings for TrainingArguments.
        every_steps: The setting ``evaluate.every_steps``.
        rows: Number of training rows, which determines the steps of epochs; None if unknown. Only
            the warm-up is compared with them: few rows may be a trial.
    """
    steps, source = int(trainer.get("max_steps") or -1), "trainer.max_steps"
    limits = {f"trainer.{name}": trainer.get(name) for name in ("logging_steps", "save_steps")}
    limits["evaluate.every_steps"] = every_steps
    if steps < 1 and rows:
        limits = {}
        batches = math.ceil(rows / trainer.get("per_device_train_batch_size", 8))
        per_epoch = math.ceil(batches / trainer.get("gradient_accumulation_steps", 1))
        steps = math.ceil(trainer.get("num_train_epochs", 3) * per_epoch)
        source = "on one device"
    notes, of = [], f"the training has {steps:,} steps ({source})"
    if 0 < steps <= (warmup := trainer.get("warmup_steps") or 0):
        notes.append(
            f"trainer.warmup_steps is {warmup:g}, and {of}: the learning rate does not reach "
            "trainer.learning_rate."
        )
    done = ("the loss is logged", "a checkpoint is saved", "the model is evaluated")
    for (name, every), what in zip(limits.items(), done, strict=False):
        if 0 < steps < (every or 0):
            notes.append(f"{name} is {every:g}, and {of}: {what} only after the last step.")
    return notes


def deepspeed_settings() -> dict[str, Path]:
    """Map the names of the shipped DeepSpeed configs to their files."""
    return {path.stem: path for path in sorted(DEEPSPEED.glob("*.json"))}


def find_deepspeed(name: str, where: str) -> Path:
    """Return the path of a DeepSpeed config; ``name`` is a path or a shipped config's name."""
    if Path(name).is_file():
        return Path(name)
    shipped = deepspeed_settings()
    if name in shipped:
        return shipped[name]
    if Path(name).suffix or Path(name).parent != Path():
        raise ValueError(f"{where}: there is no file {name}. What ships: {', '.join(shipped)}.")
    raise unknown(name, shipped, "DeepSpeed setting", where)


def trainer_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all TrainingArguments fields that are not in ``settings``.

    Defaults that depend on the machine, or are expressions instead of constants, are left out.
    """
    return {
        name: setting.default
        for name, setting in trainer_settings().items()
        if name not in settings and setting.default is not NO_DEFAULT and name not in BY_MACHINE
    }


def _check(types: tuple[str, ...], value: Any, where: str) -> Any:
    """Return a setting's value after checking that its type is one of ``types``."""
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
    """Split a type annotation: ``float | None`` becomes ``("float", "None")``."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return (*_types(annotation.left), *_types(annotation.right))
    return (ast.unparse(annotation),)


def _default(value: ast.expr | None) -> Any:
    """Parse the default value of a field; return ``NO_DEFAULT`` if it is not a literal."""
    if isinstance(value, ast.Call):
        value = next((k.value for k in value.keywords if k.arg == "default"), None)
    if value is None:
        return NO_DEFAULT
    try:
        return ast.literal_eval(value)
    except ValueError:
        return NO_DEFAULT


def _help(value: ast.expr | None) -> str:
    """Parse the help text in ``field(metadata={"help": ...})``; empty if there is none."""
    for found in ast.walk(value) if value else ():
        if isinstance(found, ast.Dict):
            for key, text in zip(found.keys, found.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "help":
                    return " ".join(str(ast.literal_eval(text)).split())
    return ""
