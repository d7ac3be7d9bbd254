"""Dataclasses that validate the sections of a config file. Does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mm_numeric.config.compare import CompareConfig
from mm_numeric.config.data import ALL, PARSEABLE, DataConfig, EvaluateConfig, check_keep
from mm_numeric.config.data import DataSource as DataSource
from mm_numeric.config.decoding import GREEDY, MBR, check_decode
from mm_numeric.config.decoding import PredictConfig as PredictConfig
from mm_numeric.config.modules import LoraSettings, ModulesConfig
from mm_numeric.losses.spec import ObjectiveSpec
from mm_numeric.registry import API, BASELINES, choose
from mm_numeric.settings import check_at_least_1, check_choices, read_dataclass
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
    """A name in ``mm_numeric.registry.FAMILIES``, or an import path of a family class. ``api``: a
    model on a server with a chat API, which only ``predict --endpoint`` can use; no files are
    loaded, and ``coordinates`` is required if answers are coordinates."""

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
    ``mm_numeric.registry.BASELINES``, or a mapping with ``name`` and settings. null: no
    baseline."""

    image_size: Mapping[str, int] = field(default_factory=dict)
    """Size of resized images: ``min_pixels`` and ``max_pixels`` limit the number of pixels (Qwen
    families). The family ``chat`` accepts integer and boolean settings of the checkpoint's image
    processor: ``max_patches: 1`` is one tile per image in InternVL, ``do_image_splitting: false``
    in SmolVLM. Defaults come from the checkpoint."""

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
            if not isinstance(value, bool) and (type(value) is not int or value < 1):
                raise ValueError(
                    f"image_size.{name} is a whole number >= 1, true or false, not {value!r}"
                )


@dataclass(frozen=True, kw_only=True)
class NamedObjective:
    """An objective (training loss), and its name in result tables."""

    name: str
    spec: ObjectiveSpec


@dataclass(frozen=True, kw_only=True)
class DistilConfig:
    """Config section ``distil``: a second training, on the model's own answers, after the first.

    The trained model, the teacher, answers the training rows under a decoding rule such as
    ``median``. It is then trained further, with cross-entropy, on these answers in place of the
    labels. Afterwards, greedy decoding gives almost the teacher's answers under the rule.
    """

    decode: Any = MBR
    """How the answers are chosen, as in ``predict.decode``. Other generation settings come from the
    section ``predict``."""

    keep: Any = PARSEABLE
    """Answers to train on, as in ``data.train.keep_answers``."""

    rows: int | None = None
    """Number of training rows to answer, spread evenly over the data, at least 1; null: all."""

    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Changed ``trainer`` settings for the second training, such as ``max_steps``."""

    def __post_init__(self) -> None:
        check_decode(self.decode)
        check_keep(self.keep, "keep")
        check_at_least_1(self, "rows")
        if self.rows is not None and self.keep == ALL:
            raise ValueError(f"keep is {ALL}, and rows limits the answers; remove one of them")
        if self.decode == GREEDY and not isinstance(self.keep, str):
            raise ValueError("keep is a share, and greedy answers have no confidence; set decode")
        if "output_dir" in self.trainer:
            raise ValueError("trainer.output_dir is that of the run; remove it from distil")


class BaselineChoice(NamedTuple):
    """A baseline (another method to output numbers, such as xVal) and its settings."""

    name: str
    kind: Any
    """A subclass of ``mm_numeric.baselines.baseline:Baseline``."""

    settings: Any
    """An instance of ``kind.settings_class``."""


def read_baseline(value: Any, where: str) -> BaselineChoice:
    """Read ``model.baseline``, which is a name, or a mapping with ``name`` and other settings."""
    options = {"name": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
        raise ValueError(
            f"{where}: name one of {', '.join(BASELINES)}, or use a mapping with `name`, not "
            f"{value!r:.60}."
        )
    name = options["name"]
    kind = choose(name, BASELINES, "baseline", where)
    if not (isinstance(kind, type) and hasattr(kind, "settings_class")):
        raise ValueError(
            f"{where}: {name!r} is not a subclass of mm_numeric.baselines.baseline:Baseline."
        )
    rest = {key: own for key, own in options.items() if key != "name"}
    return BaselineChoice(name, kind, read_dataclass(kind.settings_class, rest, where))


def check_baseline(
    model: Any, objective: Any, modules: Any, where: str, remedy: str = "set objective to ce"
) -> None:
    """Check that a config's model, loss and trainable ``modules`` are allowed with its baseline.

    A baseline with its own loss requires the objective ``ce``. A module to which the baseline adds
    weights must be trained. ``remedy`` is the advice in the error message for a wrong objective.
    """
    name, kind, _ = read_baseline(model.baseline, f"{where}, model.baseline")
    if kind.own_loss and (objective.terms or objective.ce_weight != 1):
        raise ValueError(
            f"{where}, objective: {name} has its own loss, which cannot be combined with "
            f"another one; {remedy}."
        )
    if kind.single_digits and model.digits == "merged":
        raise ValueError(f"{where}, model.digits: {name} needs one token per digit; remove merged.")
    for module in kind.new_modules:
        if modules.of(module).how != "trained":
            raise ValueError(
                f"{where}, modules.{module}: {name} adds new weights to the {module}, which would "
                f"stay at random values and not be saved; set `modules: {{{module}: trained}}`."
            )


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

    predict: PredictConfig
    evaluate: EvaluateConfig | None
    """None: no evaluation during training."""

    compare: CompareConfig | None

    plugins: str | None
    """Folder of modules that the config names by import paths, such as ``my_tasks:Compass``.
    If the config names a module, the default is the folder of the config file; otherwise, it is
    null. Modules in the working directory come first."""

    @property
    def output_dir(self) -> Path:
        """Return the folder that the run writes to, ``trainer.output_dir``."""
        return Path(self.trainer["output_dir"])

    @property
    def row_seed(self) -> int:
        """Return the seed of the order of rows: ``data_seed``, else ``seed``, else 42."""
        seeds = (self.trainer.get(name) for name in ("data_seed", "seed"))
        return int(next((seed for seed in seeds if seed is not None), 42))

    def require_weights(self) -> None:
        """Raise ValueError if the model is on a server, so that it cannot be trained."""
        if self.model.family == API:
            raise ValueError(
                f"{self.title}, model.family: {API} is a model on a server, for `mm-numeric "
                "predict --endpoint`; to train or check data, name the family of a checkpoint."
            )

    @property
    def comparison(self) -> CompareConfig:
        """Return the section ``compare``; raise ValueError if the config has none."""
        if self.compare is None:
            raise ValueError(f"{self.title}: no section `compare`; see `mm-numeric cp clock_tiny`.")
        return self.compare

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
