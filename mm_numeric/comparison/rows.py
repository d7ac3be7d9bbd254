"""Create the rows of a comparison table: the listed losses, then all combinations of a grid.

    objectives: [ce, {name: large, preset: ntl_was, with: {model.name: my/large}}]
    grid:
      objective: [ntl_was, ntl_mse]
      objective.numeric_weight: [0.15, 0.3]
      trainer.learning_rate: {slow: 1.0e-4, fast: 1.0e-3}

This grid has 2 x 2 x 2 rows; the first is called ``ntl_was_numeric_weight_0.15_slow``. Each entry
of the grid is a dotted setting with a list of values, or with a mapping from names to values.

With ``compare.warm_start``, rows share a warm start (a model trained with CE). A row has its own
warm start if it changes the model, the task, the data, or settings of ``compare.warm_start``.
Settings of ``trainer`` that a row changes, such as the learning rate, do not apply to its warm
start, nor does ``distil``, a later training on the model's own answers. Does not import torch.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mm_numeric.comparison.hypotheses import Hypothesis, Row, make_hypotheses
from mm_numeric.comparison.tune import Trial, axis_values, check_selection, make_trials, tuned_axes
from mm_numeric.config.compare import row_name
from mm_numeric.config.data import MOST_EVALUATED_ROWS, EvaluateConfig
from mm_numeric.config.decoding import GREEDY
from mm_numeric.config.reader import config_from_dict, find_config, read_config, read_objective
from mm_numeric.config.schema import Config, check_baseline, plain
from mm_numeric.runs.folder import WARM_START
from mm_numeric.settings import setting_at, with_setting

_COMPARISON_SETS = (
    "compare",
    "data.test",
    "trainer.seed",
    "trainer.data_seed",
    "trainer.output_dir",
)


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One row of the comparison table: an objective with its settings, trained once per seed."""

    config: Config
    """Config to train this row with, without the section ``compare``."""

    settings: Mapping[str, Any]
    """Settings that this row changes, other than the objective: maps dotted names to values."""

    axes: Mapping[str, Any]
    """Value of this row on each axis of the grid (the name of an objective or of a value, or a
    number); empty for a row outside the grid."""

    warm_start: str | None
    """Folder name of the run whose weights this row starts from: a model trained with CE. None: the
    row starts from the model of its config."""

    warm_trainer: Mapping[str, Any] | None
    """Section ``trainer`` of the warm start, except its seed and output folder."""

    reference: str | None
    """Name of the row that this row is compared with; None if there is no such row."""

    trials: Sequence[Trial]
    """One training run for each combination of ``compare.tune``; empty if nothing is tuned."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    """The tuned settings of ``config``; empty before they are chosen, or if nothing is tuned."""

    @property
    def name(self) -> str:
        """Return the name of the row in tables, which is also the name of its run folder."""
        return self.config.objective.name


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """An objective to compare, before validation; ``where`` is its location in the config."""

    objective: Any
    where: str
    settings: Mapping[str, Any]
    labels: Mapping[str, str] | None = None
    """Labels of ``settings`` for the folder name of the warm start; None: use the row's name."""

    axes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Parsed:
    """A draft after validation: its config, and the ``trainer`` settings of its warm start."""

    draft: _Draft
    config: Config
    warm_settings: Mapping[str, Any] | None


def compared_rows(config: Config, where: str = "config") -> list[ComparisonRow]:
    """Return the rows to compare: the listed objectives, then the combinations of the grid.

    The first row is the reference. If ``compare.control`` is set, the second row is a control: it
    has the settings of the first row, and the loss ``compare.control``.

    All runs are scored after training. During training, they are evaluated only if the config sets
    ``evaluate``, and all on the same number of rows.
    """
    if config.evaluate == EvaluateConfig():
        config = replace(config, evaluate=None)
    elif config.evaluate is not None and config.evaluate.rows is None:
        config = replace(config, evaluate=replace(config.evaluate, rows=MOST_EVALUATED_ROWS))
    where = f"{where}, compare"
    if config.comparison.ensemble and config.data.test.fold is not None:
        raise ValueError(
            f"{where}.ensemble: the runs of an ensemble answer the same rows, and each seed has "
            "its own data.test.fold; remove ensemble or data.test.fold."
        )
    listed = enumerate(config.comparison.objectives)
    drafts = [_listed(value, f"{where}.objectives.{i}") for i, value in listed]
    drafts += _combined(config, config.comparison.grid, f"{where}.grid")
    if config.comparison.control:
        # The control has no grid axes: with them, it would replace the first row in figures.
        control = replace(
            drafts[0], objective=config.comparison.control, where=f"{where}.control", axes={}
        )
        drafts.insert(1, control)
    parsed = [_parse(config, draft) for draft in drafts]
    tuned = tuned_axes(config.comparison.tune, where)
    for own in parsed:
        check_selection(own.config, config.comparison, where)
    for path in tuned:
        if path in config.comparison.grid or any(path in draft.settings for draft in drafts):
            raise ValueError(
                f"{where}.tune: {path!r} is also set by a row or the grid; remove one."
            )
    trials = [make_trials(own.config, tuned, f"{where}.tune") for own in parsed]
    _check_names([own.config.objective.name for own in parsed], where)
    _check_names([trial.name for own in trials for trial in own], where)
    references = _references(parsed, config.comparison.grid)
    return [
        ComparisonRow(
            config=own.config,
            settings=own.draft.settings,
            axes=own.draft.axes,
            warm_start=start,
            warm_trainer=None
            if own.warm_settings is None
            else {**config.trainer, **own.warm_settings},
            reference=reference,
            trials=runs,
        )
        for own, start, reference, runs in zip(
            parsed, _warm_starts(config, parsed, where), references, trials, strict=True
        )
    ]


def decoding_rules(config: Config, own: Config) -> Sequence[str]:
    """Return the rules of ``compare.decode`` that apply to a run with the config ``own``.

    A baseline predicts its answers without a distribution over texts: its only rule is ``greedy``.
    """
    return config.comparison.decode if own.model.baseline is None else (GREEDY,)


def stated_hypotheses(config: Config, where: str = "config") -> list[Hypothesis]:
    """Return the hypotheses of ``compare.hypotheses``."""
    rows = {
        row.name: Row(row.axes, decoding_rules(config, row.config)) for row in compared_rows(config)
    }
    return make_hypotheses(config.comparison.hypotheses, rows, f"{where}, compare")


def read_comparison(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file. If it describes a comparison, also check every row of its table."""
    config = read_config(name, overrides)
    if config.compare:
        compared_rows(config, find_config(name).name)
        stated_hypotheses(config, find_config(name).name)
    return config


def _listed(value: Any, where: str) -> _Draft:
    if not isinstance(value, Mapping):
        return _Draft(objective=value, where=where, settings={})
    objective = dict(value)
    settings = objective.pop("with", {})
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"{where}.with: expected settings as `key: value`, found {settings!r:.60}."
        )
    for path in settings:
        if str(path).partition(".")[0] == "objective":
            raise ValueError(
                f"{where}.with: {path!r} belongs to the objective; move it out of `with`."
            )
    baseline = objective.pop("baseline", None)
    if baseline is not None:
        if "model.baseline" in settings:
            raise ValueError(f"{where}: baseline and with.model.baseline are both set; remove one.")
        settings = {**settings, "model.baseline": baseline}
        objective["name"] = row_name(value)
    return _Draft(objective=objective, where=where, settings=settings)


def _combined(config: Config, grid: Mapping[str, Any], where: str) -> list[_Draft]:
    """Return a row for each combination of grid values, in the order of ``itertools.product``."""
    if not grid:
        return []
    axes = {axis: axis_values(axis, values, list(grid), where) for axis, values in grid.items()}
    drafts = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        label, value = chosen.pop("objective", (config.objective.name, None))
        entry = _listed(value, f"{where}.objective")
        base = config.objective if value is None else read_objective(entry.objective, entry.where)
        inside = {a: v for a, (_, v) in chosen.items() if a.startswith("objective.")}
        outside = {a: v for a, (_, v) in chosen.items() if a not in inside}
        if both := entry.settings.keys() & outside.keys():
            raise ValueError(f"{where}: {min(both)!r} of {label} is also an axis; remove one.")
        named = {"objective": (label, value), **chosen} if entry.settings else chosen
        # All fields are written out, so that a path like `objective.terms.0.weight` exists.
        changed = {"objective": plain(asdict(base.spec))}
        for axis, setting in inside.items():
            changed = with_setting(changed, axis, setting, f"{where}, {axis}")
        name = "_".join([label, *(label for label, _ in chosen.values())])
        drafts.append(
            _Draft(
                objective={**changed["objective"], "name": name},
                where=f"{where}, {name}",
                settings={**entry.settings, **outside},
                labels={axis: text for axis, (text, _) in named.items() if axis not in inside},
                axes={"objective": label, **{axis: _shown(*own) for axis, own in chosen.items()}},
            )
        )
    return drafts


def _shown(label: str, value: Any) -> Any:
    return value if type(value) in (int, float) else label


def _parse(config: Config, draft: _Draft) -> _Parsed:
    objective = read_objective(draft.objective, draft.where)
    if not draft.settings:
        if config.model.baseline is not None:
            remedy = "set a baseline for each row, or train without a comparison (compare=null)"
            check_baseline(config.model, objective.spec, config.modules, draft.where, remedy)
        own = replace(config, objective=objective, compare=None)
        return _Parsed(draft=draft, config=own, warm_settings=config.comparison.warm_start)
    raw = replace(config, objective=objective).to_dict()
    for path, value in draft.settings.items():
        is_fixed = any(f"{path}.".startswith(f"{own}.") for own in _COMPARISON_SETS)
        if is_fixed and not f"{path}.".startswith("compare.warm_start."):
            raise ValueError(f"{draft.where}: {path!r} is the same for all rows; remove it.")
        raw = with_setting(raw, str(path), value, f"{draft.where}, {path}")
    own = config_from_dict(raw, where=draft.where, title=config.title)
    if own.data.test != config.data.test:  # the row replaces the whole section
        raise ValueError(f"{draft.where}: 'data.test' is the same for all rows; do not change it.")
    warm_settings = own.comparison.warm_start
    return _Parsed(draft=draft, config=replace(own, compare=None), warm_settings=warm_settings)


_NOT_OF_WARM_STARTS = ("trainer", "predict")
"""Config sections whose settings in a row do not change the row's warm start."""


def _warm_starts(config: Config, rows: Sequence[_Parsed], where: str) -> list[str | None]:
    """Return the folder name of the warm start of each row; None for a row without one.

    Rows share a warm start if they only differ in the objective and in ``_NOT_OF_WARM_STARTS``.
    """
    names: dict[str, str] = {}

    def start(own: Config, changed: Mapping[str, Any], name: str) -> str:
        unused = dict.fromkeys((*_NOT_OF_WARM_STARTS, "objective", "distil", "compare"))
        key = _key({**own.to_dict(), **unused, "trainer": {**config.trainer, **changed}})
        return names.setdefault(key, name)

    if config.comparison.warm_start is not None:
        start(config, config.comparison.warm_start, WARM_START)
    found: list[str | None] = []
    for row in rows:
        if row.warm_settings is None:
            found.append(None)
            continue
        name, labels = row.config.objective.name, row.draft.labels
        if labels is not None:
            sections = {axis: axis.partition(".")[0] for axis in labels}
            used = (labels[axis] for axis in labels if sections[axis] not in _NOT_OF_WARM_STARTS)
            name = "_".join(used)
        found.append(start(row.config, row.warm_settings, f"{WARM_START}_{name}"))
    if len(set(names.values())) < len(names):
        raise ValueError(
            f"{where}: each warm start needs its own name; got {list(names.values())}. Rename a "
            "row or a grid value."
        )
    return found


def _references(rows: Sequence[_Parsed], grid: Mapping[str, Any]) -> list[str | None]:
    """Return the name of the row that each row is compared with, or None.

    For a listed objective, this is the first row. For a row of the grid, these conditions are tried
    in order. The first one that an earlier row meets decides, and the first such row is returned:

    1. it has the same settings, except the objective;
    2. it has the same task, data and values on the other axes (an objective may change more
       settings by ``with``);
    3. it has the same task and data.
    """
    axes = [axis for axis in grid if axis.partition(".")[0] != "objective"]
    first: dict[str, str] = {}
    references = []
    for own in rows:
        settings, name = own.config.to_dict(), own.config.objective.name
        settings |= {"objective": None, "compare": {"warm_start": own.warm_settings}}
        data = [settings["task"], settings["data"]]
        values = [setting_at(settings, axis) for axis in axes]
        found = [first.setdefault(_key(key), name) for key in (settings, [*data, values], data)]
        if not own.draft.axes:
            found = [rows[0].config.objective.name]
        references.append(next((other for other in found if other != name), None))
    return references


def _key(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True)


def _check_names(names: Sequence[str], where: str) -> None:
    for name in names:
        taken = name.startswith(WARM_START)
        if taken or name in ("", ".", "..") or "/" in name or "\\" in name:
            raise ValueError(
                f"{where}: {name!r} cannot be the name of a folder; choose another name."
            )
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: each row needs its own name; got {list(names)}.")
