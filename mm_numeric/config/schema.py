"""Configs: complete YAML files, read strictly into dataclasses. Loads no torch.

Every error is one sentence: file, field, what was found, what is allowed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mm_numeric.config.data import DataConfig, EvaluateConfig
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.modules import LoraSettings, ModulesConfig
from mm_numeric.config.published_results import PUBLISHED
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.registry import unknown
from mm_numeric.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model is fine-tuned."""

    name: str
    """A hub name, a folder, or ``tiny``: a small model made from code, for trials offline."""

    family: str = "qwen2_vl"
    """A key of ``mm_numeric.registry.FAMILIES``."""

    revision: str = "main"
    """Of a hub name; pin a commit before a result is published."""

    dtype: str = "auto"
    """auto (as the checkpoint says), float32, bfloat16 or float16."""

    attention: str = "sdpa"
    """sdpa (torch's own, with its flash kernel where that fits), eager, or flash_attention_2, _3 or
    _4, each of a package."""

    coordinates: Any = None
    """Coordinate format: a key of ``mm_numeric.geometry.coordinates.COORDINATES``, or a mapping
    with
    ``preset`` and what changes; by default as the family was trained to."""

    digits: str | None = None
    """single: every digit is a token of its own, where the tokenizer would join some (GPT-2,
    Llama-3, T5). merged: it does join them. null: as the checkpoint has them."""

    baseline: Any = None
    """Another way to output numbers: a key of ``mm_numeric.registry.BASELINES``, or a mapping with
    that as ``name`` and its settings."""

    image_size: Mapping[str, int] = field(default_factory=dict)
    """How large images are seen: ``min_pixels`` and ``max_pixels`` of Qwen, ``side`` where the
    family lets it be chosen. What is not set is as the checkpoint says."""

    quantize: str | None = None
    """nf4 or int8, through bitsandbytes; null for the weights as they are."""

    trust_remote_code: bool = False
    """Whether code that a checkpoint brings along may run."""

    def __post_init__(self) -> None:
        """Refuse what no checkpoint can be loaded with."""
        dtypes = ("auto", "float32", "bfloat16", "float16")
        if self.dtype not in dtypes:
            raise ValueError(f"dtype is one of {', '.join(dtypes)}, not {self.dtype!r}")
        if self.digits not in (None, "single", "merged"):
            raise ValueError(f"digits is single, merged or null, not {self.digits!r}")
        attentions = ("eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4)))
        if self.attention not in attentions:
            raise ValueError(f"attention is one of {', '.join(attentions)}, not {self.attention!r}")
        if self.quantize not in (None, "nf4", "int8"):
            raise ValueError(f"quantize is nf4, int8 or null, not {self.quantize!r}")
        for name, value in self.image_size.items():
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"image_size.{name} is a whole number of at least 1, not {value!r}"
                )


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """How answers are generated: greedily, in batches."""

    batch_size: int = 64
    max_new_tokens: int = 16

    def __post_init__(self) -> None:
        """Refuse what answers nothing."""
        for name, value in (
            ("batch_size", self.batch_size),
            ("max_new_tokens", self.max_new_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """A fair comparison: every row goes on from one warm start, over the same batches.

    A row is an objective, and can have settings of its own; its warm start then has them too.
    """

    output_dir: str
    seeds: tuple[int, ...] = (0, 1, 2)
    objectives: tuple[Any, ...] = ("ce", "emd", "ntl_was", "ntil")
    """Presets, or mappings with a ``name`` and what changes; the first is compared with. ``with``
    has settings outside the objective (``with: {model.name: my/large}``); ``baseline: xval`` is
    short for ``with: {model.baseline: xval}``."""

    grid: Mapping[str, Any] = field(default_factory=dict)
    """Settings and the values that each takes; every combination is a row behind the objectives,
    which may be an empty list. ``objective`` and ``objective.weight`` are settings like others."""

    control: str | None = "ce_times_1.3"
    """A preset that must not win: the published ratio also just scales the loss by 1.3."""

    warm_start: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``trainer`` that differ in the warm start, which is trained with CE alone."""

    jobs: int = 1
    """How many seeds run at the same time, each in its own process."""

    published: str | None = None
    """A published table to show in the report: a key of ``mm_numeric.config.published_results``."""

    def __post_init__(self) -> None:
        """Refuse a comparison of nothing."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different whole numbers, at least one: {self.seeds}")
        if not self.objectives and not self.grid:
            raise ValueError("objectives must name at least one preset where there is no grid")
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, not {self.jobs}")
        if self.published is not None and self.published not in PUBLISHED:
            raise unknown(self.published, PUBLISHED, "table", "published")


@dataclass(frozen=True, kw_only=True)
class NamedObjective:
    """An objective and what to call it in tables."""

    name: str
    spec: ObjectiveSpec


@dataclass(frozen=True, kw_only=True)
class Config:
    """One complete job."""

    title: str
    """The file's name without its ending."""

    task_name: str
    task: Task
    """The task itself, made from the fields of its class."""

    data: DataConfig
    model: ModelConfig
    modules: ModulesConfig
    lora: LoraSettings | None
    """None if no module is adapted."""

    objective: NamedObjective
    trainer: Mapping[str, Any]
    """Handed unchanged to transformers.TrainingArguments."""

    predict: PredictConfig
    evaluate: EvaluateConfig | None
    """None where nothing is answered while training."""

    compare: CompareConfig | None

    @property
    def output_dir(self) -> Path:
        """Where ``train`` writes."""
        return Path(self.trainer["output_dir"])

    def to_dict(self) -> dict[str, Any]:
        """Return the config as it would be written, every default filled in."""
        sections = {
            "task": {"name": self.task_name, **self.task.options()},
            "data": asdict(self.data),
            "model": asdict(self.model),
            "modules": asdict(self.modules),
            "lora": asdict(self.lora) if self.lora else None,
            "objective": {"name": self.objective.name, **asdict(self.objective.spec)},
            "trainer": dict(self.trainer),
            "predict": asdict(self.predict),
            "evaluate": asdict(self.evaluate) if self.evaluate else None,
            "compare": asdict(self.compare) if self.compare else None,
        }
        return plain(sections)

    def to_yaml(self) -> str:
        """Return the config as YAML that reads back to the same config."""
        return yaml.dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)


def plain(value: Any) -> Any:
    """Turn tuples into lists, so that YAML has a word for everything."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
