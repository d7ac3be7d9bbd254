"""Dataclasses that validate the sections of a config file. Does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mm_numeric.config.compare import CompareConfig
from mm_numeric.config.data import DataConfig, EvaluateConfig
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.decoding import PredictConfig as PredictConfig
from mm_numeric.config.distil import DistilConfig
from mm_numeric.config.grpo import GrpoConfig
from mm_numeric.config.modules import LoraSettings, ModulesConfig
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.settings import check_choices
from mm_numeric.tasks.base import Task

TINY = "tiny"
"""Name of a small, randomly initialised model, made offline."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Config section ``model``: which checkpoint is loaded, and how."""

    name: str
    """A hub name, a folder, or ``tiny``: a small, randomly initialised model for offline tests, in
    the families qwen2_vl, qwen2_5_vl, qwen3_vl, causal_lm and t5."""

    family: str = "qwen2_vl"
    """A name in ``mm_numeric.registry.FAMILIES``, or an import path of a family class."""

    revision: str = "main"
    """Branch, tag or commit of the model on the hub. Set a commit for results that you publish."""

    dtype: str = "auto"
    """dtype of the weights: ``auto`` (as saved), ``float32``, ``bfloat16`` or ``float16``."""

    attention: str = "sdpa"
    """Attention implementation: ``sdpa``, ``eager``, ``flash_attention_2``, ``flash_attention_3``
    or ``flash_attention_4``. Flash attention requires its own package."""

    coordinates: Any = None
    """How coordinates are written: a name in ``mm_numeric.geometry.coordinates.COORDINATES``, or a
    mapping with ``preset`` and fields of ``Coordinates``. null: the family's default."""

    digits: str | None = None
    """Digit tokenization. ``single``: one token per digit, also for tokenizers that merge digits
    (GPT-2, Llama-3, T5). ``merged``: keep the tokenizer, and require that it merges digits. null:
    keep the tokenizer."""

    baseline: Any = None
    """Baseline that outputs numbers in another way, such as a regression head: a name in
    ``mm_numeric.registry.BASELINES``, or a mapping with ``name`` and settings. null: none."""

    image_size: Mapping[str, int] = field(default_factory=dict)
    """Size of resized images: ``min_pixels`` and ``max_pixels`` limit the number of pixels (Qwen
    families); ``side`` is the side of a square. Defaults come from the checkpoint."""

    quantize: str | None = None
    """Quantise frozen weights with bitsandbytes: ``nf4`` or ``int8``; null: no quantisation."""

    trust_remote_code: bool = False
    """Allow transformers to execute Python code from the checkpoint."""

    def __post_init__(self) -> None:
        check_choices(
            self,
            dtype=("auto", "float32", "bfloat16", "float16"),
            attention=("eager", "sdpa", *(f"flash_attention_{i}" for i in (2, 3, 4))),
        )
        if self.digits not in (None, "single", "merged"):
            raise ValueError(f"digits is single, merged or null, not {self.digits!r}")
        if self.quantize not in (None, "nf4", "int8"):
            raise ValueError(f"quantize is nf4, int8 or null, not {self.quantize!r}")
        for name, value in self.image_size.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"image_size.{name} is a whole number >= 1, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class NamedObjective:
    """An objective (training loss), and its name in result tables."""

    name: str
    spec: ObjectiveSpec


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete, validated config, with one attribute for each section of the file."""

    title: str
    """Name of the config file without its suffix."""

    task_name: str
    task: Task
    """An instance of the task's class."""

    data: DataConfig
    model: ModelConfig
    modules: ModulesConfig
    lora: LoraSettings | None
    """None if no module is trained with LoRA."""

    objective: NamedObjective
    trainer: Mapping[str, Any]
    """Arguments for ``transformers.TrainingArguments``."""

    distil: DistilConfig | None
    """None: the model is not trained on its own answers."""

    grpo: GrpoConfig | None
    """None: the model is trained on the labels, and not by rewards."""

    predict: PredictConfig
    evaluate: EvaluateConfig | None
    """None: no evaluation during training."""

    compare: CompareConfig | None

    plugins: str | None
    """Folder of modules that the config names by import paths, such as ``my_tasks:Thermometer``.
    The default is the folder of the config file, and null if the config names no module. Modules in
    the working directory come first."""

    @property
    def output_dir(self) -> Path:
        """Return the folder that the run writes to, ``trainer.output_dir``."""
        return Path(self.trainer["output_dir"])

    def to_dict(self) -> dict[str, Any]:
        """Return the config, including defaults, as dictionaries, lists and scalars."""
        sections = {
            "task": {"name": self.task_name, **self.task.options()},
            "data": asdict(self.data),
            "model": asdict(self.model),
            "modules": asdict(self.modules),
            "lora": asdict(self.lora) if self.lora else None,
            "objective": {"name": self.objective.name, **asdict(self.objective.spec)},
            "trainer": dict(self.trainer),
            "distil": asdict(self.distil) if self.distil else None,
            "grpo": asdict(self.grpo) if self.grpo else None,
            "predict": asdict(self.predict),
            "evaluate": asdict(self.evaluate) if self.evaluate else None,
            "compare": asdict(self.compare) if self.compare else None,
            "plugins": self.plugins,
        }
        return plain(sections)

    def to_yaml(self) -> str:
        """Return the config, including defaults, as YAML text that can be read again."""
        return yaml.dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)


def plain(value: Any) -> Any:
    """Convert tuples to lists and keys to strings, recursively, for YAML."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
