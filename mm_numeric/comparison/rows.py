"""Create the rows of a comparison table: the listed losses, then all combinations of a grid.

    objectives: [ce, {name: large, preset: ntl_was, with: {model.name: my/large}}]
    grid:
      objective: [ntl_was, ntl_mse]
      objective.weight: [0.15, 0.3]
      trainer.learning_rate: {slow: 1.0e-4, fast: 1.0e-3}

This grid has 2 x 2 x 2 rows. The name of its first row is ``ntl_was_weight_0.15_slow``. Each entry
of the grid is a dotted setting with a list of values, or with a mapping from names to values. Rows
share a warm start (a model trained with CE) if only their objectives differ. Does not import torch.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mm_numeric.config.baseline import check_baseline
from mm_numeric.config.names import row_name, value_name
from mm_numeric.config.reader import config_from_dict, find_config, read_config, read_objective
from mm_numeric.config.schema import Config, NamedObjective, plain
from mm_numeric.parsing import with_setting
from mm_numeric.run_folder import WARM_START

_COMPARISON_SETS = ("compare", "data.test", "trainer.seed", "trainer.output_dir")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One row of the comparison table: an objective with its settings, trained once per seed."""

    config: Config
    """Config to train this row with, without the section ``compare``."""

    settings: Mapping[str, Any]
    """Settings that this row changes, other than the objective: dotted name to value."""

    warm_start: str
    """Folder name of the run whose weights this row starts from (CE, same settings)."""

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
    called: str | None = None
    """Suffix for the folder name of the warm start; None to use the name of the row."""


def compared_rows(config: Config, where: str = "config") -> list[ComparisonRow]:
    """Return the objectives to compare: those that the config lists, then those of its grid.

    Each is a row of the result table and is compared with the first one. If ``compare.control`` is
    set, the second one is a control experiment: the settings of the first one, with the loss
    ``compare.control``. Its default, 1.3 times cross-entropy, shows whether an improvement is due
    only to a larger loss.
    """
    assert config.compare is not None
    where = f"{where}, compare"
    listed = enumerate(config.compare.objectives)
    drafts = [_listed(value, f"{where}.objectives.{i}") for i, value in listed]
    drafts += _combined(config, config.compare.grid, f"{where}.grid")
    if config.compare.control:
        control = replace(drafts[0], objective=config.compare.control, where=f"{where}.control")
        drafts.insert(1, control)
    starts = {_start(config): WARM_START}
    rows = []
    for draft in drafts:
        objective = read_objective(draft.objective, draft.where)
        own = _with_settings(config, objective, draft)
        called = f"{WARM_START}_{draft.called or objective.name}"
        start = starts.setdefault(_start(own), called)
        rows.append(ComparisonRow(config=own, settings=draft.settings, warm_start=start))
    _check_names(rows, list(starts.values()), where)
    return rows


def read_comparison(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file. If it describes a comparison, also check every row of its table."""
    config = read_config(name, overrides)
    if config.compare:
        compared_rows(config, find_config(name).name)
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
    axes = {axis: _values(axis, values, list(grid), where) for axis, values in grid.items()}
    drafts = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        label, value = chosen.pop("objective", (config.objective.name, None))
        base = config.objective if value is None else read_objective(value, f"{where}.objective")
        inside = {a: v for a, (_, v) in chosen.items() if a.startswith("objective.")}
        outside = {a: v for a, (_, v) in chosen.items() if a not in inside}
        # All fields are written out, so that a path like `objective.terms.0.weight` exists.
        changed = {"objective": plain(asdict(base.spec))}
        for axis, setting in inside.items():
            changed = with_setting(changed, axis, setting, f"{where}, {axis}")
        name = "_".join([label, *(label for label, _ in chosen.values())])
        drafts.append(
            _Draft(
                objective={**changed["objective"], "name": name},
                where=f"{where}, {name}",
                settings=outside,
                called="_".join(chosen[axis][0] for axis in outside),
            )
        )
    return drafts


def _values(axis: str, values: Any, axes: list[str], where: str) -> list[tuple[str, Any]]:
    if not isinstance(axis, str):
        raise ValueError(f"{where}: {axis!r} is not a setting; write one, such as model.digits.")
    if axis in ("objective.name", "objective.preset"):
        raise ValueError(f"{where}: {axis!r} cannot be an axis; use the axis objective.")
    if not isinstance(values, list | tuple | Mapping) or not values:
        raise ValueError(
            f"{where}.{axis}: expected a list of values, or a mapping from names to values, found "
            f"{values!r:.60}."
        )
    if isinstance(values, Mapping):
        return [(str(name), value) for name, value in values.items()]
    if axis == "objective":
        return [(read_objective(value, f"{where}.{axis}").name, value) for value in values]
    named = []
    for value in values:
        if isinstance(value, list | tuple | Mapping):
            raise ValueError(
                f"{where}.{axis}: {value!r:.60} cannot be part of a name; write the axis as a "
                "mapping from names to values."
            )
        named.append((value_name(axis, value, axes), value))
    return named


def _with_settings(config: Config, objective: NamedObjective, draft: _Draft) -> Config:
    if not draft.settings:
        if config.model.baseline is not None:
            remedy = "set a baseline for each row, or train without a comparison (compare=null)"
            check_baseline(config.model, objective.spec, config.modules, draft.where, remedy)
        return replace(config, objective=objective, compare=None)
    raw = replace(config, objective=objective, compare=None).to_dict()
    for path, value in draft.settings.items():
        if any(f"{path}.".startswith(f"{own}.") for own in _COMPARISON_SETS):
            raise ValueError(f"{draft.where}: {path!r} is the same for all rows; remove it.")
        raw = with_setting(raw, str(path), value, f"{draft.where}, {path}")
    return config_from_dict(raw, where=draft.where, title=config.title)


def _start(config: Config) -> str:
    """Return the settings that determine the warm start of a comparison row, as JSON.

    These are all settings except the objective. Rows with equal JSON continue from the same warm
    start, a model trained with cross-entropy.
    """
    settings = config.to_dict() | {"objective": None, "compare": None}
    return json.dumps(settings, sort_keys=True)


def _check_names(rows: list[ComparisonRow], starts: list[str], where: str) -> None:
    """Check that the run folders of objectives and warm starts have unique and valid names."""
    for row in rows:
        taken = row.name.startswith(WARM_START)
        if taken or row.name in ("", ".", "..") or "/" in row.name or "\\" in row.name:
            raise ValueError(
                f"{where}: {row.name!r} cannot be the name of a folder; choose another name."
            )
    names = [*(row.name for row in rows), *starts]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: each row needs its own name; got {names}.")
