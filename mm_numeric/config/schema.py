"""Dataclasses that validate the sections of a config file. Does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mm_numeric.config.data import DataConfig, EvaluateConfig
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.decoding import DECODE_RULES, GREEDY
from mm_numeric.config.decoding import PredictConfig as PredictConfig
from mm_numeric.config.modules import LoraSettings, ModulesConfig
from mm_numeric.config.published_results import PUBLISHED
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.parsing import check_at_least_1, check_choices
from mm_numeric.registry import unknown
from mm_numeric.tasks.base import Task

_VARIED = ("weights", "order", "noise", "rows")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Config section ``model``: which checkpoint is loaded, and how."""

    name: str
    """A hub name, a folder, or ``tiny`` (a small, randomly initialised model for offline tests)."""

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
class CompareConfig:
    """Config section ``compare``: a comparison of training objectives.

    Each row of the result table is an objective, optionally with other changed settings. A model is
    first trained with cross-entropy (the warm start). All rows then continue from it on the same
    batches. A row that changes the model, the task or the data has its own warm start with these
    settings; changed settings of ``trainer`` do not apply to the warm start.
    """

    output_dir: str
    """Folder of the comparison, which contains one run folder for each seed and row."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds, at least one. Every row is trained once with each seed."""

    vary: tuple[str, ...] | None = None
    """What each seed draws anew: ``weights`` (random initialisation), ``order`` (of the data),
    ``noise`` (of the training labels), ``rows`` (rendered training rows). Test rows are the same
    for all seeds. null: all four; in an existing folder, what its runs vary."""

    objectives: tuple[Any, ...] = ("ce", "emd", "ntl_was", "ntil")
    """Objectives, each the name of a preset or a mapping with these keys:

    ``name``: name of the row.
    ``preset`` and fields of ``ObjectiveSpec``: the objective.
    ``with``: settings outside the objective, such as ``{model.name: my/large}``. Settings of the
    row's warm start are also possible: ``{compare.warm_start.max_steps: 900}``.
    ``baseline``: ``baseline: xval`` is short for ``with: {model.baseline: xval}``.

    The first objective is the reference that all others are compared with, except rows of a grid:
    they are compared with the first row that differs only in the objective.
    """

    grid: Mapping[str, Any] = field(default_factory=dict)
    """Maps dotted settings, such as ``objective.weight``, to a list of values or to a mapping from
    names to values. Each combination is a row, after those of ``objectives``, which may be
    empty."""

    control: str | None = "ce_times_1.3"
    """Preset of the control objective; null: no control. The default is CE times 1.3: Adam
    hardly notices the scale of a loss, so this shows how much two runs of one objective differ."""

    warm_start: Mapping[str, Any] = field(default_factory=dict)
    """Changed ``trainer`` settings for the warm start, which is trained with cross-entropy."""

    tune: Mapping[str, Any] = field(default_factory=dict)
    """Maps settings of ``trainer`` or ``objective``, such as ``trainer.learning_rate``, to a list
    of values. Every row, also the reference and the control, is trained with each combination from
    the same warm start. The combination with the best first metric on ``select_on`` (mean over the
    seeds; of equals, with the best next metric) is reported on the test rows. Empty: no tuning."""

    select_on: DataSource | None = None
    """Rows to choose the tuned settings on, such as ``{render: 500, seed: 3}``; not those of
    ``data.test`` or ``data.train``. Required with ``tune``."""

    decode: tuple[str, ...] = (GREEDY,)
    """Decoding rules; every run is scored under each of them, without training again: ``greedy``,
    which is the first and which the others are compared with, ``mean``, ``median``, ``mbr``."""

    jobs: int = 1
    """Number of seeds that run in parallel, each in its own process; at least 1."""

    published: str | None = None
    """Published results to report: a name in ``published_results.PUBLISHED``; null: none."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different whole numbers, at least one: {self.seeds}")
        if not self.objectives and not self.grid:
            raise ValueError("objectives must name at least one preset if there is no grid")
        if bool(self.tune) != (self.select_on is not None):
            raise ValueError("tune and select_on are set together; set both or none")
        check_at_least_1(self, "jobs")
        if self.vary is not None and (not self.vary or not set(self.vary) <= set(_VARIED)):
            raise ValueError(
                f"vary lists one or more of {', '.join(_VARIED)}, not {list(self.vary)}; null is "
                "the default"
            )
        _check_rules(self.decode)
        if self.published is not None and self.published not in PUBLISHED:
            raise unknown(self.published, PUBLISHED, "table", "published")


def _check_rules(rules: tuple[str, ...]) -> None:
    for rule in rules:
        if rule not in DECODE_RULES:
            raise unknown(rule, DECODE_RULES, "rule", "decode")
    if rules[:1] != (GREEDY,) or len(set(rules)) < len(rules):
        raise ValueError(
            f"decode lists {GREEDY} first, and each rule once, not {list(rules)}; write for "
            f"example [{GREEDY}, median]"
        )


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

    predict: PredictConfig
    evaluate: EvaluateConfig | None
    """None: no evaluation during training."""

    compare: CompareConfig | None

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
            "predict": asdict(self.predict),
            "evaluate": asdict(self.evaluate) if self.evaluate else None,
            "compare": asdict(self.compare) if self.compare else None,
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
