"""Trials of a comparison row: one training run for each combination of values of ``compare.tune``.

    tune: {trainer.learning_rate: [3.0e-4, 1.0e-3, 3.0e-3], trainer.warmup_steps: [20, 100]}

Here each row has 6 trials. Settings of objectives are not tuned: cross-entropy has none, so it
would be tuned less than the other objectives. Does not import torch.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_numeric.comparison.seeds import draws_rows, generate_same_rows, with_rows_of
from mm_numeric.config.compare import CompareConfig, row_name, value_name
from mm_numeric.config.data import DataSource, listed
from mm_numeric.config.reader import config_from_dict
from mm_numeric.config.schema import Config
from mm_numeric.io.files import matching_files
from mm_numeric.settings import with_setting

_NOT_TUNED = ("", "seed", "data_seed", "output_dir")

Axis = list[tuple[str, Any]]
"""The values of one setting to try, each with its label."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run of a row, with values of the tuned settings."""

    name: str
    """Name of the run folder."""

    config: Config
    settings: Mapping[str, Any]
    """Tuned settings: maps dotted names to values."""


def axis_values(axis: Any, values: Any, axes: Sequence[str], where: str) -> list[tuple[str, Any]]:
    """Return the label and value of each entry of a grid axis or of a tuned setting.

    ``axes`` are the names of all axes, so that labels such as ``weight_0.3`` are unambiguous.
    """
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
        entries = [value if isinstance(value, Mapping) else {"preset": value} for value in values]
        return [(row_name(entry), value) for entry, value in zip(entries, values, strict=True)]
    named = []
    for value in values:
        if isinstance(value, list | tuple | Mapping):
            raise ValueError(
                f"{where}.{axis}: {value!r:.60} cannot be part of a name; write the axis as a "
                "mapping from names to values."
            )
        named.append((value_name(axis, value, axes), value))
    return named


def tuned_axes(tune: Mapping[str, Any], where: str) -> dict[str, Axis]:
    """Read ``compare.tune``: map each tuned setting to its values. Empty: nothing is tuned."""
    for path in tune:
        room, _, name = str(path).partition(".")
        if room != "trainer" or name in _NOT_TUNED:
            raise ValueError(
                f"{where}.tune: {path!r} cannot be tuned; tune settings of trainer, such as "
                "trainer.learning_rate, and compare others in a grid."
            )
    return {path: axis_values(path, tune[path], list(tune), f"{where}.tune") for path in tune}


def check_selection(row: Config, compare: CompareConfig, where: str) -> None:
    """Check that ``compare.select_on`` has no rows that a row is trained or tested on."""
    if compare.select_on is None:
        return
    train = [
        with_rows_of(source, seed)
        for source in listed(row.data.train)
        for seed in (
            0,
            *((*compare.tune_seeds, *compare.seeds) if draws_rows(compare.vary) else ()),
        )
    ]
    for name, others in (("test", [row.data.test]), ("train", train)):
        if any(_overlap(compare.select_on, other) for other in others):
            raise ValueError(
                f"{where}.select_on: settings would be chosen on rows of data.{name}; choose other "
                "rows, such as synthetic ones of another seed."
            )


def _overlap(one: DataSource, other: DataSource) -> bool:
    """Return True if two sources read the same files or split, or generate rows of one seed."""
    if one.synthetic is not None:
        return generate_same_rows(one, other)
    if one.dataset is not None:
        same = (one.dataset, one.subset) == (other.dataset, other.subset)
        return same and _share_rows(one.split, other.split)
    return bool(_files(one) & _files(other))


def _share_rows(one: str, other: str) -> bool:
    """Return True if two splits have a part in common, as ``train`` and ``train[:500]+test``.

    Two slices of a split, such as ``train[:500]`` and ``train[500:]``, are different parts.
    """
    parts = ([part.strip() for part in split.split("+")] for split in (one, other))
    return any(
        a == b or a == b.partition("[")[0] or b == a.partition("[")[0]
        for a, b in itertools.product(*parts)
    )


def _files(source: DataSource) -> set[Path]:
    paths = [source.path] if isinstance(source.path, str) else source.path or ()
    return {file.resolve() for path in paths for file in matching_files(path)}


def make_trials(row: Config, axes: Mapping[str, Axis], where: str) -> list[Trial]:
    """Return the trials of a row in the order of ``itertools.product``; [] if nothing is tuned."""
    name = row.objective.name
    trials = []
    for combination in itertools.product(*axes.values()) if axes else ():
        settings = {path: value for path, (_, value) in zip(axes, combination, strict=True)}
        raw = row.to_dict()
        for path, value in settings.items():
            raw = with_setting(raw, path, value, f"{where}, {path}")
        config = config_from_dict(raw, where=f"{where}, {name}", title=row.title)
        label = "_".join([name, *(label for label, _ in combination)])
        trials.append(Trial(name=label, config=config, settings=settings))
    return trials
