"""Read config files into the dataclasses of ``mm_numeric.config.schema``.

Every error names the file, the field, the value that was found, and what is allowed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mm_numeric.config.compare import CompareConfig, objective_name
from mm_numeric.config.data import AugmentConfig, DataConfig, EvaluateConfig, listed
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.modules import (
    LOCATION_TOKENS,
    ModulesConfig,
    ModuleSettings,
    read_lora,
    read_modules,
)
from mm_numeric.config.schema import (
    Config,
    DistilConfig,
    ModelConfig,
    NamedObjective,
    PredictConfig,
    check_baseline,
)
from mm_numeric.config.trainer_settings import OURS, check_trainer_settings
from mm_numeric.families.prompts import FAMILY_PROMPTS, FORMAT_PROMPTS
from mm_numeric.geometry.coordinates import COORDINATES, Coordinates
from mm_numeric.losses.presets import read_spec
from mm_numeric.registry import (
    API,
    AUGMENTATIONS,
    FAMILIES,
    PIXEL_OPERATIONS,
    TASKS,
    import_from,
    unknown,
)
from mm_numeric.settings import (
    read_dataclass,
    read_value,
    read_yaml,
    setting_at,
    with_override,
    with_setting,
)
from mm_numeric.tasks.base import needs_frame, task_class

CONFIGS = Path(__file__).parents[1] / "configs"
"""Folder of the shipped configs."""

_REQUIRED = ("task", "data", "model", "trainer")
_TRAINED = ("distil", "evaluate", "compare")
_SECTIONS = tuple(own.name for own in fields(Config) if own.name not in ("title", "task_name"))

_IMPORT_PATH = re.compile(r"(?!mm_numeric\.)[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_SOURCES = ("data.", "evaluate.data", "compare.select_on")
"""Prefixes of the dotted names of data sources."""

_SOURCE_SETTINGS = {
    "path": ("path",),
    "dataset": ("dataset", "subset", "split", "revision", "boxes"),
    "synthetic": ("synthetic",),
}
"""The three kinds of data sources, and the settings that only one kind has."""


def read_config(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and validate a config file; ``name`` is its path or the name of a shipped config.

    ``overrides`` are changed settings, such as ``trainer.learning_rate=1.0e-4``.
    """
    path = find_config(name)
    raw = with_overrides(read_yaml(path), overrides)
    if names_module(raw):
        own = read_value(str | None, raw.get("plugins"), f"{path.name}, plugins")
        # The modules for a shipped config are in the working directory, not next to the config.
        folder = Path() if path.parent == CONFIGS else path.parent
        raw = {**raw, "plugins": str(Path(own or folder).resolve())}
        import_from(raw["plugins"])
    try:
        return config_from_dict(raw, where=path.name, title=path.stem)
    except ValueError as error:
        if hint := _same_name_elsewhere(str(error), overrides):
            raise ValueError(f"{error} {hint}") from error
        raise


def names_module(value: Any) -> bool:
    """Return True if any setting in ``value`` has the form of an import path, ``my_tasks:Task``."""
    if isinstance(value, Mapping):
        return any(map(names_module, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(names_module, value))
    return isinstance(value, str) and _IMPORT_PATH.fullmatch(value) is not None


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of settings with all overrides applied.

    A data source has one of ``path``, ``dataset`` and ``synthetic``. An override of one of them
    removes the other two, and the settings that belong only to these. If overrides set two of them,
    both stay, and ``config_from_dict`` raises an error.
    """
    changed = dict(raw)
    for override in overrides:
        changed = with_override(changed, override)
    named = [override.partition("=")[0] for override in overrides]
    given = [re.sub(r"\.synthetic\..*", ".synthetic", name) for name in named]
    for name in given:
        section, _, kind = name.rpartition(".")
        if kind not in _SOURCE_SETTINGS or not section.startswith(_SOURCES):
            continue
        if setting_at(changed, name) is not None:
            others = [own for other, own in _SOURCE_SETTINGS.items() if other != kind]
            replaced = {f"{section}.{setting}" for own in others for setting in own} - {*given}
            source = setting_at(changed, section)
            kept = {key: own for key, own in source.items() if f"{section}.{key}" not in replaced}
            changed = with_setting(changed, section, kept, name)
    return changed


def _same_name_elsewhere(message: str, overrides: Sequence[str]) -> str:
    """Return a hint such as "Did you mean data.train.images?" for an override of ``images``.

    ``message`` is the error about the settings. The hint is empty if ``message`` already has a
    hint, or if no setting in another section ends with the same name as the unknown setting.
    """
    for override in overrides:
        path = override.partition("=")[0].split(".")
        unknown_word = any(f"there is no setting {word!r}" in message for word in path)
        if not unknown_word or "Did you mean" in message:
            continue
        from mm_numeric.config.explain import known_settings  # takes a second

        same = {s.path for s in known_settings() if s.path.split(".")[-1] == path[-1]}
        sections = [*dict.fromkeys((path[0], "data", "trainer", *_SECTIONS))]
        found = sorted(same, key=lambda name: (sections.index(name.split(".")[0]), name[::-1]))
        if found:
            return f"Did you mean {' or '.join(found[:2])}?"
    return ""


def find_config(name: str | Path) -> Path:
    """Return the path of a config file; ``name`` is its path or the name of a shipped config."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = {p.stem: p for p in sorted(CONFIGS.glob("*.yaml"))}
    if str(name) in shipped:
        return shipped[str(name)]
    if name and path.is_dir():
        inside = path / "config.yaml"
        hint = f"; name {inside}" if inside.is_file() else ""
        raise ValueError(f"{name}: a folder, not a config, which is a YAML file{hint}.")
    files = {p.name: str(p) for p in path.parent.glob("[!.]*.y*ml")}
    known = {**{stem: stem for stem in shipped}, **files}
    if path.suffix or path.parent != Path():
        near = [known[found] for found in get_close_matches(path.name, known, n=1)]
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(shipped)
        raise ValueError(f"{name}: there is no such file.{hint} Shipped configs: {listed}.")
    raise unknown(str(name), known, "config", str(name))


def _check_served(raw: Mapping[str, Any], model: ModelConfig, where: str) -> None:
    """Raise ValueError if the config of a model on a server has a section about training."""
    for section in _TRAINED if model.family == API else ():
        if raw.get(section) is not None:
            raise ValueError(
                f"{where}, {section}: a model on a server (model.family: {API}) is not trained; "
                "remove the section."
            )


def _read_modules(raw: Mapping[str, Any], model: ModelConfig, where: str) -> ModulesConfig:
    """Read ``modules``. If a module uses LoRA, location tokens are trained by default."""
    modules = read_modules(raw.get("modules"), f"{where}, modules")
    if modules.adapted and modules.embeddings is None and has_location_tokens(model, where):
        return replace(modules, embeddings=ModuleSettings(how=LOCATION_TOKENS))
    return modules


def config_from_dict(raw: Mapping[str, Any], *, where: str, title: str) -> Config:
    """Validate the parsed content of a YAML file; ``where`` is its name in error messages."""
    for key in raw:
        if key not in _SECTIONS:
            raise unknown(key, _SECTIONS, "setting", where)
    for key in _REQUIRED:
        if raw.get(key) is None and not (key == "trainer" and _is_served(raw)):
            raise ValueError(f"{where}: the setting {key!r} is missing.")
    model = read_dataclass(ModelConfig, raw["model"], f"{where}, model")
    _check_served(raw, model, where)
    task_name, task = _read_task(raw["task"], model, where)
    modules = _read_modules(raw, model, where)
    predict = {} if raw.get("predict") is None else raw["predict"]
    evaluate = raw.get("evaluate", None if model.family == API else {})
    config = Config(
        title=title,
        task_name=task_name,
        task=task,
        data=read_dataclass(DataConfig, raw["data"], f"{where}, data"),
        model=model,
        modules=modules,
        lora=read_lora(raw.get("lora"), modules, f"{where}, lora"),
        objective=read_objective(raw.get("objective", "ce"), f"{where}, objective"),
        trainer={**OURS, **check_trainer_settings(raw.get("trainer") or {}, f"{where}, trainer")},
        distil=_read_optional(DistilConfig, raw.get("distil"), f"{where}, distil"),
        predict=_read_optional(PredictConfig, predict, f"{where}, predict"),
        evaluate=_read_optional(EvaluateConfig, evaluate, f"{where}, evaluate"),
        compare=_read_optional(CompareConfig, raw.get("compare"), f"{where}, compare"),
        plugins=read_value(str | None, raw.get("plugins"), f"{where}, plugins"),
    )
    _check_model(config, where)
    if model.family == API:
        return config
    if not listed(config.data.train):
        raise ValueError(f"{where}, data.train: name at least one source of training rows.")
    if not config.trainer.get("output_dir"):
        raise ValueError(f"{where}, trainer.output_dir: set the folder of the run.")
    config.data.check_trainer(config.trainer, where)
    if config.data.augment:
        _check_augment(config, config.data.augment, f"{where}, data.augment.operations")
    if config.distil:
        _check_distil(config, config.distil, f"{where}, distil")
    if config.compare:
        check_trainer_settings(config.compare.warm_start or {}, f"{where}, compare.warm_start")
    return config


def _is_served(raw: Mapping[str, Any]) -> bool:
    return isinstance(raw["model"], Mapping) and raw["model"].get("family") == API


def _read_task(raw: Any, model: ModelConfig, file: str) -> tuple[str, Any]:
    where = f"{file}, task"
    options = dict(raw) if isinstance(raw, Mapping) else {"name": raw}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"{where}.name: name a task. Known: {', '.join(TASKS)}.")
    cls = task_class(name, f"{where}.name")
    default = FAMILY_PROMPTS.get(model.family, {}).get(name, {})
    if model.coordinates is not None:
        written = read_coordinates(model.coordinates, f"{file}, model.coordinates")
        default = {} if written.tokens else default  # the family's prompt may ask for JSON
        default = FORMAT_PROMPTS.get(written.format, {}).get(name, default)
    return name, read_dataclass(cls, {**default, **options}, where)


def _read_optional(section: type, raw: Any, where: str) -> Any:
    return None if raw is None else read_dataclass(section, raw, where)


def _check_model(config: Config, where: str) -> None:
    """Validate the config section ``model``: family, coordinates, quantisation and baseline."""
    model = config.model
    families = (*FAMILIES, API)
    if model.family not in families and ":" not in model.family:
        raise unknown(model.family, families, "family", f"{where}, model.family")
    if model.coordinates is not None:
        if has_location_tokens(model, where) and not needs_frame(config.task):
            raise ValueError(
                f"{where}, model.coordinates: answers of the task {config.task_name!r} are no "
                "coordinates, so that location tokens would never be trained; remove tokens."
            )
        written = read_coordinates(model.coordinates, f"{where}, model.coordinates")
        if written.text.points and not isinstance(config.task, task_class("text_spotting", where)):
            raise ValueError(
                f"{where}, model.coordinates: format {written.format!r} only writes words with "
                "their corners, for the task text_spotting, and the task is "
                f"{config.task_name!r}; set format to florence2."
            )
    elif model.family == API and needs_frame(config.task):
        raise ValueError(
            f"{where}, model.coordinates: answers of the task {config.task_name!r} are "
            "coordinates; name their format, such as relative_1000 (`mm-numeric ls --coordinates` "
            "lists them)."
        )
    if model.quantize is not None and not config.modules.adapted:
        raise ValueError(
            f"{where}, model.quantize: quantised weights cannot be trained; set "
            "`modules: {language: adapted}`, or remove quantize."
        )
    if model.baseline is not None:
        check_baseline(model, config.objective.spec, config.modules, where)
        if config.data.stream:
            raise ValueError(
                f"{where}, data.stream: a baseline is fitted to all training answers before "
                "training; remove stream or model.baseline."
            )
        if config.data.padding_free:
            raise ValueError(
                f"{where}, data.padding_free: a baseline reads padded batches; remove padding_free "
                "or model.baseline."
            )


def _check_augment(config: Config, augment: AugmentConfig, where: str) -> None:
    """Raise ValueError for an unknown operation, or if it would make the task's answers wrong."""
    legal = sorted({*PIXEL_OPERATIONS, *config.task.augmentations})
    for name in augment.operations:
        if name not in AUGMENTATIONS and ":" not in name:
            raise unknown(name, AUGMENTATIONS, "operation", where)
        if name in AUGMENTATIONS and name not in legal:
            raise ValueError(
                f"{where}: {name} would change the correct answers of the task "
                f"{config.task_name}; remove it. Legal for this task: {', '.join(legal)}."
            )
    if "mosaic" in augment.operations and config.data.stream:
        raise ValueError(
            f"{where}: mosaic draws from all training rows, and a stream reads one after another; "
            "remove mosaic or data.stream."
        )


def _check_distil(config: Config, distil: DistilConfig, where: str) -> None:
    check_trainer_settings(distil.trainer, f"{where}.trainer")
    if config.model.baseline is not None:
        raise ValueError(
            f"{where}: a baseline predicts its answers without a distribution over texts, so that "
            "there is no answer to decode; remove distil or model.baseline."
        )
    if distil.rows is not None and len(listed(config.data.train)) > 1:
        raise ValueError(
            f"{where}.rows: the first rows are all from one of the training sources; remove it."
        )


def read_objective(value: Any, where: str) -> NamedObjective:
    """Read an objective (training loss): a preset name, or a mapping of settings with a ``name``.

    The default of ``name`` is made of the preset and the changed settings.
    """
    if not isinstance(value, Mapping):
        return NamedObjective(name=str(value), spec=read_spec(value, where))
    options = {key: option for key, option in value.items() if key != "name"}
    return NamedObjective(name=objective_name(value), spec=read_spec(options, where))


def read_coordinates(value: Any, where: str) -> Coordinates:
    """Read ``model.coordinates``, the text format of coordinates: a preset name or a mapping."""
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
            raise unknown(preset, COORDINATES, "coordinate preset", where)
        base = asdict(COORDINATES[preset])
    tokens = options.get("tokens")
    if type(tokens) is int:
        if base["format"] == Coordinates.format:
            base["format"] = "location"
        is_exclusive = options.get("clamp", base["clamp"]) == "exclusive"
        base |= {"max_value": tokens if is_exclusive else tokens - 1, "decimals": 0}
    return read_dataclass(Coordinates, {**base, **options}, where)


def has_location_tokens(model: ModelConfig, where: str) -> bool:
    """Return True if ``model.coordinates`` adds location tokens to the tokenizer and the model."""
    if model.coordinates is None:
        return False
    return read_coordinates(model.coordinates, f"{where}, model.coordinates").tokens is not None


def with_trainer(config: Config, **settings: Any) -> Config:
    """Return a copy of a config with some ``trainer`` settings changed."""
    return replace(config, trainer={**config.trainer, **settings})
