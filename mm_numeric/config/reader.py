"""Read config files into the dataclasses of ``mm_numeric.config.schema``.

Every error names the file, the field, the value that was found, and what is allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mm_numeric.config.baseline import check_baseline
from mm_numeric.config.data import DataConfig, EvaluateConfig
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.parts import read_lora, read_parts
from mm_numeric.config.renamed import with_new_names
from mm_numeric.config.schema import (
    CompareConfig,
    Config,
    ModelConfig,
    NamedObjective,
    PredictConfig,
)
from mm_numeric.config.training_arguments import OURS, check_trainer_settings
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.losses.presets import PRESETS
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.parsing import read_dataclass, read_yaml, with_override
from mm_numeric.registry import FAMILIES, HABITS, TASKS, TERMS, choose, unknown
from mm_numeric.tasks.base import task_class

CONFIGS = Path(__file__).parents[1] / "configs"
"""Where the shipped configs are."""


def read_config(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file strictly.

    Args:
        name: A file, or the name of a shipped config.
        overrides: ``trainer.learning_rate=1.0e-4`` and the like, applied before reading.

    Raises:
        ValueError: One sentence about the first thing that is wrong.
    """
    path = find_config(name)
    raw = read_yaml(path)
    for override in overrides:
        raw = with_override(raw, override)
    return config_from_dict(raw, where=path.name, title=path.stem)


def find_config(name: str | Path) -> Path:
    """Return the file of a config: a path, or the name of one that ships.

    Raises:
        ValueError: If there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = {p.stem: p for p in sorted(CONFIGS.glob("*.yaml"))}
    if path.suffix or path.parent != Path():
        raise ValueError(f"{name}: there is no such file. Shipped configs: {', '.join(shipped)}.")
    if str(name) not in shipped:
        raise unknown(str(name), shipped, "config", str(name))
    return shipped[str(name)]


def config_from_dict(
    raw: Mapping[str, Any], *, where: str, title: str, stored: bool = False
) -> Config:
    """Make a config from the content of a YAML file, as ``read_config`` does.

    Args:
        raw: The content; old key names are accepted.
        where: The file, for errors and warnings.
        title: Name of the config.
        stored: Whether this library wrote the file; old key names in it give no warning.

    Raises:
        ValueError: If a setting is unknown, missing or invalid.
    """
    raw = with_new_names(raw, where, warn=not stored)
    known = [
        "task",
        "data",
        "model",
        "parts",
        "lora",
        "objective",
        "trainer",
        "predict",
        "evaluate",
        "compare",
    ]
    for key in raw:
        if key not in known:
            raise unknown(key, known, "setting", where)
    for key in ("task", "data", "model", "trainer"):
        if raw.get(key) is None:
            raise ValueError(f"{where}: the setting {key!r} is missing.")
    task = raw["task"] if isinstance(raw["task"], Mapping) else {"name": raw["task"]}
    if not isinstance(task.get("name"), str):
        raise ValueError(f"{where}, task.name: name a task. Known: {', '.join(TASKS)}.")
    cls = task_class(task["name"], f"{where}, task.name")
    options = {key: value for key, value in task.items() if key != "name"}
    model = read_dataclass(ModelConfig, raw["model"], f"{where}, model")
    habit = HABITS.get(model.family, {}).get(task["name"])
    if habit is not None:
        options.setdefault("prompt", habit)
    predict, evaluate, compare = raw.get("predict"), raw.get("evaluate"), raw.get("compare")
    parts = read_parts(raw.get("parts"), f"{where}, parts")
    config = Config(
        title=title,
        task_name=task["name"],
        task=read_dataclass(cls, options, f"{where}, task"),
        data=read_dataclass(DataConfig, raw["data"], f"{where}, data"),
        model=model,
        parts=parts,
        lora=read_lora(raw.get("lora"), parts, f"{where}, lora"),
        objective=read_objective(raw.get("objective", "ce"), f"{where}, objective"),
        trainer={**OURS, **check_trainer_settings(raw["trainer"], f"{where}, trainer")},
        predict=read_dataclass(
            PredictConfig, {} if predict is None else predict, f"{where}, predict"
        ),
        evaluate=None
        if evaluate is None
        else read_dataclass(EvaluateConfig, evaluate, f"{where}, evaluate"),
        compare=None
        if compare is None
        else read_dataclass(CompareConfig, compare, f"{where}, compare"),
    )
    if config.model.family not in FAMILIES and ":" not in config.model.family:
        raise unknown(config.model.family, FAMILIES, "family", f"{where}, model.family")
    if config.model.coordinates is not None:
        read_coordinates(config.model.coordinates, f"{where}, model.coordinates")
    if model.quantize is not None and not parts.adapted:
        raise ValueError(
            f"{where}, model.quantize: quantised weights cannot be trained; adapt a part, such as "
            "`parts: {language: adapted}`, or take quantize out."
        )
    if model.baseline is not None:
        check_baseline(model, config.objective.spec, parts, where)
        if config.data.stream:
            raise ValueError(
                f"{where}, data.stream: a baseline is fitted to all training answers before it is "
                "trained; leave stream out, or model.baseline."
            )
    if not config.trainer.get("output_dir"):
        raise ValueError(f"{where}, trainer.output_dir: name the folder that the run is kept in.")
    config.data.refuse_trainer(config.trainer, where)
    if config.compare:
        warm_where = f"{where}, compare.warm_start"
        check_trainer_settings(config.compare.warm_start, warm_where)
    return config


def read_objective(value: Any, where: str) -> NamedObjective:
    """Read an objective: the name of a preset, or a mapping.

    The mapping may have ``preset`` (what it starts from, ``ce`` by default), ``name`` (for tables;
    else the preset and what was changed) and every field of ``ObjectiveSpec``.

    Raises:
        ValueError: If a preset, a term or a field does not exist, or a value is refused.
    """
    options = {"preset": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping):
        raise ValueError(f"{where}: name a preset ({', '.join(PRESETS)}) or give a mapping.")
    options = dict(options)
    preset = options.pop("preset", "ce")
    base = choose(str(preset), PRESETS, "objective", where)
    if not isinstance(base, ObjectiveSpec):
        raise ValueError(f"{where}: {preset!r} is not an ObjectiveSpec.")
    changes = [f"{k}_{v}" for k, v in options.items() if k not in ("name", "terms")]
    changes += ["terms"] if "terms" in options else []
    name = str(options.pop("name", "_".join([str(preset), *changes])))
    fields = asdict(base)
    fields.update(options)
    spec = read_dataclass(ObjectiveSpec, fields, where)
    for i, term in enumerate(spec.terms):
        if term.name not in TERMS and ":" not in term.name:
            raise unknown(term.name, TERMS, "loss term", f"{where}.terms.{i}.name")
    return NamedObjective(name=name, spec=spec)


def read_coordinates(value: Any, where: str) -> Coordinates:
    """Read how places are written: a name, or a mapping with ``preset`` and what changes.

    Raises:
        ValueError: If there is no such name or field, or a value is refused.
    """
    if isinstance(value, Coordinates):
        return value
    options = {"preset": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping):
        raise ValueError(f"{where}: name one of {', '.join(COORDINATES)}, or give a mapping.")
    options = dict(options)
    base = asdict(Coordinates())
    if "preset" in options:
        preset = str(options.pop("preset"))
        if preset not in COORDINATES:
            raise unknown(preset, COORDINATES, "way to write coordinates", where)
        base = asdict(COORDINATES[preset])
    found: Coordinates = read_dataclass(Coordinates, {**base, **options}, where)
    return found


def with_trainer(config: Config, **settings: Any) -> Config:
    """Return a config with some settings of ``trainer`` changed."""
    return replace(config, trainer={**config.trainer, **settings})
