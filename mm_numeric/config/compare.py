"""Config section ``compare``: a comparison of training objectives. Does not import torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mm_numeric.config.data import DataSource, check_not_training
from mm_numeric.config.decoding import DECODE_RULES, GREEDY
from mm_numeric.registry import unknown
from mm_numeric.settings import check_at_least_1

_VARIED = ("weights", "order", "noise", "rows", "folds")


def objective_name(options: Mapping[str, Any]) -> str:
    """Return an objective's ``name`` or, if not set, a name made of its preset and settings.

    For example, the name of ``{preset: emd, numeric_weight: 0.8}`` is ``emd_numeric_weight_0.8``.
    """
    if "name" in options:
        return str(options["name"])
    skipped = ("preset", "terms", "with", "baseline")
    changes = [f"{key}_{value}" for key, value in options.items() if key not in skipped]
    changes += ["terms"] if "terms" in options else []
    return "_".join([str(options.get("preset", "ce")), *changes])


def row_name(options: Mapping[str, Any]) -> str:
    """Return the name of a comparison row, given its entry in ``compare.objectives``.

    This is ``name`` if set, else the names of the baseline and of the loss, for example
    ``regression_transformer_emd``. Without a baseline, it is only the name of the loss: ``emd``.
    With a baseline and the default loss ``ce``, it is only the name of the baseline: ``xval``.
    """
    name, baseline = objective_name(options), options.get("baseline")
    if baseline is None or "name" in options:
        return name
    short = str(baseline.get("name") if isinstance(baseline, Mapping) else baseline)
    return short if name == "ce" else f"{short}_{name}"


def value_name(axis: str, value: Any, axes: Sequence[str]) -> str:
    """Return a name for a grid value: ``balance_ratio`` for ``ratio`` of ``objective.balance``."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    words = axis.split(".")
    # The shortest dotted suffix of the axis that no other axis ends with.
    ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
    others = [f".{other}" for other in axes if other != axis]
    unique = (end for end in ends if not any(other.endswith(f".{end}") for other in others))
    return f"{next(unique, axis)}_{text}"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a task on a cluster: a run of a comparison, or a part of a prediction."""

    gpus: int = 0
    """Number of GPUs, 0 or 1."""

    cpus: int = 1
    """Number of CPU cores, at least 1; also the number of threads of torch."""

    memory_gib: float | None = None
    """Main memory in GiB, above 0; null: not reserved."""

    def __post_init__(self) -> None:
        check_at_least_1(self, "cpus")
        if self.gpus not in (0, 1):
            raise ValueError(f"gpus is 0 or 1, not {self.gpus}; a task uses one GPU at most")
        if self.memory_gib is not None and self.memory_gib <= 0:
            raise ValueError(f"memory_gib is above 0, not {self.memory_gib}")

    def __str__(self) -> str:
        memory = "" if self.memory_gib is None else f", {self.memory_gib:g} GiB"
        return f"{self.gpus} GPU, {self.cpus} CPU{memory}"


@dataclass(frozen=True, kw_only=True)
class HypothesisGroup:
    """Hypotheses of one family: that some rows have better answers than another row or rule."""

    family: str
    """Name of the family; groups may share it. P-values are corrected over its hypotheses."""

    metric: str
    """Name of the metric, such as ``within_5_minutes``."""

    objectives: tuple[str, ...]
    """Rows that should have the better answers: names of rows, or names of objectives in a grid.
    The name of an objective means one hypothesis for each row of the grid with this objective."""

    rules: tuple[str, ...] = (GREEDY,)
    """Decoding rules of the better answers; there is a hypothesis for each rule."""

    against: str | None = None
    """Row or objective with the worse answers; null: the same row under another rule."""

    against_rule: str | None = None
    """Decoding rule of the answers of ``against``; null: the same rule."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Config section ``compare``: a comparison of training objectives.

    Each row of the result table is an objective, optionally with other changed settings. All rows
    train from the same weights on the same batches, and each with its own loss from the first step.
    """

    output_dir: str
    """Folder of the comparison, which contains one run folder for each seed and row."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds, at least one. Every row is trained once with each seed."""

    vary: tuple[str, ...] | None = None
    """What each seed draws anew: ``weights`` (random initialisation), ``order`` (of the data),
    ``noise`` (of the training labels), ``rows`` (synthetic training rows), ``folds`` (seed S uses
    the fold that is S later in each source with ``fold``, such as ``data.test``). Without folds,
    test rows are the same for all seeds. null: the first four, and folds if ``data.test`` has one;
    if the folder already has runs, what these runs vary."""

    objectives: tuple[Any, ...] = ("ce", "emd", "ntl_was", "ntil")
    """Objectives, each the name of a preset or a mapping with these keys:

    ``name``: name of the row.
    ``preset`` and fields of ``ObjectiveSpec``: the objective.
    ``with``: settings outside the objective, such as ``{model.name: my/large}``. They may also
    change the warm start of this row: ``{compare.warm_start.max_steps: 900}``.
    ``baseline``: ``baseline: xval`` is short for ``with: {model.baseline: xval}``.

    The first objective is the reference that all others are compared with; in a grid, rows are
    compared under the same values of the other axes.
    """

    grid: Mapping[str, Any] = field(default_factory=dict)
    """Maps dotted settings, such as ``objective.numeric_weight``, to a list of values or to a
    mapping from names to values. Each combination of values is a row, after those of
    ``objectives``, which may be empty. Values of ``objective`` are written like ``objectives``."""

    control: str | None = "ce_times_1.3"
    """Preset of the control objective; null: no control. The default is CE times 1.3: Adam hardly
    depends on the scale of a loss, so this shows how much two runs with one objective differ."""

    warm_start: Mapping[str, Any] | None = None
    """Changed ``trainer`` settings of a warm start: a model that is first trained with
    cross-entropy, and whose training all rows continue. A row that changes the model, the task or
    the data has its own warm start. If a row changes settings of ``trainer``, these do not apply to
    the warm start. null: no warm start, so that each loss acts from the first step. A warm start
    hides a part of the effect of a loss: the report states the warm start's share of all steps."""

    metric: str | None = None
    """Name of the first metric, which decides the comparison and chooses the values of ``tune``.
    For example, ``log_mae`` is useful if a few long answers dominate ``mae``, and ``accuracy`` does
    not show how wrong answers are. null: the main metric of the task."""

    tune: Mapping[str, Any] = field(default_factory=dict)
    """Maps settings of ``trainer``, such as ``learning_rate``, to a list of values. Every row, also
    the reference and the control, is trained with each combination and each of ``tune_seeds``. The
    combination with the best first metric on ``select_on`` (mean over these seeds; the next metric
    decides between equal means) is then trained with ``seeds``, and answers the test rows. Empty:
    no tuning."""

    tune_seeds: tuple[int, ...] = (1000, 1001)
    """Seeds of the runs that choose the values of ``tune``; they must not be in ``seeds``."""

    select_on: DataSource | None = None
    """Rows to choose the tuned settings on, such as ``{path: validation.jsonl}``; not those of
    ``data.test`` or ``data.train``. Required with ``tune``."""

    decode: tuple[str, ...] = (GREEDY,)
    """Decoding rules, such as ``[greedy, median]``. Every run is trained once and scored under each
    rule. ``greedy`` must be the first; the others are compared with it. A baseline, such as a
    regression head, has no distribution over answers and only ``greedy``."""

    ensemble: bool = False
    """True: the runs of all seeds of each objective also answer together, under each rule other
    than ``greedy``: their distributions over answers are averaged, and the rule chooses from the
    average. Requires such a rule in ``decode`` and at least two seeds. A fair control is one run
    with as many steps as the runs of the ensemble have together."""

    hypotheses: tuple[HypothesisGroup, ...] = ()
    """Hypotheses that are stated before the runs, in families; the report has the corrected
    p-value of each. Finished runs stay valid if the hypotheses change."""

    jobs: int = 1
    """Number of processes that execute the runs, at least 1. Each process takes the next run that
    can start. If there are several GPUs, a process uses one of them."""

    resources: Resources | None = None
    """Resources that each run reserves with ``--engine ray``; required for this engine."""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different whole numbers, at least one: {self.seeds}")
        if not self.objectives and not self.grid:
            raise ValueError("objectives must name at least one preset if there is no grid")
        if bool(self.tune) != (self.select_on is not None):
            raise ValueError("tune and select_on are set together; set both or none")
        if self.tune and (not self.tune_seeds or set(self.tune_seeds) & set(self.seeds)):
            raise ValueError(
                f"tune_seeds lists one or more seeds that are not in seeds, {list(self.seeds)}, "
                f"not {list(self.tune_seeds)}"
            )
        if self.select_on is not None:
            check_not_training(self.select_on, "select_on")
        check_at_least_1(self, "jobs")
        if self.vary is not None and (not self.vary or not set(self.vary) <= set(_VARIED)):
            raise ValueError(
                f"vary lists one or more of {', '.join(_VARIED)}, not {list(self.vary)}; null is "
                "the default"
            )
        _check_rules(self.decode)
        if self.ensemble and (len(self.decode) < 2 or len(self.seeds) < 2):
            raise ValueError(
                "ensemble averages the distributions of several seeds; list two seeds, and a rule "
                f"other than {GREEDY} in decode, such as [{GREEDY}, median]"
            )


def _check_rules(rules: tuple[str, ...]) -> None:
    for rule in rules:
        if rule not in DECODE_RULES:
            raise unknown(rule, DECODE_RULES, "rule", "decode")
    if rules[:1] != (GREEDY,) or len(set(rules)) < len(rules):
        raise ValueError(
            f"decode lists {GREEDY} first, and each rule once, not {list(rules)}; write for "
            f"example [{GREEDY}, median]"
        )
